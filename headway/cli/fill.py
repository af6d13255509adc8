"""`headway fill`: predict the tokens at [MASK]."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import AsJson, RunsFolder, Trust, Which, With, print_json, run_argument, use_plugins


def fill(
    run: Annotated[
        str,
        run_argument("A masked language model: the run's name or folder."),
    ],
    text: Annotated[str, typer.Argument(help="The text, with [MASK] for each token to predict.", metavar="TEXT")],
    most: Annotated[int, typer.Option(help="How many predictions for each [MASK].", min=1)] = 5,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Predict the most likely tokens at each [MASK] of a text, with a masked language model."""
    from headway.cli import printing
    from headway.experiment.evaluate import fill_text
    from headway.run.folder import open_run

    use_plugins(with_, trust)
    opened = open_run(run, runs)
    found = fill_text(opened, text, most, checkpoint)
    if as_json:
        print_json("fill", {"run": str(opened.folder), **found.as_json()})
        return
    print(found.filled)
    columns = [f"[MASK] {k}" if len(found.guesses) > 1 else "[MASK]" for k in range(1, len(found.guesses) + 1)]
    rows = [[f"{token}  {chance:.1%}" for token, chance in rank] for rank in zip(*found.guesses, strict=True)]
    printing.show_table(columns, rows)
    for note in found.notes:
        print(note, file=sys.stderr)
