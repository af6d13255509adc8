"""The verbs of `headway study`."""

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
    help="Say what varies and what you ask; train all of it; get answers with their uncertainty.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[
    str, typer.Argument(help="A study's YAML file; or the name of a study that was begun.", metavar="FILE")
]
StudiesFolder = Annotated[Path, typer.Option("--studies", help="The folder that holds studies.", metavar="DIR")]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes; default: one for each core, or up to four for each GPU. More than there are GPUs share them.",
        min=1,
    ),
]
Begun = Annotated[str, typer.Argument(help="A study's name or folder.", metavar="STUDY")]
Name = Annotated[str | None, typer.Option(help="The study's name; default: the file's.")]
Reuse = Annotated[
    list[str] | None,
    typer.Option(
        "--reuse", help="A study some of whose runs are the same: they are not trained again.", metavar="STUDY"
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
            "--from", help="A study that shows how much seeds spread: a pilot, or an earlier one.", metavar="STUDY"
        ),
    ] = None,
    studies: StudiesFolder = Path("studies"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Say what a study would take (runs, minutes, memory) and what its seeds can show. Nothing is trained."""
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
            help="here: populations in this process; gpus: populations in processes that share the GPUs; pool: a "
            "process per core; ray: a cluster of this machine; ray://HOST:PORT. Default: gpus where there is a GPU and "
            "work for several processes, here where there is work for one, else pool.",
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
    """Train every run of a study that has not ended yet, and write the report. The same command goes on."""
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
    """Train what is left, say what follows, and how it ended. `minutes`: as long as that, and the rest another time."""
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
        print(f"stopped; to go on: {again}", file=sys.stderr)
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
    """Write the report of what a study has measured so far: report.html, and its tables beside it."""
    from headway.study.conclude import conclude
    from headway.study.results.results import find_study

    use_plugins(with_, trust)
    conclusion = conclude(find_study(study, studies))
    if conclusion.report is None:
        raise UserError(f"no run of {study} has ended yet: there is nothing to report; headway study run trains them")
    if as_json:
        print_json("study report", conclusion.as_json())
    else:
        print(conclusion.report)


@app.command(epilog="Example: headway study ensembles fusions")
def ensembles(
    study: Begun,
    split: Annotated[list[str] | None, typer.Option(help="Which splits; default: those of the recipe.")] = None,
    studies: StudiesFolder = Path("studies"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Score the seeds of every arm as one, the mean of their probabilities, beside the mean run; and report it."""
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
    """Of a study: by the name it is given, else its file's."""
    from headway.core.files import check_names

    name = name or Path(file).name.removesuffix(".yaml").removesuffix(".yml")
    check_names([name], "a study")
    return studies / name
