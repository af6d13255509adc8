"""The rows of a split for measuring how far gradients reach: their sides, and the loss to differentiate.

own       the side that ends with t: a segment, a text, the prefix of a target
source    the other side of pairs: distances are counted back from its last token

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
"""The minimum number of texts for a mean; fewer would be too noisy."""


class GradientRow(NamedTuple):
    """One row, without padding."""

    ids: Int[Tensor, "1 #B T"]
    target: Int[Tensor, "1 #B *any"]
    """The target of its loss."""
    source: Int[Tensor, "1 #B S"] | None = None

    def to(self, device: torch.device) -> "GradientRow":
        return GradientRow(*(None if part is None else part.to(device) for part in self))  # pyright: ignore

    def copies(self, count: int) -> "GradientRow":
        """A batch of so many copies."""
        return GradientRow(*(None if part is None else part.expand(-1, count, *part.shape[2:]) for part in self))  # pyright: ignore


@dataclass(frozen=True)
class GradientSide:
    """A part of the tokens that a stack of layers reads. Distances are counted back from its last token."""

    tokens: int
    """The number of tokens in every row; distances go up to one less."""
    stack: str = ""
    """The submodule that reads it; empty = the model itself."""
    behind: int = 0
    """How many tokens of the stack's input follow this side."""

    def back(self, along: Float[Tensor, "*_ T D"]) -> Float[Tensor, "*_ N D"]:
        """Reorder values of all tokens of the stack's input by distance."""
        end = along.shape[-2] - self.behind
        return along[..., end - self.tokens : end, :].flip(-2)


@dataclass(frozen=True)
class GradientRows:
    rows: Sequence[GradientRow]
    own: GradientSide
    nats: Callable[[Any, GradientRow], Float[Tensor, "1 B"]]
    """nats(model, row): the loss of a row."""
    loss: str
    """For captions: what the loss is of, such as "the target after token t"."""
    called: str
    """For captions: what the rows are, such as "segments of 64 tokens"."""
    ends: str
    """For messages: why the rows are no longer."""
    source: GradientSide | None = None
    read: Callable[[Any, GradientRow], object] = lambda model, row: model.hidden(row.ids)
    """read(model, row): the forward pass up to the last layer."""
    notes: tuple[str, ...] = ()
    """Caveats for reading the curves."""

    @property
    def sides(self) -> list[GradientSide]:
        return [self.own, *([] if self.source is None else [self.source])]

    def to(self, device: torch.device) -> "GradientRows":
        return replace(self, rows=[row.to(device) for row in self.rows])

    def few(self, most: int) -> "GradientRows":
        """At most `most` rows, evenly spaced."""
        return replace(self, rows=self.rows[:: max(1, len(self.rows) // most)][:most])


def rows_of(ids: Int[Tensor, "1 S T"], targets: Int[Tensor, "1 S *any"]) -> list[GradientRow]:
    """Rows of texts of equal length."""
    return [GradientRow(*one) for one in zip(ids.split(1, 1), targets.split(1, 1), strict=True)]


# --- running text ----------------------------------------------------------------------------------------------------


def spread(ids: Int[Tensor, " N"], length: int, rows: int) -> Int[Tensor, "1 S T"]:
    """Evenly spaced pieces of a text."""
    room = len(ids) - length
    if room < 0:
        raise UserError(f"the text has {len(ids)} tokens, too few for a segment of {length - 1} and the one after it")
    starts = torch.linspace(0, room, min(rows, room + 1)).long()
    return torch.stack([ids[start : start + length] for start in starts.tolist()])[None]


def in_segments(ids: Int[Tensor, " N"], tokens: int, most: int) -> GradientRows:
    """Segments of running text as in training, with the loss of the last target of each."""
    if tokens < 2:
        raise UserError("training uses segments of a single token, so gradients never pass from one token to another")
    rows = spread(ids, tokens + 1, most)
    return GradientRows(
        rows_of(rows[..., :-1], rows[..., 1:]),
        GradientSide(tokens),
        lambda model, row: model.losses(row.ids, row.target)[..., -1],
        loss="the target after token t",
        called=f"segments of {tokens} tokens",
        ends=f"in training no gradient goes beyond the segment of {tokens} tokens",
    )


# --- texts of different lengths --------------------------------------------------------------------------------------


class LongEnough(NamedTuple):
    """The common length that texts are cut to, and the texts that are long enough."""

    tokens: int
    fit: Int[np.ndarray, " F"]
    ends: str


def long_enough(lengths: Int[np.ndarray, " N"], context: int, texts: str) -> LongEnough:
    """The median length of the texts, or the context if that is less. `texts` describes them for messages, such as
    "texts of 'valid'"."""
    median = int(np.sort(lengths)[len(lengths) // 2]) if len(lengths) else 0  # at least half of them have so many
    tokens = min(context, median)
    if len(lengths) and tokens < 2:
        raise UserError(f"half of the {texts} have a single token, so gradients cannot pass from one token to another")
    half, whole = f"half of the {texts} have no more than {tokens} tokens", f"the model reads {context} tokens at once"
    return LongEnough(tokens, np.flatnonzero(lengths >= tokens), half if tokens < context else whole)


def some_of(fit: Int[np.ndarray, " F"], most: int, what: str) -> Int[np.ndarray, " S"]:
    """At most `most` of these texts, evenly spaced. `what` describes them for messages, such as "texts of 20 tokens or
    more"."""
    if len(fit) < FEWEST:
        reason = f"there are {len(fit)} {what}, but at least {FEWEST} are needed for a mean"
        raise UserError(f"{reason}: name another --split")
    return fit[np.linspace(0, len(fit) - 1, min(most, len(fit))).astype(np.int64)]


# --- pairs -----------------------------------------------------------------------------------------------------------


class LongPairs(NamedTuple):
    """Whole sources, and of each target the prefix from which its token number `target` is predicted."""

    rows: list[GradientRow]
    source: int
    """The minimum length of the sources, including END."""
    target: int
    """The length of every target prefix: END, then the tokens before number `target`."""
    called: str
    ends: str


def long_pairs(pairs: PairedTexts, context: int, most: int, split: str) -> LongPairs:
    """Pairs that fit the context, with both sides at least as long as the median. Sources are read whole, because part
    of a source does not match the target."""
    pairs = pairs.only(np.flatnonzero(pairs.longer <= context))
    sides = [
        long_enough(side.lengths, context, f"{name} of '{split}'")
        for name, side in (("sources", pairs.source), ("targets", pairs.target))
    ]
    S, T = (side.tokens for side in sides)
    fit = np.intersect1d(sides[0].fit, sides[1].fit)
    wanted = f"pairs of '{split}' that the model can read ({context} tokens with END), with {S} tokens or more in"
    chosen = pairs.only(some_of(fit, most, f"{wanted} the source and {T} in the target"))
    begin, rows = [chosen.target.end], []
    for source, target in zip(ids_of(chosen.source), ids_of(chosen.target), strict=True):
        read, said = [*source, chosen.source.end], [*target, chosen.target.end]
        ids, asked, given = (torch.tensor(part)[None, None] for part in ([*begin, *said[: T - 1]], said[T - 1], read))
        rows.append(GradientRow(ids.long(), asked.long(), given.long()))
    called = f"pairs (sources of {S} tokens or more, targets up to token {T})"
    return LongPairs(rows, S, T, called, " and ".join(dict.fromkeys(side.ends for side in sides)))


def in_pairs(pairs: LongPairs, own: GradientSide, source: GradientSide, notes: tuple[str, ...] = ()) -> GradientRows:
    """Gradient rows of pairs, with these two sides."""
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
