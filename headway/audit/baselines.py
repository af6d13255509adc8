"""Baselines: what a cheap method gets on the same split, beside which every score is shown.

For running text: the frequency of each token (unigram), and counted contexts of up to four tokens (5-gram), on the
model's own tokens, the same ones scored, and with no more context than the model had. For labelled texts: the commonest
class, the best rule that goes by a single word, and logistic regression on words and pairs of words. Each takes
seconds. The settings of the regression are fixed and were chosen once, on the packaged sets: see docs/log.md.
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
MOST_TOKENS = 5_000_000  # counting takes a second a million; beyond this, a stated beginning of the train split

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
    """How many tokens a model sees before each token but the first, when it reads as `scoring` does: in windows, or all
    that came before where state is carried."""
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
    """The accuracy of the best rule of the form "if the text has this word, the one class, else the other", found on
    the train split: what a single word tells."""
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
        # Of the others the commonest: those that lose none to the word need not be looked at further.
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
    """Logistic regression on words and pairs of words (TF-IDF): accuracy of each split as given, and where some of its
    rows are in the train split, on those seen and those unseen apart."""
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
            warnings.simplefilter("ignore", ConvergenceWarning)  # one that is not quite there is good enough
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
    """The class whose texts are most like a text, by the cosine between it and their mean: for so many classes that a
    regression would need gigabytes. (Rocchio's classifier.)"""

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
    """The names of the methods that the scores of a task are set beside."""

    looking_at_nothing: str
    """Knows only how frequent answers are."""
    counting: str | None = None
    """Knows what counting teaches, in seconds; None where there is no such method."""
    others: tuple[str, ...] = ()
    """That are told beside the scores, and may be asked about."""
    counted_apart: tuple[str, ...] = ()
    """Metrics beside the headline that the counting one is measured in, too."""

    @property
    def names(self) -> list[str]:
        return [name for name in (self.looking_at_nothing, self.counting, *self.others) if name is not None]


@dataclass(frozen=True)
class Comparison:
    """A model's score and what cheap methods got for the same metric of the same split."""

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
        """How much better the model is: of shares the difference, else as a part of the lower of the two."""
        ours, theirs = self.score.value, base.score.value
        if self.metric.scale is POINTS:
            return self.metric.sign * (ours - theirs)
        more, less = (theirs, ours) if self.metric.lower_is_better else (ours, theirs)
        if less == 0:
            return math.inf if more > 0 else 0.0
        return more / less - 1

    def margin(self, base: Baseline) -> float:
        """What a gain must exceed. Half of the 95 % interval of a share on n rows; other means are taken over so much
        that theirs is nothing, but what is of any use gains far more than a twentieth."""
        share = base.score.value
        if self.metric.scale is not POINTS:
            return 0.05
        return 1.96 * math.sqrt(max(share * (1 - share), 0.25 / self.n) / self.n)


@audit("baselines")
def beats_chance(given: Comparison) -> Outcome:
    """The score is better than what needs no model: token frequencies, or the commonest class.

    A language model that is no better than a unigram model ignores its context, and a classifier no better than the
    commonest class ignores its input: it has learnt nothing but how frequent the answers are. An accuracy must be above
    the majority's by more than half of its own 95 % interval, 1.96 · sqrt(p (1 - p) / n), else the difference may be
    chance (a warning). A perplexity is a mean over so many tokens that no margin is needed; within 5 % of the unigram
    is a warning, for a context that is of any use gains far more.
    If it fails, look at the training audits first: the model has most likely not been trained.
    """
    base, value = given.by(given.methods.looking_at_nothing), given.score.value
    beaten = f"{given.score.name} {value:.4g} against {base.score.value:.4g} ({base.method})"
    if not math.isfinite(value):
        return failed(value, f"{given.score.name} is not a finite number; {base.method}: {base.score.value:.4g}")
    gain, margin = given.gain(base), given.margin(base)
    if gain <= 0:
        return failed(gain, f"no better than a method that looks at nothing: {beaten}", "no better than chance")
    if gain < margin:
        return warned(gain, f"hardly to be told from a method that looks at nothing: {beaten}, n = {given.n:,}")
    return passed(gain, beaten)


@audit("baselines")
def beats_counting(given: Comparison) -> Outcome:
    """The score is better than what counting gives: a 5-gram model, or a bag of words.

    These take seconds and nobody tunes them. A model that does not reach them has not earned its architecture, and
    a comparison of two such models compares how badly they were trained. It is a warning and no failure, since on very
    little data counting is hard to beat. Train for longer, with more data, or with a better learning rate; or say so.
    """
    base, value = given.by(given.methods.counting), given.score.value
    gain = given.gain(base)
    beaten = f"{given.score.name} {value:.4g} against {base.score.value:.4g} ({base.method})"
    return passed(gain, beaten) if gain > 0 else warned(gain, f"a method of seconds does as well or better: {beaten}")


BASELINE_AUDITS: list[Audit] = [beats_chance, beats_counting]
