"""Baselines: the scores of cheap methods on the same split, shown beside every score of a model.

For running text: token frequencies (unigram), and a 5-gram model, on the model's own tokens, on the same scored tokens,
and with no more context than the model had. For labelled texts: the commonest class, the best rule that uses a single
word, and logistic regression on words and pairs of words. Each takes seconds. The settings of the regression are fixed
and were chosen once, on the packaged sets: see docs/log.md.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headway.audit import ngram
from headway.audit.audit import Audit, Baseline, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.scoring.likelihood import windows
from headway.scoring.metrics import ACCURACY, ACCURACY_SEEN, ACCURACY_UNSEEN, PERPLEXITY, POINTS, Metric, metric_of
from headway.scoring.reading import Reading
from headway.scoring.score import Score

ORDER = 5
MOST_WEIGHTS = 1 << 22  # of a regression, which takes 200 bytes for each
MOST_TOKENS = 5_000_000  # counting takes a second per million; a longer text is cut, and the label says so

Rows = Mapping[str, Sequence[str]]
Labels = Mapping[str, Sequence[str]]


# --- running text ------------------------------------------------------------------------------------------------


def language_baselines(
    ids: dict[str, np.ndarray], splits: Sequence[str], vocabulary: int, reading: Reading, token_kind: str
) -> dict[str, list[Baseline]]:
    """Unigram and 5-gram perplexity of each of these splits, fitted on `train`."""
    train = ids["train"][:MOST_TOKENS]
    fitted = f"fitted on {len(train):,} train tokens"
    if len(train) < len(ids["train"]):
        fitted = f"fitted on the first {len(train):,} of {len(ids['train']):,} train tokens"
    found: dict[str, list[Baseline]] = {split: [] for split in splits}
    for method, order in (("unigram", 1), (f"{ORDER}-gram", ORDER)):
        model = ngram.fit(train, vocabulary, order)
        for split in splits:
            context = context_lengths(len(ids[split]), reading)
            nats = float(model.losses(ids[split], context).mean())
            how = f"{split} · {len(context):,} tokens · {reading.label}"
            label = f"perplexity per token ({token_kind}) of a {method} model, {fitted} · {how}"
            found[split].append(Baseline(method, Score(f"{split}.{PERPLEXITY.name}", math.exp(nats), label)))
    return found


def context_lengths(tokens: int, reading: Reading) -> np.ndarray:
    """How many tokens a model sees before each token but the first when it is scored: within windows, or all earlier
    tokens where state is carried."""
    if reading.carried:
        return np.arange(1, tokens)
    length, places = windows(tokens, reading.segment, reading.stride)
    found = np.empty(tokens - 1, np.int64)
    for window in places:
        found[window.start + window.first : window.start + length] = np.arange(window.first + 1, length + 1)
    return found


# --- labelled texts ----------------------------------------------------------------------------------------------


def majority(labels: Labels, split: str) -> Baseline:
    """The accuracy of always answering the commonest class of the train split."""
    (answer, _), *_ = Counter(labels["train"]).most_common(1)
    share = list(labels[split]).count(answer) / len(labels[split])
    label = (
        f"accuracy of always answering '{answer}', the commonest class of train · {split} · n = {len(labels[split]):,}"
    )
    return Baseline("majority", Score(f"{split}.{ACCURACY.name}", share, label))


def one_word(rows: Rows, labels: Labels, splits: Sequence[str]) -> list[Baseline]:
    """The accuracy of the best rule of the form "if the text has this word, class A, else class B", chosen on the train
    split."""
    words = [set(re.findall(r"\w+", row.lower())) for row in rows["train"]]
    every = Counter(labels["train"])
    having: dict[str, Counter[str]] = {}
    for found, label in zip(words, labels["train"], strict=True):
        for one in found:
            having.setdefault(one, Counter())[label] += 1
    if not having:
        raise DoesNotApply("the rows of the train split have no words in them")

    commonest = every.most_common()

    def rule(one: str) -> tuple[int, str, str]:
        with_it = having[one]
        has, right = with_it.most_common(1)[0]
        # Among rows without the word, the commonest class: classes are tried from the commonest until none can win.
        best, most = commonest[0][0], 0
        for label, count in commonest:
            if count <= most:
                break
            if (left := count - with_it[label]) > most:
                best, most = label, left
        return right + most, has, best

    best = max(sorted(having), key=lambda one: rule(one)[0])
    _, has, has_not = rule(best)
    baselines = []
    for split in splits:
        said = [has if best in set(re.findall(r"\w+", row.lower())) else has_not for row in rows[split]]
        share = sum(a == b for a, b in zip(said, labels[split], strict=True)) / len(said)
        label = (
            f"accuracy of '{has}' where the text has the word '{best}', else '{has_not}', the best such rule of train"
        )
        score = Score(f"{split}.{ACCURACY.name}", share, f"{label} · {split} · n = {len(said):,}")
        baselines.append(Baseline("one word", score))
    return baselines


def bag_of_words(rows: Rows, labels: Labels, splits: Sequence[str]) -> dict[str, list[Baseline]]:
    """Logistic regression on words and pairs of words (TF-IDF): the accuracy on each split and, where some of its rows
    are in train, also on the seen and the unseen rows separately."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    classes = sorted(set(labels["train"]))
    if len(classes) < 2:
        raise DoesNotApply("the train split has one class only")
    features = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+")
    try:
        counts = features.fit_transform(rows["train"])
    except ValueError:  # an empty vocabulary
        raise DoesNotApply("the rows of the train split have no words in them") from None
    if (len(classes) - (len(classes) == 2)) * counts.shape[1] > MOST_WEIGHTS:
        classifier: Any = NearestMean(counts, labels["train"])
    else:
        classifier = LogisticRegression(C=10, max_iter=300)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # nearly converged is good enough
            classifier.fit(counts, labels["train"])
    how = getattr(classifier, "how", "logistic regression on words and pairs of words (TF-IDF, C = 10)")
    in_train = set(rows["train"])
    found = {}
    for split in splits:
        right = classifier.predict(features.transform(rows[split])) == np.array(labels[split])
        seen = np.array([row in in_train for row in rows[split]], dtype=np.bool_)
        parts = {ACCURACY: np.ones_like(seen)}
        if 0 < seen.sum() < len(seen):
            parts |= {ACCURACY_SEEN: seen, ACCURACY_UNSEEN: ~seen}
        found[split] = [
            Baseline(
                "bag of words",
                Score(f"{split}.{metric.name}", float(right[part].mean()), _bag_label(split, metric, part, how)),
            )
            for metric, part in parts.items()
        ]
    return found


class NearestMean:
    """The class whose mean is nearest to the text by cosine (Rocchio's classifier), for so many classes that a
    regression would need gigabytes."""

    def __init__(self, counts: Any, labels: Sequence[str]):
        from scipy import sparse
        from sklearn.preprocessing import normalize

        self.classes, which = np.unique(np.array(labels), return_inverse=True)
        ones = (np.ones(len(labels)), (which, np.arange(len(labels))))
        means: Any = normalize(sparse.csr_matrix(ones, (len(self.classes), len(labels))) @ counts)
        self.means = means.T.tocsr()
        self.how = (
            f"the class whose mean is nearest, in words and pairs of words (TF-IDF): {len(self.classes):,} classes "
        )
        self.how += "are too many for the logistic regression that others get"

    def predict(self, counts: Any) -> np.ndarray:
        best = [
            np.asarray((counts[k : k + 256] @ self.means).argmax(1)).ravel() for k in range(0, counts.shape[0], 256)
        ]
        return self.classes[np.concatenate(best)]


def _bag_label(split: str, metric: Metric, part: np.ndarray, how: str) -> str:
    which = {ACCURACY_SEEN: " rows seen in train", ACCURACY_UNSEEN: " rows not in train"}.get(metric, "")
    return f"accuracy of {how} · {split}{which} · n = {int(part.sum()):,}"


# --- the audits --------------------------------------------------------------------------------------------------


class CheapMethods(NamedTuple):
    """The names of the methods that the scores of a task are compared with."""

    ignoring_input: str
    """A method that ignores the input and knows only how frequent the answers are."""
    counting: str | None = None
    """A method that counts, in seconds; None where there is no such method."""
    others: tuple[str, ...] = ()
    """Further methods that are shown beside the scores and can be used in questions."""
    counted_apart: tuple[str, ...] = ()
    """Further metrics, besides the headline, that the counting method is scored in."""

    @property
    def names(self) -> list[str]:
        return [name for name in (self.ignoring_input, self.counting, *self.others) if name is not None]


@dataclass(frozen=True)
class Comparison:
    """A model's score and the scores of cheap methods, for the same metric and split."""

    score: Score
    baselines: Sequence[Baseline]
    methods: CheapMethods
    n: int
    """How many tokens or rows the score is a mean over."""

    @property
    def metric(self) -> Metric:
        return metric_of(self.score.name)

    def by(self, method: str | None) -> Baseline:
        found = next((b for b in self.baselines if b.method == method), None)
        if found is None:
            raise DoesNotApply(f"there is no {method or 'such'} baseline for {self.score.name}")
        return found

    def gain(self, base: Baseline) -> float:
        """How much better the model is: the difference for shares, else the relative difference to the lower value."""
        ours, theirs = self.score.value, base.score.value
        if self.metric.scale is POINTS:
            return self.metric.sign * (ours - theirs)
        more, less = (theirs, ours) if self.metric.lower_is_better else (ours, theirs)
        if less == 0:
            return math.inf if more > 0 else 0.0
        return more / less - 1

    def margin(self, base: Baseline) -> float:
        """What a gain must exceed. For a share, half the width of its 95 % interval on n rows. Other metrics are means
        over so many tokens that their interval is negligible; a useful model gains far more than 5 %."""
        share = base.score.value
        if self.metric.scale is not POINTS:
            return 0.05
        return 1.96 * math.sqrt(max(share * (1 - share), 0.25 / self.n) / self.n)


@audit("baselines")
def beats_chance(given: Comparison) -> Outcome:
    """The score is better than the baseline that ignores the input: token frequencies, or the commonest class.

    A language model that is no better than a unigram model ignores its context, and a classifier no better than the
    commonest class ignores its input: it has learnt only how frequent the answers are. An accuracy must be above the
    majority baseline by more than half the width of its own 95 % interval, 1.96 · sqrt(p (1 - p) / n), else the
    difference may be chance (a warning). A perplexity is a mean over so many tokens that no margin is needed for that;
    within 5 % of the unigram is a warning, since a useful model gains far more. If it fails, look at the training
    audits first: the model has most likely not been trained.
    """
    base, value = given.by(given.methods.ignoring_input), given.score.value
    beaten = f"{given.score.name} {value:.4g} against {base.score.value:.4g} ({base.method})"
    if not math.isfinite(value):
        return failed(value, f"{given.score.name} is not a finite number; {base.method}: {base.score.value:.4g}")
    gain, margin = given.gain(base), given.margin(base)
    if gain <= 0:
        return failed(gain, f"no better than a baseline that ignores the input: {beaten}", "no better than chance")
    if gain < margin:
        return warned(gain, f"hardly better than a baseline that ignores the input: {beaten}, n = {given.n:,}")
    return passed(gain, beaten)


@audit("baselines")
def beats_counting(given: Comparison) -> Outcome:
    """The score is better than the baseline that counts: a 5-gram model, or a bag of words.

    These baselines take seconds and need no tuning. A neural model that does not beat them shows nothing about its
    architecture, and a comparison of two such models compares how badly they were trained. It is a warning and not a
    failure, since on very little data counting is hard to beat. Train longer, with more data, or with a better learning
    rate; or report it.
    """
    base, value = given.by(given.methods.counting), given.score.value
    gain = given.gain(base)
    beaten = f"{given.score.name} {value:.4g} against {base.score.value:.4g} ({base.method})"
    return (
        passed(gain, beaten)
        if gain > 0
        else warned(gain, f"a method that takes seconds does as well or better: {beaten}")
    )


BASELINE_AUDITS: list[Audit] = [beats_chance, beats_counting]
