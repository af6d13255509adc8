"""One member of a population, with its share of what was computed for all members at once.

They share an architecture, so most of what is asked of a model is asked of one. What they may differ in (their weights,
and what came of them) is asked of each; but in one pass for all of them side by side, for on a GPU a pass of 32 small
models takes as long as that of one. (A few kinds of models have audits of what training made of them that are asked of
each by itself, and so are the user's own: `runner.py`.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from headway.audit.probe import Found, Probe
from headway.audit.probing import Probing
from headway.recipe.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Member:
    """One of those that a probe has side by side: what audits of each replica are given in place of a probe of one."""

    everyone: Probe
    place: int
    recipe: Recipe
    alone: Callable[[], Probe]
    """The same by itself, for those that look closely."""

    @property
    def how(self) -> Probing:
        return self.everyone.how

    @property
    def model(self) -> Any:
        """Of all of them."""
        return self.everyone.model

    @property
    def trained(self) -> bool:
        return self.everyone.trained

    @property
    def to_train(self) -> bool:
        return self.everyone.to_train

    @property
    def is_whole(self) -> bool:
        return self.everyone.are_whole[self.place]

    def share(self, measure: Callable[[Probe], Sequence[Found]]) -> Found:
        """Of what is measured of all at once."""
        return self.everyone.shares(measure)[self.place]


OneOrMember = Probe | Member
"""A model by itself, or beside others: whoever takes only its share need not know which."""


def excerpts(everyone: Probe, rows: int, tokens: int) -> Any:
    """Of every member's batch a few rows, as each would choose them alone."""
    own = [
        everyone.how.excerpt(cut(everyone.batch, (slice(r, r + 1),)), rows, tokens)
        for r in range(len(everyone.batch.inputs))
    ]
    if len(own) == 1:
        return own[0]
    parts = {field.name: [getattr(one, field.name) for one in own] for field in fields(own[0])}
    return replace(own[0], **{n: torch.cat(p) for n, p in parts.items() if isinstance(p[0], Tensor) and p[0].ndim})


def cut(batch: Any, where: tuple[slice, ...]) -> Any:
    """Of a batch, some members, rows and tokens."""
    parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{n: p[where[: p.ndim]] for n, p in parts.items() if isinstance(p, Tensor) and p.ndim})
