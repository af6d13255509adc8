"""`compile: auto`: training measures its own steps, and compiles the model if it will then finish sooner.

Training starts uncompiled, with a CUDA graph, and measures the time per step; the number of remaining steps is known.
If compiling pays off, another process compiles in the background, into a cache that both share. Training then pauses
for a moment, loads the compiled program from the cache, and uses it from the next step on. If the device has no memory
for another process, training itself would pause for the whole compilation, and the estimate takes this into account.
There are two ways (`compiling.py`): a single layer compiles faster and serves all layers; the whole model runs faster.
The measured costs and gains are cached, so that the next training of the same kind can decide before its first step.
If compiled steps turn out to be slower, training goes back to uncompiled ones.

Compiled kernels round differently: weights are bit-identical up to the swap, and equally good but not identical after
it. So the step of the swap is written to the run's folder (`compiled_from` in run.json, `compiled_until` for the way
back) before it happens, and a resumed run swaps at the same step. For a training that is bit-reproducible from its
first step, use `training.compile=on` or `off`.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from headway.core import files
from headway.core.processors import share_of_gpu
from headway.training.update import STEPS_BEFORE_RECORDING, Update

MIN_GAIN = 3.0
"""The least gain, in seconds, for which to compile: the estimate may be wrong by as much."""


@dataclass(frozen=True)
class Costs:
    """The costs of compiling, in seconds, and the speed-up."""

    compiling: float
    """The time that another process needs to compile in the background, including its start."""
    pause: float
    """The pause of training while it loads the compiled program."""
    times: float
    """The speed-up: how many times faster a compiled step is."""
    measured: bool = False
    """Whether a training of this kind measured these on this machine; otherwise they are assumed."""
    step: float = 0.0
    """The seconds of an uncompiled step, if measured."""

    @property
    def is_plausible(self) -> bool:
        """Whether the values are plausible: the cache file may have been changed."""
        seconds = self.compiling, self.pause, self.step
        return all(math.isfinite(one) and one >= 0 for one in seconds) and math.isfinite(self.times) and self.times > 0

    def in_background(self, plain: float) -> float:
        """The seconds until training ends if another process compiles meanwhile; uncompiled it would take `plain`."""
        meanwhile = min(self.compiling, plain)
        return meanwhile + self.from_cache(plain - meanwhile)

    def in_place(self, plain: float) -> float:
        """The same if training pauses for the whole compilation."""
        return self.compiling + plain / self.times

    def from_cache(self, plain: float) -> float:
        """The same if the compiled program is already in the cache."""
        return self.pause + plain / self.times


WITH_KERNELS = {
    "layers": Costs(compiling=25.0, pause=8.0, times=1.0),
    "whole": Costs(compiling=45.0, pause=17.0, times=1.02),
}
"""Assumed until measured on this machine, for models whose operations have kernels (`nn/kernels`). Of five shapes on an
H200 one was 1.02 times faster when compiled, and four were slower (docs/speed.md). So only trainings of more than a
quarter of an hour try whether they are among the faster ones."""
WITHOUT_KERNELS = {
    "layers": Costs(compiling=25.0, pause=8.0, times=1.2),
    "whole": Costs(compiling=45.0, pause=17.0, times=1.3),
}
"""The same for other models, whose steps consist of many small operations. (Plain definitions were 2.3 to 5 times
slower than compiled ones; a model with a few layers of its own lies between.)"""
SLOWER = 0.98
"""A speed-up below which training goes back to uncompiled steps. Timings vary by as much."""


class Note(Protocol):
    """Writes facts into the folders of all runs."""

    def __call__(self, **facts: Any) -> None: ...


class CompileJob(Protocol):
    """A background process that compiles."""

    def ended(self) -> str | None:
        """None = still running; '' = finished; otherwise why it failed."""
        ...

    def stop(self) -> None: ...


class Compiler(Protocol):
    """How to compile, if it pays off."""

    def seconds_left(self, costs: Costs, plain: float) -> float: ...
    def describe(self, costs: Costs) -> str: ...
    def start(self, way: str) -> CompileJob | None:
        """Start the background process; None = there is none, and training itself compiles at the next step."""
        ...

    def updated(self, costs: Costs, paused: float) -> Costs:
        """The costs, updated by the measured pause of training."""
        ...


@dataclass(frozen=True)
class InBackground:
    """Another process compiles while training continues."""

    begin: Callable[[str], CompileJob]

    def seconds_left(self, costs: Costs, plain: float) -> float:
        return costs.in_background(plain)

    def describe(self, costs: Costs) -> str:
        return f"{costs.compiling:.0f} s in the background, a pause of {costs.pause:.0f} s"

    def start(self, way: str) -> CompileJob:
        return self.begin(way)

    def updated(self, costs: Costs, paused: float) -> Costs:
        return replace(costs, pause=paused)


class InPlace:
    """Training pauses while it compiles, because the device has no memory for another process."""

    def seconds_left(self, costs: Costs, plain: float) -> float:
        return costs.in_place(plain)

    def describe(self, costs: Costs) -> str:
        return f"a pause of {costs.compiling:.0f} s, as there is no memory for another process"

    def start(self, way: str) -> None:
        return None

    def updated(self, costs: Costs, paused: float) -> Costs:
        """Loading from the cache takes no longer than this pause, either."""
        return replace(costs, compiling=paused, pause=min(costs.pause, paused))


class FromCache:
    """The program was compiled before and is loaded from the cache."""

    def updated(self, costs: Costs, paused: float) -> Costs:
        """Keeps the shorter pause: this one may be longer because the cache was emptied, or the machine was busy."""
        return replace(costs, pause=min(costs.pause, paused))


class AutoCompile:
    """Watches a training, and compiles its model if training will then finish sooner."""

    def __init__(
        self,
        kind: str,
        total: int,
        compiler: Callable[[], Compiler],
        note: Note,
        tell: Callable[[str], None],
        swap_at: int | None = None,
        way: str = "whole",
        until: int | None = None,
        assumed: Mapping[str, Costs] = WITH_KERNELS,
    ):
        """`kind`: the same for all trainings that compile to the same program; `compiler`: how to compile, given the
        memory that is free when it is called; `note`: writes facts into the runs' folders: the step of the swap with
        the way, and that of the way back; `swap_at`, `way` and `until`: what those folders already have, in a resumed
        run; `assumed`: costs and gain until they are measured."""
        self.kind, self.total, self.compiler, self.note, self.tell = kind, total, compiler, note, tell
        self.swap_at, self.way, self.until, self.known = swap_at, way, until, known(kind, assumed)
        self.was_decided_before = swap_at is not None  # then a resumed run does as it did, and nothing else
        self.by: Compiler | FromCache = FromCache()
        self.job: CompileJob | None = None
        self.decided, self.swapped, self.warmed = swap_at is not None, False, False
        self.first: int | None = None
        self.began = self.plain_step = 0.0

    def before(self, step: int, update: Update) -> None:
        """Called before each step: decide at the first one, and swap when it is time."""
        if self.first is None:
            self.first = step
            self._decide_at_the_start(step)
        if self.job is not None and (why := self.job.ended()) is not None:
            self._take_over(step, why)
        if self.until is not None and step >= self.until:
            if self.swapped:
                self.swapped, self.swap_at = False, None
                update.uncompile()
        elif self.swap_at is not None and step >= self.swap_at and not self.swapped:
            self.swapped, self.swap_at, self.began = True, step, time.perf_counter()
            update.compile(whole=self.way == "whole")
        elif self.swapped and not self.warmed and step > (self.swap_at or 0) + STEPS_BEFORE_RECORDING:
            self.warmed = True
            self.costs = self.by.updated(self.costs, time.perf_counter() - self.began)
            if self.costs.measured:
                self._keep()

    def after(self, first: int, last: int, seconds: float) -> None:
        """Called about once a second, with the steps taken since the last call and their time."""
        if self.first is None:
            return
        each = seconds / max(1, last - first)
        warm = STEPS_BEFORE_RECORDING + 1  # the first steps choose kernels and record the CUDA graph
        if self.swapped:
            if self.plain_step and self.warmed and first > (self.swap_at or 0) + warm:
                brought = replace(self.costs, times=self.plain_step / each, measured=True, step=self.plain_step)
                self.costs, self.plain_step = brought, 0.0  # once is enough
                self._keep()
                own_gpu = share_of_gpu() == 1
                if brought.times < SLOWER and own_gpu and last < self.total and not self.was_decided_before:
                    self._go_back(last)
            return
        if first < self.first + warm or self.job is not None:  # compiling in the background slows steps down
            return
        self.plain_step = each
        if not self.decided:
            self._decide(last)

    def stop(self) -> None:
        """Called after the last step: stop the background process, which would only slow down scores and audits."""
        if self.job is not None:
            self.job.stop()
            self.job = None

    def _decide_at_the_start(self, step: int) -> None:
        """Decide at once if costs and gain were measured by an earlier training of this kind on this machine."""
        measured = {way: costs for way, costs in self.known.items() if costs.measured}
        if self.decided or not measured:
            return
        each = next(iter(measured.values())).step
        plain = (self.total - step) * each
        compiled, self.way = min((costs.from_cache(plain), way) for way, costs in measured.items())
        was = f"{self._remaining(plain, each, step)}; {compiled:.0f} s compiled, as measured before on this machine"
        self.decided = True
        if compiled + MIN_GAIN < plain:
            self._swap(step)
            self.tell(f"compiled from {f'step {step}' if step else 'the first step'} on ({self.way}): {was}")
        else:
            self.tell(f"not compiled: {was}")

    def _decide(self, step: int) -> None:
        self.decided, plain, by = True, (self.total - step) * self.plain_step, self.compiler()
        compiled, self.way = min((by.seconds_left(costs, plain), way) for way, costs in self.known.items())
        basis = "measured before on this machine" if self.costs.measured else "assumed"
        would = f"{self._remaining(plain, self.plain_step, step)}; with compiling {compiled:.0f} s "
        would += f"({by.describe(self.costs)}, then {self.costs.times:.2f} times faster: {basis})"
        if not compiled + MIN_GAIN < plain:
            self.tell(f"not compiled: {would}")
            return
        self.by, self.began = by, time.perf_counter()
        self.job = by.start(self.way)
        if self.job is None:
            self._swap(step)
            self.tell(f"compiled from step {step} on ({self.way}): {would}")
        else:
            self.tell(f"compiling in the background ({self.way}): {would}")

    def _take_over(self, step: int, why: str) -> None:
        assert self.job is not None
        self.job.stop()
        self.job = None
        if why:
            self.tell(f"not compiled: {why}")
            return
        self.costs = replace(self.costs, compiling=time.perf_counter() - self.began)
        plain = (self.total - step) * self.plain_step
        compiled = self.costs.from_cache(plain)
        took = f"it took {self.costs.compiling:.0f} s; {self._remaining(plain, self.plain_step, step)}"
        took += f", {compiled:.0f} s compiled"
        if compiled < plain:
            self._swap(step)
            self.tell(f"compiled from step {step} on: {took}")
        else:
            self.tell(f"compiled, but too late for this training; the next one of its kind can use it: {took}")

    def _swap(self, step: int) -> None:
        self.note(compiled_from=[step, self.way])
        self.swap_at = step

    def _go_back(self, step: int) -> None:
        self.note(compiled_until=step)
        self.until = step
        self.tell(f"uncompiled again from step {step} on: compiled steps are {1 / self.costs.times:.2f} times slower")

    def _keep(self) -> None:
        """Save costs and gain for the next training of this kind. Not if other processes share the GPU, because step
        times then depend on them."""
        if share_of_gpu() < 1:
            return
        kept = {way: asdict(costs) for way, costs in self.known.items() if costs.measured}
        with suppress(OSError, RuntimeError):  # a cache that does not work costs time, never a run
            entry = _entry(self.kind)
            entry.parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(entry, json.dumps(kept).encode())

    @property
    def costs(self) -> Costs:
        """The costs of the chosen way."""
        return self.known[self.way]

    @costs.setter
    def costs(self, costs: Costs) -> None:
        self.known[self.way] = costs

    def _remaining(self, plain: float, each: float, step: int) -> str:
        return f"{self.total - step:,} steps of {1000 * each:.2f} ms remain, {plain:.0f} s"


def known(kind: str, assumed: Mapping[str, Costs] = WITH_KERNELS) -> dict[str, Costs]:
    """The costs and gain of each way to compile, for trainings of this kind."""
    try:
        stored: dict[str, Any] = json.loads(_entry(kind).read_bytes())
        found = {way: Costs(**stored[way]) if way in stored else costs for way, costs in assumed.items()}
        return found if all(costs.is_plausible for costs in found.values()) else dict(assumed)
    except (
        OSError,
        RuntimeError,
        AttributeError,
        TypeError,
        ValueError,
        OverflowError,
    ):  # no file yet, or one of another version
        return dict(assumed)


def _entry(kind: str) -> Path:
    return files.cache_folder() / "compiled" / f"{hashlib.sha256(kind.encode()).hexdigest()[:32]}.json"
