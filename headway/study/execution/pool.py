"""How many processes train the runs of a study, and where: for every core one, with one run and one thread each; or for
every GPU a few, with populations. What they do is in `dispatch.py`.
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
from headway.study.execution.populations import by_progress, parcels
from headway.training.capacity import SHARE

AT_ONCE, CORES_EACH = 4, 4
"""Processes that share a GPU where nobody says how many, and the cores that each of them should have. Small models take
as long to be scored and audited as to be trained, or longer, and that is mostly work for a processor; of more than
four, most would wait for the GPU."""


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """That this process may use: a container may have so many microseconds in a period, and not all of the machine."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        used, period = map(int, quota.read_text().split())
        return max(1, min(here, math.ceil(used / period)))
    except (OSError, ValueError, ZeroDivisionError):  # none, or "max"
        return here


def gpus_here() -> tuple[str, ...]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES calls them."""
    import torch

    there = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(named[:there] if named else map(str, range(there)))


def _threads(number: int) -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(number))


@dataclass(frozen=True)
class Pool:
    """So many processes, each of which trains one run at a time on one thread."""

    workers: int | None = None
    """None = as many as there are cores."""

    @property
    def workforce(self) -> Workforce:
        return Workforce(self.workers or cores())

    def train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        slots = [WorkerSlot(None, _threads(1)) for _ in range(self.workforce.processes)]
        return dispatch(slots, parcels(runs, gpus=0), log)


@dataclass(frozen=True)
class Gpus:
    """A process for each name, which trains one population at a time on that GPU. One that stands here twice is shared
    by two: while one of them scores and audits, which is mostly work for a processor, the other trains."""

    names: tuple[str, ...]
    """As CUDA_VISIBLE_DEVICES calls them."""

    @classmethod
    def shared_by(cls, processes: int, there: Sequence[str]) -> "Gpus":
        """So many processes, dealt out over these GPUs."""
        if processes < 1:
            raise UserError(f"{processes} processes cannot train anything: at least 1")
        return cls(tuple(there[k % len(there)] for k in range(processes)))

    @classmethod
    def suited(cls, runs: Sequence[PlannedRun], there: Sequence[str]) -> "Gpus":
        """As many processes as keep these GPUs busy, where there are populations and cores for them."""
        gpus = len(there)
        sharing = min(AT_ONCE, cores() // (CORES_EACH * gpus), len(parcels(runs, gpus)) // gpus)
        return cls.shared_by(gpus * max(1, sharing), there)

    @property
    def workforce(self) -> Workforce:
        return Workforce(len(self.names), len(set(self.names)))

    def train(self, runs: Sequence[PlannedRun], log: Log) -> bool:
        begun = (by_progress(part, log.folder.runs) for part in parcels(runs, self.workforce.gpus))
        populations = [part for parts in begun for part in parts]
        busy = self.names[: len(populations)]
        threads = _threads(max(1, cores() // len(busy)))
        # Those who share a GPU must not all count on the whole of its memory.
        gpu = {name: {"CUDA_VISIBLE_DEVICES": name, SHARE: str(1 / busy.count(name))} for name in busy}
        log.say(self._words(busy, len(runs), len(populations)))
        return dispatch([WorkerSlot(f"GPU {name}", {**threads, **gpu[name]}) for name in busy], populations, log)

    def _words(self, busy: Sequence[str], runs: int, populations: int) -> str:
        gpus = len(set(busy))
        many = f"{populations} population{'s' * (populations > 1)} of {runs} runs on {gpus} GPU{'s' * (gpus > 1)}"
        if len(busy) == gpus:
            return f"{many}, a process each"
        return f"{many}, by {len(busy)} processes: while one scores and audits, another trains"
