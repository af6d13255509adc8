"""Learning curves of runs: the loss evaluated during training, by step. For each arm: a thin line per seed, their mean,
and the band between the lowest and highest. Reads only run folders.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from headway.core.errors import UserError
from headway.draw.chart_page import Chart, ChartPage
from headway.draw.charts import COLOURS, Curve
from headway.experiment.compare import RunComparison
from headway.run.folder import Run
from headway.scoring.metrics import LOSS, parsed

Evaluations = Mapping[int, Mapping[str, float]]
"""Scores by name, for each step."""
HOW_THEY_LEARNT = "every seed (thin), their mean, and the band between lowest and highest"


def evaluations(run: Run) -> Evaluations:
    return {line["step"]: line["scores"] for line in run.evaluations() if isinstance(line["scores"], dict)}


def loss_looked_at(runs: Iterable[Evaluations], split: str = "valid") -> str | None:
    """The name of the loss that was evaluated, preferably on this split."""
    names = dict.fromkeys(name for run in runs for scores in run.values() for name in scores)
    losses = {parsed(name).split: name for name in names if parsed(name).metric == LOSS.name}
    return next((losses[one] for one in (split, "valid", *losses) if one in losses), None)


def learning_curve(arm: str, runs: Sequence[Evaluations], score: str) -> Curve | None:
    """The curve over the steps that every seed has. It ends where a seed diverged."""
    known = [{step: at[score] for step, at in run.items() if _is_number(at.get(score))} for run in runs]
    steps = sorted(set.intersection(*(set(run) for run in known))) if known else []
    if not steps:
        return None
    at = [[run[step] for run in known] for step in steps]
    each = [[run[step] for step in steps] for run in known] if len(known) > 1 else []
    return Curve(arm, steps, [statistics.mean(v) for v in at], [min(v) for v in at], [max(v) for v in at], each)


def curves_page(found: RunComparison) -> ChartPage:
    """The learning curves of a comparison's arms as a page."""
    seen = {arm.name: [evaluations(run) for run in arm.runs.values()] for arm in found.arms[:COLOURS]}
    loss = loss_looked_at(run for runs in seen.values() for run in runs)
    curves = [curve for name, runs in seen.items() if loss and (curve := learning_curve(name, runs, loss)) is not None]
    if loss is None or not curves:
        raise UserError("no curves: none of these runs was evaluated during training (training.evaluate_every)")
    seeds = ", ".join(f"{arm.name}: {len(arm.runs)} seed{'s' * (len(arm.runs) > 1)}" for arm in found.arms)
    more = [f"of {len(found.arms)} arms, only the first {COLOURS} are drawn"] if len(found.arms) > COLOURS else []
    chart = Chart(curves, "step", f"{loss} ({LOSS.unit})", f"{loss} by step; {HOW_THEY_LEARNT}")
    return ChartPage("Learning curves", seeds, [chart], [*more, *found.notes])


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
