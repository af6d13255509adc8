"""The commands of `headway study`."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import AsJson, Trust, With, importing, print_json, use_plugins
from headway.core.errors import UserError

if TYPE_CHECKING:
    from headway.study.design.study import Study

app = typer.Typer(
    no_args_is_help=True,
    help="Studies: declare what varies and what you ask, train all of it, and get answers with confidence intervals.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[
    str, typer.Argument(help="A study's YAML file, or the name of a study that was started.", metavar="FILE")
]
StudiesFolder = Annotated[Path, typer.Option("--studies", help="The folder that contains the studies.", metavar="DIR")]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes; default: one per core, or up to four per GPU. Several processes may share a GPU.",
        min=1,
    ),
]
Begun = Annotated[str, typer.Argument(help="A study's name or folder.", metavar="STUDY")]
Name = Annotated[str | None, typer.Option(help="The study's name; default: the file's.")]
Reuse = Annotated[
    list[str] | None,
    typer.Option(
        "--reuse", help="Take over identical runs of this study instead of training them again.", metavar="STUDY"
    ),
]


@app.command(epilog="Example: headway study plan fusions.yaml")
def plan(
    file: File,
    name: Name = None,
    workers: Workers = None,
    known_from: Annotated[
        list[str] | None,
        typer.Option(
            "--from", help="A study (such as a pilot) that shows how much scores vary between seeds.", metavar="STUDY"
        ),
    ] = None,
    studies: StudiesFolder = Path("studies"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what a study needs (runs, minutes, memory) and what effects its seeds can show. Trains nothing."""
    from headway.cli.study_printing import show_plan
    from headway.study.design.study import load_study
    from headway.study.execution.execute import suited
    from headway.study.execution.plan import plan as plan_study
    from headway.study.folder import StudyFolder
    from headway.study.results.results import find_study, read_results
    from headway.study.verdicts.power import what_seeds_can_show

    use_plugins(with_, trust)
    study, home = load_study(file, studies), StudyFolder(folder_of(file, name, studies))
    another = home.why_not(study)
    steps = None if another else home.budgets
    found = plan_study(study, suited(study, workers).workforce, steps)
    earlier = [find_study(one, studies) for one in known_from or []]
    if (home.path / "study.yaml").exists() and not another:
        earlier.append(home.path)
    found = replace(found, power=what_seeds_can_show(study, [read_results(folder) for folder in earlier]))
    if another:
        found = replace(found, warnings=[*found.warnings, another])
    if as_json:
        print_json("study plan", found.as_json())
    else:
        show_plan(found)


@app.command(epilog="Example: headway study run fusions.yaml --workers 2")
def run(
    file: File,
    name: Name = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="here: populations in this process; gpus: populations in processes that share the GPUs; pool: one "
            "process per core; ray: a Ray cluster on this machine; ray://HOST:PORT. Default: gpus if there is a GPU "
            "and work for several processes, here if there is work for one, otherwise pool.",
            metavar="EXECUTOR",
        ),
    ] = None,
    workers: Workers = None,
    reuse: Reuse = None,
    studies: StudiesFolder = Path("studies"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Train all unfinished runs of a study, and write the report. The same command resumes."""
    from headway.study.execution.workers import spare_workers

    with spare_workers(on, workers):
        from headway.study.design.study import load_study

        use_plugins(with_, trust)
        carry_out(load_study(file, studies), folder_of(file, name, studies), on, workers, reuse or [], as_json)


def carry_out(
    study: "Study",
    folder: Path,
    on: str | None,
    workers: int | None,
    reuse: list[str],
    as_json: bool,
    minutes: float | None = None,
) -> None:
    """Train the remaining runs, print the conclusion, and set the exit code. `minutes` limits the training time."""
    with importing():
        from headway.cli.board import for_this_terminal
        from headway.cli.study_printing import show_conclusion
        from headway.study.conclude import conclude
        from headway.study.execution.execute import execute, executor_named
        from headway.study.results.results import find_study
        from headway.training.interrupts import stopping_after

    board = for_this_terminal()
    for warning in study.warnings():
        board.say(f"warning: {warning}")
    others = [find_study(name, folder.parent) for name in reuse]
    with stopping_after(None if minutes is None else 60 * minutes):
        outcome = execute(study, folder, executor_named(on, workers, study), [board], others)
    conclusion = conclude(folder)
    if as_json:
        print_json("study run", {**conclusion.as_json(), "interrupted": outcome.interrupted})
    else:
        show_conclusion(conclusion)
    again = shlex.join(["headway", *(word for word in sys.argv[1:] if word != "--json")])
    if outcome.interrupted:
        print(f"stopped; to resume: {again}", file=sys.stderr)
        raise typer.Exit(130)
    if outcome.failed:
        many = f"{len(outcome.failed)} runs" if len(outcome.failed) > 1 else "one run"
        print(f"{many} failed, see {folder}/failures/; to try again: {again}", file=sys.stderr)
        raise typer.Exit(1)


@app.command(epilog="Example: headway study results fusions")
def results(
    study: Begun,
    studies: StudiesFolder = Path("studies"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Show what a study has measured so far, and what follows from it."""
    from headway.cli.study_printing import show_conclusion
    from headway.study.conclude import so_far
    from headway.study.results.results import find_study

    use_plugins(with_, trust)
    found = so_far(find_study(study, studies))
    if as_json:
        print_json("study results", found.as_json())
    else:
        show_conclusion(found)


@app.command(epilog="Example: headway study report fusions")
def report(
    study: Begun,
    studies: StudiesFolder = Path("studies"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Write the report of a study's results so far: report.html and its tables."""
    from headway.study.conclude import conclude
    from headway.study.results.results import find_study

    use_plugins(with_, trust)
    conclusion = conclude(find_study(study, studies))
    if conclusion.report is None:
        raise UserError(f"no run of {study} has ended yet, so there is nothing to report; train with headway study run")
    if as_json:
        print_json("study report", conclusion.as_json())
    else:
        print(conclusion.report)


@app.command(epilog="Example: headway study ensembles fusions")
def ensembles(
    study: Begun,
    split: Annotated[list[str] | None, typer.Option(help="Which splits; default: as in the recipe.")] = None,
    studies: StudiesFolder = Path("studies"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Score the seeds of every arm as an ensemble, compare it with the mean run, and add it to the report."""
    from headway.cli.study_printing import show_ensembles
    from headway.study.conclude import write_again
    from headway.study.results.ensembles import arms_as_one
    from headway.study.results.results import find_study

    use_plugins(with_, trust)
    folder = find_study(study, studies)
    found, none = arms_as_one(folder, split)
    report = write_again(folder)
    if as_json:
        print_json("study ensembles", {"arms": [one.as_json() for one in found], "none": none})
    else:
        show_ensembles(found, none)
        if report is not None:
            print(report)


def folder_of(file: str, name: str | None, studies: Path) -> Path:
    """The folder of a study, named by --name or after the file."""
    from headway.core.files import check_names

    name = name or Path(file).name.removesuffix(".yaml").removesuffix(".yml")
    check_names([name], "a study")
    return studies / name
