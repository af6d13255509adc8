"""Ensembles: several models as one, by averaging their probabilities.

For language models only the probability of the actual token is needed, so the members' nats per token suffice: nats of
the mean = ln M - ln Σ exp(-nats). Members may have different shapes, and each may read the text in its own way. For
classifiers the class probabilities are averaged. Translators have to agree on each token before the next is predicted:
they decode together (`scoring/joint_translator.py`), and their output is scored like any other.

By Jensen's inequality the loss of an ensemble is never above the mean loss of its members; the gain says how much they
differ where it matters. The interval is over pieces of the split: it covers other texts from the same source, with the
same members.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from headway.core.format import number
from headway.scoring.accuracy import Predictions
from headway.scoring.bleu import of_sums
from headway.scoring.metrics import LOSS, METRICS, parsed
from headway.scoring.score import Score
from headway.scoring.translation import Forced
from headway.stats.intervals import LEVEL
from headway.stats.resampled import FEWEST, resampled

PIECES = 100
"""Pieces that a text is cut into for the interval: losses of neighbouring tokens are correlated, those of whole pieces
much less."""


@dataclass(frozen=True)
class Gain:
    """The gain of an ensemble over its members in one score."""

    name: str
    """The score's name, such as `test.loss`."""
    unit: str
    members: tuple[float, ...]
    ensemble: float
    value: float
    """The gain over the mean of the members; above 0 is better."""
    interval: tuple[float, float] | None
    """95 % interval over the pieces; None = there are too few."""
    pieces: int

    @property
    def mean(self) -> float:
        return sum(self.members) / len(self.members)

    @property
    def told(self) -> list[str]:
        """A table row: the score, each member, their mean, the ensemble, the gain."""
        between = "" if self.interval is None else f" [{self.interval[0]:.4f}, {self.interval[1]:.4f}]"
        each = ", ".join(number(value) for value in self.members)
        return [self.name, each, number(self.mean), number(self.ensemble), f"{self.value:.4f}{between}"]

    def as_json(self) -> dict[str, Any]:
        given = {"mean": self.mean, "ensemble": self.ensemble, "gain": self.value, "unit": self.unit}
        interval = None if self.interval is None else list(self.interval)
        return {**given, "interval": interval, "pieces": self.pieces, "members": list(self.members)}


def nats_of_mean(nats: Float[np.ndarray, "M N"]) -> Float[np.ndarray, " N"]:
    """Nats of every token under the mean of the members' probabilities."""
    least = nats.min(0)
    return least + math.log(len(nats)) - np.log(np.exp(least - nats).sum(0))


def mean_predictions(members: Sequence[Predictions]) -> Predictions:
    """Average the members' class probabilities for the same texts."""
    return replace(members[0], chances=np.mean([one.chances for one in members], axis=0))


def gain(
    name: str,
    unit: str,
    members: Float[np.ndarray, "M N"],
    ensemble: Float[np.ndarray, " N"],
    lower_is_better: bool,
    pieces: int | None = None,
) -> Gain:
    """The gain, from the values per token or row of every member and of the ensemble. `pieces` = the number of pieces
    for the interval; None = every token or row by itself."""
    from scipy import special

    better = (members.mean(0) - ensemble) * (1 if lower_is_better else -1)
    cut = np.array_split(better, min(pieces or len(better), len(better)))
    means = np.array([piece.mean() for piece in cut])
    interval = None
    if len(means) > 1:
        reach = float(special.stdtrit(len(means) - 1, 0.975) * means.std(ddof=1) / math.sqrt(len(means)))
        interval = (float(better.mean()) - reach, float(better.mean()) + reach)
    of_members = tuple(float(one.mean()) for one in members)
    return Gain(name, unit, of_members, float(ensemble.mean()), float(better.mean()), interval, len(means))


# --- translators -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SplitResult:
    """The results of one translator, or of an ensemble of them, on a split."""

    given: Forced
    scores: list[Score]

    def counts(self) -> dict[str, Float[np.ndarray, "N k"]]:
        """By metric: each pair's contribution to the sums that the score is computed from."""
        found = {LOSS.name: np.stack([self.given.nats, self.given.tokens], 1)}
        for score in self.scores:
            _, metric, part = parsed(score.name)
            if not part and score.rows is not None:
                found[metric] = np.array([[row == "1", 1] for row in score.rows], dtype=np.float64)
            elif not part and score.counts is not None:
                found[metric] = np.array(score.counts, dtype=np.float64)
        return found


def translation_gains(split: str, members: Sequence[SplitResult], together: SplitResult) -> list[Gain]:
    """The gain in every metric that has counts. Intervals come from a bootstrap over sentences, with the same resamples
    for all."""
    found, each = [], [one.counts() for one in members]
    for name, whole in together.counts().items():
        metric, alone = METRICS[name], np.stack([one[name] for one in each])
        score = of_sums(metric) or (lambda sums: sums[..., 0] / sums[..., 1])

        def better(of_members: Any, of_all: Any, sign: int = metric.sign) -> Any:
            return sign * (of_all - of_members.mean(0))

        of_members, of_all = score(alone.sum(1)), score(whole.sum(0))
        between = None
        if len(whole) >= FEWEST:
            drawn = better(resampled(alone, score), resampled(whole, score))
            low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2])
            between = (float(low), float(high))
        values = tuple(map(float, of_members)), float(of_all), float(better(of_members, of_all))
        found.append(Gain(f"{split}.{name}", metric.unit, *values, between, len(whole)))
    return found
