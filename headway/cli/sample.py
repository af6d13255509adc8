"""`headway sample`: generate text."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.options import A_RUN, AsJson, RunsFolder, Trust, Which, With, print_json, use_plugins


def sample(
    run: Annotated[str, A_RUN],
    prompt: Annotated[str, typer.Option(help="The text to continue.", show_default="a line break")] = "\n",
    tokens: Annotated[int, typer.Option(help="How many tokens to generate.", min=1)] = 200,
    temperature: Annotated[float, typer.Option(help="0 = greedy, 1 = the model's probabilities.", min=0)] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens only.", min=1)] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Nucleus sampling: this share of probability.", min=0, max=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the sampling.", min=0)] = 0,
    count: Annotated[int, typer.Option(help="How many texts to generate, as one batch.", min=1)] = 1,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Generate text with a language model."""
    from headway.experiment.evaluate import sample_text, sample_texts
    from headway.run.folder import open_run
    from headway.tasks.abilities import Draw

    use_plugins(with_, trust)
    opened = open_run(run, runs)
    how = Draw(tokens, temperature, top_k, top_p, seed)
    if count > 1:
        texts = sample_texts(opened, prompt, how, checkpoint, count)
        if as_json:
            found = {"run": str(opened.folder), "prompt": prompt, "text": texts[0], "note": None, "texts": texts}
            print_json("sample", found)
        else:
            for number, text in enumerate(texts, 1):
                print(f"── {number} of {count} ──\n{text}")
        return
    show: Callable[[str], Any] = (lambda piece: None) if as_json else _print_now
    text, note = sample_text(opened, prompt, how, checkpoint, show)
    if as_json:
        print_json("sample", {"run": str(opened.folder), "prompt": prompt, "text": text, "note": note})
    else:
        print()
        if note:
            print(note, file=sys.stderr)


def _print_now(piece: str) -> None:
    print(piece, end="", flush=True)
