"""Cheap translation baselines: the copied source, and the train target of the most similar source."""

import numpy as np

from headway.audit.audit import Baseline
from headway.data.pairs.dataset import PairedTexts
from headway.scoring.metrics import EXACT_MATCH
from headway.scoring.score import Score

MOST = 2000
"""Maximum number of sources of a split that are looked up; of more, the first ones."""


def copied(split: str, pairs: PairedTexts, exact: bool, tokenizer: str) -> list[Baseline]:
    """The baseline that always answers with the source itself."""
    label = f"the source, copied · {split} · n = {len(pairs):,}"
    scores = _scores(split, pairs.source.texts, pairs.target.texts, exact, tokenizer, label)
    return [Baseline("copied source", score) for score in scores]


def remembered(split: str, train: PairedTexts, pairs: PairedTexts, exact: bool, tokenizer: str) -> list[Baseline]:
    """The baseline that answers with the target of the train source with the most similar character n-grams."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    asked, right = pairs.source.texts[:MOST], pairs.target.texts[:MOST]
    features = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True)
    known = features.fit_transform(train.source.texts)
    looked_up = features.transform(asked)
    nearest = [
        int(row)
        for first in range(0, len(asked), 256)
        for row in np.asarray((looked_up[first : first + 256] @ known.T).argmax(axis=1)).ravel()  # pyright: ignore
    ]
    answers = [train.target.texts[k] for k in nearest]
    label = f"the target of the most similar train source (letters, TF-IDF) · {split} · n = {len(asked):,}"
    scores = _scores(split, answers, right, exact, tokenizer, label)
    return [Baseline("translation memory", score) for score in scores]


def _scores(split: str, answers: list[str], right: list[str], exact: bool, tokenizer: str, label: str) -> list[Score]:
    if exact:
        hits = [ours.split() == one.split() for ours, one in zip(answers, right, strict=True)]
        return [Score(f"{split}.{EXACT_MATCH.name}", sum(hits) / len(hits), f"exact matches of {label}")]
    from headway.scoring.bleu import measured

    found = measured(answers, right, tokenizer)
    return [Score(f"{split}.{one.metric.name}", one.value, f"{one.how} of {label}") for one in found]
