"""Scores of translators: the loss of the reference targets, and the quality of what the model writes.

The loss and the token accuracy are teacher-forced, as in training. Decoded translations (`scoring/decoding.py`) are
compared as text: by exact match where a source has one right translation, and else also by BLEU and chrF. Padding is
never counted; END is a token like the others.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from headway.core import random
from headway.data.pairs.dataset import PairedTexts, ids_of
from headway.data.tokenizers import Tokenizer
from headway.models.translator import Translator
from headway.nn.kernels.onednn import packed_weights
from headway.scoring import bleu
from headway.scoring.continued import Continued, Found, Hypothesis
from headway.scoring.decoding import DecodingSpec
from headway.scoring.joint_translator import JointTranslator
from headway.scoring.metrics import EXACT_MATCH, LOSS, TOKEN_ACCURACY, Metric
from headway.scoring.score import Score
from headway.stats.intervals import wilson
from headway.stats.resampled import interval

Model = Translator | JointTranslator
MAX_ELEMENTS = {"cpu": 2**24, "cuda": 2**27}
"""Elements in the largest tensor of a batch, by device: 64 and 512 MB in float32."""
LENGTHS = (5, 10, 20, 40)
"""Bin edges for scores by source length, in tokens without END."""


@dataclass(frozen=True, eq=False)
class Forced:
    """Teacher-forced results of one model. Arrays have an element per pair."""

    nats: Float[np.ndarray, " N"]
    tokens: Int[np.ndarray, " N"]
    """Tokens of the target, including END."""
    right: Int[np.ndarray, " N"]
    """How many of these were the model's likeliest token."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def accuracy(self) -> float:
        return float(self.right.sum() / self.tokens.sum())


@torch.no_grad()
def forced(model: Model, pairs: PairedTexts) -> list[Forced]:
    """The teacher-forced results of every replica. Texts longer than the model's context are truncated."""
    model.eval()
    R, device, context = model.replicas, next(model.parameters()).device, model.longest
    (sources, source_lengths), (targets, lengths) = (side.padded(context) for side in (pairs.source, pairs.target))
    nats, right = np.zeros((R, len(pairs))), np.zeros((R, len(pairs)), dtype=np.int64)
    end = pairs.target.end
    for rows in _batches(np.maximum(source_lengths, lengths), model, device):
        S, T = source_lengths[rows].max(), lengths[rows].max()
        known, asked = (
            torch.as_tensor(table[rows]).long().to(device).expand(R, -1, -1) for table in (sources, targets)
        )
        known, asked = known[..., :S], asked[..., :T]
        source_mask, mask = (
            (torch.arange(n) < torch.as_tensor(of[rows])[:, None]).to(device).expand(R, -1, -1)
            for n, of in ((S, source_lengths), (T, lengths))
        )
        inputs = torch.cat((torch.full_like(asked[..., :1], end), asked[..., :-1]), 2)
        logits = model(known, inputs, source_mask, mask)
        nats[:, rows] = (model.nats(logits, asked).double() * mask).sum(2).cpu().numpy()
        right[:, rows] = ((logits.argmax(-1) == asked) & mask).sum(2).cpu().numpy()
    return [Forced(n, lengths, r) for n, r in zip(nats, right, strict=True)]


@torch.no_grad()
def decoded(
    model: Model,
    sources: Sequence[np.ndarray],
    end: int,
    how: DecodingSpec,
    told: Callable[[int], object] = lambda n: None,
    cached: bool = True,
    at_once: int | None = None,
) -> Found:
    """Decode these sources with every replica: tokens without END, truncated to the model's context. An empty source
    gives an empty translation. `end` is the END token of targets. `told` is called with the number of finished sources.
    `at_once` is the batch size, which does not change the result."""
    model.eval()
    R, device, context = model.replicas, next(model.parameters()).device, model.longest
    ends = model.source_vocabulary - 1
    rows_of = [np.concatenate((ids[: context - 1], [ends])) for ids in sources]
    lengths = np.array([len(ids) for ids in rows_of], dtype=np.int64)
    found: Found = [[[Hypothesis((), 0.0, 0.0)] for _ in sources] for _ in range(R)]
    there = np.flatnonzero(lengths > 1)  # a source with END only is empty
    done = len(sources) - len(there)
    with packed_weights(model):
        for batch in _batches(lengths[there], model, device, getattr(how, "size", 1), at_once):
            rows = there[batch]
            table = torch.zeros(len(rows), lengths[rows].max(), dtype=torch.int64)
            for k, row in enumerate(rows):
                table[k, : lengths[row]] = torch.as_tensor(rows_of[row])
            mask = torch.arange(table.shape[1]) < torch.as_tensor(lengths[rows])[:, None]
            state = model.read_many(table.to(device).expand(R, -1, -1), mask.to(device).expand(R, -1, -1))
            limits = [_limit(model, how, int(lengths[row]) - 1) for row in rows]
            first = torch.full((R, len(rows), 1), end, device=device)
            text = Continued(model, first, state, cached=cached)
            for r, of_replica in enumerate(how.search(text, end, limits, rows.tolist())):
                for row, best in zip(rows, of_replica, strict=True):
                    found[r][row] = best
            done += len(rows)
            told(done)
    return found


def _limit(model: Model, how: DecodingSpec, source: int) -> int:
    most = model.most_written
    return how.limit(source) if most is None else min(how.limit(source), most)


def _batches(
    lengths: Int[np.ndarray, " N"],
    model: Model,
    device: torch.device,
    beams: int | None = None,
    at_once: int | None = None,
) -> Iterator[Int[np.ndarray, " n"]]:
    """Batches of rows of similar length, as large as memory allows. `beams` is the beam width for decoding; None =
    teacher forcing, where all target tokens are predicted at once."""
    order, most = np.argsort(lengths, kind="stable")[::-1], MAX_ELEMENTS.get(device.type, MAX_ELEMENTS["cpu"])
    first = 0
    while first < len(order):
        widest = int(lengths[order[first]])
        each = model.numbers(widest, answers=beams or widest, slots=(beams or 1) * widest)
        n = at_once or min(256, max(1, most // each))
        yield order[first : first + n]
        first += n


# --- scores ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Translated:
    """One model's translations of a split, with the references."""

    sources: list[str]
    references: list[str]
    best: list[Hypothesis]
    texts: list[str]
    """The best hypotheses as text."""
    lengths: Int[np.ndarray, " N"]
    """Length of each source in tokens, without END."""
    seen: Bool[np.ndarray, " N"]
    """Whether the source was in train."""
    how: str
    """For labels: the decoding method, and what was truncated."""

    @property
    def exact(self) -> Bool[np.ndarray, " N"]:
        """Whether each translation equals the reference, ignoring white space."""
        both = zip(self.texts, self.references, strict=True)
        return np.array([ours.split() == right.split() for ours, right in both], dtype=np.bool_)

    def only(self, rows: Int[np.ndarray, " n"]) -> "Translated":
        sources, references, best, texts = (
            [part[k] for k in rows] for part in (self.sources, self.references, self.best, self.texts)
        )
        return Translated(sources, references, best, texts, self.lengths[rows], self.seen[rows], self.how)

    def table(self, exact: bool, tokenizer: str = "13a") -> list[list[str]]:
        """A header, then a row for every sentence."""
        columns = ["source", "reference", "translation", "exact", "nats", "tokens", "seen in train"]
        rows = [
            [source, reference, text, str(int(hit)), f"{one.nats:.4f}", str(len(one.tokens)), str(int(seen))]
            for source, reference, text, hit, one, seen in zip(
                self.sources, self.references, self.texts, self.exact, self.best, self.seen, strict=True
            )
        ]
        if not exact:
            columns.append(f"BLEU (smooth:{bleu.SMOOTHING}|tok:{tokenizer})")
            found = bleu.by_sentence(self.texts, self.references, tokenizer)
            rows = [[*row, f"{value:.2f}"] for row, value in zip(rows, found, strict=True)]
        return [columns, *([" ".join(cell.split()) for cell in row] for row in rows)]

    def scores(self, split: str, exact: bool, tokenizer: str = "13a") -> list[Score]:
        """`split.exact_match`, and BLEU and chrF where a source has more than one right translation. The main one of
        these is also given by source length and for sources that are not in train."""
        found = [replace(self._exact(split, exact), rows=_digits(self.exact), texts=tuple(self.texts))]
        if exact:
            return found + [self.only(rows)._exact(split, exact, part) for part, rows in self._parts()]
        whole = bleu.measured(self.texts, self.references, tokenizer)
        found += [replace(self._bleu(split, one), counts=one.counts) for one in whole]
        return found + [self.only(rows)._bleu(split, whole[0], part, rows) for part, rows in self._parts()]

    def _parts(self) -> Iterator[tuple[str, Int[np.ndarray, " n"]]]:
        """The rows of each source-length bin, where the bin is neither empty nor the whole split, and the rows whose
        source is not in train."""
        for low, high in pairwise([-1, *LENGTHS, math.inf]):
            rows = np.flatnonzero((self.lengths > low) & (self.lengths <= high))
            if 0 < len(rows) < len(self.texts):
                yield f"{low + 1}+" if high == math.inf else f"{low + 1}-{high}", rows
        if 0 < self.seen.sum() < len(self.texts):
            yield "unseen", np.flatnonzero(~self.seen)

    def _exact(self, split: str, one_answer: bool, part: str = "") -> Score:
        hits, n = int(self.exact.sum()), len(self.texts)
        reference = "the one right translation" if one_answer else "the reference"
        label = f"exactly {reference}: {hits:,} of {n:,} · {split}{_subset(part)} · {self.how}"
        return Score(_name(split, EXACT_MATCH, part), hits / n, label, wilson(hits, n))

    def _bleu(
        self, split: str, whole: bleu.BleuScore, part: str = "", rows: Int[np.ndarray, " n"] | None = None
    ) -> Score:
        """The score of all rows or of these only. The interval is over other sentences."""
        counts, score = np.array(whole.counts, dtype=np.float64), bleu.of_sums(whole.metric)
        assert score is not None
        counts = counts if rows is None else counts[rows]
        value = whole.value if rows is None else float(score(counts.sum(0)))
        label = f"{whole.how} · {split}{_subset(part)} · {_pairs(len(self.texts))} · {self.how}"
        return Score(_name(split, whole.metric, part), value, label, interval(counts, score))


def _name(split: str, metric: Metric, part: str) -> str:
    return f"{split}.{metric.name}" + (f".{part}" if part else "")


def _subset(part: str) -> str:
    """The subset of the split, for a label."""
    return {"": "", "unseen": ", sources that are not in train"}.get(part, f", sources of {part} tokens")


def _digits(hits: Bool[np.ndarray, " N"]) -> str:
    return "".join("1" if hit else "0" for hit in hits)


def forced_scores(split: str, found: Forced, kind: str, cut: int, context: int) -> list[Score]:
    """`split.loss` and `split.token_accuracy`."""
    tokens, n = int(found.tokens.sum()), len(found.tokens)
    how = f"{split} · {tokens:,} target tokens ({kind}, END among them) of {_pairs(n)}, each given those before it"
    how += f" · {cut:,} cut at {context} tokens" if cut else ""
    return [
        Score(f"{split}.{LOSS.name}", found.loss, f"nats per token · {how}"),
        Score(f"{split}.{TOKEN_ACCURACY.name}", found.accuracy, f"share of tokens that are the likeliest · {how}"),
    ]


def translated(
    model: Model, pairs: PairedTexts, tokenizer: Tokenizer, how: DecodingSpec, **settings: object
) -> list[Translated]:
    """Translate a split with every replica. `tokenizer` is that of the targets."""
    sources = ids_of(pairs.source)
    context = model.longest
    cut_sources = sum(len(ids) >= context for ids in sources)
    made = []
    for of_replica in decoded(model, sources, pairs.target.end, how, **settings):  # pyright: ignore
        best = [hypotheses[0] for hypotheses in of_replica]
        label = how.label
        if cut_sources:
            label += f" · {cut_sources:,} sources cut at {context} tokens"
        if empty := sum(len(ids) == 0 for ids in sources):
            label += f" · {empty:,} empty sources"
        if endless := sum(one.cut for one in best):
            label += f" · {endless:,} cut at the length limit"
        texts = [tokenizer.decode(one.tokens) for one in best]
        lengths = pairs.source.lengths - 1
        made.append(Translated(pairs.source.texts, pairs.target.texts, best, texts, lengths, pairs.seen, label))
    return made


def spread_out(pairs: PairedTexts, at_most: int | None) -> PairedTexts:
    """A fixed random subset of pairs with at most so many target tokens in total."""
    lengths = pairs.target.lengths
    if at_most is None or lengths.sum() <= at_most:
        return pairs
    order = torch.randperm(len(pairs), generator=random.generator("spread out")).numpy()
    count = max(1, int(np.searchsorted(np.cumsum(lengths[order]), at_most, side="right")))
    return pairs.only(np.sort(order[:count]))


def _pairs(n: int) -> str:
    return f"{n:,} pair{'' if n == 1 else 's'}"
