"""`headway cases` and `headway case ID`."""

from pathlib import Path
from typing import Annotated

import typer

from headway.verbs.options import AsJson, print_json
from headway.verbs.studying import StudiesFolder, Workers, carry_out


def cases(
    table: Annotated[
        bool, typer.Option("--table", help="What was reported beside what studies here measured, as Markdown.")
    ] = False,
    studies: StudiesFolder = Path("studies"),
    as_json: AsJson = False,
) -> None:
    """List the cases: experiments that somebody reported, to be done again and judged."""
    from headway.printing import show_table
    from headway.study.case_table import case_table
    from headway.study.cases import packaged, takes, title_of

    if table:
        print(case_table(studies), end="")
        return
    found = {
        name: {"title": title_of(name), "quick": takes(name, True), "full": takes(name, False)} for name in packaged()
    }
    if as_json:
        print_json({"cases": found})
    else:
        rows = [[name, one["title"], one["quick"]] for name, one in found.items()]
        show_table(["case", "what is asked", "--quick takes"], rows)


def case(
    name: Annotated[str, typer.Argument(help="A case, such as B7.", metavar="CASE")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Two minutes, on Python's own documentation; else whole, on HEADWAY_DATA.")
    ] = False,
    on: Annotated[str | None, typer.Option(help="Where to train, as of `headway study run`.", metavar="PLACE")] = None,
    workers: Workers = None,
    studies: StudiesFolder = Path("studies"),
    as_json: AsJson = False,
) -> None:
    """Do an experiment again that somebody reported: measure it with seeds, audit it, and say what holds."""
    from headway.study.cases import folder_of, load_case

    carry_out(load_case(name, quick), studies / folder_of(name, quick), on, workers, as_json)
