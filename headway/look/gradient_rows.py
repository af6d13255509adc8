"""The rows of a split that gradients are followed back along: which side of each, and from which loss.

own       the side that ends with t: a segment, a text, what is known of a target
source    the other one, of what has two: distances are counted back from its last token, whoever reads it

    encoder–decoder   x₁ … xₙ END │ END y₁ … yₘ₋₁        source: the encoder's row;  own: the decoder's
    decoder-only      x₁ … xₙ END y₁ … yₘ₋₁              source: up to END;          own: the whole row
                                            t: the loss is that of yₘ
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.core.errors import UserError
from headway.data.pairs.dataset import PairedTexts, ids_of

FEWEST = 4
"""Texts that a mean is taken over: fewer would be a matter of chance."""


class GradientRow(NamedTuple):
    """One of them, alone: nothing in it is padding."""

    ids: Int[Tensor, "1 #B T"]
    target: Int[Tensor, "1 #B *any"]
    """What its loss is of."""
    source: Int[Tensor, "1 #B S"] | None = None

    def to(self, device: torch.device) -> "GradientRow":
        return GradientRow(*(None if part is None else part.to(device) for part in self))  # pyright: ignore

    def copies(self, count: int) -> "GradientRow":
        """So many of it, side by side."""
        return GradientRow(*(None if part is None else part.expand(-1, count, *part.shape[2:]) for part in self))  # pyright: ignore


@dataclass(frozen=True)
class GradientSide:
    """A stretch of what a stack of layers reads. Distances are counted back from its last token."""

    tokens: int
    """That every row has there: distances go up to one less."""
    stack: str = ""
    """Which part of the model reads it; empty = the model itself."""
    behind: int = 0
    """How many tokens, of what the stack reads, stand behind the last one."""

    def back(self, along: Float[Tensor, "*_ T D"]) -> Float[Tensor, "*_ N D"]:
        """What there is of every token that a stack reads, by distance."""
        end = along.shape[-2] - self.behind
        return along[..., end - self.tokens : end, :].flip(-2)


@dataclass(frozen=True)
class GradientRows:
    rows: Sequence[GradientRow]
    own: GradientSide
    nats: Callable[[Any, GradientRow], Float[Tensor, "1 B"]]
    """nats(model, row): its loss."""
    loss: str
    """Whose loss that is, in words: the target after token t."""
    called: str
    """What the rows are, in words: segments of 64 tokens."""
    ends: str
    """Why they are no longer, in words."""
    source: GradientSide | None = None
    read: Callable[[Any, GradientRow], object] = lambda model, row: model.hidden(row.ids)
    """read(model, row): the same way through the model as far as its last layer."""
    notes: tuple[str, ...] = ()
    """What else should be known where the curves are read."""

    @property
    def sides(self) -> list[GradientSide]:
        return [self.own, *([] if self.source is None else [self.source])]

    def to(self, device: torch.device) -> "GradientRows":
        return replace(self, rows=[row.to(device) for row in self.rows])

    def few(self, most: int) -> "GradientRows":
        """Some of them, from all over."""
        return replace(self, rows=self.rows[:: max(1, len(self.rows) // most)][:most])


def rows_of(ids: Int[Tensor, "1 S T"], targets: Int[Tensor, "1 S *any"]) -> list[GradientRow]:
    """Of texts that are equally long."""
    return [GradientRow(*one) for one in zip(ids.split(1, 1), targets.split(1, 1), strict=True)]


# --- running text ----------------------------------------------------------------------------------------------------


def spread(ids: Int[Tensor, " N"], length: int, rows: int) -> Int[Tensor, "1 S T"]:
    """Pieces of a text, from all over it."""
    room = len(ids) - length
    if room < 0:
        raise UserError(f"the text has {len(ids)} tokens, too few for a segment of {length - 1} and the one after it")
    starts = torch.linspace(0, room, min(rows, room + 1)).long()
    return torch.stack([ids[start : start + length] for start in starts.tolist()])[None]


def in_segments(ids: Int[Tensor, " N"], tokens: int, most: int) -> GradientRows:
    """Running text as training reads it, and the loss of the last target of each segment."""
    if tokens < 2:
        raise UserError("training has segments of a single token: no gradient ever goes from one to another")
    rows = spread(ids, tokens + 1, most)
    return GradientRows(
        rows_of(rows[..., :-1], rows[..., 1:]),
        GradientSide(tokens),
        lambda model, row: model.losses(row.ids, row.target)[..., -1],
        loss="the target after token t",
        called=f"segments of {tokens} tokens",
        ends=f"training never sends a gradient beyond its segment of {tokens} tokens",
    )


# --- texts that have lengths of their own ----------------------------------------------------------------------------


class LongEnough(NamedTuple):
    """To how many tokens texts are cut, and which of them are long enough for that."""

    tokens: int
    fit: Int[np.ndarray, " F"]
    ends: str


def long_enough(lengths: Int[np.ndarray, " N"], context: int, texts: str) -> LongEnough:
    """As many tokens as half of the texts have, or as the model reads at once if that is less. `texts`: what they are,
    in words, such as texts of 'valid'."""
    median = int(np.sort(lengths)[len(lengths) // 2]) if len(lengths) else 0  # half of them, or more, have as many
    tokens = min(context, median)
    if len(lengths) and tokens < 2:
        raise UserError(f"half of the {texts} have a single token: no gradient goes from one to another")
    half, whole = f"half of the {texts} have no more than {tokens} tokens", f"the model reads {context} tokens at once"
    return LongEnough(tokens, np.flatnonzero(lengths >= tokens), half if tokens < context else whole)


def some_of(fit: Int[np.ndarray, " F"], most: int, what: str) -> Int[np.ndarray, " S"]:
    """At most so many of these texts, from all over. `what` they are, in words, such as texts of 20 tokens or more."""
    if len(fit) < FEWEST:
        reason = f"there are {len(fit)} {what}, and how far gradients reach is a mean over {FEWEST} at least"
        raise UserError(f"{reason}: name another --split")
    return fit[np.linspace(0, len(fit) - 1, min(most, len(fit))).astype(np.int64)]


# --- pairs -----------------------------------------------------------------------------------------------------------


class LongPairs(NamedTuple):
    """Whole sources, and of each target what is known where its token number `target` is asked for."""

    rows: list[GradientRow]
    source: int
    """Tokens that every source has, END among them."""
    target: int
    """Tokens that are known of every target: END, with which it begins, and one less than are asked for."""
    called: str
    ends: str


def long_pairs(pairs: PairedTexts, context: int, most: int, split: str) -> LongPairs:
    """Pairs that training could read, both sides of which are as long as half of all such sides. Sources are read
    whole: what a part of one says is not what its target says."""
    pairs = pairs.only(np.flatnonzero(pairs.longer <= context))
    sides = [
        long_enough(side.lengths, context, f"{name} of '{split}'")
        for name, side in (("sources", pairs.source), ("targets", pairs.target))
    ]
    S, T = (side.tokens for side in sides)
    fit = np.intersect1d(sides[0].fit, sides[1].fit)
    wanted = (
        f"pairs of '{split}' that the model can read ({context} tokens, END among them), with {S} tokens or more in"
    )
    chosen = pairs.only(some_of(fit, most, f"{wanted} the source and {T} in the target"))
    begin, rows = [chosen.target.end], []
    for source, target in zip(ids_of(chosen.source), ids_of(chosen.target), strict=True):
        read, said = [*source, chosen.source.end], [*target, chosen.target.end]
        ids, asked, given = (torch.tensor(part)[None, None] for part in ([*begin, *said[: T - 1]], said[T - 1], read))
        rows.append(GradientRow(ids.long(), asked.long(), given.long()))
    called = f"pairs (sources of {S} tokens or more, targets up to token {T})"
    return LongPairs(rows, S, T, called, " and ".join(dict.fromkeys(side.ends for side in sides)))


def in_pairs(pairs: LongPairs, own: GradientSide, source: GradientSide, notes: tuple[str, ...] = ()) -> GradientRows:
    """For translators, whose two sides are these."""
    return GradientRows(
        pairs.rows,
        own,
        _nats_of_last,
        loss="the target after token t",
        called=pairs.called,
        ends=pairs.ends,
        source=source,
        read=lambda model, row: model.vectors(row.source, row.ids),
        notes=notes,
    )


def _nats_of_last(model: Any, row: GradientRow) -> Float[Tensor, "1 B"]:
    last = model.vectors(row.source, row.ids)[:, :, -1:]
    return model.nats(model.scores(last), row.target[..., None])[..., 0]
