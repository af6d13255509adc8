"""What a number measures: its unit, which way is better, and on which scale effects add up.

A metric is registered once, under the name that scores have it by (`valid.perplexity` is the perplexity of the split
valid; `test.precision.cats` that of the class cats). Whoever averages, compares or shows scores asks the metric, and
knows none by name.

Perplexities are compared as logarithms. A change that makes every token 2 % likelier lowers a perplexity of 300 by 6
and one of 30 by 0.6; it is one effect, and only the logarithm shows it as one. So averages of perplexities are
geometric (the perplexity of the mean loss), and whether an effect "depends on size" is asked of ratios.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.core.errors import UserError, did_you_mean
from headway.core.variants import Registry

LARGEST = 700
"""Logarithm of what a number can hold. Intervals of two seeds, one of which exploded, go beyond."""


class Scale:
    """Where effects add up: here, on the values themselves."""

    is_ratio = False
    """Whether effects multiply, so that the logarithm is what is compared."""
    told_times = 1
    """A difference, when it is told."""

    def natural(self, value: float) -> float:
        return value

    def back(self, natural: float) -> float:
        """What `natural` came from."""
        return natural

    def possible(self, value: float) -> float:
        """The nearest value that there can be: the end of an interval may lie beyond."""
        return value


class Logarithms(Scale):
    """Effects multiply: 2 % of a perplexity is 2 % at every size."""

    is_ratio = True

    def natural(self, value: float) -> float:
        return math.log(value) if value > 0 else math.nan

    def back(self, natural: float) -> float:
        return math.exp(natural) if natural < LARGEST else math.inf


class Shares(Scale):
    """Between 0 and 1, and a difference is told in points of a hundred."""

    told_times = 100

    def possible(self, value: float) -> float:
        return min(max(value, 0.0), 1.0)


class OfHundred(Scale):
    """Between 0 and 100."""

    def possible(self, value: float) -> float:
        return min(max(value, 0.0), 100.0)


PLAIN, LOG, POINTS, HUNDRED = Scale(), Logarithms(), Shares(), OfHundred()


@dataclass(frozen=True)
class Metric:
    name: str
    """As in the names of scores."""
    noun: str
    """In words, as one counts in it: nats, perplexity, accuracy on unseen texts."""
    lower_is_better: bool
    scale: Scale = PLAIN
    title: str = ""
    """Over a column of values; empty = the noun."""
    form_of: str = ""
    """The metric that this one is a narrower form of: accuracy, of that on unseen texts."""
    is_of_rows: bool = False
    """A plain mean over rows, each right or wrong: two models can be compared row by row."""
    is_per_token: bool = False
    """A mean over tokens: with another tokenizer it is another thing."""

    @property
    def unit(self) -> str:
        """What a difference is counted in."""
        return f"points of {self.noun}" if self.scale is POINTS else self.noun

    @property
    def heading(self) -> str:
        return self.title or self.noun

    @property
    def is_ratio(self) -> bool:
        return self.scale.is_ratio

    @property
    def sign(self) -> int:
        """Times a difference `this - that` on the natural scale: how much better this is than that."""
        return -1 if self.lower_is_better else 1

    def natural(self, value: float) -> float:
        """On the scale where effects add up."""
        return self.scale.natural(value)

    def back(self, natural: float) -> float:
        return self.scale.back(natural)

    def possible(self, value: float) -> float:
        return self.scale.possible(value)

    def mean(self, values: Iterable[float]) -> float:
        """Taken where effects add up."""
        return self.back(statistics.fmean(map(self.natural, values)))

    def in_units(self, improvement: float, level: float) -> float:
        """An improvement on the natural scale, in the metric's own units, upon an arm at `level` (natural)."""
        if not self.is_ratio:
            return improvement * self.scale.told_times
        return self.back(level) * self.relative(improvement)

    def relative(self, improvement: float) -> float:
        """An improvement on the natural scale, as a share of what it improves upon: 0.04 = 4 % lower (or higher)."""
        return self.sign * (math.expm1(self.sign * improvement) if self.sign * improvement < LARGEST else math.inf)

    def factor(self, improvement: float) -> float:
        """The same as a factor: 2 = half the perplexity, 0.5 = twice as much."""
        return math.exp(improvement) if improvement < LARGEST else math.inf


METRICS: Registry[Metric] = Registry("metric")


def register(metric: Metric, module: str) -> Metric:
    """Known from now on to everything that reads scores. `module` is where it is written: `__name__`."""
    return METRICS.add(metric.name, metric, module)


def _ours(*given: Any, **settings: Any) -> Metric:
    return register(Metric(*given, **settings), __name__)


LOSS = _ours("loss", "nats", lower_is_better=True, is_per_token=True)
"""What training lowers: every task has it."""
PERPLEXITY = _ours(
    "perplexity", "perplexity", lower_is_better=True, scale=LOG, title="perplexity per token", is_per_token=True
)
PERPLEXITY_PER_WORD = _ours(
    "perplexity_per_word", "perplexity per word", lower_is_better=True, scale=LOG, form_of="perplexity"
)
BITS_PER_BYTE = _ours("bits_per_byte", "bits per byte", lower_is_better=True)
ACCURACY = _ours("accuracy", "accuracy", lower_is_better=False, scale=POINTS, is_of_rows=True)
ACCURACY_SEEN, ACCURACY_UNSEEN = (
    _ours(f"accuracy_{which}", f"accuracy on {texts}", lower_is_better=False, scale=POINTS, form_of="accuracy")
    for which, texts in (("seen", "texts seen in training"), ("unseen", "unseen texts"))
)
PRECISION, RECALL, F1 = (
    _ours(noun.lower(), noun, lower_is_better=False, scale=POINTS) for noun in ("precision", "recall", "F1")
)
BLEU, CHRF = (_ours(noun.lower(), noun, lower_is_better=False, scale=HUNDRED) for noun in ("BLEU", "chrF"))
BLEU_LOWERCASED, SENTENCE_BLEU = (
    _ours(name, noun, lower_is_better=False, scale=HUNDRED, form_of="bleu")
    for name, noun in (("bleu_lowercased", "BLEU without case"), ("sentence_bleu", "mean BLEU of sentences"))
)
TOKEN_ACCURACY = _ours("token_accuracy", "accuracy of tokens", lower_is_better=False, scale=POINTS, is_per_token=True)
MASKED_ACCURACY = _ours(
    "masked_accuracy", "accuracy on hidden tokens", lower_is_better=False, scale=POINTS, is_per_token=True
)
PSEUDO_PERPLEXITY = _ours("pseudo_perplexity", "pseudo-perplexity", lower_is_better=True, scale=LOG, is_per_token=True)
EXACT_MATCH = _ours("exact_match", "exact matches", lower_is_better=False, scale=POINTS, is_of_rows=True)
FOUND_AT = (1, 5)
"""Among so many of the likeliest."""
CAPTIONS_AT, PICTURES_AT = (
    {
        k: _ours(
            f"{what}_at_{k}",
            f"{what} found" + ("" if k == 1 else f" in {k}"),
            lower_is_better=False,
            scale=POINTS,
            is_of_rows=True,
            form_of="" if k == 1 else f"{what}_at_1",
        )
        for k in FOUND_AT
    }
    for what in ("captions", "pictures")
)
"""How many pictures have their caption among the k likeliest, and how many captions their picture."""


class ScoreName(NamedTuple):
    """`split.metric`, or `split.metric.part`, taken apart."""

    split: str
    metric: str
    part: str = ""
    """The class, where it is of one."""


def is_test(split: str) -> bool:
    """Whether nothing may be chosen by this split: every one whose name begins with "test", as test_2016 does."""
    return split.startswith("test")


def parsed(name: str) -> ScoreName:
    """Also of a metric that nobody knows. A split may be called after a file, and a class by anything: the first known
    metric counts."""
    split, *rest = name.split(".")
    for k, word in enumerate(rest):
        if word in METRICS:
            return ScoreName(".".join([split, *rest[:k]]), word, ".".join(rest[k + 1 :]))
    return ScoreName(split, rest[0] if rest else "", ".".join(rest[1:]))


def metric_of(name: str) -> Metric:
    """What the score of this name measures."""
    split, what, _ = parsed(name)
    if not split or what not in METRICS:
        hint = did_you_mean(name, [f"{split or 'valid'}.{each}" for each in METRICS])
        hint = hint if "did you mean" in hint else f"; known are {', '.join(METRICS)}"
        raise UserError(f"'{name}' is no score that can be compared: write split.metric, as valid.perplexity{hint}")
    return METRICS[what]
