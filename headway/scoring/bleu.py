"""BLEU and chrF by sacreBLEU, each with the signature that says how it was computed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from headway.core.errors import UserError
from headway.scoring.metrics import BLEU, BLEU_LOWERCASED, CHRF, SENTENCE_BLEU, Metric

SMOOTHING = "exp"
"""Of the BLEU of single sentences, most of which lack some 4-gram: sacreBLEU's own default."""


class BleuScore(NamedTuple):
    metric: Metric
    value: float
    how: str
    """The signature, and what it does not say."""


def measured(hypotheses: Sequence[str], references: Sequence[str], tokenizer: str = "13a") -> list[BleuScore]:
    """Of a whole split, with one reference for each sentence."""
    sacrebleu, given = _sacrebleu(), (list(hypotheses), [list(references)])
    found = []
    metrics = {
        BLEU: sacrebleu.BLEU(tokenize=tokenizer),
        BLEU_LOWERCASED: sacrebleu.BLEU(tokenize=tokenizer, lowercase=True),
        CHRF: sacrebleu.CHRF(),
    }
    for metric, scorer in metrics.items():
        value = scorer.corpus_score(*given).score
        found.append(BleuScore(metric, value, f"corpus {metric.noun} · {scorer.get_signature()}"))
    of_sentences = by_sentence(hypotheses, references, tokenizer)
    mean = sum(of_sentences) / max(1, len(of_sentences))
    how = (
        f"mean of the BLEU of {len(of_sentences):,} sentences, not the BLEU of all · smooth:{SMOOTHING}|tok:{tokenizer}"
    )
    return [*found, BleuScore(SENTENCE_BLEU, mean, how)]


def by_sentence(hypotheses: Sequence[str], references: Sequence[str], tokenizer: str = "13a") -> list[float]:
    """The BLEU of each sentence alone."""
    scorer = _sacrebleu().BLEU(tokenize=tokenizer, smooth_method=SMOOTHING, effective_order=True)
    return [scorer.sentence_score(ours, [right]).score for ours, right in zip(hypotheses, references, strict=True)]


def _sacrebleu() -> Any:
    try:
        from sacrebleu import metrics  # pyright: ignore[reportMissingImports]
    except ImportError:
        reason = "BLEU is computed by sacreBLEU, which is not installed: pip install sacrebleu"
        raise UserError(f"{reason}; or set data.exact=true, and count exact matches alone") from None
    return metrics
