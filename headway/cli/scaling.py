"""The commands of `headway scaling`."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import AsJson, Trust, With, print_json, use_plugins
from headway.cli.study import Name, StudiesFolder, Workers
from headway.core.errors import UserError

if TYPE_CHECKING:
    from headway.scaling.analysis import ScalingAnalysis
    from headway.scaling.points import Choice
    from headway.study.design.study import Study

app = typer.Typer(
    no_args_is_help=True,
    help="Scaling laws: plan a ladder of sizes and budgets, train it, and fit a law with confidence intervals.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Source = Annotated[
    str,
    typer.Argument(
        help="A .csv file with one row per trained model, or the name of a study with a ladder.", metavar="FILE|STUDY"
    ),
]
Parameters = Annotated[str | None, typer.Option(help="The column of the parameter count.", metavar="COLUMN")]
Tokens = Annotated[str | None, typer.Option(help="The column of the training tokens.", metavar="COLUMN")]
Flops = Annotated[str | None, typer.Option("--flops-column", help="The column of the FLOPs.", metavar="COLUMN")]
Loss = Annotated[str | None, typer.Option("--loss", help="The column of the loss, in nats.", metavar="COLUMN")]
Unit = Annotated[
    list[str] | None,
    typer.Option("--unit", help="A column's unit: tokens=1e6 for millions. May be repeated.", metavar="NAME=UNIT"),
]
Resamples = Annotated[int, typer.Option(help="Bootstrap resamples for the intervals.", min=100)]
Family = Annotated[str | None, typer.Option(help="Which family, if the ladder has several kinds of models.")]
Ratio = Annotated[
    float | None,
    typer.Option(help="Tokens per parameter assumed optimal when placing the sizes; default: 20.", min=0.01),
]
KnownFrom = Annotated[
    str | None,
    typer.Option("--from", help="A smaller ladder, or its .csv: its law predicts the optimum.", metavar="FILE|STUDY"),
]


@app.command(epilog="Example: headway scaling fit points.csv")
def fit(
    source: Source,
    parameters: Parameters = None,
    tokens: Tokens = None,
    flops: Flops = None,
    loss: Loss = None,
    unit: Unit = None,
    resamples: Resamples = 1000,
    family: Family = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Draw everything to a .html page.", metavar="FILE.html")
    ] = None,
    studies: StudiesFolder = Path("studies"),
    as_json: AsJson = False,
) -> None:
    """Fit parabolas and a law to trained models: exponents with intervals, held-out errors per budget, outliers."""
    _check_page(output)
    found = _analysed(source, _choice(parameters, tokens, flops, loss, unit), resamples, family, studies)
    if output is not None:
        from headway.core.files import write_whole
        from headway.scaling.figures import page

        write_whole(output, page(found))
    if as_json:
        print_json("scaling fit", found.as_json())
        return
    from headway.cli.scaling_printing import show_analysis

    show_analysis(found)


@app.command(epilog="Example: headway scaling advise points.csv --flops 1e18")
def advise(
    source: Source,
    budget: Annotated[list[float], typer.Option("--flops", help="FLOPs to spend. May be repeated.", metavar="C")],
    parameters: Parameters = None,
    tokens: Tokens = None,
    flops: Flops = None,
    loss: Loss = None,
    unit: Unit = None,
    resamples: Resamples = 1000,
    family: Family = None,
    studies: StudiesFolder = Path("studies"),
    as_json: AsJson = False,
) -> None:
    """Recommend the model size and number of tokens for given FLOPs, with intervals and the extrapolation factor."""
    for one in budget:
        if not 0 < one < float("inf"):
            raise UserError(f"--flops {one:g}: expected a number above 0, such as 1e18")
    found = _analysed(source, _choice(parameters, tokens, flops, loss, unit), resamples, family, studies)
    advice = [found.advise(one) for one in budget]
    if as_json:
        print_json("scaling advise", {"source": source, "advice": [one.as_json() for one in advice]})
        return
    from headway.cli.scaling_printing import show_advice

    show_advice(advice, found)


@app.command(epilog="Example: headway scaling plan demo --flops 1e10..1e12:5 -o ladder.yaml")
def plan(
    recipe: Annotated[
        str, typer.Argument(help="The recipe to scale, or a study with a ladder.", metavar="RECIPE|FILE")
    ],
    changes: Annotated[list[str] | None, typer.Argument(help="Changes to the recipe.", metavar="KEY=VALUE")] = None,
    budgets: Annotated[
        str | None,
        typer.Option("--flops", help="Training budgets: LOW..HIGH:COUNT, or A,B,C.", metavar="BUDGETS"),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Instead: minutes that the whole ladder may take on this device.", min=0.1)
    ] = None,
    rungs: Annotated[int, typer.Option(help="With --minutes: number of budgets.", min=2)] = 5,
    sizes: Annotated[int, typer.Option(help="Model sizes per budget.", min=4)] = 6,
    widths: Annotated[str | None, typer.Option(help="The widths to use at every budget: 32,48,64,96.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per model.", min=1)] = 2,
    width_per_layer: Annotated[float, typer.Option(help="Layers = width / this number.", min=1)] = 32,
    head_width: Annotated[int, typer.Option(help="Width of an attention head; 0 = as in the recipe.", min=0)] = 16,
    rate_power: Annotated[
        float, typer.Option(help="Learning rate = the recipe's · (width / narrowest)^POWER.", metavar="POWER")
    ] = -0.5,
    tokens_per_parameter: Ratio = None,
    known_from: KnownFrom = None,
    tune: Annotated[bool, typer.Option("--tune", help="Tune the learning rate of the narrowest model first.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the study to this file.", metavar="FILE.yaml")
    ] = None,
    studies: StudiesFolder = Path("studies"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Plan a ladder for given budgets: sizes, tokens, learning rates, times. Trains nothing, except with --tune."""
    from headway.cli.scaling_printing import climb_as_json, show_climb
    from headway.core.files import write_whole
    from headway.study.execution.execute import suited
    from headway.study.execution.ladder_plan import check_ladder, doubts
    from headway.study.execution.plan import plan as plan_study
    from headway.study.folder import written

    use_plugins(with_, trust)
    expected = _expected(tokens_per_parameter, known_from, studies)
    if recipe.endswith((".yaml", ".yml")) and _has_ladder(Path(recipe)):
        if changes or budgets or minutes:
            raise UserError(f"{recipe} already has a ladder: leave out changes and budgets, which are for recipes")
        from headway.study.design.study import load_study

        study = load_study(recipe, studies)
    else:
        shape = {"width_per_layer": width_per_layer, "head_width": head_width or None, "rate_power": rate_power}
        study = _laid_out(recipe, changes or [], budgets, minutes, rungs, sizes, widths, seeds, shape, expected)
    rungs_found = check_ladder(study, expected)
    tuned = None
    if tune:
        from headway.cli.board import for_this_terminal
        from headway.study.execution.tuned_rate import tune_rate

        tuned = tune_rate(study, studies / f"{(output or Path(recipe)).stem}-rates", 2, [for_this_terminal()])
        study = tuned.study
    found, notes = plan_study(study, suited(study).workforce), doubts(rungs_found)
    if output is not None:
        write_whole(output, written(study))
    if as_json:
        print_json("scaling plan", climb_as_json(study, rungs_found, found, notes, tuned))
    else:
        show_climb(study, rungs_found, found, notes, tuned)
        if output is not None:
            print(f"{output}: headway scaling run {output}")


@app.command(epilog="Example: headway scaling run ladder.yaml --minutes 10")
def run(
    file: Annotated[str, typer.Argument(help="A study with a ladder: its YAML file or its name.", metavar="FILE")],
    name: Name = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after this time; the same command resumes.", min=0.01)
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="Where to train, as for `headway study run`.", metavar="EXECUTOR")
    ] = None,
    workers: Workers = None,
    studies: StudiesFolder = Path("studies"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Train the ladder, its seeds as populations; write points.csv and the report. The same command resumes."""
    from headway.study.execution.workers import spare_workers

    with spare_workers(on, workers):
        from headway.cli.study import carry_out, folder_of
        from headway.study.design.study import load_study

        use_plugins(with_, trust)
        study = load_study(file, studies)
        if study.ladder is None:
            raise UserError(f"{file} has no ladder: train it with headway study run")
        carry_out(study, folder_of(file, name, studies), on, workers, [], as_json, minutes)


def _laid_out(
    recipe: str,
    changes: list[str],
    budgets: str | None,
    minutes: float | None,
    rungs: int,
    sizes: int,
    widths: str | None,
    seeds: int,
    shape: dict[str, Any],
    expected: Callable[[Any], Any],
) -> "Study":
    from headway.recipe.recipe import load
    from headway.study.design.ladder import Ladder
    from headway.study.execution.ladder_plan import budgets_for, lay_out

    base = load(recipe, changes)
    if (budgets is None) == (minutes is None):
        raise UserError("give either --flops 1e12..1e14:5, or --minutes with the time for the whole ladder")
    if minutes is not None:
        if not math.isfinite(minutes):
            raise UserError(f"--minutes {minutes:g}: expected a finite number")
        ladder = Ladder.model_construct(**shape, families={}, rungs=[])
        spent = budgets_for(minutes, base, rungs, sizes, seeds, ladder)
    else:
        spent = _budgets(budgets or "")
    chosen = sorted({_whole(part, "--widths") for part in widths.split(",")}) if widths else None
    return lay_out(base, spent, sizes, seeds, expected, chosen, **shape)


def _budgets(text: str) -> list[float]:
    """Parse budgets: 1e12..1e14:5, evenly spaced in logarithms, or 1e12,3e12,1e13."""
    ends, _, count = text.partition(":")
    try:
        if ".." not in ends:
            found = sorted({float(part) for part in text.split(",")})
        else:
            low, high = (float(end) for end in ends.split(".."))
            many = int(count or 5)
            found = [float(f"{low * (high / low) ** (k / (many - 1)):.3g}") for k in range(many)]
    except (ValueError, ArithmeticError):
        raise UserError(f"--flops {text}: expected LOW..HIGH:COUNT, such as 1e12..1e14:5, or 1e12,1e13") from None
    if not all(map(math.isfinite, found)):
        raise UserError(f"--flops {text}: expected finite numbers, such as 1e12..1e14:5")
    if len(found) < 2 or found[0] <= 0 or found[0] >= found[-1]:
        raise UserError(f"--flops {text}: expected at least two budgets, the smallest first")
    return found


def _whole(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{option}: '{text}' is not a whole number") from None


def _has_ladder(path: Path) -> bool:
    """Whether a file is a study with a ladder rather than a recipe."""
    from headway.core.yaml import read_tree

    try:
        return "ladder" in read_tree(path.read_text("utf-8"), path.name)[0]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _expected(ratio: float | None, known_from: str | None, studies: Path) -> Callable[[Any], Any]:
    """A function that gives the size assumed optimal for a budget."""
    from headway.study.execution.ladder_plan import TOKENS_PER_PARAMETER

    if ratio is not None and known_from is not None:
        raise UserError("--tokens-per-parameter and --from both define the optimum: give only one")
    if known_from is None:
        return lambda climb: climb.by_ratio(ratio or TOKENS_PER_PARAMETER)
    analysis = _analysed(known_from, _choice(None, None, None, None, None), 100, None, studies)
    return lambda climb: lambda flops: analysis.advise(flops).parameters.value


def _analysed(source: str, choice: "Choice", resamples: int, family: str | None, studies: Path) -> "ScalingAnalysis":
    from headway.core.errors import did_you_mean
    from headway.scaling.analysis import analyse
    from headway.scaling.points import read_points

    path = Path(source)
    if path.suffix or path.is_file():
        return analyse(read_points(path, choice), resamples)
    from headway.study.results.ladder_points import tables_of
    from headway.study.results.results import find_study, read_results

    tables = tables_of(read_results(find_study(source, studies)), choice)
    if family is None and len(tables) > 1:
        raise UserError(f"{source} has several kinds of models; choose one with --family: {', '.join(tables)}")
    chosen = family if family is not None else next(iter(tables))
    if chosen not in tables:
        raise UserError(f"{source} has no family '{chosen}'{did_you_mean(chosen, tables)}")
    return analyse(tables[chosen], resamples)


def _choice(
    parameters: str | None, tokens: str | None, flops: str | None, loss: str | None, unit: list[str] | None
) -> "Choice":
    from headway.scaling.points import Choice

    named = {"parameters": parameters, "tokens": tokens, "flops": flops, "loss": loss}
    return Choice({key: name for key, name in named.items() if name is not None}, _units(unit or []))


def _check_page(path: Path | None) -> None:
    """Check the output's place and name before anything is fitted."""
    if path is None:
        return
    from headway.draw.save import check_place

    check_place(path)
    if path.suffix.lower() != ".html":
        raise UserError(f"{path}: the output is a page, so its name must end in .html")


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
