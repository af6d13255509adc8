"""Executors with several processes: one per core, with one run and one thread each; or a few per GPU, with populations.
What the processes do is in `dispatch.py`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.errors import UserError
from headway.core.processors import cores
from headway.study.design.study import PlannedRun
from headway.study.execution.dispatch import dispatch
from headway.study.execution.executor import Log, Workforce
from headway.study.execution.populations import by_progress, populations_for
from headway.study.execution.sharing import most_processes, run_side_by_side, shared_gpus
from headway.study.execution.workers import WorkerSlot, threads


def gpus_here() -> tuple[str, ...]:
    """The GPUs that this process may use, by their names in CUDA_VISIBLE_DEVICES."""
    import torch

    there = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(named[:there] if named else map(str, range(there)))


def uuids_here() -> dict[str, str]:
    """The UUIDs of these GPUs, by name, as far as they are known."""
    import torch

    uuids = {name: name for name in gpus_here() if not name.isdigit()}
    for k, name in enumerate(gpus_here()):
        if name.isdigit() and (uuid := getattr(torch.cuda.get_device_properties(k), "uuid", None)) is not None:
            uuids[name] = f"GPU-{uuid}"
    return uuids


@dataclass(frozen=True)
class Pool:
    """A pool of processes, each of which trains one run at a time on one thread."""

    workers: int | None = None
    """The number of processes; None = as many as there are cores."""

    @property
    def workforce(self) -> Workforce:
        return Workforce(self.workers or cores())

    def train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        slots = [WorkerSlot(None, threads(1)) for _ in range(self.workforce.processes)]
        return dispatch(slots, populations_for(runs, gpus=0), log)


@dataclass(frozen=True)
class Gpus:
    """One process per name, which trains one population at a time on that GPU. A GPU that is listed twice is shared by
    two processes: while one scores and audits, mostly on the CPU, the other trains."""

    names: tuple[str, ...]
    """GPU names as in CUDA_VISIBLE_DEVICES."""

    @classmethod
    def shared_by(cls, processes: int, there: Sequence[str]) -> "Gpus":
        """This many processes, distributed over these GPUs."""
        if processes < 1:
            raise UserError(f"{processes} processes cannot train anything: give at least 1")
        return cls(tuple(there[k % len(there)] for k in range(processes)))

    @classmethod
    def suited(cls, runs: Sequence[PlannedRun], there: Sequence[str]) -> "Gpus":
        """As many processes as keep these GPUs busy, limited by the number of populations and cores."""
        gpus = len(there)
        sharing = min(most_processes(gpus), len(populations_for(runs, gpus)) // gpus)
        return cls.shared_by(gpus * max(1, sharing), there)

    @property
    def workforce(self) -> Workforce:
        return Workforce(len(self.names), len(set(self.names)))

    def train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        begun = (by_progress(part, log.folder.runs) for part in populations_for(runs, self.workforce.gpus))
        populations = [part for parts in begun for part in parts]
        busy = self.names[: len(populations)]
        each = threads(cores() // len(busy))
        with shared_gpus(busy, uuids_here()) as environments:
            log.say(self._words(busy, len(runs), len(populations), run_side_by_side(environments)))
            slots = [WorkerSlot(f"GPU {name}", {**each, **environments[name]}) for name in busy]
            return dispatch(slots, populations, log)

    def _words(self, busy: Sequence[str], runs: int, populations: int, side_by_side: bool) -> str:
        gpus = len(set(busy))
        many = f"{populations} population{'s' * (populations > 1)} of {runs} runs on {gpus} GPU{'s' * (gpus > 1)}"
        if len(busy) == gpus:
            return f"{many}, one process each"
        how = "their kernels run side by side (MPS)" if side_by_side else "while one scores and audits, another trains"
        return f"{many}, by {len(busy)} processes: {how}"
