"""Rows of equal length from all over a split, and the loss of each that gradients are followed back from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.core.errors import UserError

FEWEST = 4
"""Texts that a mean is taken over: fewer would be a matter of chance."""


@dataclass(frozen=True)
class FollowedRows:
    ids: Int[Tensor, "1 S T"]
    """What the model reads."""
    targets: Int[Tensor, "1 S *any"]
    nats: Callable[[Any, Tensor, Tensor], Float[Tensor, "1 S"]]
    """nats(model, ids, targets): of each row, one loss."""
    loss: str
    """Whose loss that is, in words: the target after token t."""
    called: str
    """What the rows are, in words: segments."""
    ends: str
    """Why they are no longer, in words."""
    notes: tuple[str, ...] = ()
    """What else should be known where the curves are read."""
    behind: int = 0
    """How many tokens of a row stand behind t, from which distances are counted."""

    @property
    def reach(self) -> int:
        """Tokens up to t: distances go up to one less."""
        return self.ids.shape[-1] - self.behind


def spread(ids: Int[Tensor, " N"], length: int, rows: int) -> Int[Tensor, "1 S T"]:
    """Pieces of a text, from all over it."""
    room = len(ids) - length
    if room < 0:
        raise UserError(f"the text has {len(ids)} tokens, too few for a segment of {length - 1} and the one after it")
    starts = torch.linspace(0, room, min(rows, room + 1)).long()
    return torch.stack([ids[start : start + length] for start in starts.tolist()])[None]


def in_segments(ids: Int[Tensor, " N"], tokens: int, most: int) -> FollowedRows:
    """Running text as training reads it, and the loss of the last target of each segment."""
    if tokens < 2:
        raise UserError("training has segments of a single token: no gradient ever goes from one to another")
    rows = spread(ids, tokens + 1, most)
    return FollowedRows(
        rows[..., :-1],
        rows[..., 1:],
        lambda model, ids, targets: model.losses(ids, targets)[..., -1],
        loss="the target after token t",
        called="segments",
        ends=f"training never sends a gradient beyond its segment of {tokens} tokens",
    )


class LongEnough(NamedTuple):
    """Of texts that have lengths of their own: to what they are cut, and which of them are long enough for that."""

    tokens: int
    chosen: Int[np.ndarray, " S"]
    ends: str


def long_enough(lengths: Int[np.ndarray, " N"], context: int, most: int, texts: str) -> LongEnough:
    """As many tokens as half of the texts have, or as the model reads at once if that is less; and at most so many of
    them, from all over. `texts`: what they are, in words, such as texts of 'valid'."""
    median = int(np.sort(lengths)[len(lengths) // 2]) if len(lengths) else 0  # half of them, or more, have as many
    tokens = min(context, median)
    if len(lengths) and tokens < 2:
        raise UserError(f"half of the {texts} have a single token: no gradient goes from one to another")
    fit = np.flatnonzero(lengths >= tokens)
    if len(fit) < FEWEST:
        raise UserError(
            f"{len(fit)} {texts} have {tokens} tokens or more, as half of them do; how far gradients reach is a mean "
            f"over {FEWEST} at least: name another --split"
        )
    half, whole = f"half of the {texts} have no more than {tokens} tokens", f"the model reads {context} tokens at once"
    chosen = fit[np.linspace(0, len(fit) - 1, min(most, len(fit))).astype(np.int64)]
    return LongEnough(tokens, chosen, half if tokens < context else whole)
