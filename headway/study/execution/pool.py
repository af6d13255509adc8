"""Executors with several processes: one per core, with one run and one thread each; or a few per GPU, with populations.
What the processes do is in `dispatch.py`.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import UserError
from headway.study.design.study import PlannedRun
from headway.study.execution.dispatch import WorkerSlot, dispatch
from headway.study.execution.executor import Log, Workforce
from headway.study.execution.populations import by_progress, populations_for
from headway.training.capacity import SHARE

AT_ONCE, CORES_EACH = 4, 4
"""The default number of processes that share a GPU, and the cores that each of them should have. Scoring and auditing a
small model take as long as training it, or longer, mostly on the CPU. With more than four processes, most would wait
for the GPU."""


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The number of cores this process may use. In a container it may be limited by a CPU quota (cgroup)."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        used, period = map(int, quota.read_text().split())
        return max(1, min(here, math.ceil(used / period)))
    except (OSError, ValueError, ZeroDivisionError):  # no quota, or "max"
        return here


def gpus_here() -> tuple[str, ...]:
    """The GPUs that this process may use, by their names in CUDA_VISIBLE_DEVICES."""
    import torch

    there = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(named[:there] if named else map(str, range(there)))


def _threads(number: int) -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(number))


@dataclass(frozen=True)
class Pool:
    """A pool of processes, each of which trains one run at a time on one thread."""

    workers: int | None = None
    """The number of processes; None = as many as there are cores."""

    @property
    def workforce(self) -> Workforce:
        return Workforce(self.workers or cores())

    def train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        slots = [WorkerSlot(None, _threads(1)) for _ in range(self.workforce.processes)]
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
        sharing = min(AT_ONCE, cores() // (CORES_EACH * gpus), len(populations_for(runs, gpus)) // gpus)
        return cls.shared_by(gpus * max(1, sharing), there)

    @property
    def workforce(self) -> Workforce:
        return Workforce(len(self.names), len(set(self.names)))

    def train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        begun = (by_progress(part, log.folder.runs) for part in populations_for(runs, self.workforce.gpus))
        populations = [part for parts in begun for part in parts]
        busy = self.names[: len(populations)]
        threads = _threads(max(1, cores() // len(busy)))
        # Processes that share a GPU must not each plan with all of its memory.
        gpu = {name: {"CUDA_VISIBLE_DEVICES": name, SHARE: str(1 / busy.count(name))} for name in busy}
        log.say(self._words(busy, len(runs), len(populations)))
        return dispatch([WorkerSlot(f"GPU {name}", {**threads, **gpu[name]}) for name in busy], populations, log)

    def _words(self, busy: Sequence[str], runs: int, populations: int) -> str:
        gpus = len(set(busy))
        many = f"{populations} population{'s' * (populations > 1)} of {runs} runs on {gpus} GPU{'s' * (gpus > 1)}"
        if len(busy) == gpus:
            return f"{many}, one process each"
        return f"{many}, by {len(busy)} processes: while one scores and audits, another trains"
