"""A ladder: models of several sizes, each trained for several budgets, so that a law can be fitted to their losses.

    ladder:
      rungs:                                # FLOPs of one training, and the widths that are trained for them
        - {flops: 1e13, widths: [32, 48, 64, 80, 96]}
        - {flops: 1e14, widths: [48, 64, 96, 128, 160]}
      width_per_layer: 32                   # layers = width / 32, rounded, and at least 1
      head_width: 16                        # heads = width / 16
      rate_power: -0.5                      # learning rate = the recipe's · (width / narrowest)^-0.5
      families: {attention: [], lstm: [model.mixer=lstm]}     # the whole ladder for each of them; left out: one

Every width at every budget is an arm, called `1e13.32` (`attention.1e13.32`); how many steps it takes to spend the
budget is counted when the study begins. Seeds of one arm are one population, and a seed draws the same batches for all
sizes: what differs between two sizes is the size.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from pydantic import Field

from headway.core.spec import Problem, Spec
from headway.study.design.factors import Arm, Change, key_of, label

FEWEST_WIDTHS = 4
"""A parabola needs as many."""


class Rung(Spec):
    """One budget."""

    flops: float = Field(gt=0)
    """The budget of one training."""
    widths: list[int] = Field(min_length=1)
    """The widths of the models that are trained with this budget."""

    @property
    def name(self) -> str:
        return f"{self.flops:.3g}".replace("e+0", "e").replace("e+", "e")


class Ladder(Spec):
    """Sizes and budgets."""

    rungs: list[Rung] = Field(min_length=1)
    """The budgets, and the widths of each."""
    width_per_layer: float = Field(default=32.0, gt=0)
    """Width divided by depth: a model has one layer for each so many units of width."""
    head_width: int | None = Field(default=16, ge=1)
    """The width of an attention head; null = the recipe's number of heads, or no heads."""
    rate_power: float = Field(default=-0.5, ge=-2, le=2)
    """The learning rate scales with width: (width / narrowest) to this power times the recipe's, which is the narrowest
    model's."""
    families: dict[str, list[Change]] = Field(default={})
    """Model families that each climb the whole ladder, by name: their changes to the recipe. None = a single family."""

    factors: ClassVar[tuple[str, ...]] = ("family", "budget", "width")
    """What arms are told apart by."""

    def problems(self) -> Iterator[Problem]:
        budgets = [rung.flops for rung in self.rungs]
        if len(budgets) < 2:
            yield Problem(("rungs",), "one budget says nothing of how anything grows with it; expected at least two")
        if len({rung.name for rung in self.rungs}) < len(budgets) or sorted(budgets) != budgets:
            yield Problem(("rungs",), "expected different budgets, the smallest first")
        for k, rung in enumerate(self.rungs):
            if len(set(rung.widths)) < FEWEST_WIDTHS:
                reason = f"{rung.name} FLOPs has {len(set(rung.widths))} widths; a minimum needs at least"
                yield Problem((f"rungs.{k}.widths",), f"{reason} {FEWEST_WIDTHS}")
            elif sorted(set(rung.widths)) != rung.widths or rung.widths[0] < 1:
                yield Problem((f"rungs.{k}.widths",), "expected different widths, the narrowest first")
            elif self.head_width and any(width % self.head_width for width in rung.widths):
                wrong = next(width for width in rung.widths if width % self.head_width)
                reason = f"a width of {wrong} cannot be cut into heads of {self.head_width} (ladder.head_width)"
                yield Problem((f"rungs.{k}.widths",), reason)
        if wrong := [name for name in self.families if label(name) != name]:
            yield Problem(("families",), f"'{wrong[0]}' cannot be a part of a folder's name; '{label(wrong[0])}' can")

    @property
    def narrowest(self) -> int:
        return min(width for rung in self.rungs for width in rung.widths)

    def shape(self, width: int, family: Sequence[str] = ()) -> list[str]:
        """What a width makes of a recipe; the changes of a family with it. One that has a mixer of its own says itself
        how many heads that has, if any."""
        found = [f"model.width={width}", f"model.layers={max(1, round(width / self.width_per_layer))}"]
        if self.head_width and not any(f"{key_of(change)}.".startswith("model.mixer.") for change in family):
            found.append(f"model.mixer.heads={width // self.head_width}")
        return [*found, *family]

    def rate(self, width: int, narrowest: float) -> float:
        """The learning rate of this width, where that of the narrowest is known."""
        return float(f"{narrowest * (width / self.narrowest) ** self.rate_power:.4g}")

    def arms(self, rate: float) -> list[Arm]:
        """`rate`: the learning rate of the recipe."""
        found = []
        for family, changes in (self.families or {"": []}).items():
            for rung in self.rungs:
                for width in rung.widths:
                    levels = {"family": family, "budget": rung.name, "width": str(width)}
                    name = ".".join(part for part in levels.values() if part)
                    own = f"training.optimizer.learning_rate={self.rate(width, rate):g}"
                    found.append(Arm(name, (*self.shape(width, changes), own), levels))
        return found

    def flops_of(self, arm: Arm) -> float:
        """The budget of an arm."""
        return next(rung.flops for rung in self.rungs if rung.name == arm.levels["budget"])
