"""`headway export`: write a run as a folder that other libraries load."""

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import A_RUN, AsJson, RunsFolder, Trust, Which, With, print_json, use_plugins


def export(
    run: Annotated[str, A_RUN],
    to: Annotated[
        str | None, typer.Option(help="The format: gpt2 or marian; default: what fits the model.", metavar="FORMAT")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to create; default: RUN-FORMAT.", metavar="FOLDER")
    ] = None,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's model and tokenizer as a folder that transformers can load."""
    from headway.exchange.export import export_run
    from headway.run.folder import open_run

    use_plugins(with_, trust)
    made = export_run(open_run(run, runs), to, out, checkpoint)
    if as_json:
        print_json("export", made.as_json())
    else:
        print(f"{made.folder}/: {', '.join(made.files)}")
        print(f'load it with {made.loads}: .from_pretrained("{made.folder}")')
