"""The size of an effect: as fields of a verdict, and as text.

The text gives it in units of the metric, as a gain of the better arm. If the arms are so far apart that one of them did
not train, the difference of perplexities is about as large as the larger perplexity, and its interval is unbounded on
one side. Such an effect is printed as a factor.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from headway.scoring.metrics import Metric
from headway.stats.intervals import LEVEL, Contrast
from headway.study.verdicts.wording import amount, fixed, mirrored, plain, times

BEYOND_UNITS = 4
"""If either end of the interval is beyond this factor or its reciprocal, the effect is printed as a factor."""


def measured(found: Contrast, metric: Metric, level: float, chosen: float = LEVEL) -> dict[str, Any]:
    """An effect as fields of a verdict: in the metric's units, relative to an arm at `level` (on the natural scale);
    for ratio metrics also as a share and as a factor. `chosen` is the interval's error probability."""
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
    """The smallest effect that these seeds can detect, as fields of a verdict."""
    smallest = found.smallest_visible(level)
    if smallest is None:
        return {}
    low, high = map(units, smallest.interval)
    facts: dict[str, Any] = {"smallest_visible": units(smallest.effect), "smallest_visible_interval": (low, high)}
    if metric.is_ratio:
        facts["smallest_visible_factor"] = metric.factor(smallest.effect)
    return facts


def said(facts: Mapping[str, Any]) -> str:
    """The size of an effect as text, as a gain of the better arm."""
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


def detectable(facts: Mapping[str, Any], decimals: int) -> str:
    """The smallest effect that these seeds can detect, as text."""
    if "smallest_visible" not in facts:
        return "the smallest detectable difference can only be estimated from 4 seeds or more"
    if is_beyond_units(facts):
        return f"the smallest factor these seeds could detect is {plain(facts['smallest_visible_factor'])}"
    shown = [facts["smallest_visible"], *facts["smallest_visible_interval"]]
    smallest, low, high = (fixed(value, decimals) for value in shown)
    return f"the smallest difference these seeds could detect is {smallest} [{low}, {high}]"
