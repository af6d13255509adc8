"""The figures of a report: learning curves, perplexity by segment length, and a heat map of two factors."""

import math
from dataclasses import dataclass

from headway.draw.charts import COLOURS, Curve, heat_map, line_chart
from headway.experiment.learning_curves import (
    HOW_THEY_LEARNT,
    Evaluations,
    evaluations,
    learning_curve,
    loss_looked_at,
)
from headway.run.folder import Run
from headway.scoring.metrics import LOSS, PERPLEXITY, metric_of, parsed
from headway.study.design.measures import Lengths, Segments, Sliding
from headway.study.report.tables import asked_scores, estimate
from headway.study.results.results import Results
from headway.study.verdicts.wording import plain

LARGE_RATIO = 12
"""If the largest perplexity is this many times the smallest, the axis is logarithmic."""


@dataclass(frozen=True)
class Figure:
    picture: str
    """SVG; empty if there is nothing to draw, and then the caption says why."""
    caption: str


def figures(results: Results) -> list[Figure]:
    if results.study.ladder is not None:  # a ladder has figures of its own
        return []
    return [f for f in (learning_curves(results), by_length(results), two_factors(results)) if f is not None]


def shown_arms(results: Results) -> tuple[list[str], str]:
    """The arms that are drawn, and a remark if some are left out."""
    arms = [arm for arm in results.arms if results.of(arm)]
    scores = asked_scores(results)
    if len(arms) <= COLOURS or not scores:
        return arms[:COLOURS], ""
    best = sorted(arms, key=lambda arm: _rank(results, arm, scores[0]))[:COLOURS]
    return [arm for arm in arms if arm in best], f" Of {len(arms)} arms, the {COLOURS} best are drawn."


def _rank(results: Results, arm: str, score: str) -> float:
    found = estimate(results, arm, score)
    if found is None:
        return float("inf")
    return found.mean if metric_of(score).lower_is_better else -found.mean


def learning_curves(results: Results) -> Figure | None:
    """The loss evaluated during training: the mean over seeds, and the band between their extremes."""
    arms, remark = shown_arms(results)
    lines = {arm: evaluations_of(results, arm) for arm in arms}
    asked = next((parsed(score).split for score in asked_scores(results)), "valid")
    name = loss_looked_at((run for found in lines.values() for run in found), asked)
    if name is None:
        return None
    curves = [curve for arm in arms if (curve := learning_curve(arm, lines[arm], name)) is not None]
    if not any(len(curve.x) > 1 for curve in curves):
        return None
    caption = f"Learning curves of the arms: {name} by step; {HOW_THEY_LEARNT}."
    return Figure(line_chart(curves, "step", f"{name} ({LOSS.unit})", caption), caption + remark)


def evaluations_of(results: Results, arm: str) -> list[Evaluations]:
    return [evaluations(Run(run.folder, results.study.recipes[arm])) for run in results.of(arm)]


def by_length(results: Results) -> Figure | None:
    """Perplexity at segment lengths other than the one of training, in separate segments and in sliding windows."""
    asked = [one for one in results.study.measures if isinstance(one, Lengths) and len(one.lengths) > 1]
    arms, remark = shown_arms(results)
    if not asked:
        return None
    curves = [curve for one in asked for arm in arms if (curve := _by_length(results, one, arm)) is not None]
    if not curves:
        return None
    values = [v for curve in curves for v in (*curve.low, *curve.high)]
    steep = max(values) > LARGE_RATIO * min(values)
    caption = (
        f"Perplexity on {asked[0].split} by segment length: the mean over seeds, and the band between the lowest and "
        "the highest."
    )
    if any(isinstance(one, Sliding) for one in asked):
        caption += " In sliding windows every token has context, so the gap to segments is the cost of early tokens."
    drawn = line_chart(curves, "tokens per segment", PERPLEXITY.noun, caption, categories=True, logarithmic=steep)
    return Figure(drawn, caption + remark)


def _by_length(results: Results, measure: Lengths, arm: str) -> Curve | None:
    order = sorted(zip(measure.lengths, measure.told, strict=True), reverse=True)
    tables = {length: results.table(name) for length, name in order if name in results.score_names}
    at = {length: list(table[arm].values()) for length, table in tables.items() if table[arm]}
    if not at:
        return None
    name, beside = (arm, "") if isinstance(measure, Segments) else (f"{arm}, {measure.kind}", arm)
    middle = [PERPLEXITY.mean(values) for values in at.values()]
    return Curve(name, list(at), middle, [min(v) for v in at.values()], [max(v) for v in at.values()], beside=beside)


def two_factors(results: Results) -> Figure | None:
    """A heat map of the first score that a question is about."""
    scores = asked_scores(results)
    if len(results.study.factors) != 2 or not scores:
        return None
    first, second = results.study.factors
    values = {}
    for arm in results.study.arms:
        found = estimate(results, arm.name, scores[0])
        if found is not None and math.isfinite(found.mean):
            values[arm.levels[first], arm.levels[second]] = found.mean
    if not values:
        return None
    rows, columns = (list(factor.levels()) for factor in results.study.factors.values())
    caption = f"{scores[0]} by {first} and {second}: the mean over seeds; darker is better."
    lower = metric_of(scores[0]).lower_is_better
    return Figure(heat_map(rows, columns, values, plain, lower, (first, second), caption), caption)
