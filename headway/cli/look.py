"""`headway look`: attention maps, rollout and gradients of a sentence; gradient flow through several runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import A_RUN, AsJson, RunsFolder, Trust, Which, With, print_json, use_plugins
from headway.core.errors import UserError


def look(
    run: Annotated[str, A_RUN],
    sentence: Annotated[
        list[str] | None,
        typer.Argument(
            help="The text to read; with --gradient-flow, further runs instead.", metavar="SENTENCE | [RUN …]"
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="A picture, with the sentence as its caption: a file, or test:3 of the run's own data."),
    ] = None,
    beside: Annotated[str | None, typer.Option(help="A second run to compare with the first.", metavar="RUN")] = None,
    show: Annotated[
        str, typer.Option(help="heads: every map; rollout: the product over layers; gradients: works for any model.")
    ] = "heads",
    layer: Annotated[int | None, typer.Option(help="Only this layer, from 0; for rollout: the last one.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head, counted from 0.")] = None,
    gradient_flow: Annotated[
        bool, typer.Option("--gradient-flow", help="Gradient norm by distance into the past, on a split of the data.")
    ] = False,
    split: Annotated[str, typer.Option(help="With --gradient-flow: the split to read.")] = "valid",
    distance: Annotated[
        int | None, typer.Option(help="With --gradient-flow: how far back to look; default: the whole row.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw to a .html, .svg or .png file.", metavar="FILE")
    ] = None,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Show attention maps of a sentence, with statistics of every head, in a file or in the terminal."""
    from headway.cli import printing
    from headway.draw import terminal
    from headway.draw.save import check_place
    from headway.experiment.inspect import flow_through
    from headway.experiment.inspect import look as look_into
    from headway.experiment.match import look_at_picture
    from headway.run.folder import open_run

    if out is not None:
        check_place(out)
    files = [one for one in with_ or [] if one.endswith(".py")]
    # `--with RUN` is the older form of --beside.
    others = [*([beside] if beside else []), *(one for one in with_ or [] if one not in files)]
    use_plugins(files, trust)
    if gradient_flow:
        if (show, layer, head) != ("heads", None, None):
            raise UserError("--gradient-flow covers the whole model: leave out --show, --layer and --head")
        opened = [open_run(name, runs) for name in (run, *(sentence or []), *others)]
        page = flow_through(opened, split, distance, checkpoint)
        if out is not None:
            page.draw().save(out)
        if as_json:
            print_json("look", {"show": "gradient-flow", **page.as_json(), "file": None if out is None else str(out)})
            return
        for note in page.notes:
            print(note, file=sys.stdout if out is None else sys.stderr)
        if out is None:
            printing.show_table(page.table.columns, page.table.rows)
            printing.show_note(page.table.note)
        else:
            print(out)
        return
    if distance is not None or split != "valid":
        raise UserError("--split and --distance need --gradient-flow")
    if sentence is None or len(sentence) != 1:
        given = f", but {len(sentence)} were given (put the sentence in quotes)" if sentence else ""
        raise UserError(f"look takes a run and one sentence{given}; several runs need --gradient-flow")
    if len(others) > 1:
        raise UserError(f"only one run can be compared with the first, not {len(others)}: {', '.join(others)}")
    opened = [open_run(name, runs) for name in (run, *others)]
    if image is not None:
        if others:
            raise UserError("--image works with one run: leave out --beside")
        picture, numbers = look_at_picture(opened[0], image, sentence[0], show, layer, head, checkpoint)
    else:
        picture, numbers = look_into(opened, sentence[0], show, layer, head, checkpoint)
    if out is not None:
        picture.save(out)
    if as_json:
        print_json("look", {**numbers, "file": None if out is None else str(out)})
        return
    if out is None:
        terminal.show(picture)
        if picture.table is not None:
            printing.show_table(picture.table.columns, picture.table.rows)
            printing.show_note(picture.table.note)
    else:
        for note in picture.notes:
            print(note, file=sys.stderr)
        print(out)
