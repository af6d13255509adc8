"""`headway classify`: the class of a text."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import AsJson, RunsFolder, Trust, Which, With, print_json, runs_like, use_plugins


def classify(
    run: Annotated[
        str, typer.Argument(help="A classifier's run: its name or folder.", metavar="RUN", autocompletion=runs_like)
    ],
    text: Annotated[str, typer.Argument(help="The text.", metavar="TEXT")],
    second: Annotated[str | None, typer.Argument(help="Of a pair: the second text.", metavar="TEXT")] = None,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Which class a text is of, by a classifier: the probability of each."""
    from headway.cli import printing
    from headway.data.marks import BETWEEN
    from headway.experiment.evaluate import classify_text
    from headway.run.folder import open_run

    use_plugins(with_, trust)
    opened = open_run(run, runs)
    text = text if second is None else BETWEEN.join((text, second))
    found = classify_text(opened, text, checkpoint)
    if as_json:
        print_json("classify", {"run": str(opened.folder), "text": text, **found.as_json()})
        return
    printing.show_chances(found.chances)
    for note in found.notes:
        print(note, file=sys.stderr)
