"""`headway compare`: compare runs side by side."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import AsJson, RunsFolder, Trust, With, print_json, run_argument, use_plugins
from headway.core.errors import UserError, did_you_mean
from headway.core.format import number

if TYPE_CHECKING:
    from headway.experiment.compare import AheadOfFirst, RunComparison, SeedMean


def compare(
    run: Annotated[
        list[str],
        run_argument("Two or more runs, by name or folder. The others are compared with the first.", "RUN RUN …"),
    ],
    on: Annotated[
        list[str] | None,
        typer.Option(help="Which scores to show; default: the headline metric of every split. May be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Draw the learning curves of every seed: a .html, .svg or .png file.", metavar="FILE"
        ),
    ] = None,
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Compare scores with intervals, and list what differs in the recipes. Runs that differ only in the seed are
    averaged."""
    from headway.draw.save import check_place
    from headway.experiment.compare import compare as compared
    from headway.experiment.learning_curves import curves_page
    from headway.run.folder import open_run

    use_plugins(with_, trust)
    if out is not None:
        check_place(out)
    found = compared([open_run(name, runs) for name in run])
    for name in on or ():
        if name not in found.scores:
            raise UserError(f"--on {name}: no run has this score{did_you_mean(name, found.scores)}")
    if as_json:
        print_json("compare", found.as_json())
    else:
        _show(found, on)
    if out is not None:
        print(f"drawn: {curves_page(found).save(out)}", file=sys.stderr)


def _show(found: "RunComparison", on: list[str] | None) -> None:
    from headway.answers.run_summaries import headline_of
    from headway.cli import printing
    from headway.core.yaml import write_value
    from headway.experiment.compare import ABSENT
    from headway.scoring.metrics import parsed

    headlines = {headline_of(run) for arm in found.arms for run in arm.runs.values()}
    shown = on or [name for name in found.scores if parsed(name).metric in headlines] or found.scores[:1]
    columns, rows = ["", "seeds"], [[arm.name, str(len(arm.runs))] for arm in found.arms]
    for name in shown:
        columns += [name, f"vs. {found.arms[0].name}"] if len(found.arms) > 1 else [name]
        for arm, row in zip(found.arms, rows, strict=True):
            row.append(_mean(found.mean(arm, name)))
            if len(found.arms) > 1:
                row.append(_ahead(found.ahead(arm, name)))
    printing.show_table(columns, rows)
    if found.differences:
        print()
        rows = found.differences.items()
        told = [[key, *(ABSENT if one == ABSENT else write_value(one) for one in values)] for key, values in rows]
        printing.show_table(["what differs", *(arm.name for arm in found.arms)], told)
    if found.notes:
        print()
    for note in found.notes:
        print(note)


def _mean(mean: "SeedMean | None") -> str:
    if mean is None:
        return "–"
    return number(mean.value) + (f" [{number(mean.interval[0])}, {number(mean.interval[1])}]" if mean.interval else "")


def _ahead(ahead: "AheadOfFirst | None") -> str:
    if ahead is None:
        return ""
    word = "better" if ahead.by > 0 else "worse"
    said = f"{number(abs(ahead.by))} {word}" if ahead.by else "the same"
    if ahead.interval is None:
        return said
    low, high = sorted(ahead.interval if ahead.by > 0 else (-ahead.interval[0], -ahead.interval[1]))
    told = f"{said} [{number(low)}, {number(high)}]"
    return told if ahead.is_told_apart else f"{told}, not distinguishable"
