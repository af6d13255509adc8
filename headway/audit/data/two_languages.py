"""Which side of a pair is the source, judged by character trigrams; languages need not be known, only differ.

    A    the source looks like a target                  each side is judged by itself
    B    the target looks like a source

If languages are similar, A and B happen now and then, and independently. In swapped pairs they happen together, so
their covariance gives the share of swapped pairs, however similar the languages are.

A and B also happen together if one side is the other read backwards, or shares its words: what is rare in one is rare
in the other. But then the sides of most pairs differ by little. Swapped pairs differ as much as others do, with the
opposite sign. So the differences of swapped and normal pairs form two clusters, with few values near zero.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from headway.audit.audit import DoesNotApply

_DIGITS = re.compile(r"\d")
Pairs = Sequence[tuple[str, str]]
LogOdds = Mapping[str, float]
"""Log-odds of a trigram: above 0 if it is more frequent in sources."""

LEARNT = 1000
"""Number of pairs from which the trigrams are learnt; as many others test whether they tell the sides apart."""
TELLS = 0.75
"""Minimum accuracy on those; chance is one half."""
SURE = 4.0
"""Standard errors of a share: some dozens of stretches are tested, and the largest must not be above this by chance."""
TOGETHER = 6.0
"""Minimum covariance, in standard deviations of what it is if no pair is swapped."""
TOLD_APART = 0.7
"""Minimum difference between the probabilities that a target and a source are taken for a target. Below that, trigrams
separate registers and topics rather than languages, and one side of a pair often has what the other lacks."""
TWO_CLUSTERS = 0.7
"""Minimum of the squared mean absolute difference over the mean squared difference: 1 for two points, 2/π = 0.64 for
one normal distribution around zero. Multi30k, TED and spelt-out numbers have 0.88 and more, with up to 40 % of them
swapped; words of Pig Latin with 30 % swapped 0.75; digits with themselves backwards 0.6."""
ENOUGH = 100
"""Minimum number of pairs for a covariance."""
OF_A_LENGTH = 10
"""Number of groups of pairs of similar length, within which covariances are taken: short texts say little on either
side."""


class Mixed(NamedTuple):
    """Pairs of which some are swapped, scattered among the others."""

    share: float
    told_apart: float
    """How much likelier a target is to be taken for a target than a source is, in correct pairs."""
    deviations: float
    """The covariance of the two sides, in standard deviations of what chance gives."""
    clusters: float = 1.0
    """How clearly the differences of the sides form two clusters, as defined at `TWO_CLUSTERS`."""

    @property
    def is_sure(self) -> bool:
        return self.told_apart >= TOLD_APART and self.deviations >= TOGETHER and self.clusters >= TWO_CLUSTERS


class TwoLanguages:
    """A trigram classifier of sources and targets, learnt from every other one of the first pairs of a text."""

    def __init__(self, pairs: Pairs):
        first = _each_text_once(pair for pair in pairs[: 2 * LEARNT] if all(pair) and pair[0] != pair[1])
        if len(first) < 40:
            raise DoesNotApply("there are too few pairs to tell the sides apart")
        self._learnt, self._others = first[::2], first[1::2]
        self._worth = _log_odds(self._learnt)
        turned_back = [(target, source) for source, target in self._others]
        # Ties, as between sides without any letters, tell nothing.
        self.are_told_apart = float(self._look_turned(turned_back).mean()) >= TELLS
        mistaken = self._look_turned(self._others)
        self.mistaken = float(mistaken.mean())  # the rate of false alarms
        self._mistakes = _RateByLength(self._others, mistaken)

    def turned(self, pairs: Pairs) -> tuple[float, float]:
        """The share of swapped pairs, and how large it may seem by chance if none is."""
        expected, deviation = self._mistakes.over(pairs)  # of swapped pairs and of others
        by_chance = SURE * deviation + SURE**2 / 3 / len(pairs)  # Bernstein's bound: rare mistakes come in lumps
        beyond, apart = float(self._look_turned(pairs).mean()) - expected, max(1 - 2 * expected, 1 - TELLS)
        return beyond / apart, by_chance / apart

    def mixed(self) -> Mixed:
        """Estimated on the pairs that were learnt from, each half judged by the trigrams of the other half."""
        if len(self._learnt) + len(self._others) < ENOUGH:
            return Mixed(0.0, 0.0, 0.0)
        halves = (self._others, self._worth), (self._learnt, _log_odds(self._others))
        odds = np.array([[_log_odds_of(side, worth) for side in pair] for pairs, worth in halves for pair in pairs])
        lengths = np.array([[len(side) for side in pair] for pairs, _ in halves for pair in pairs])
        found = mixture(odds[:, 0] < 0, odds[:, 1] > 0, lengths.sum(1))
        return found._replace(clusters=_in_two_clusters((odds / lengths) @ (1, -1)))

    def _look_turned(self, pairs: Pairs) -> Bool[np.ndarray, " n"]:
        return np.array([self.are_turned(pair) for pair in pairs])

    def are_turned(self, pair: tuple[str, str]) -> bool:
        """Whether the source looks more like a target than the target does."""
        source, target = (_log_odds_of(text, self._worth) for text in pair)
        return source < target


class _RateByLength:
    """How often correct pairs look swapped, by their length: short ones more often. In a file that is sorted by length,
    the rate of all pairs would make the shortest ones look swapped."""

    def __init__(self, pairs: Pairs, mistaken: Bool[np.ndarray, " n"]):
        lengths = _lengths(pairs)
        groups = np.array_split(np.argsort(lengths, kind="stable"), min(OF_A_LENGTH, 1 + len(pairs) // ENOUGH))
        self._begins = [lengths[group[0]] for group in groups[1:]]
        self._rates = np.array([mistaken[group].mean() for group in groups])
        self._sizes = np.array([len(group) for group in groups])

    def over(self, pairs: Pairs) -> tuple[float, float]:
        """The expected rate of mistakes in these pairs, and its standard deviation."""
        n = len(pairs)
        counts = np.bincount(np.searchsorted(self._begins, _lengths(pairs), "right"), minlength=len(self._rates))
        variances = self._rates * (1 - self._rates) * (counts + counts**2 / self._sizes)  # both are samples
        return float(counts @ self._rates / n), math.sqrt(variances.sum()) / n


def mixture(source: Bool[np.ndarray, " n"], target: Bool[np.ndarray, " n"], lengths: np.ndarray) -> Mixed:
    """From which sources look like targets and which targets like sources. If a share e is swapped and D is how well
    the sides are told apart, then 1 - P(A) - P(B) = D (1 - 2e), and the covariance of A and B is D² e (1 - e)."""
    covariance, variance, n = 0.0, 0.0, len(lengths)
    for rows in np.array_split(np.argsort(lengths, kind="stable"), OF_A_LENGTH):
        ours, theirs = source[rows].astype(float), target[rows].astype(float)
        covariance += float(((ours - ours.mean()) * (theirs - theirs.mean())).sum()) / n
        variance += float(ours.var() * theirs.var()) * len(rows) / n**2
    apart = 1 - float(source.mean() + target.mean())
    if covariance <= 0 or apart <= 0:
        return Mixed(0.0, max(0.0, apart), 0.0)
    ratio = covariance / apart**2  # e (1 - e) / (1 - 2e)²
    share = (1 - math.sqrt(1 - 4 * ratio / (1 + 4 * ratio))) / 2
    return Mixed(share, apart / (1 - 2 * share), covariance / math.sqrt(max(variance, 1e-12)))


def _each_text_once(pairs: Iterable[tuple[str, str]]) -> Pairs:
    """Without repeated texts, since trigrams learnt from a text would recognise the same text with another partner."""
    by_source = {source: (source, target) for source, target in pairs}
    return list({target: (source, target) for source, target in by_source.values()}.values())


def _log_odds(pairs: Pairs) -> LogOdds:
    counts = [Counter(chain.from_iterable(_runs(pair[side]) for pair in pairs)) for side in (0, 1)]
    totals = [math.log(sum(count.values()) + len(count)) for count in counts]
    return {
        run: math.log(counts[0][run] + 0.5) - totals[0] - math.log(counts[1][run] + 0.5) + totals[1]
        for run in counts[0].keys() | counts[1].keys()
    }


def _in_two_clusters(differences: Float[np.ndarray, " n"]) -> float:
    return float(np.abs(differences).mean() ** 2 / max(np.square(differences).mean(), 1e-12))


def _lengths(pairs: Pairs) -> np.ndarray:
    return np.array([len(source) + len(target) for source, target in pairs])


def _log_odds_of(text: str, worth: LogOdds) -> float:
    return sum(worth.get(run, 0.0) for run in _runs(text))


def _runs(text: str) -> list[str]:
    """All trigrams, with one character for all digits: numbers are written alike in all languages, and in sorted data
    later numbers have digits where the first ones had none."""
    text = _DIGITS.sub("0", f" {text.lower()} ")
    return [text[k : k + 3] for k in range(len(text) - 2)]
