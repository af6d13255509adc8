"""Plan a ladder for given budgets: which widths to train for each so that the best one is neither first nor last.

The best size is what the ladder is meant to find. Beforehand it is estimated by a number of tokens per parameter, or by
a law fitted to a smaller ladder. A budget whose estimated best size lies outside its widths is refused.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headway.core.errors import UserError
from headway.core.format import duration
from headway.core.validation import validated
from headway.recipe.recipe import Recipe
from headway.study.design.ladder import MIN_WIDTHS, Ladder, Rung
from headway.study.design.study import Study
from headway.study.execution.plan import Sizes, speed

TOKENS_PER_PARAMETER = 20.0
"""For the compute-optimal model (https://arxiv.org/abs/2203.15556)."""
REACH = 4.0
"""Sizes range from a fourth of the expected best size to four times that."""
MANY_PASSES = 4.0
"""Beyond this many epochs, repeated tokens are worth less than new ones (https://arxiv.org/abs/2305.16264)."""
DECADES = 2.0
"""The range of budgets if a total time is given, in decades."""
_NEXT_WIDTH = 1.12  # the smallest ratio between successive candidate widths
_WIDEST = 8192
_LARGEST = 1e9  # parameters: every size is built once to be counted

Expected = Callable[[float], float]
"""From FLOPs to the expected best number of parameters."""


@dataclass(frozen=True)
class SizeOnLadder:
    width: int
    layers: int
    parameters: int
    flops_per_token: float
    """Training FLOPs per token."""
    tokens_per_step: int


@dataclass(frozen=True)
class ClimbedRung:
    """A budget with the sizes trained for it."""

    flops: float
    expected: float
    """The expected best number of parameters."""
    sizes: list[SizeOnLadder]
    passes: list[float]
    """How often each size reads the training text."""

    def tokens(self, size: SizeOnLadder) -> float:
        return self.flops / size.flops_per_token

    @property
    def is_inside(self) -> bool:
        return self.sizes[0].parameters <= self.expected <= self.sizes[-1].parameters


class Climb:
    """The sizes of one recipe at different widths, computed when needed."""

    def __init__(self, base: Recipe, ladder: Ladder):
        self.base, self.ladder, self.sizes = base, ladder, Sizes()
        self.family = next(iter(ladder.families.values()), [])  # sizes are planned for the first family
        self._known: dict[int, SizeOnLadder] = {}

    def recipe(self, width: int) -> Recipe:
        return self.base.with_changes(self.ladder.shape(width, self.family), "")

    def size(self, width: int) -> SizeOnLadder:
        if width not in self._known:
            recipe = self.recipe(width)
            found = self.sizes.of(recipe)
            per_token = found.flops_per_step / found.tokens_per_step
            layers = recipe.model.layers
            self._known[width] = SizeOnLadder(width, layers, found.parameters, per_token, found.tokens_per_step)
        return self._known[width]

    @cached_property
    def training_tokens(self) -> int:
        return self.sizes.task(self.base).tokens_in("train")

    def by_ratio(self, tokens_per_parameter: float) -> Expected:
        """From a budget to the size at which it allows this many tokens per parameter."""

        def expected(flops: float) -> float:
            # FLOPs per token grow roughly as 6N. Solve by fixed-point iteration, with the ratio of the nearest size.
            n = math.sqrt(flops / (6 * tokens_per_parameter))
            _check_not_too_large(flops, n)
            for _ in range(20):
                near = self._nearest(n)
                per_parameter = near.flops_per_token / near.parameters
                n, before = math.sqrt(flops / (per_parameter * tokens_per_parameter)), n
                if abs(math.log(n / before)) < 0.01:
                    break
            return n

        return expected

    def _nearest(self, parameters: float) -> SizeOnLadder:
        found = self.size(next(self.widths()))
        for width in self.widths():
            found = self.size(width)
            if found.parameters >= parameters:
                break
        return found

    def widths(self) -> "itertools.takewhile[int]":
        """All candidate widths, narrowest first: multiples of the head width, each well above the last."""
        head = self.ladder.head_width or 8

        def each() -> Any:
            width = head
            while True:
                yield width
                width = head * max(width // head + 1, round(width * _NEXT_WIDTH / head))

        return itertools.takewhile(lambda width: width <= _WIDEST, each())

    def around(self, flops: float, expected: float, many: int) -> list[int]:
        """`many` widths, spread evenly (in log parameters) around the expected best size."""
        low, high = expected / REACH, expected * REACH
        _check_not_too_large(flops, expected)
        known: list[SizeOnLadder] = []
        for width in self.widths():
            known.append(self.size(width))
            if known[-1].parameters > high:
                break
        wanted = [low * (high / low) ** (k / (many - 1)) for k in range(many)]
        chosen = {min(known, key=lambda size, n=n: abs(math.log(size.parameters / n))).width for n in wanted}
        for size in sorted(known, key=lambda size: abs(math.log(size.parameters / expected))):  # if two coincide
            if len(chosen) < many:
                chosen.add(size.width)
        found = sorted(chosen)
        if known[0].parameters > expected / 1.5 or len(found) < MIN_WIDTHS:
            small, best = known[0], f"{expected:.2g} parameters"
            raise UserError(
                f"{flops:.3g} FLOPs: the best model would have about {best}, but the narrowest of this ladder, width "
                f"{small.width}, has {small.parameters:,}, so there are too few sizes around the best one; take a "
                "larger budget, or a recipe with a smaller vocabulary"
            )
        return found

    def rung(self, rung: Rung, expected: Expected) -> ClimbedRung:
        sizes = [self.size(width) for width in rung.widths]
        passes = [rung.flops / size.flops_per_token / self.training_tokens for size in sizes]
        return ClimbedRung(rung.flops, expected(rung.flops), sizes, passes)


def _check_not_too_large(flops: float, parameters: float) -> None:
    if not REACH * parameters <= _LARGEST:
        raise UserError(
            f"{flops:.3g} FLOPs: the best model would have about {parameters:.2g} parameters, and a ladder needs sizes "
            f"up to {REACH:g} times that, but at most {_LARGEST:.0e} parameters can be planned; take a smaller budget"
        )


def lay_out(
    base: Recipe,
    budgets: Sequence[float],
    many: int,
    seeds: int,
    expected: Callable[[Climb], Expected],
    widths: Sequence[int] | None = None,
    **keys: Any,
) -> Study:
    """Create the study of a ladder for these budgets. `widths` are those of every rung, if given."""
    ladder = Ladder.model_construct(**{**_defaults(), **keys, "rungs": []})
    climb = Climb(base, ladder)
    told = expected(climb)
    rungs = [
        {"flops": flops, "widths": list(widths) if widths else climb.around(flops, told(flops), many)}
        for flops in budgets
    ]
    title = f"How does the loss fall with size and tokens, from {budgets[0]:.3g} to {budgets[-1]:.3g} FLOPs?"
    tree = {"title": title, "base": base, "ladder": {**keys, "rungs": rungs}, "seeds": seeds}
    study = validated(Study, tree, "ladder", lambda key: "")
    check_ladder(study, expected, climb)
    return study


def _defaults() -> dict[str, Any]:
    return {name: field.default for name, field in Ladder.model_fields.items() if not field.is_required()}


def climbed(study: Study, expected: Callable[[Climb], Expected], climb: Climb | None = None) -> list[ClimbedRung]:
    """Every rung of a study's ladder, with the sizes of its first family."""
    assert study.ladder is not None
    climb = climb or Climb(study.base.with_changes(study.changes, ""), study.ladder)
    told = expected(climb)
    return [climb.rung(rung, told) for rung in study.ladder.rungs]


def check_ladder(study: Study, expected: Callable[[Climb], Expected], climb: Climb | None = None) -> list[ClimbedRung]:
    """Return the rungs; raises a UserError if the expected best size of any lies outside its widths."""
    rungs = climbed(study, expected, climb)
    wrong = [
        f"{rung.flops:.3g} FLOPs (best about {rung.expected:.2g} parameters, widths {rung.sizes[0].width} to "
        f"{rung.sizes[-1].width} have {rung.sizes[0].parameters:.2g} to {rung.sizes[-1].parameters:.2g})"
        for rung in rungs
        if not rung.is_inside
    ]
    if wrong:
        raise UserError(
            f"the expected best size lies outside the ladder at {'; '.join(wrong)}; choose other widths, or change the "
            "expectation with --tokens-per-parameter or --from"
        )
    return rungs


def doubts(rungs: Sequence[ClimbedRung]) -> list[str]:
    """Warnings to show before training."""
    often = [(rung, size, n) for rung in rungs for size, n in zip(rung.sizes, rung.passes, strict=True)]
    repeated = [one for one in often if one[2] > 1]
    found = []
    if repeated:
        most = max(repeated, key=lambda one: one[2])
        found.append(
            f"{len(repeated)} of {len(often)} runs read the text more than once, width {most[1].width} at "
            f"{most[0].flops:.3g} FLOPs {most[2]:.1f} times: the D of the law counts tokens read, not distinct tokens"
        )
    if many := [one for one in often if one[2] > MANY_PASSES]:
        found.append(
            f"{len(many)} of them read it more than {MANY_PASSES:g} times: such repeated tokens are worth less than "
            "new ones, so the fitted exponents of tokens will be too low"
        )
    spread = rungs[-1].flops / rungs[0].flops
    if spread < 10:
        found.append(f"the budgets span only a factor of {spread:.2g}: fitting exponents needs one or two decades")
    return found


def budgets_for(minutes: float, base: Recipe, rungs: int, many: int, seeds: int, ladder: Ladder) -> list[float]:
    """Budgets over two decades that take this long together on this device, by the speed of a medium size."""
    climb = Climb(base, ladder)
    width = next(itertools.islice(climb.widths(), 5, None))
    size = climb.size(width)
    recipes = [climb.recipe(width).model_copy(update={"seed": seed}) for seed in range(seeds)]
    found = speed(recipes[0], climb.sizes, seeds, recipes)
    per_second = found.replicas * size.flops_per_token * size.tokens_per_step / found.seconds_per_step
    shares = [10 ** (-DECADES * k / (rungs - 1)) for k in range(rungs)]
    largest = 60 * minutes * per_second / (many * seeds * sum(shares))
    if largest < 1e9:
        raise UserError(f"{duration(60 * minutes)} is too short for a ladder on this device")
    return [float(f"{largest * share:.2g}") for share in reversed(shares)]
