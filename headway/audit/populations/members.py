"""One replica of a population, with its share of what was computed for all replicas at once.

Replicas share an architecture, so most audits of a model are run on one of them. What may differ (their weights, and
whatever depends on them) is audited for each, but in one pass for all, because on a GPU a pass of 32 small models takes
as long as that of one. (Some kinds of models have audits of the trained weights that run on each replica by itself, and
so are the user's own audits: `runner.py`.)
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
    """One replica of a probe of several: what audits of each replica are given in place of a probe of one."""

    everyone: Probe
    place: int
    recipe: Recipe
    alone: Callable[[], Probe]
    """Builds a probe of this replica alone, for audits that need it."""

    @property
    def how(self) -> Probing:
        return self.everyone.how

    @property
    def model(self) -> Any:
        """The model with all replicas."""
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
        """This replica's result of a measure that is computed for all at once."""
        return self.everyone.shares(measure)[self.place]


OneOrMember = Probe | Member
"""A model by itself, or one replica of a population: an audit that uses `share` need not know which."""


def excerpts(everyone: Probe, rows: int, tokens: int) -> Any:
    """A few rows of every replica's batch, as each would choose them alone."""
    own = [
        everyone.how.excerpt(cut(everyone.batch, (slice(r, r + 1),)), rows, tokens)
        for r in range(len(everyone.batch.inputs))
    ]
    if len(own) == 1:
        return own[0]
    parts = {field.name: [getattr(one, field.name) for one in own] for field in fields(own[0])}
    return replace(own[0], **{n: torch.cat(p) for n, p in parts.items() if isinstance(p[0], Tensor) and p[0].ndim})


def cut(batch: Any, where: tuple[slice, ...]) -> Any:
    """Some replicas, rows and tokens of a batch."""
    parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{n: p[where[: p.ndim]] for n, p in parts.items() if isinstance(p, Tensor) and p.ndim})
