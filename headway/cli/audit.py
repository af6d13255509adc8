"""`headway audit`: what a score rests on."""

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import AsJson, Changes, RunsFolder, Strict, Trust, With, print_json, use_plugins
from headway.core.errors import UserError


def audit(
    name: Annotated[
        str | None, typer.Argument(help="A run; or a recipe, before it is trained.", metavar="RUN|RECIPE")
    ] = None,
    changes: Changes = None,
    explain: Annotated[
        str | None, typer.Option(help="Say what this audit does, why, and what to do when it fails.", metavar="AUDIT")
    ] = None,
    strict: Strict = False,
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Check what a score rests on: the model, the data, the training."""
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
    report = audit_by_name(name, changes or [], runs)
    if as_json:
        print_json("audit", report.as_json())
    else:
        printing.show_report(report)
    if strict and report.failures:
        raise typer.Exit(1)
