"""A ladder: models of several sizes, trained with several compute budgets, to fit a scaling law to their losses.

    ladder:
      rungs:                                # FLOPs of one training run, and the widths trained with them
        - {flops: 1e13, widths: [32, 48, 64, 80, 96]}
        - {flops: 1e14, widths: [48, 64, 96, 128, 160]}
      width_per_layer: 32                   # layers = width / 32, rounded, and at least 1
      head_width: 16                        # heads = width / 16
      rate_power: -0.5                      # learning rate = the recipe's · (width / narrowest)^-0.5
      families: {attention: [], lstm: [model.mixer=lstm]}     # the whole ladder for each; optional

Every width at every budget is an arm, named `1e13.32` (`attention.1e13.32`). The number of steps that spend the budget
is computed when the study begins. The seeds of an arm form one population. A seed draws the same batches for all sizes,
so two sizes differ only in size.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from pydantic import Field

from headway.core.spec import Problem, Spec
from headway.study.design.factors import Arm, Change, key_of, label

MIN_WIDTHS = 4
"""The minimum for fitting a parabola."""


class Rung(Spec):
    """One compute budget and its model widths."""

    flops: float = Field(gt=0)
    """The compute budget of one training run, in FLOPs."""
    widths: list[int] = Field(min_length=1)
    """The widths of the models trained with this budget."""

    @property
    def name(self) -> str:
        return f"{self.flops:.3g}".replace("e+0", "e").replace("e+", "e")


class Ladder(Spec):
    """Model sizes and compute budgets."""

    rungs: list[Rung] = Field(min_length=1)
    """The budgets, with the widths of each."""
    width_per_layer: float = Field(default=32.0, gt=0)
    """Width divided by depth: a model has one layer per this many units of width."""
    head_width: int | None = Field(default=16, ge=1)
    """The width of an attention head; null = the recipe's number of heads, or no heads."""
    rate_power: float = Field(default=-0.5, ge=-2, le=2)
    """The learning rate scales with width: the recipe's rate, used for the narrowest model, times (width / narrowest)
    to this power."""
    families: dict[str, list[Change]] = Field(default={})
    """Model families by name, each with its changes to the recipe; each is trained on the whole ladder. None = a single
    family."""

    factors: ClassVar[tuple[str, ...]] = ("family", "budget", "width")
    """The factors that distinguish arms."""

    def problems(self) -> Iterator[Problem]:
        budgets = [rung.flops for rung in self.rungs]
        if len(budgets) < 2:
            yield Problem(("rungs",), "a scaling law cannot be fitted to one budget; expected at least two")
        if len({rung.name for rung in self.rungs}) < len(budgets) or sorted(budgets) != budgets:
            yield Problem(("rungs",), "expected different budgets, the smallest first")
        for k, rung in enumerate(self.rungs):
            if len(set(rung.widths)) < MIN_WIDTHS:
                reason = f"{rung.name} FLOPs has {len(set(rung.widths))} widths; finding the minimum needs at least"
                yield Problem((f"rungs.{k}.widths",), f"{reason} {MIN_WIDTHS}")
            elif sorted(set(rung.widths)) != rung.widths or rung.widths[0] < 1:
                yield Problem((f"rungs.{k}.widths",), "expected different widths, the narrowest first")
            elif self.head_width and any(width % self.head_width for width in rung.widths):
                wrong = next(width for width in rung.widths if width % self.head_width)
                reason = f"a width of {wrong} is not a multiple of ladder.head_width ({self.head_width})"
                yield Problem((f"rungs.{k}.widths",), reason)
        if wrong := [name for name in self.families if label(name) != name]:
            yield Problem(("families",), f"'{wrong[0]}' cannot be part of a folder name; use '{label(wrong[0])}'")

    @property
    def narrowest(self) -> int:
        return min(width for rung in self.rungs for width in rung.widths)

    def shape(self, width: int, family: Sequence[str] = ()) -> list[str]:
        """The recipe changes for a width, with those of the family. A family with a mixer of its own sets its number of
        heads itself."""
        found = [f"model.width={width}", f"model.layers={max(1, round(width / self.width_per_layer))}"]
        if self.head_width and not any(f"{key_of(change)}.".startswith("model.mixer.") for change in family):
            found.append(f"model.mixer.heads={width // self.head_width}")
        return [*found, *family]

    def rate(self, width: int, narrowest: float) -> float:
        """The learning rate of this width, given that of the narrowest."""
        return float(f"{narrowest * (width / self.narrowest) ** self.rate_power:.4g}")

    def arms(self, rate: float) -> list[Arm]:
        """All arms of the ladder. `rate` is the learning rate of the recipe."""
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
        """The compute budget of an arm."""
        return next(rung.flops for rung in self.rungs if rung.name == arm.levels["budget"])
