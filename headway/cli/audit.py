"""`headway audit`: audit a run, or a recipe before it is trained."""

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import AsJson, Changes, RunsFolder, Strict, Trust, With, print_json, run_argument, use_plugins
from headway.core.errors import UserError


def audit(
    name: Annotated[
        str | None,
        run_argument("A run, or a recipe before it is trained.", "RUN|RECIPE"),
    ] = None,
    changes: Changes = None,
    explain: Annotated[
        str | None, typer.Option(help="Explain what this audit does, why, and what to do if it fails.", metavar="AUDIT")
    ] = None,
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test", help="Plant every known fault that this recipe can show, and report which audit detects it."
        ),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            help="With --self-test: only this fault, this kind of fault, or the faults of this audit.", metavar="NAME"
        ),
    ] = None,
    strict: Strict = False,
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Check what a score rests on: the model, the data, the training. With --self-test: check the audits themselves,
    by planting faults."""
    from headway.audit.audit import find_audit, of_plugins
    from headway.audit.runner import ALL_AUDITS
    from headway.cli import printing
    from headway.experiment.audit import audit_by_name

    use_plugins(with_, trust)
    if explain is not None:
        found = find_audit(explain, [*ALL_AUDITS, *of_plugins()])
        if as_json:
            print_json("audit", {"audit": found.name, "about": found.about, "explanation": found.explanation})
        else:
            printing.show_explanation(found)
        return
    if name is None:
        raise UserError("give a run or a recipe to audit, or --explain AUDIT")
    if only is not None and not self_test:
        raise UserError("--only selects faults of --self-test: give both")
    if self_test:
        _self_test(name, changes or [], only, runs, strict, as_json)
        return
    report = audit_by_name(name, changes or [], runs)
    if as_json:
        print_json("audit", report.as_json())
    else:
        printing.show_report(report)
    if strict and report.failures:
        raise typer.Exit(1)


def _self_test(name: str, changes: list[str], only: str | None, runs: Path, strict: bool, as_json: bool) -> None:
    """Run the self-test. Prints a table of faults, or JSON; progress goes to stderr."""
    from headway.cli import printing, progress
    from headway.experiment.audit import recipe_by_name
    from headway.experiment.self_test import self_test

    recipe = recipe_by_name(name, changes, runs)
    with progress.Counting() as counting:
        tested = self_test(recipe, only, counting.say, lambda trial, of: counting.step(trial.fault.words, of))
    if as_json:
        print_json("audit", {"recipe": name, **tested.as_json()})
    else:
        printing.show_self_test(tested)
    if tested.stopped:
        raise typer.Exit(130)
    if strict and tested.by("not seen"):
        raise typer.Exit(1)
