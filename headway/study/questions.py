"""What can be asked of a study. Each question is answered by one verdict."""

from collections.abc import Iterator
from typing import Annotated, Literal

from headway.errors import UserError
from headway.spec import CHOSEN_BY_KIND, Problem, Spec
from headway.study.quantities import quantity


class Asked(Spec):
    """What every question has: the score it is asked of."""

    on: str = "valid.perplexity"
    """The score, as split.quantity: valid.perplexity, test.accuracy. Choices are made on valid."""

    def problems(self) -> Iterator[Problem]:
        try:
            quantity(self.on)
        except UserError as error:
            yield Problem(("on",), str(error))


class Better(Asked):
    """Is one arm better than another?"""

    kind: Literal["better"] = "better"
    arm: str
    """The arm in question."""
    than: str
    """What it is compared with."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.arm == self.than:
            yield Problem(("arm", "than"), f"'{self.arm}' would be compared with itself")

    def __str__(self) -> str:
        return f"Is {self.arm} better than {self.than} on {self.on}?"


class Best(Asked):
    """Which arm is best, and which cannot be told from it?"""

    kind: Literal["best"] = "best"

    def __str__(self) -> str:
        return f"Which is best on {self.on}?"


class Depends(Asked):
    """Does the effect of one factor depend on another?"""

    kind: Literal["depends"] = "depends"
    effect: str
    """The factor whose effect is meant."""
    on_factor: str
    """The factor that it may depend on."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.effect == self.on_factor:
            yield Problem(("effect", "on_factor"), f"'{self.effect}' would be asked to depend on itself")

    def __str__(self) -> str:
        return f"Does the effect of {self.effect} on {self.on} depend on {self.on_factor}?"


Question = Annotated[Better | Best | Depends, CHOSEN_BY_KIND]
