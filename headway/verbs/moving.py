"""Verbs that bring models in and take them out."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.verbs.options import AsJson, RunsFolder, Which, print_json


def export(
    run: Annotated[str, typer.Argument(help="A run's name or folder.", metavar="RUN")],
    to: Annotated[str, typer.Option(help="The format: gpt2.", metavar="FORMAT")] = "gpt2",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to make; default: RUN-gpt2.", metavar="FOLDER")
    ] = None,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a run's model and tokenizer as a folder that transformers loads."""
    from headway.exchange.export import export_run
    from headway.run import open_run

    made = export_run(open_run(run, runs), to, out, checkpoint)
    if as_json:
        print_json(made.as_json())
    else:
        print(f"{made.folder}/: {', '.join(made.files)}")
        print(f'AutoModelForCausalLM and AutoTokenizer load it: .from_pretrained("{made.folder}")')


def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="A GPT-2: a folder with config.json, model.safetensors, tokenizer.json; or hub:owner/name.",
            metavar="FOLDER",
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to the rest of the recipe, such as data.source=wikitext-2.", metavar="KEY=VALUE"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run's name; default: the folder's.")] = None,
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Make a run of a GPT-2 folder, to score it, let it write, or train it on."""
    from headway.exchange.arrival import import_folder, located

    made = import_folder(*located(source, name), runs, changes or [])
    if as_json:
        print_json(made.as_json())
    else:
        for note in made.notes:
            print(note, file=sys.stderr)
        print(f"{made.run.folder}/: {made.parameters:,} parameters, {made.vocabulary:,} tokens")
        print(f"to let it write: {shlex.join(['headway', 'sample', str(made.run.folder)])}")
