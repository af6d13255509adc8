"""BLEU and chrF by sacreBLEU, with its signature and the counts of every sentence.

Neither is a mean over sentences: n-grams are counted over all sentences, and the score is computed from the sums. So
the counts of each sentence are kept, and `of_sums` computes the score of any set of sentences. The mean of sentence
BLEU is a different number, and has its own name.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from headway.core.errors import UserError
from headway.scoring.metrics import BLEU, BLEU_LOWERCASED, CHRF, SENTENCE_BLEU, Metric
from headway.stats.resampled import OfSums

SMOOTHING = "exp"
"""Smoothing for sentence BLEU, since most sentences have no matching 4-gram: sacreBLEU's own default."""
ORDER = 4
BETA = 2
Sums = Float[np.ndarray, "*of k"]


class BleuScore(NamedTuple):
    metric: Metric
    value: float
    how: str
    """sacreBLEU's signature, and what it leaves out."""
    counts: tuple[tuple[int | float, ...], ...]
    """Each sentence's contribution to the sums from which `of_sums` computes the score."""


def measured(hypotheses: Sequence[str], references: Sequence[str], tokenizer: str = "13a") -> list[BleuScore]:
    """Score a whole split, with one reference for each sentence."""
    given = (list(hypotheses), [list(references)])
    found = []
    for metric, scorer in _scorers(tokenizer).items():
        counts = tuple(tuple(row) for row in scorer._extract_corpus_statistics(*given))
        value = scorer.corpus_score(*given).score
        found.append(BleuScore(metric, value, f"corpus {metric.noun} · {scorer.get_signature()}", counts))
    of_sentences = by_sentence(hypotheses, references, tokenizer)
    mean = sum(of_sentences) / max(1, len(of_sentences))
    how = f"mean of the sentence BLEU of {len(of_sentences):,} sentences · smooth:{SMOOTHING}|tok:{tokenizer}"
    return [*found, BleuScore(SENTENCE_BLEU, mean, how, tuple((value, 1) for value in of_sentences))]


def by_sentence(hypotheses: Sequence[str], references: Sequence[str], tokenizer: str = "13a") -> list[float]:
    """Sentence BLEU, for each sentence."""
    scorer = _sacrebleu().BLEU(tokenize=tokenizer, smooth_method=SMOOTHING, effective_order=True, force=True)
    return [scorer.sentence_score(ours, [right]).score for ours, right in zip(hypotheses, references, strict=True)]


def _scorers(tokenizer: str) -> dict[Metric, Any]:
    """`force` silences sacreBLEU's warning about texts that look tokenised: the user decides that, and the signature
    states it."""
    sacrebleu = _sacrebleu()
    return {
        BLEU: sacrebleu.BLEU(tokenize=tokenizer, force=True),
        BLEU_LOWERCASED: sacrebleu.BLEU(tokenize=tokenizer, lowercase=True, force=True),
        CHRF: sacrebleu.CHRF(),
    }


def _sacrebleu() -> Any:
    try:
        from sacrebleu import metrics  # pyright: ignore[reportMissingImports]
    except ImportError:
        reason = "BLEU needs sacreBLEU, which is not installed: pip install sacrebleu"
        raise UserError(f"{reason}; or set data.exact=true to count exact matches only") from None
    return metrics


# --- from sums to scores, many at once -------------------------------------------------------------------------------


def of_sums(metric: Metric) -> OfSums | None:
    """The function that computes the score from summed counts; None = this metric has no counts per row."""
    if metric.is_of_rows:
        return _share
    return {BLEU: _bleu, BLEU_LOWERCASED: _bleu, CHRF: _chrf, SENTENCE_BLEU: _share}.get(metric)


def _share(sums: Sums) -> np.ndarray:
    """From [sum, number of rows]."""
    return np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1))


def _bleu(sums: Sums) -> np.ndarray:
    """From [length, length of references, matching 1-grams … 4-grams, all 1-grams … 4-grams]. The first order without a
    match counts half a match, the next a quarter …, as in sacreBLEU's smooth:exp."""
    ours, theirs, right, all_ = sums[..., 0], sums[..., 1], sums[..., 2 : 2 + ORDER], sums[..., 2 + ORDER :]
    halved = 0.5 ** np.cumsum((right == 0) & (all_ > 0), -1)
    precision = np.where(right == 0, halved, right) / np.maximum(all_, 1)
    brevity = np.exp(np.minimum(0, 1 - theirs / np.maximum(ours, 1e-9)))
    there = (right > 0).any(-1) & (all_ > 0).all(-1)
    return np.where(there, 100 * brevity * np.exp(np.log(precision).mean(-1)), 0.0)


def _chrf(sums: Sums) -> np.ndarray:
    """From [ours, theirs, in both] for character 1-grams … 6-grams; orders that one side lacks are skipped."""
    ours, theirs, both = (sums[..., k::3] for k in range(3))
    there = (ours > 0) & (theirs > 0)
    orders = np.maximum(there.sum(-1), 1)
    precision, recall = ((both / np.maximum(n, 1) * there).sum(-1) / orders for n in (ours, theirs))
    weighed = BETA**2 * precision + recall
    return np.asarray(100 * (1 + BETA**2) * precision * recall / np.where(weighed > 0, weighed, 1))
