"""`compile: auto`: a training measures its own steps, and compiles its model when it will end sooner that way.

It begins uncompiled and recorded, measures its step, and knows how many are left. Where compiling ends sooner, another
process does it, beside the training, into a cache that both share; then the training stands still for a moment, takes
the compiled program out of the cache, and goes on with it from the next step on. Where the device has no room for
another process, the training would stand still for all of it, and that is what it reckons with. There are two ways
(`compiling.py`): one layer, which serves them all, is compiled sooner; the model as a whole is faster then. What a way
brought is kept among the caches, so that the next training of this kind knows before its first step.

A compiler's kernels round in other places than others do: the weights are the same to the bit up to the swap, and after
it as good. So the step of the swap stands in the run's folder (`compiled_from` in run.json) before it is taken, and
whoever resumes the run swaps at that step again. For a training that can be repeated to the bit from its first step
there are `training.compile=on` and `off`.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from headway.core import files
from headway.training.capacity import own_share
from headway.training.update import STEPS_BEFORE_RECORDING, Update

WORTH = 3.0
"""Seconds that must be gained: an estimate may be wrong by as much."""


@dataclass(frozen=True)
class Costs:
    """Of compiling, in seconds; and what it brings."""

    compiling: float
    """Beside the training, until another process has done it; its start included."""
    pause: float
    """In which the training stands still to take over what is compiled."""
    times: float
    """How many times faster a step is then."""
    measured: bool = False
    """By a training of this kind on this machine; else assumed."""
    step: float = 0.0
    """Seconds of one without, where that was measured."""

    @property
    def make_sense(self) -> bool:
        """Of what was kept somebody may have made something else since."""
        seconds = self.compiling, self.pause, self.step
        return all(math.isfinite(one) and one >= 0 for one in seconds) and math.isfinite(self.times) and self.times > 0

    def beside(self, plain: float) -> float:
        """Until the end of a training that would take `plain` seconds more without, and goes on while another process
        compiles."""
        meanwhile = min(self.compiling, plain)
        return meanwhile + self.at_hand(plain - meanwhile)

    def waiting(self, plain: float) -> float:
        """Of one that stands still while it is compiled."""
        return self.compiling + plain / self.times

    def at_hand(self, plain: float) -> float:
        """Of one for which it is compiled already."""
        return self.pause + plain / self.times


USUAL = {
    "layers": Costs(compiling=25.0, pause=8.0, times=1.12),
    "whole": Costs(compiling=45.0, pause=17.0, times=1.2),
}
"""Assumed until a machine has measured its own: on one H200, without a training beside it, a layer was ready after 16
seconds and a whole model after 34, or 17 out of the cache (docs/speed.md); beside one, nobody has measured it yet."""


class CompileJob(Protocol):
    """Another process that compiles."""

    def ended(self) -> str | None:
        """None = not yet; '' = it is done; else why it failed."""
        ...

    def stop(self) -> None: ...


class Compiler(Protocol):
    """How compiling would be done, if it pays."""

    def until_the_end(self, costs: Costs, plain: float) -> float: ...
    def told(self, costs: Costs) -> str: ...
    def start(self, way: str) -> CompileJob | None:
        """None = nobody else does: the training itself, from the next step on."""
        ...

    def learnt(self, costs: Costs, stood_still: float) -> Costs:
        """When the training had stood still for so long."""
        ...


@dataclass(frozen=True)
class InBackground:
    """Another process compiles while training goes on."""

    begin: Callable[[str], CompileJob]

    def until_the_end(self, costs: Costs, plain: float) -> float:
        return costs.beside(plain)

    def told(self, costs: Costs) -> str:
        return f"{costs.compiling:.0f} s beside it, a pause of {costs.pause:.0f} s"

    def start(self, way: str) -> CompileJob:
        return self.begin(way)

    def learnt(self, costs: Costs, stood_still: float) -> Costs:
        return replace(costs, pause=stood_still)


class InPlace:
    """Training stops while it compiles, because the device has no room for another process."""

    def until_the_end(self, costs: Costs, plain: float) -> float:
        return costs.waiting(plain)

    def told(self, costs: Costs) -> str:
        return f"a pause of {costs.compiling:.0f} s, since another process would find no room"

    def start(self, way: str) -> None:
        return None

    def learnt(self, costs: Costs, stood_still: float) -> Costs:
        """Out of the cache it takes no longer than that, either."""
        return replace(costs, compiling=stood_still, pause=min(costs.pause, stood_still))


class FromCache:
    """It was compiled before, and is read out of the cache."""

    def learnt(self, costs: Costs, stood_still: float) -> Costs:
        """Once it may take longer, since the cache was emptied meanwhile, or the machine was busy."""
        return replace(costs, pause=min(costs.pause, stood_still))


class AutoCompile:
    """Watches a training, and compiles its model when the training will end sooner that way."""

    def __init__(
        self,
        kind: str,
        total: int,
        compiler: Callable[[], Compiler],
        note: Callable[[int, str], None],
        tell: Callable[[str], None],
        swap_at: int | None = None,
        way: str = "whole",
    ):
        """`kind` is a name for all trainings that are compiled to the same; `compiler` tells who would do it, by the
        room that there is when it is asked; `note` writes the step of the swap, and the way, into the runs' folders;
        `swap_at` and `way`: they stand there already."""
        self.kind, self.total, self.compiler, self.note, self.tell = kind, total, compiler, note, tell
        self.swap_at, self.way, self.known = swap_at, way, known(kind)
        self.by: Compiler | FromCache = FromCache()
        self.job: CompileJob | None = None
        self.decided, self.swapped, self.warmed = swap_at is not None, False, False
        self.first: int | None = None
        self.began = self.plain_step = 0.0

    def before(self, step: int, update: Update) -> None:
        """At every boundary between two steps: swap, where it is time."""
        if self.first is None:
            self.first = step
            self._decide_at_the_start(step)
        if self.job is not None and (why := self.job.ended()) is not None:
            self._take_over(step, why)
        if self.swap_at is not None and step >= self.swap_at and not self.swapped:
            self.swapped, self.swap_at, self.began = True, step, time.perf_counter()
            update.compile(whole=self.way == "whole")
        elif self.swapped and not self.warmed and step > (self.swap_at or 0) + STEPS_BEFORE_RECORDING:
            self.warmed = True
            self.costs = self.by.learnt(self.costs, time.perf_counter() - self.began)
            if self.costs.measured:
                self._keep()

    def after(self, first: int, last: int, seconds: float) -> None:
        """These steps were taken, in so many seconds; about once a second."""
        if self.first is None:
            return
        each = seconds / max(1, last - first)
        warm = STEPS_BEFORE_RECORDING + 1  # before that, kernels are chosen and steps are recorded
        if self.swapped:
            if self.plain_step and self.warmed and first > (self.swap_at or 0) + warm:
                brought = replace(self.costs, times=self.plain_step / each, measured=True, step=self.plain_step)
                self.costs, self.plain_step = brought, 0.0  # once is enough
                self._keep()
            return
        if first < self.first + warm or self.job is not None:  # who compiles beside it makes it slower
            return
        self.plain_step = each
        if not self.decided:
            self._decide(last)

    def stop(self) -> None:
        """No more steps follow: what is still being compiled would only be in the way of scores and audits."""
        if self.job is not None:
            self.job.stop()
            self.job = None

    def _decide_at_the_start(self, step: int) -> None:
        """Where a training of this kind was compiled here before, and what it brought is known."""
        measured = {way: costs for way, costs in self.known.items() if costs.measured}
        if self.decided or not measured:
            return
        each = next(iter(measured.values())).step
        plain = (self.total - step) * each
        compiled, self.way = min((costs.at_hand(plain), way) for way, costs in measured.items())
        was = f"{self._told(plain, each, step)}; compiled, as before on this machine, {compiled:.0f} s"
        self.decided = True
        if compiled + WORTH < plain:
            self._swap(step)
            self.tell(f"compiled from {f'step {step}' if step else 'the first step'} on ({self.way}): {was}")
        else:
            self.tell(f"not compiled: {was}")

    def _decide(self, step: int) -> None:
        self.decided, plain, by = True, (self.total - step) * self.plain_step, self.compiler()
        compiled, self.way = min((by.until_the_end(costs, plain), way) for way, costs in self.known.items())
        basis = "as measured before on this machine" if self.costs.measured else "as is usual"
        would = f"{self._told(plain, self.plain_step, step)}; with compiling {compiled:.0f} s ({by.told(self.costs)}, "
        would += f"then {self.costs.times:.2f} times faster: {basis})"
        if not compiled + WORTH < plain:
            self.tell(f"not compiled: {would}")
            return
        self.by, self.began = by, time.perf_counter()
        self.job = by.start(self.way)
        if self.job is None:
            self._swap(step)
            self.tell(f"compiled from step {step} on ({self.way}): {would}")
        else:
            self.tell(f"compiling beside the training ({self.way}): {would}")

    def _take_over(self, step: int, why: str) -> None:
        assert self.job is not None
        self.job.stop()
        self.job = None
        if why:
            self.tell(f"not compiled: {why}")
            return
        self.costs = replace(self.costs, compiling=time.perf_counter() - self.began)
        plain = (self.total - step) * self.plain_step
        compiled = self.costs.at_hand(plain)
        took = f"it took {self.costs.compiling:.0f} s; {self._told(plain, self.plain_step, step)}"
        took += f", compiled {compiled:.0f} s"
        if compiled < plain:
            self._swap(step)
            self.tell(f"compiled from step {step} on: {took}")
        else:
            self.tell(f"compiled, but for the next training of this kind: {took}")

    def _swap(self, step: int) -> None:
        self.note(step, self.way)
        self.swap_at = step

    def _keep(self) -> None:
        """What it brought, for the next training of this kind. Beside others on the same GPU, who come and go, a step
        takes as long as they let it, and tells the next one nothing."""
        if own_share() < 1:
            return
        kept = {way: asdict(costs) for way, costs in self.known.items() if costs.measured}
        with suppress(OSError, RuntimeError):  # a cache that does not work costs time, never a run
            entry = _entry(self.kind)
            entry.parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(entry, json.dumps(kept).encode())

    @property
    def costs(self) -> Costs:
        """Of the way that was chosen."""
        return self.known[self.way]

    @costs.setter
    def costs(self, costs: Costs) -> None:
        self.known[self.way] = costs

    def _told(self, plain: float, each: float, step: int) -> str:
        return f"{self.total - step:,} steps of {1000 * each:.2f} ms are left, {plain:.0f} s"


def known(kind: str) -> dict[str, Costs]:
    """What each way to compile costs and brings in trainings of this kind."""
    try:
        told: dict[str, Any] = json.loads(_entry(kind).read_bytes())
        found = {way: Costs(**told[way]) if way in told else usual for way, usual in USUAL.items()}
        return found if all(costs.make_sense for costs in found.values()) else dict(USUAL)
    except (
        OSError,
        RuntimeError,
        AttributeError,
        TypeError,
        ValueError,
        OverflowError,
    ):  # none yet, or by another version
        return dict(USUAL)


def _entry(kind: str) -> Path:
    return files.cache_folder() / "compiled" / f"{hashlib.sha256(kind.encode()).hexdigest()[:32]}.json"
