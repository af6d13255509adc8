"""`headway look`: attention maps, rollout and gradients of a sentence."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import AsJson, RunsFolder, Which, print_json


def look(
    run: Annotated[str, typer.Argument(help="A run's name or folder.", metavar="RUN")],
    sentence: Annotated[str, typer.Argument(help="What the model is to read.", metavar="SENTENCE")],
    other: Annotated[
        str | None, typer.Option("--with", help="A second run, to be set beside the first.", metavar="RUN")
    ] = None,
    show: Annotated[
        str, typer.Option(help="heads: every map; rollout: all layers multiplied; gradients: for any model.")
    ] = "heads",
    layer: Annotated[int | None, typer.Option(help="Only this layer, counted from 0; where rollout ends.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head, counted from 0.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw it: a .html, .svg or .png file.", metavar="FILE")
    ] = None,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Attention maps of a sentence, with numbers for every head; drawn to a file, or in the terminal."""
    from headway.cli import printing
    from headway.draw import terminal
    from headway.draw.save import check_place
    from headway.experiment.inspect import look as look_into
    from headway.run.folder import open_run

    if out is not None:
        check_place(out)
    opened = [open_run(name, runs) for name in (run, other) if name is not None]
    picture, numbers = look_into(opened, sentence, show, layer, head, checkpoint)
    if out is not None:
        picture.save(out)
    if as_json:
        print_json({**numbers, "file": None if out is None else str(out)})
        return
    if out is None:
        terminal.show(picture)
        if picture.table is not None:
            printing.show_table(picture.table.columns, picture.table.rows)
    else:
        for note in picture.notes:
            print(note, file=sys.stderr)
        print(out)
