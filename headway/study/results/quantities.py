"""What a score's name says about it: which way is better, on which scale effects add up, and how to say a difference.

Perplexities are compared as logarithms. A change that makes every token 2 % likelier lowers a perplexity of 300 by 6
and one of 30 by 0.6; it is one effect, and only the logarithm shows it as one. So averages of perplexities are
geometric (the perplexity of the mean loss), and whether an effect "depends on size" is asked of ratios.
"""

import math
from dataclasses import dataclass

from headway.core.errors import UserError, did_you_mean

LARGEST = 700
"""Logarithm of what a number can hold. Intervals of two seeds, one of which exploded, go beyond."""
LOWER_IS_BETTER = {
    "loss": "nats",
    "perplexity": "perplexity",
    "perplexity_per_word": "perplexity per word",
    "bits_per_byte": "bits per byte",
}
HIGHER_IS_BETTER = {
    "accuracy": "points of accuracy",
    "accuracy_seen": "points of accuracy on texts seen in training",
    "accuracy_unseen": "points of accuracy on unseen texts",
    "precision": "points of precision",
    "recall": "points of recall",
    "f1": "points of F1",
    "bleu": "BLEU",
    "chrf": "chrF",
}
POINTS = 100
"""In one. Accuracies and their like are shares, kept between 0 and 1, and said in points of a hundred."""


@dataclass(frozen=True)
class Quantity:
    """`valid.perplexity`, understood."""

    split: str
    lower_is_better: bool
    unit: str
    """What a difference is counted in, in words."""
    is_ratio: bool
    """Whether effects multiply, so that the logarithm is what is compared."""
    is_of_rows: bool
    """Whether it is a plain mean over rows, each right or wrong: accuracy."""
    shown_times: float
    """A difference: POINTS for shares, else 1."""

    def natural(self, value: float) -> float:
        """On the scale where effects add up."""
        if not self.is_ratio:
            return value
        return math.log(value) if value > 0 else math.nan

    @property
    def sign(self) -> int:
        """Times a difference `this - that` on the natural scale: how much better this is than that."""
        return -1 if self.lower_is_better else 1

    def back(self, natural: float) -> float:
        """What `natural` came from."""
        return _exp(natural) if self.is_ratio else natural

    def possible(self, value: float) -> float:
        """The nearest value that there can be: no accuracy is above 1, though the end of an interval may be."""
        return min(max(value, 0.0), 1.0) if self.shown_times == POINTS else value

    def in_units(self, improvement: float, level: float) -> float:
        """An improvement on the natural scale, in the score's own units, upon an arm at `level` (natural)."""
        if not self.is_ratio:
            return improvement * self.shown_times
        return _exp(level) * self.relative(improvement)

    def relative(self, improvement: float) -> float:
        """An improvement on the natural scale, as a share of what it improves upon: 0.04 = 4 % lower (or higher)."""
        return self.sign * (math.expm1(self.sign * improvement) if self.sign * improvement < LARGEST else math.inf)


def _exp(natural: float) -> float:
    return math.exp(natural) if natural < LARGEST else math.inf


def quantity(name: str) -> Quantity:
    """What `split.quantity` (or `split.quantity.class`) is."""
    split, _, rest = name.partition(".")
    what = rest.partition(".")[0]
    known = LOWER_IS_BETTER | HIGHER_IS_BETTER
    if not split or what not in known:
        names = [f"{split or 'valid'}.{each}" for each in known]
        hint = did_you_mean(name, names)
        hint = hint if "did you mean" in hint else f"; known are {', '.join(known)}"
        raise UserError(f"'{name}' is no score that can be compared: write split.quantity, as valid.perplexity{hint}")
    points = known[what].startswith("points")
    return Quantity(
        split,
        what in LOWER_IS_BETTER,
        known[what],
        what.startswith("perplexity"),
        what == "accuracy",
        POINTS if points else 1,
    )


def better_is_lower(name: str) -> bool:
    """Whether a lower value of this score is the better one: loss, perplexity, bits; not accuracy."""
    return quantity(name).lower_is_better
