"""The scaling laws in the report of a ladder: tables and figures for each family."""

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.errors import UserError
from headway.run.record import read_json
from headway.scaling.analysis import ScalingAnalysis, WithInterval
from headway.scaling.figures import ScalingFigure, Traces, figures
from headway.study.report.figures import evaluations_of
from headway.study.report.tables import Table, TableRow
from headway.study.results.ladder_points import SCORE
from headway.study.results.results import Results

_LAW = {"E": "E", "A": "A", "B": "B", "alpha": "α", "beta": "β"}
_POWERS = {
    "parameters": "parameters of the best model",
    "tokens": "its training tokens",
    "loss": "its loss above E",
    "parameters_by_curves": "parameters, by parabolas",
    "tokens_by_curves": "tokens, by parabolas",
}


@dataclass(frozen=True)
class LawInReport:
    family: str
    """Empty if the ladder has no families."""
    tables: Sequence[Table]
    figures: Sequence[ScalingFigure]
    notes: Sequence[str]


def laws_in_report(results: Results) -> list[LawInReport]:
    """The law of every family of a ladder; empty if the study is no ladder."""
    if results.study.ladder is None or not results.runs:
        return []
    try:
        laws = results.laws(SCORE)
    except UserError as error:
        return [LawInReport("", [], [], [f"No law can be fitted: {error}."])]
    return [
        LawInReport(family, law_tables(found), figures(found, traces_of(results, family)), _sentences(found.notes()))
        for family, found in laws.items()
    ]


def _sentences(notes: Sequence[str]) -> list[str]:
    return [f"{note[:1].upper()}{note[1:]}." for note in notes]


def law_tables(found: ScalingAnalysis) -> list[Table]:
    spread = f"The points scatter around it by {100 * found.fit.spread:.2g} %."
    cost = f"One training token costs {found.fit.cost.factor:.3g}·N^{found.fit.cost.power:.3g} FLOPs (fitted)."
    law = Table(
        f"L = E + A/N^α + B/D^β, fitted to {len(found.table.points)} points with a Huber loss on log L",
        ["", "estimate", "95 % interval"],
        [TableRow(_LAW[key], _told(one)) for key, one in found.law.items()],
        [f"{spread} {cost} Intervals from {len(found.fit.resamples):,} bootstrap resamples."],
    )
    powers = Table(
        "How the compute-optimal model grows with FLOPs C: exponents of C",
        ["", "exponent", "95 % interval"],
        [TableRow(_POWERS[key], _told(one)) for key, one in found.exponents.items()],
    )
    tables = [law, powers]
    if found.left_out:
        rows = [
            TableRow(f"{one.flops:.3g}", [f"{100 * one.error:.2f} %", f"{round(100 * one.bias, 2) + 0.0:+.2f} %"])
            for one in found.left_out
        ]
        caption = "Each budget as predicted by the law fitted to all other budgets"
        notes = ["The last one is a test of extrapolation."]
        tables.append(Table(caption, ["FLOPs", "error of the loss", "bias"], rows, notes))
    if len(found.conventions) > 1:
        rows = []
        for one in found.conventions:
            several = (one.alpha, one.beta, one.parameters_exponent, one.curves_exponent)
            rows.append(TableRow(one.name, [" ".join(_told(part)) if part else "–" for part in several]))
        columns = ["parameters counted as", "α", "β", "exponent of N, by the law", "by parabolas"]
        tables.append(Table("The exponents under different ways of counting parameters", columns, rows))
    return tables


def _told(one: WithInterval) -> list[str]:
    return [f"{one.value:.4g}", f"[{one.low:.4g}, {one.high:.4g}]"]


def traces_of(results: Results, family: str) -> Traces | None:
    """For each width, the evaluations of its longest training: FLOPs spent and mean loss over seeds."""
    longest: dict[int, str] = {}
    for arm in results.study.arms:  # budgets come in order
        if arm.levels.get("family", "") == family and results.of(arm.name):
            longest[int(arm.levels["width"])] = arm.name
    found = {}
    for width, arm in sorted(longest.items()):
        runs = results.of(arm)
        per_step = int(read_json(runs[0].folder / "run.json").get("flops_per_step", 0))
        lines = evaluations_of(results, arm)
        steps = sorted(set.intersection(*(set(line) for line in lines)))
        steps = [step for step in steps if step and all(line[step].get(SCORE) is not None for line in lines)]
        if len(steps) > 1:
            losses = [sum(line[step][SCORE] for line in lines) / len(lines) for step in steps]
            found[f"width {width}"] = ([step * per_step for step in steps], losses)
    return Traces(found) if found else None
