"""The verbs of `headway scaling`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import AsJson, print_json
from headway.core.errors import UserError

if TYPE_CHECKING:
    from headway.scaling.analysis import ScalingAnalysis
    from headway.scaling.points import Choice

app = typer.Typer(
    no_args_is_help=True,
    help="Scaling laws: plan a ladder of sizes and budgets, train it, fit a law to it, and say how sure it is.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Source = Annotated[
    str,
    typer.Argument(help="A .csv file with a row per trained model.", metavar="FILE"),
]
Parameters = Annotated[str | None, typer.Option(help="The column with the parameters.", metavar="COLUMN")]
Tokens = Annotated[str | None, typer.Option(help="The column with the tokens of training.", metavar="COLUMN")]
Flops = Annotated[str | None, typer.Option("--flops-column", help="The column with the FLOPs.", metavar="COLUMN")]
Loss = Annotated[str | None, typer.Option("--loss", help="The column with the loss, in nats.", metavar="COLUMN")]
Unit = Annotated[
    list[str] | None,
    typer.Option("--unit", help="What a column is in: tokens=1e6 for millions. May be repeated.", metavar="NAME=UNIT"),
]
Resamples = Annotated[int, typer.Option(help="How many resamples the intervals rest on.", min=100)]


@app.command(epilog="Example: headway scaling fit points.csv")
def fit(
    source: Source,
    parameters: Parameters = None,
    tokens: Tokens = None,
    flops: Flops = None,
    loss: Loss = None,
    unit: Unit = None,
    resamples: Resamples = 1000,
    as_json: AsJson = False,
) -> None:
    """Fit parabolas and a law to trained models: exponents with intervals, the error of budgets left out, outliers."""
    found = _analysed(source, _choice(parameters, tokens, flops, loss, unit), resamples)
    if as_json:
        print_json("scaling fit", found.as_json())
        return
    from headway.cli.scaling_printing import show_analysis

    show_analysis(found)


@app.command(epilog="Example: headway scaling advise points.csv --flops 1e18")
def advise(
    source: Source,
    budget: Annotated[list[float], typer.Option("--flops", help="FLOPs to be spent. May be repeated.", metavar="C")],
    parameters: Parameters = None,
    tokens: Tokens = None,
    flops: Flops = None,
    loss: Loss = None,
    unit: Unit = None,
    resamples: Resamples = 1000,
    as_json: AsJson = False,
) -> None:
    """Say which size to train on how many tokens for so many FLOPs, how sure that is, and how far extrapolated."""
    for one in budget:
        if not 0 < one < float("inf"):
            raise UserError(f"--flops {one:g}: expected a number above 0, such as 1e18")
    found = _analysed(source, _choice(parameters, tokens, flops, loss, unit), resamples)
    advice = [found.advise(one) for one in budget]
    if as_json:
        print_json("scaling advise", {"source": source, "advice": [one.as_json() for one in advice]})
        return
    from headway.cli.scaling_printing import show_advice

    show_advice(advice, found)


def _analysed(source: str, choice: "Choice", resamples: int) -> "ScalingAnalysis":
    from headway.scaling.analysis import analyse
    from headway.scaling.points import read_points

    return analyse(read_points(Path(source), choice), resamples)


def _choice(
    parameters: str | None, tokens: str | None, flops: str | None, loss: str | None, unit: list[str] | None
) -> "Choice":
    from headway.scaling.points import Choice

    named = {"parameters": parameters, "tokens": tokens, "flops": flops, "loss": loss}
    return Choice({key: name for key, name in named.items() if name is not None}, _units(unit or []))


def _units(given: list[str]) -> dict[str, float]:
    found = {}
    for one in given:
        name, _, value = one.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise UserError(f"--unit {one}: expected NAME=NUMBER, such as tokens=1e6") from None
        if not 0 < found[name.strip()] < float("inf"):
            raise UserError(f"--unit {one}: expected a number above 0, such as 1e6")
    return found
