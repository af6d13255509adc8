"""Compare implementations on a noisy machine: run them in turns, and compare turn by turn."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Turns(NamedTuple):
    """Seconds per call, one number per turn."""

    wall: list[float]
    cpu: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.wall)


def take_turns(ways: Mapping[str, Callable[[], object]], turns: int, calls: int) -> dict[str, Turns]:
    """Time each way in turn, with `calls` calls per turn, after a warm-up turn that is not counted."""
    times = {name: Turns([], []) for name in ways}
    for turn in range(turns + 1):
        for name, call in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls):
                call()
            if turn:
                times[name].wall.append((time.perf_counter() - wall) / calls)
                times[name].cpu.append((time.process_time() - cpu) / calls)
    return times


def ratio(ours: Turns, theirs: Turns) -> tuple[float, float, float]:
    """The speed-up of ours over theirs: the median over turns, and the quartiles around it."""
    ratios = sorted(t / o for o, t in zip(ours.wall, theirs.wall, strict=True))
    quarter = len(ratios) // 4
    return statistics.median(ratios), ratios[quarter], ratios[-1 - quarter]
