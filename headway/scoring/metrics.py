"""Metrics: their unit, whether lower or higher is better, and the scale on which effects are additive.

Each metric is registered once, under the name that appears in score names (`valid.perplexity` is the perplexity of the
split valid; `test.precision.cats` the precision for the class cats). Code that averages, compares or shows scores asks
the metric and has no metric's name hard-coded.

Perplexities are compared as logarithms. A change that makes every token 2 % likelier lowers a perplexity of 300 by 6
and one of 30 by 0.6. It is the same effect, and only on the log scale is it the same number. So averages of
perplexities are geometric (the perplexity of the mean loss), and whether an effect "depends on size" is tested on
ratios.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.core.errors import UserError, did_you_mean
from headway.core.variants import Registry

MAX_EXPONENT = 700
"""Larger arguments of exp are treated as infinite, since they come close to float overflow. The interval of two seeds,
one of which diverged, can reach that far."""


class Scale:
    """The scale on which effects are additive; in this base class the values themselves."""

    is_ratio = False
    """Whether effects are multiplicative, so that logarithms are compared."""
    display_factor = 1
    """Differences are multiplied by this when they are reported."""

    def natural(self, value: float) -> float:
        return value

    def back(self, natural: float) -> float:
        """The inverse of `natural`."""
        return natural

    def possible(self, value: float) -> float:
        """Clip to the metric's range, since the end of an interval may lie outside."""
        return value


class Logarithms(Scale):
    """Effects are multiplicative: a 2 % lower perplexity is the same effect at every size."""

    is_ratio = True

    def natural(self, value: float) -> float:
        return math.log(value) if value > 0 else math.nan

    def back(self, natural: float) -> float:
        return math.exp(natural) if natural < MAX_EXPONENT else math.inf


class Fractions(Scale):
    """Values between 0 and 1, with differences reported in percentage points."""

    display_factor = 100

    def possible(self, value: float) -> float:
        return min(max(value, 0.0), 1.0)


class ZeroToHundred(Scale):
    """Values between 0 and 100."""

    def possible(self, value: float) -> float:
        return min(max(value, 0.0), 100.0)


PLAIN, LOG, POINTS, HUNDRED = Scale(), Logarithms(), Fractions(), ZeroToHundred()


@dataclass(frozen=True)
class Metric:
    name: str
    """As it appears in score names."""
    noun: str
    """For text: nats, perplexity, accuracy on unseen texts."""
    lower_is_better: bool
    scale: Scale = PLAIN
    title: str = ""
    """The heading of a table column; empty = the noun."""
    form_of: str = ""
    """The metric that this one is a variant of: accuracy for accuracy on unseen texts."""
    is_of_rows: bool = False
    """A mean over rows that are each right or wrong, so that two models can be compared row by row."""
    is_per_token: bool = False
    """A mean over tokens, which is not comparable between tokenizers."""

    @property
    def unit(self) -> str:
        """The unit of differences."""
        return f"points of {self.noun}" if self.scale is POINTS else self.noun

    @property
    def heading(self) -> str:
        return self.title or self.noun

    @property
    def is_ratio(self) -> bool:
        return self.scale.is_ratio

    @property
    def sign(self) -> int:
        """Multiply a difference `this - that` on the natural scale by this to get how much better `this` is."""
        return -1 if self.lower_is_better else 1

    def natural(self, value: float) -> float:
        """The value on the scale where effects are additive."""
        return self.scale.natural(value)

    def back(self, natural: float) -> float:
        return self.scale.back(natural)

    def possible(self, value: float) -> float:
        return self.scale.possible(value)

    def mean(self, values: Iterable[float]) -> float:
        """The mean, taken on the scale where effects are additive."""
        return self.back(statistics.fmean(map(self.natural, values)))

    def in_units(self, improvement: float, level: float) -> float:
        """Convert an improvement over an arm at `level`, both on the natural scale, to the metric's own units."""
        if not self.is_ratio:
            return improvement * self.scale.display_factor
        return self.back(level) * self.relative(improvement)

    def relative(self, improvement: float) -> float:
        """Convert an improvement on the natural scale to a relative change: 0.04 = 4 % lower (or higher)."""
        return self.sign * (math.expm1(self.sign * improvement) if self.sign * improvement < MAX_EXPONENT else math.inf)

    def factor(self, improvement: float) -> float:
        """Convert an improvement on the natural scale to a factor: 2 = half the perplexity, 0.5 = twice as much."""
        return math.exp(improvement) if improvement < MAX_EXPONENT else math.inf


METRICS: Registry[Metric] = Registry("metric")


def register(metric: Metric, module: str) -> Metric:
    """Register a metric, so that everything that reads scores knows it. `module` is the `__name__` of the module that
    defines it."""
    return METRICS.add(metric.name, metric, module)


def _ours(*given: Any, **settings: Any) -> Metric:
    return register(Metric(*given, **settings), __name__)


LOSS = _ours("loss", "nats", lower_is_better=True, is_per_token=True)
"""The training objective, which every task has."""
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
    "masked_accuracy", "accuracy on masked tokens", lower_is_better=False, scale=POINTS, is_per_token=True
)
PSEUDO_PERPLEXITY = _ours("pseudo_perplexity", "pseudo-perplexity", lower_is_better=True, scale=LOG, is_per_token=True)
EXACT_MATCH = _ours("exact_match", "exact matches", lower_is_better=False, scale=POINTS, is_of_rows=True)
FOUND_AT = (1, 5)
"""The k of recall at k."""
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
"""Recall at k: the share of pictures whose caption is among the k likeliest, and of captions whose picture is."""


class ScoreName(NamedTuple):
    """A parsed score name: `split.metric` or `split.metric.part`."""

    split: str
    metric: str
    part: str = ""
    """The class or other subset that the score is of, if any."""


def is_test(split: str) -> bool:
    """Whether the split is for testing only, so that nothing may be selected by it: its name begins with "test", as in
    test_2016."""
    return split.startswith("test")


def parsed(name: str) -> ScoreName:
    """Parse a score name, even if its metric is unknown. Split and class names may contain dots, so the first part that
    is a known metric counts as the metric."""
    split, *rest = name.split(".")
    for k, word in enumerate(rest):
        if word in METRICS:
            return ScoreName(".".join([split, *rest[:k]]), word, ".".join(rest[k + 1 :]))
    return ScoreName(split, rest[0] if rest else "", ".".join(rest[1:]))


def metric_of(name: str) -> Metric:
    """The metric of a score name."""
    split, what, _ = parsed(name)
    if not split or what not in METRICS:
        hint = did_you_mean(name, [f"{split or 'valid'}.{each}" for each in METRICS])
        hint = hint if "did you mean" in hint else f"; known are {', '.join(METRICS)}"
        raise UserError(f"'{name}' cannot be compared: write split.metric, such as valid.perplexity{hint}")
    return METRICS[what]
