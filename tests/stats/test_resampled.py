"""Bootstrap over rows: equal to sacreBLEU's with its samples, equal to stats/paired.py for means, and with 95 %
coverage."""

import numpy as np
import pytest

from headway.scoring import bleu
from headway.scoring.metrics import BLEU, CHRF
from headway.stats.paired import rows_and_seeds
from headway.stats.resampled import draws, interval, paired, resampled

WORDS = ["the", "a", "dog", "cat", "sees", "likes", "house", "tree", ".", ",", "Big", "old"]


def texts(rng, n: int, noise: float) -> tuple[list[str], list[str]]:
    right = [[WORDS[k] for k in rng.integers(0, len(WORDS), rng.integers(4, 12))] for _ in range(n)]
    ours = [[w if rng.random() > noise else WORDS[rng.integers(0, len(WORDS))] for w in row] for row in right]
    return [" ".join(row) for row in ours], [" ".join(row) for row in right]


def ratio(sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[..., 0] / sums[..., 1])


def test_with_sacrebleus_samples_the_paired_bootstrap_equals_sacrebleus(monkeypatch):
    significance = pytest.importorskip("sacrebleu.significance")
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    rng = np.random.default_rng(0)
    first, right = texts(rng, 40, 0.25)
    second = [
        text if k % 3 else first[(k + 1) % 40] for k, text in enumerate(texts(np.random.default_rng(0), 40, 0.4)[0])
    ]
    drawn = np.stack([np.bincount(row, minlength=40) for row in np.random.default_rng(7).choice(40, (200, 40))])
    ours = {one.metric: one for one in bleu.measured(first, right)}
    theirs = {one.metric: one for one in bleu.measured(second, right)}
    test = significance.PairedTest(
        [("second", second), ("first", first)],
        {"BLEU": bleu._scorers("13a")[BLEU], "chrF2": bleu._scorers("13a")[CHRF]},
        [right],
        test_type="bs",
        n_samples=200,
    )
    _, found = test()
    for name, metric in (("BLEU", BLEU), ("chrF2", CHRF)):
        counts = [np.array(side[metric].counts, float) for side in (ours, theirs)]
        score = bleu.of_sums(metric)
        mean = resampled(counts[0], score, drawn).mean()
        assert mean == pytest.approx(found[name][1].mean, rel=1e-6)
        both = paired(*(one[None] for one in counts), score, drawn)
        moved = np.abs(both.drawn[0]) - np.abs(both.drawn[0]).mean()
        theirs_p = ((moved > abs(both.effect)).sum() + 1) / 201  # as sacreBLEU defines it
        assert theirs_p == pytest.approx(found[name][1].p_value)
        assert both.effect == pytest.approx(ours[metric].value - theirs[metric].value)


def test_for_means_it_agrees_with_the_mean_squares():
    rng = np.random.default_rng(3)
    first, second = rng.random((6, 400)) < 0.6, rng.random((6, 400)) < 0.5
    counts = [np.stack([one.astype(float), np.ones(one.shape)], -1) for one in (first, second)]
    found, expected = paired(*counts, ratio).contrast(range(6), 1.0), rows_and_seeds(first, second)
    assert found.estimate == pytest.approx(expected.effect)
    low, high = found.interval()
    assert (low, high) == pytest.approx(expected.interval, abs=0.15 * (high - low))


@pytest.mark.parametrize(("seeds", "rows", "both"), [(0.15, 0.1, 0.3), (0.02, 1.0, 0.3), (0.1, 0.8, 0.8)])
def test_intervals_over_rows_and_seeds_cover_where_either_alone_does_not(seeds, rows, both):
    rng, held, S, N = np.random.default_rng(1), np.zeros(3), 4, 60
    for _ in range(150):
        shape = ((S, 1), (1, N), (S, N))
        moved = sum(much * rng.standard_normal(of) for much, of in zip((seeds, rows, both), shape, strict=True))
        one = np.ones((S, N))
        found = paired(np.stack([moved, one], -1), np.stack([0 * one, one], -1), ratio, draws(N, 200))
        truth = found.contrast(range(S), 1.0)
        by_seeds = 3.182 * found.differences.std(ddof=1) / 2
        between = [truth.interval(), found.over_rows, (found.effect - by_seeds, found.effect + by_seeds)]
        held += [low <= 0 <= high for low, high in between]
    assert held[0] >= 0.9 * 150 and held.min() < 0.93 * 150


def test_intervals_are_reproducible_and_too_few_rows_have_none():
    rng = np.random.default_rng(5)
    ours, right = texts(rng, 60, 0.3)
    one = bleu.measured(ours, right)[0]
    counts, score = np.array(one.counts, float), bleu.of_sums(BLEU)
    low, high = interval(counts, score)
    assert low < one.value < high and interval(counts, score) == (low, high)
    assert interval(counts[:9], score) is None
    same = paired(counts[None], counts[None], score)
    assert same.effect == 0 and same.p_by_seed == [1.0]
