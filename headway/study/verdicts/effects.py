"""How large an effect is: as facts of a verdict, and in words.

In words it is told in units of its metric, from the side on which it is a gain. Where arms are so far apart that one of
them did not train, a difference of perplexities is no more than the larger of the two, and its interval is endless on
one side; there it is told as a factor.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from headway.scoring.metrics import Metric
from headway.stats.intervals import LEVEL, Contrast
from headway.study.verdicts.wording import amount, fixed, mirrored, plain, times

BEYOND_UNITS = 4
"""A factor, or its reciprocal. From here on, in either end of the interval, an effect is told as a factor."""


def measured(found: Contrast, metric: Metric, level: float, chosen: float = LEVEL) -> dict[str, Any]:
    """An effect as facts of a verdict: in the metric's units, upon an arm at `level` (natural); and where effects
    multiply, as a share and as a factor. `chosen`: what the interval leaves to chance."""
    low, high = found.interval(chosen)
    facts: dict[str, Any] = {
        "effect": metric.in_units(found.estimate, level),
        "interval": (metric.in_units(low, level), metric.in_units(high, level)),
        "unit": metric.unit,
    }
    if metric.is_ratio:
        facts |= {
            "relative": metric.relative(found.estimate),
            "relative_interval": (metric.relative(low), metric.relative(high)),
            "factor": metric.factor(found.estimate),
            "factor_interval": (metric.factor(low), metric.factor(high)),
        }
    return facts


def visible(found: Contrast, level: float, metric: Metric, units: Callable[[float], float]) -> dict[str, Any]:
    """The smallest effect that these seeds could have shown, as facts of a verdict."""
    smallest = found.smallest_visible(level)
    if smallest is None:
        return {}
    low, high = map(units, smallest.interval)
    facts: dict[str, Any] = {"smallest_visible": units(smallest.effect), "smallest_visible_interval": (low, high)}
    if metric.is_ratio:
        facts["smallest_visible_factor"] = metric.factor(smallest.effect)
    return facts


def said(facts: Mapping[str, Any]) -> str:
    """How large an effect is, in words, from the side on which it is a gain."""
    effect, ends, unit = facts["effect"], facts["interval"], facts["unit"]
    if not is_beyond_units(facts):
        return amount(*((effect, ends) if effect >= 0 else (-effect, mirrored(ends))), unit)
    factor, (low, high) = facts["factor"], facts["factor_interval"]
    if effect < 0:
        factor, low, high = (1 / value if value else math.inf for value in (factor, high, low))
    return times(factor, (low, high), unit)


def is_beyond_units(facts: Mapping[str, Any]) -> bool:
    ends = facts.get("factor_interval")
    return ends is not None and not 1 / BEYOND_UNITS < min(ends) <= max(ends) < BEYOND_UNITS


def could_show(facts: Mapping[str, Any], decimals: int) -> str:
    """The smallest effect that could have been shown, in words."""
    if "smallest_visible" not in facts:
        return "the smallest difference that could be detected is known from 4 seeds on"
    if is_beyond_units(facts):
        return f"the smallest factor these seeds could detect is {plain(facts['smallest_visible_factor'])}"
    shown = [facts["smallest_visible"], *facts["smallest_visible_interval"]]
    smallest, low, high = (fixed(value, decimals) for value in shown)
    return f"the smallest difference these seeds could detect is {smallest} [{low}, {high}]"
