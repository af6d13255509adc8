"""`headway cases` and `headway case ID`: reproduce reported experiments and exercises."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import AsJson, print_json
from headway.cli.study import Reuse, StudiesFolder, Workers, carry_out
from headway.core.errors import UserError

if TYPE_CHECKING:
    from headway.cases.exercise import Exercise


def cases(
    table: Annotated[
        bool, typer.Option("--table", help="Print reported and measured results side by side, as Markdown.")
    ] = False,
    studies: StudiesFolder = Path("studies"),
    as_json: AsJson = False,
) -> None:
    """List the cases: reported experiments and exercises that Headway can reproduce and judge."""
    from headway.cases.catalogue import packaged, takes, title_of
    from headway.cli.printing import show_table

    if table:
        from headway.cases.table import case_table

        print(case_table(studies), end="")
        return
    found = {
        name: {"title": title_of(name), "quick": takes(name, True), "full": takes(name, False)} for name in packaged()
    }
    if as_json:
        print_json("cases", {"cases": found})
    else:
        rows = [[name, one["title"], one["quick"]] for name, one in found.items()]
        show_table(["case", "question", "--quick takes"], rows)
        print("headway case ID --quick reproduces one; without --quick: the full size", file=sys.stderr)


def case(
    name: Annotated[str, typer.Argument(help="A case, such as B7.", metavar="CASE")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Two minutes, on Python's own documentation; otherwise the full case, on HEADWAY_DATA. For an "
            "exercise: 300 instances of each kind instead of 3,000.",
        ),
    ] = False,
    on: Annotated[
        str | None, typer.Option(help="Where to train, as for `headway study run`.", metavar="EXECUTOR")
    ] = None,
    workers: Workers = None,
    reuse: Reuse = None,
    studies: StudiesFolder = Path("studies"),
    as_json: AsJson = False,
) -> None:
    """Reproduce a reported result and judge its claims: train with several seeds and audit, or check on instances."""
    from headway.study.execution.workers import spare_workers

    with spare_workers(on, workers):
        from headway.cases.catalogue import folder_of, load_case
        from headway.study.design.study import Study

        found, folder = load_case(name, quick), studies / folder_of(name, quick)
        if isinstance(found, Study):
            carry_out(found, folder, on, workers, reuse or [], as_json)
            return
    given = {"--on": on is not None, "--workers": workers is not None, "--reuse": bool(reuse)}
    if option := next((option for option, is_given in given.items() if is_given), None):
        raise UserError(f"{name} is solved in seconds on this machine, not trained: leave out {option}")
    _work_out(found, folder, quick, as_json)


def _work_out(exercise: "Exercise", folder: Path, quick: bool, as_json: bool) -> None:
    from headway.cases.exercise import FULL, QUICK, work_out
    from headway.cases.exercise_report import taken, write_report
    from headway.cli.board import for_this_terminal
    from headway.cli.study_printing import show_outcome

    with taken(folder):
        outcome = work_out(exercise, QUICK if quick else FULL, for_this_terminal().say)
        report = write_report(outcome, folder)
    if as_json:
        print_json("case", {**outcome.as_json(), "report": str(report)})
    else:
        show_outcome(outcome, report)
