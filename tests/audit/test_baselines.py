"""The n-gram model is compared with a slow one written from the formula, and the cheap classifiers with counts."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import tasks
from headway.audit import ngram
from headway.audit.audit import DoesNotApply
from headway.audit.baselines import (
    Baseline,
    Comparison,
    bag_of_words,
    beats_chance,
    beats_counting,
    context_lengths,
    language_baselines,
    majority,
    one_word,
)
from headway.scoring.reading import Reading
from headway.scoring.score import Score

texts = st.lists(st.integers(0, 4), min_size=1, max_size=60)


class SlowKneserNey:
    """The formula of ngram.py, with dictionaries and one token at a time."""

    def __init__(self, ids, vocabulary, order):
        self.vocabulary, self.order = vocabulary, min(order, len(ids))
        grams = {n: [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)] for n in range(1, self.order + 1)}
        self.counts = {self.order: Counter(grams[self.order])}
        for n in range(1, self.order):
            self.counts[n] = Counter(longer[1:] for longer in set(grams[n + 1]))
        self.discounts = {n: self._discounts(counts) for n, counts in self.counts.items()}

    @staticmethod
    def _discounts(counts):
        n = Counter(counts.values())
        if not all(n[k] for k in (1, 2, 3, 4)):
            return {1: 0.5, 2: 1.0, 3: 1.5}
        y = n[1] / (n[1] + 2 * n[2])
        found = {k: k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)}
        return found if all(0 < found[k] <= k for k in found) else {1: 0.5, 2: 1.0, 3: 1.5}

    def probability(self, token, context):
        lower = 1 / self.vocabulary if not context else self.probability(token, context[1:])
        n = len(context) + 1
        followers = {gram: count for gram, count in self.counts[n].items() if gram[:-1] == context}
        total = sum(followers.values())
        if not total:
            return lower
        taken = {gram: self.discounts[n][min(count, 3)] for gram, count in followers.items()}
        gram = (*context, token)
        own = followers.get(gram, 0) - taken.get(gram, 0.0)
        return own / total + sum(taken.values()) / total * lower


@given(texts, st.lists(st.integers(0, 4), min_size=2, max_size=12), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_the_n_gram_model_equals_the_slow_one(train, held_out, order):
    model = ngram.fit(np.array(train), 5, order)
    slow = SlowKneserNey(train, 5, order)
    context = np.arange(1, len(held_out))
    found = model.losses(np.array(held_out), context)
    for t in range(1, len(held_out)):
        before = tuple(held_out[max(0, t - slow.order + 1) : t])
        assert found[t - 1] == pytest.approx(-math.log(slow.probability(held_out[t], before)), abs=1e-9)


@given(texts, st.lists(st.integers(0, 4), min_size=0, max_size=6), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_after_any_context_the_probabilities_sum_to_one(train, context, order):
    model = ngram.fit(np.array(train), 5, order)
    nats = [model.losses(np.array([0, *context, token]), np.arange(1, len(context) + 2))[-1] for token in range(5)]
    assert np.exp(-np.array(nats)).sum() == pytest.approx(1)


def test_discounts_are_estimated_where_there_are_enough_counts():
    text = np.random.default_rng(0).zipf(1.3, 5000) % 1000
    model = ngram.fit(text, 1000, 3)
    slow = SlowKneserNey(text.tolist(), 1000, 3)
    assert slow.discounts[3][1] != 0.5
    tail = text[-20:]
    found = model.losses(tail, np.arange(1, 20))
    for t in range(2, 20):
        wanted = slow.probability(int(tail[t]), tuple(tail[t - 2 : t].tolist()))
        assert found[t - 1] == pytest.approx(-math.log(wanted), abs=1e-9)


def test_no_more_context_is_used_than_allowed():
    text = np.tile([1, 2, 3, 4], 50)
    model = ngram.fit(text, 5, 5)
    far, near = (model.losses(text[:20], np.full(19, most))[-1] for most in (4, 0))
    assert far < 0.1 < 1 < near


def test_context_lengths_are_those_of_the_windows():
    assert context_lengths(9, Reading(4, 4)).tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert context_lengths(9, Reading(4, 2)).tolist() == [1, 2, 3, 4, 3, 4, 3, 4]
    assert context_lengths(3, Reading(100, 100)).tolist() == [1, 2]
    assert context_lengths(6, Reading(2, 2, carried=True)).tolist() == [1, 2, 3, 4, 5]


def test_language_baselines_carry_labels():
    rng = np.random.default_rng(1)
    ids = {"train": np.cumsum(rng.integers(1, 3, 4000)) % 7, "valid": np.cumsum(rng.integers(1, 3, 500)) % 7}
    unigram, five = language_baselines(ids, ["valid"], 7, Reading(32, 32), "char")["valid"]
    assert unigram.score.value == pytest.approx(7, rel=0.02)  # all seven are equally frequent
    assert five.score.value == pytest.approx(2, rel=0.03)  # only two can follow any context
    assert "499 tokens" in five.score.label and "segment 32" in five.score.label
    assert "fitted on 4,000 train tokens" in five.score.label


def test_of_a_very_long_text_the_stated_beginning_is_counted(monkeypatch):
    monkeypatch.setattr("headway.audit.baselines.MOST_TOKENS", 10)
    ids = {"train": np.arange(20) % 3, "valid": np.arange(9) % 3}
    (first, _) = language_baselines(ids, ["valid"], 3, Reading(4, 4), "word")["valid"]
    assert "fitted on the first 10 of 20 train tokens" in first.score.label


def test_majority_predicts_the_most_frequent_class_of_train():
    labels = {"train": ["a", "b", "b"], "test": ["a", "a", "b", "c"]}
    found = majority(labels, "test").score
    assert found.value == 0.25 and "'b'" in found.label and "n = 4" in found.label


def test_bag_of_words_is_scored_on_seen_and_unseen_rows_separately():
    rows = {
        "train": ["good fine film", "a good one", "bad dull film", "a bad one"],
        "test": ["a good one", "good", "bad", "dull"],
    }
    labels = {"train": ["+", "+", "-", "-"], "test": ["+", "+", "-", "+"]}
    scores = {b.score.name: b.score for b in bag_of_words(rows, labels, ["test"])["test"]}
    assert scores["test.accuracy"].value == 0.75
    assert scores["test.accuracy_seen"].value == 1 and "n = 1" in scores["test.accuracy_seen"].label
    assert scores["test.accuracy_unseen"].value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("rows", "labels", "reason"), [(["a b", "c d"], ["x", "x"], "one class"), (["!", "?"], ["x", "y"], "no words")]
)
def test_bag_of_words_says_why_it_does_not_apply(rows, labels, reason):
    with pytest.raises(DoesNotApply, match=reason):
        bag_of_words({"train": rows, "test": rows}, {"train": labels, "test": labels}, ["test"])


def compared(name: str, value: float, method: str, base: float, n: int) -> Comparison:
    task = next(task for task in tasks.TASKS.values() if method in task.cheap_methods)
    beside = [Baseline(method, Score(name, float(base), "…"))]
    return Comparison(Score(name, float(value), "…"), beside, task.cheap_methods, n)


@pytest.mark.parametrize(
    ("comparison", "verdict"),
    [
        (compared("test.perplexity", 100, "unigram", 900, 10**5), "pass"),
        (compared("test.perplexity", 880, "unigram", 900, 10**5), "warn"),
        (compared("test.perplexity", 950, "unigram", 900, 10**5), "fail"),
        (compared("test.perplexity", math.nan, "unigram", 900, 10**5), "fail"),
        (compared("test.accuracy", 0.745, "majority", 0.694, 160), "warn"),  # case D7: five points on 160 rows
        (compared("test.accuracy", 0.745, "majority", 0.694, 16000), "pass"),
        (compared("test.accuracy", 0.69, "majority", 0.694, 160), "fail"),
    ],
)
def test_beats_chance(comparison, verdict):
    assert beats_chance.check(comparison).verdict == verdict


def test_beats_counting_only_warns():
    assert beats_counting.check(compared("valid.perplexity", 300, "5-gram", 233, 10)).verdict == "warn"
    assert beats_counting.check(compared("valid.perplexity", 113, "5-gram", 233, 10)).verdict == "pass"
    assert beats_counting.check(compared("test.accuracy", 0.8, "bag of words", 0.9, 10)).verdict == "warn"
    with pytest.raises(DoesNotApply, match="no 5-gram baseline"):
        beats_counting.check(compared("valid.perplexity", 113, "unigram", 233, 10))


def test_with_many_classes_the_nearest_mean_is_the_baseline_and_is_named(monkeypatch):
    words = [f"w{k}" for k in range(60)]
    rows = {"train": [f"{w} {w} and {v}" for w in words for v in ("this", "that", "more")], "test": words}
    labels = {"train": [w for w in words for _ in range(3)], "test": words}
    (regression,) = bag_of_words(rows, labels, ["test"])["test"]
    monkeypatch.setattr("headway.audit.baselines.MOST_WEIGHTS", 1000)
    (nearest,) = bag_of_words(rows, labels, ["test"])["test"]
    assert "logistic regression on words" in regression.score.label and regression.method == nearest.method
    assert "60 classes are too many" in nearest.score.label and nearest.score.value == 1.0


@pytest.mark.slow
def test_two_thousand_classes_take_seconds_and_little_memory():
    import resource
    import time

    words, began = [f"w{k}" for k in range(2000)], time.process_time()
    rows = {"train": [f"{w} {w} x{k} y{k * 7 % 500}" for w in words for k in range(16)], "test": words}
    labels = {"train": [w for w in words for _ in range(16)], "test": words}
    (found,) = bag_of_words(rows, labels, ["test"])["test"]
    one_word(rows, labels, ["test"])
    assert found.score.value > 0.9 and time.process_time() - began < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3_000_000
