"""What `headway scaling` says on a terminal."""

from collections.abc import Sequence

from rich.console import Console

from headway.cli.printing import show_table
from headway.core.format import number
from headway.scaling.analysis import Advice, ScalingAnalysis, WithInterval
from headway.stats.scaling import CORNER


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
        f"end there; the spread of a point is {100 * fit.spread:.2g} %",
        style="dim",
    )
    _show_curves(found)
    exponents = found.exponents
    rows = [
        ["parameters of the best model", *_pair(exponents, "parameters")],
        ["tokens", *_pair(exponents, "tokens")],
        ["its loss above E", *_pair(exponents, "loss")],
    ]
    console.print("\nPowers of FLOPs")
    show_table(["", "by the law", "", "by parabolas", ""], rows)
    if found.left_out:
        console.print("\nEach budget, as the law of all others tells it")
        errors = [
            [f"{o.flops:.3g}", f"{100 * o.error:.2f} %", f"{round(100 * o.bias, 2) + 0.0:+.2f} %"]
            for o in found.left_out
        ]
        show_table(["FLOPs", "error of the loss", "on average"], errors)
    if len(found.conventions) > 1:
        console.print("\nParameters counted in other ways")
        counted = [
            [c.name, *_told(c.alpha), *_told(c.beta), *_told(c.parameters_exponent), *(_told(c.curves_exponent))]
            for c in found.conventions
        ]
        show_table(["column", "α", "", "β", "", "power, by the law", "", "by parabolas", ""], counted)
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
        show_table(["", "by the law", "95 % interval", "by parabolas", "95 % interval"], rows)
        for note in one.notes:
            console.print(f"note: {note}", style="yellow", markup=False)
    for note in found.notes():
        console.print(f"note: {note}", style="dim", markup=False)


def _pair(exponents: dict[str, WithInterval], name: str) -> list[str]:
    return [*_told(exponents[name]), *_told(exponents.get(f"{name}_by_curves"))]


def _told(one: WithInterval | None, digits: int | None = None) -> list[str]:
    """The number, and its interval."""
    if one is None:
        return ["–", ""]
    value, low, high = (f"{v:.{digits}g}" if digits else number(v) for v in one)
    return [value, f"[{low}, {high}]"]
