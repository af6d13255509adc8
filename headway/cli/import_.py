"""`headway import`: make a run of another library's model."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import AsJson, RunsFolder, print_json


def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="A GPT-2, Llama, Mistral, Qwen2, BERT or Marian model: a folder with config.json, model.safetensors "
            "and tokenizer; a .gguf file; hub:owner/name; or smollm2, minilm.",
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
    """Make a run of a pretrained model, to score it, generate text with it, or fine-tune it."""
    from headway import tasks
    from headway.exchange.importer import import_folder, located

    made = import_folder(*located(source, name), runs, changes or [])
    if as_json:
        print_json("import", made.as_json())
    else:
        for note in made.notes:
            print(note, file=sys.stderr)
        print(f"{made.run.folder}/: {made.parameters:,} parameters, {made.vocabulary:,} tokens")
        example = tasks.of(made.run.recipe).example.format(run=shlex.quote(str(made.run.folder)))
        print(f"to try it: {example}")
