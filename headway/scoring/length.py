"""Length generalisation: one model, scored in segments of many lengths, on the same tokens.

    apart     disjoint segments without carried state: the first tokens of each have little context
    sliding   the window moves by a quarter of its length, so that every token has at least three quarters as context
    carried   disjoint segments, each continuing from the state of the one before, if the model has one

Short segments score worse because more of their tokens come early in a segment, whether or not the model can use
distant context: apart - sliding is that early-token effect, and sliding as a function of length is the rest.
`by_position` shows the same within a segment: the loss of the first token, of the second …
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Integer
from torch import Tensor

from headway.core.errors import UserError
from headway.models.language_model import LanguageModel
from headway.scoring.likelihood import losses_going_on, token_losses

TOKENS = 20_000
"""Default number of tokens of a split that are scored. For each length the text is read five times."""


@dataclass(frozen=True)
class LengthScore:
    """The loss of one model on a text at one segment length, in nats per token."""

    length: int
    stride: int
    """The stride of the sliding window."""
    apart: float
    sliding: float
    carried: float | None
    """None = the model carries no state."""
    by_position: list[float]
    """For `apart`: the mean loss of the first tokens of all segments, of the second …"""
    segments: int
    """The number of segments that `by_position` averages over."""

    def as_json(self) -> dict[str, Any]:
        return {**vars(self)}


def check_lengths(lengths: Sequence[int], tokens: int, limit: int | None) -> None:
    """Raise an error for lengths that cannot be scored, before anything is computed."""
    if not lengths or min(lengths) < 1 or len(set(lengths)) < len(lengths):
        raise UserError(f"expected different lengths of at least 1, not {', '.join(map(str, lengths)) or 'none'}")
    if limit is not None and max(lengths) > limit:
        raise UserError(f"segments of {max(lengths)} tokens cannot be read: the learned positions end at {limit}")
    if max(lengths) > tokens - 1:
        raise UserError(f"segments of {max(lengths)} tokens are longer than the text, which has {tokens:,}")


@torch.no_grad()
def score_lengths(model: LanguageModel, ids: Integer[Tensor, "N"], lengths: Sequence[int]) -> list[list[LengthScore]]:
    """A score for each length, for every replica."""
    check_lengths(lengths, len(ids), model.positions.limit)
    model.eval()
    found: list[list[LengthScore]] = [[] for _ in range(model.replicas)]
    for length in lengths:
        stride = max(1, length // 4)
        apart = token_losses(model, ids, length, length).double()
        sliding = token_losses(model, ids, length, stride).double().mean(1).tolist()
        carried = losses_going_on(model, ids, length).double().mean(1).tolist() if model.spec.remembers else None
        segments = apart.shape[1] // length  # the last one may have been moved back
        places = apart[:, : segments * length].unflatten(1, (segments, length)).mean(1).tolist()
        for r, scores in enumerate(found):
            state = None if carried is None else carried[r]
            mean = apart[r].mean().item()
            scores.append(LengthScore(length, stride, mean, sliding[r], state, places[r], segments))
    return found
