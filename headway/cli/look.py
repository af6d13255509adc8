"""`headway look`: attention maps, rollout and gradients of a sentence."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import AsJson, RunsFolder, Trust, Which, With, print_json, use_plugins
from headway.core.errors import UserError


def look(
    run: Annotated[str, typer.Argument(help="A run's name or folder.", metavar="RUN")],
    sentence: Annotated[str, typer.Argument(help="What the model is to read.", metavar="SENTENCE")],
    beside: Annotated[str | None, typer.Option(help="A second run, to be set beside the first.", metavar="RUN")] = None,
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
    with_: With = None,
    trust: Trust = False,
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
    files = [one for one in with_ or [] if one.endswith(".py")]
    # `--with RUN` is how a second run was asked for before.
    others = [*([beside] if beside else []), *(one for one in with_ or [] if one not in files)]
    if len(others) > 1:
        raise UserError(f"one run can be set beside another, not {len(others)}: {', '.join(others)}")
    use_plugins(files, trust)
    opened = [open_run(name, runs) for name in (run, *others)]
    picture, numbers = look_into(opened, sentence, show, layer, head, checkpoint)
    if out is not None:
        picture.save(out)
    if as_json:
        print_json("look", {**numbers, "file": None if out is None else str(out)})
        return
    if out is None:
        terminal.show(picture)
        if picture.table is not None:
            printing.show_table(picture.table.columns, picture.table.rows)
    else:
        for note in picture.notes:
            print(note, file=sys.stderr)
        print(out)
