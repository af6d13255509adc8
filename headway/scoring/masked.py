"""How well a model guesses tokens that are hidden from it: nats, share of right guesses, pseudo-perplexity.

A split is read in rows that stand for themselves. In every row the same share of tokens is hidden behind [MASK], all at
once: which ones is a pure function of the row's number and the place in it, the same for every model and every time.
(Training also exchanges some and leaves some as they are; in scores nobody is shown what is to be guessed.)

A pseudo-perplexity is the exponential of the mean nats. It is no perplexity: the probabilities of tokens that are
guessed from both sides do not multiply to that of a text, and the more of a row is hidden the higher it is
(https://arxiv.org/abs/1910.14659 hides one token at a time: `alone`).
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

LARGEST = 2**25  # numbers in the largest tensor of a batch: 128 MB in float32
SCORED = "scored"
"""In the keys of what is hidden."""


@dataclass(frozen=True, eq=False)
class Guesses:
    """What one model made of the hidden tokens of some rows."""

    nats: Float[np.ndarray, " N"]
    """Of every hidden token, row by row."""
    right: Bool[np.ndarray, " N"]
    """Whether the likeliest token is the one."""
    tokens: int
    """Of the rows, hidden or not; marks are not counted."""
    how: str
    """What is hidden, of what, in words."""
    token_kind: str
    unknown: int = 0
    """How many of the hidden tokens stand for words outside the vocabulary."""

    def scores(self, split: str) -> list[Score]:
        """`split.loss`, `.masked_accuracy`, `.pseudo_perplexity`, each with what it is."""
        n, kind = len(self.nats), self.token_kind
        how = f"{split} · {n:,} of {self.tokens:,} tokens: {self.how}"
        if self.unknown:
            how += f" · {self.unknown:,} of the hidden ({self.unknown / n:.1%}) are unknown words"
        mean = float(self.nats.mean())
        hits = int(self.right.sum())
        return [
            Score(f"{split}.loss", mean, f"nats per hidden token ({kind}) · {how}"),
            Score(f"{split}.masked_accuracy", hits / n, f"hidden tokens ({kind}) guessed: {hits:,} of {n:,} · {how}"),
            Score(f"{split}.pseudo_perplexity", _exp(mean), f"exp of nats per hidden token ({kind}) · {how}"),
        ]


@torch.no_grad()
def guess(model: MaskedLanguageModel, rows: TextRows, tokenizer: Tokenizer, share: float) -> list[Guesses]:
    """The hidden tokens of these rows, by every replica."""
    model.eval()
    assert tokenizer.marks is not None
    device = next(model.parameters()).device
    hidden = hide(rows, tokenizer, share)
    asked = torch.ones_like(hidden.places, dtype=torch.bool) if hidden.asked is None else hidden.asked
    found, hits = (torch.empty(model.replicas, *asked.shape[1:], dtype=kind) for kind in (torch.float64, torch.bool))
    widest = max(model.vocabulary * hidden.places.shape[2], model.spec.largest(hidden.inputs.shape[2]))
    at_once = max(1, LARGEST // (model.replicas * max(widest, model.spec.largest(1) * hidden.inputs.shape[2])))
    by_length = torch.as_tensor(rows.lengths).argsort(stable=True)
    for some in by_length.split(at_once):
        width = int(rows.lengths[some].max()) + tokenizer.marks.room()
        batch = [
            None if one is None else one[:, some].to(device).expand(model.replicas, -1, -1)
            for one in (hidden.inputs[..., :width], hidden.padding_mask, hidden.places, hidden.targets)
        ]
        ids, told, places, targets = batch
        told = None if told is None or bool(told[..., :width].all()) else told[..., :width]
        assert ids is not None and places is not None and targets is not None
        sure = model.guesses(ids, places.clamp(max=width - 1), told).float().log_softmax(-1)
        found[:, some] = -sure.gather(-1, targets[..., None])[..., 0].double().cpu()
        hits[:, some] = (sure.argmax(-1) == targets).cpu()
    keep, unknown = asked[0], _unknown(hidden, asked, tokenizer)
    how = f"{share:.0%} of each row hidden at a time, always the same · {len(rows):,} rows of at most {rows.longest}"
    nats, right = found[:, keep].numpy(), hits[:, keep].numpy()
    return [Guesses(nats[r], right[r], len(rows.ids), how, tokenizer.kind, unknown) for r in range(model.replicas)]


def hide(rows: TextRows, tokenizer: Tokenizer, share: float) -> MaskedBatch:
    """These rows [1, N, T] with what is hidden of them in scores."""
    if not len(rows):
        raise UserError("there is no text in which anything could be hidden")
    assert tokenizer.marks is not None
    table, lengths = rows.padded(tokenizer.marks)
    told = torch.arange(table.shape[1]) < torch.as_tensor(lengths)[:, None]
    spec = ALL_HIDDEN.model_copy(update={"share": share})
    hiding = Hiding(
        spec, tokenizer.marks, torch.as_tensor(tokenizer.words), [0], rows.longest + tokenizer.marks.room(), SCORED
    )
    return hiding(torch.as_tensor(table).long()[None], told[None], 0)


@torch.no_grad()
def alone(model: MaskedLanguageModel, ids: np.ndarray, tokenizer: Tokenizer) -> Guesses:
    """Each token of one text, where it alone is hidden, by the first replica. The text must fit the model."""
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
    at_once = max(1, LARGEST // (model.replicas * len(row) * model.spec.largest(len(row))))
    for some in torch.arange(len(places)).split(at_once):
        given = (one[some].to(device).expand(model.replicas, -1, -1) for one in (rows, places[:, None]))
        sure = model.guesses(*given)[0, :, 0].double().log_softmax(-1).cpu()
        nats.append(-sure.gather(-1, row[places[some]][:, None])[:, 0])
        right.append(sure.argmax(-1) == row[places[some]])
    unknown = 0 if tokenizer.unknown is None else int((ids == tokenizer.unknown).sum())
    how = "one is hidden at a time"
    return Guesses(torch.cat(nats).numpy(), torch.cat(right).numpy(), len(ids), how, tokenizer.kind, unknown)


def _unknown(hidden: MaskedBatch, asked: Tensor, tokenizer: Tokenizer) -> int:
    return 0 if tokenizer.unknown is None else int((hidden.targets[asked] == tokenizer.unknown).sum())


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)  # NaN stays NaN
