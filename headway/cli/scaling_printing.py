"""Prints the results of `headway scaling` on the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from headway.cli.printing import show_table
from headway.core.format import duration, number
from headway.scaling.analysis import Advice, ScalingAnalysis, WithInterval
from headway.stats.law_minima import CORNER
from headway.study.design.study import Study
from headway.study.execution.ladder_plan import ClimbedRung
from headway.study.execution.plan import Plan
from headway.study.execution.tuned_rate import TunedRate


def show_analysis(found: ScalingAnalysis) -> None:
    console = Console(highlight=False, soft_wrap=True)
    points, law = found.table.points, found.law
    many = f"{len(points)} points, {len(found.table.groups) or 'no common'} budgets"
    spent = f"{points.flops.min():.3g} to {points.flops.max():.3g} FLOPs"
    console.print(f"{found.table.source}: {many}, {spent}", style="bold", markup=False)
    console.print("\nL = E + A/N^α + B/D^β")
    names = {"E": "E", "A": "A", "B": "B", "alpha": "α", "beta": "β"}
    show_table(["", "estimate", "95 % interval"], [[names[key], *_told(one)] for key, one in law.items()])
    fit = found.fit
    console.print(
        f"Huber loss on log L (δ = {CORNER:g}, summed) {fit.objective:.6g}; {fit.reached:,} of {fit.starts:,} starts "
        f"reach it; residual spread per point {100 * fit.spread:.2g} %",
        style="dim",
    )
    _show_curves(found)
    exponents = found.exponents
    rows = [
        ["parameters N", *_pair(exponents, "parameters")],
        ["tokens D", *_pair(exponents, "tokens")],
        ["loss above E", *_pair(exponents, "loss")],
    ]
    console.print("\nOptimal model as powers of FLOPs")
    show_table(["", "by the law", "", "by parabolas", ""], rows)
    if found.left_out:
        console.print("\nLeave one budget out: each budget predicted from all others")
        errors = [
            [f"{o.flops:.3g}", f"{100 * o.error:.2f} %", f"{round(100 * o.bias, 2) + 0.0:+.2f} %"]
            for o in found.left_out
        ]
        show_table(["FLOPs", "error of the loss", "mean error"], errors)
    if len(found.conventions) > 1:
        console.print("\nExponent of parameters, by how parameters are counted")
        counted = [
            [
                c.name.removeprefix("parameters_").replace("_", " "),
                " ".join(_told(c.parameters_exponent)),
                " ".join(_told(c.curves_exponent)),
            ]
            for c in found.conventions
        ]
        show_table(["counted", "by the law", "by parabolas"], counted)
    for note in found.notes():
        console.print(f"note: {note}", style="yellow", markup=False)


def _show_curves(found: ScalingAnalysis) -> None:
    rows = []
    for curve in found.curves.found:
        low, high = curve.interval
        best = [f"{curve.parameters:.3g}", f"[{low:.3g}, {high:.3g}]", f"{curve.loss:.4f}"]
        rows.append([f"{curve.budget:.3g}", f"{len(curve.places)}", *best])
    if rows:
        Console(highlight=False).print("\nMinima of parabolas in log N")
        show_table(["FLOPs", "points", "best parameters", "95 % interval", "loss"], rows)


def show_advice(advice: Sequence[Advice], found: ScalingAnalysis) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for one in advice:
        console.print(f"{one.flops:.3g} FLOPs", style="bold")
        rows = [
            ["parameters", *_told(one.parameters, 3), *(_told(one.by_curves[0], 3) if one.by_curves else ["–", ""])],
            ["tokens", *_told(one.tokens, 3), *(_told(one.by_curves[1], 3) if one.by_curves else ["–", ""])],
            ["loss", *_told(one.loss), "", ""],
        ]
        if one.is_usable:
            show_table(["", "by the law", "95 % interval", "by parabolas", "95 % interval"], rows)
        for note in one.notes:
            console.print(f"note: {note}", style="yellow", markup=False)
    for note in found.notes():
        console.print(f"note: {note}", style="dim", markup=False)


def _pair(exponents: dict[str, WithInterval], name: str) -> list[str]:
    return [*_told(exponents[name]), *_told(exponents.get(f"{name}_by_curves"))]


def _told(one: WithInterval | None, digits: int | None = None) -> list[str]:
    """The value and its interval."""
    if one is None:
        return ["–", ""]
    value, low, high = (f"{v:.{digits}g}" if digits else number(v) for v in one)
    return [value, f"[{low}, {high}]"]


# --- plans -----------------------------------------------------------------------------------------------------------


def climb_as_json(
    study: Study, rungs: Sequence[ClimbedRung], plan: Plan, notes: Sequence[str], tuned: TunedRate | None
) -> dict[str, Any]:
    tried = tuned and {"rate": tuned.rate, "losses": {f"{rate:g}": loss for rate, loss in tuned.losses.items()}}
    return {
        "title": study.title,
        "rungs": [
            {"flops": rung.flops, "expected": rung.expected, "sizes": _sizes(study, rung, plan)} for rung in rungs
        ],
        "runs": len(plan.runs),
        "seconds": plan.seconds,
        "tuned": tried,
        "notes": [*notes, *plan.warnings],
    }


def _sizes(study: Study, rung: ClimbedRung, plan: Plan) -> list[dict[str, Any]]:
    found = []
    for size, passes in zip(rung.sizes, rung.passes, strict=True):
        arm = next(
            arm
            for arm in study.arms
            if study.ladder and study.ladder.flops_of(arm) == rung.flops and arm.levels["width"] == str(size.width)
        )
        cost, recipe = plan.arms[arm.name], study.recipes[arm.name]
        found.append(
            {
                "arm": arm.name,
                "width": size.width,
                "layers": size.layers,
                "parameters": cost.parameters,
                "tokens": cost.tokens,
                "tokens_per_parameter": cost.tokens / cost.parameters,
                "passes": passes,
                "steps": cost.steps,
                "flops": cost.flops,
                "flops_6nd": 6.0 * cost.parameters * cost.tokens,
                "rate": recipe.training.optimizer.learning_rate,
                "seconds": cost.seconds,
            }
        )
    return found


def _short(count: float) -> str:
    """A count with three digits and a unit: 15.8k, 1.02M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{letter}" if count < 999.5 * unit else f"{count / unit:.0f}{letter}"
    return f"{count:.0f}"


def show_climb(
    study: Study, rungs: Sequence[ClimbedRung], plan: Plan, notes: Sequence[str], tuned: TunedRate | None
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(study.title, style="bold", markup=False)
    rows = []
    for rung in rungs:
        for size in _sizes(study, rung, plan):
            spent = f"{size['flops']:.3g}", f"{size['flops_6nd']:.3g}"
            told = [f"{rung.flops:.3g}", *spent, f"{size['width']}", f"{size['layers']}", _short(size["parameters"])]
            data = [f"{_short(size['tokens'])}", f"{size['tokens_per_parameter']:.3g}", f"{size['passes']:.2g}"]
            rows.append([*told, *data, f"{size['steps']:,}", f"{size['rate']:.3g}", duration(size["seconds"])])
    names = ["budget", "FLOPs", "6ND", "width", "layers", "N", "D", "D/N", "passes", "steps", "rate", "time"]
    show_table(names, rows)
    legend = "FLOPs: counted module by module; N: parameters; D: tokens; passes: epochs over the text"
    console.print(legend, style="dim")
    assert study.ladder is not None
    ladder = study.ladder
    heads = f"heads of {ladder.head_width}" if ladder.head_width else "the recipe's heads"
    rule = f"rate = {study.base.with_changes(study.changes, '').training.optimizer.learning_rate:g}"
    console.print(
        f"layers = width / {ladder.width_per_layer:g}; {heads}; {rule} · (width / {ladder.narrowest})^"
        f"{ladder.rate_power:g}; expected optimum: {', '.join(f'{rung.expected:.2g}' for rung in rungs)} parameters",
        style="dim",
        markup=False,
    )
    if tuned is not None:
        tried = ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in sorted(tuned.losses.items()))
        edge = "; the best is at the edge of the range: start from another rate" if tuned.is_at_edge else ""
        console.print(f"rates tried at width {ladder.narrowest}, validation loss: {tried}{edge}", markup=False)
    console.print(f"{len(plan.runs)} runs, about {duration(plan.seconds)}")
    for note in [*notes, *plan.warnings]:
        console.print(f"note: {note}", style="yellow", markup=False)
