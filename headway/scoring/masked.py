"""Scores of masked language models: nats, accuracy and pseudo-perplexity on masked tokens.

A split is read in independent rows. In each row the same share of tokens is replaced by [MASK], all at once. Which ones
is a pure function of the row's number and the position, the same for every model and every time. (Training also
replaces some by random tokens and leaves some unchanged; scoring masks all of them, so no model is shown a token that
it has to predict.)

Pseudo-perplexity is the exponential of the mean nats. It is not a perplexity: the probabilities of tokens predicted
from both sides do not multiply to that of the text, and the more of a row is masked, the higher it is
(https://arxiv.org/abs/1910.14659 masks one token at a time, as `alone` does).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headway.core.errors import UserError
from headway.data.running.masking import Hiding, MaskedBatch
from headway.data.running.rows import TextRows
from headway.data.tokenizers import Tokenizer
from headway.models.masked_language_model import ALL_HIDDEN, MaskedLanguageModel
from headway.scoring.score import Score

MAX_ELEMENTS = 2**25  # elements in the largest tensor of a batch: 128 MB in float32
SCORED = "scored"
"""Part of the random keys that select the masked tokens."""


@dataclass(frozen=True, eq=False)
class Guesses:
    """One model's predictions of the masked tokens."""

    nats: Float[np.ndarray, " N"]
    """Nats of every masked token, row by row."""
    right: Bool[np.ndarray, " N"]
    """Whether the likeliest token is the right one."""
    tokens: int
    """All tokens of the rows, masked or not, without special tokens."""
    how: str
    """For labels: what is masked."""
    token_kind: str
    unknown: int = 0
    """How many of the masked tokens are the unknown word."""

    def scores(self, split: str) -> list[Score]:
        """`split.loss`, `.masked_accuracy` and `.pseudo_perplexity`, with labels."""
        n, kind = len(self.nats), self.token_kind
        how = f"{split} · {n:,} of {self.tokens:,} tokens: {self.how}"
        if self.unknown:
            how += f" · {self.unknown:,} of the masked ({self.unknown / n:.1%}) are unknown words"
        mean = float(self.nats.mean())
        hits = int(self.right.sum())
        return [
            Score(f"{split}.loss", mean, f"nats per masked token ({kind}) · {how}"),
            Score(f"{split}.masked_accuracy", hits / n, f"masked tokens ({kind}) predicted: {hits:,} of {n:,} · {how}"),
            Score(f"{split}.pseudo_perplexity", _exp(mean), f"exp of nats per masked token ({kind}) · {how}"),
        ]


@torch.no_grad()
def guess(model: MaskedLanguageModel, rows: TextRows, tokenizer: Tokenizer, share: float) -> list[Guesses]:
    """Predict the masked tokens of these rows with every replica."""
    model.eval()
    assert tokenizer.marks is not None
    device = next(model.parameters()).device
    hidden = hide(rows, tokenizer, share)
    asked = torch.ones_like(hidden.places, dtype=torch.bool) if hidden.asked is None else hidden.asked
    found, hits = (torch.empty(model.replicas, *asked.shape[1:], dtype=kind) for kind in (torch.float64, torch.bool))
    widest = max(model.vocabulary * hidden.places.shape[2], model.spec.largest(hidden.inputs.shape[2]))
    at_once = max(1, MAX_ELEMENTS // (model.replicas * max(widest, model.spec.largest(1) * hidden.inputs.shape[2])))
    by_length = torch.as_tensor(rows.lengths).argsort(stable=True)
    for some in by_length.split(at_once):
        width = int(rows.lengths[some].max()) + tokenizer.marks.room()
        batch = [
            None if one is None else one[:, some].to(device).expand(model.replicas, -1, -1)
            for one in (hidden.inputs[..., :width], hidden.padding_mask, hidden.places, hidden.targets)
        ]
        ids, padding_mask, places, targets = batch
        padding_mask = (
            None if padding_mask is None or bool(padding_mask[..., :width].all()) else padding_mask[..., :width]
        )
        assert ids is not None and places is not None and targets is not None
        sure = model.guesses(ids, places.clamp(max=width - 1), padding_mask).float().log_softmax(-1)
        found[:, some] = -sure.gather(-1, targets[..., None])[..., 0].double().cpu()
        hits[:, some] = (sure.argmax(-1) == targets).cpu()
    keep, unknown = asked[0], _unknown(hidden, asked, tokenizer)
    how = f"{share:.0%} of each row masked at once, always the same · {len(rows):,} rows of at most {rows.longest}"
    nats, right = found[:, keep].numpy(), hits[:, keep].numpy()
    return [Guesses(nats[r], right[r], len(rows.ids), how, tokenizer.kind, unknown) for r in range(model.replicas)]


def hide(rows: TextRows, tokenizer: Tokenizer, share: float) -> MaskedBatch:
    """These rows [1, N, T], masked as for scoring."""
    if not len(rows):
        raise UserError("the split has no text, so there are no tokens to mask")
    assert tokenizer.marks is not None
    table, lengths = rows.padded(tokenizer.marks)
    padding_mask = torch.arange(table.shape[1]) < torch.as_tensor(lengths)[:, None]
    spec = ALL_HIDDEN.model_copy(update={"share": share})
    hiding = Hiding(
        spec, tokenizer.marks, torch.as_tensor(tokenizer.words), [0], rows.longest + tokenizer.marks.room(), SCORED
    )
    return hiding(torch.as_tensor(table).long()[None], padding_mask[None], 0)


@torch.no_grad()
def alone(model: MaskedLanguageModel, ids: np.ndarray, tokenizer: Tokenizer) -> Guesses:
    """Predict each token of one text with only that token masked, by the first replica. The text must fit the
    context."""
    model.eval()
    marks = tokenizer.marks
    assert marks is not None
    device = next(model.parameters()).device
    row = torch.as_tensor(marks.row([ids])).long()
    model.check_length(len(row))
    places = torch.arange(marks.before, marks.before + len(ids))
    rows = row.repeat(len(places), 1)
    rows[torch.arange(len(places)), places] = marks.mask
    nats, right = [], []
    at_once = max(1, MAX_ELEMENTS // (model.replicas * len(row) * model.spec.largest(len(row))))
    for some in torch.arange(len(places)).split(at_once):
        given = (one[some].to(device).expand(model.replicas, -1, -1) for one in (rows, places[:, None]))
        sure = model.guesses(*given)[0, :, 0].double().log_softmax(-1).cpu()
        nats.append(-sure.gather(-1, row[places[some]][:, None])[:, 0])
        right.append(sure.argmax(-1) == row[places[some]])
    unknown = 0 if tokenizer.unknown is None else int((ids == tokenizer.unknown).sum())
    how = "one masked at a time"
    return Guesses(torch.cat(nats).numpy(), torch.cat(right).numpy(), len(ids), how, tokenizer.kind, unknown)


def _unknown(hidden: MaskedBatch, asked: Tensor, tokenizer: Tokenizer) -> int:
    return 0 if tokenizer.unknown is None else int((hidden.targets[asked] == tokenizer.unknown).sum())


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)  # NaN stays NaN
