"""`headway score`: perplexity or accuracy of splits, files and sentences."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli.options import AsJson, RunsFolder, Strict, Trust, Which, With, print_json, use_plugins
from headway.core.errors import UserError


def score(
    run: Annotated[str, typer.Argument(help="A run's name or folder.", metavar="RUN")],
    split: Annotated[list[str] | None, typer.Option(help="Which splits; default: those of the recipe.")] = None,
    file: Annotated[Path | None, typer.Option(help="Score a text file instead.")] = None,
    text: Annotated[str | None, typer.Option(help="Score this text, token by token.")] = None,
    segment: Annotated[int | None, typer.Option(help="Tokens seen at once.", min=1)] = None,
    stride: Annotated[int | None, typer.Option(help="How far the window moves.", min=1)] = None,
    state: Annotated[
        Literal["carried", "fresh"] | None,
        typer.Option(help="carried: each segment goes on from the one before; fresh: from nothing."),
    ] = None,
    checkpoint: Which = "auto",
    strict: Strict = False,
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Perplexity or accuracy of a split, perplexity of a file or a sentence, with what it was measured on."""
    from headway.cli import printing
    from headway.experiment.evaluate import audited, score_file, score_sentence, score_splits_again
    from headway.run.folder import open_run
    from headway.tasks.abilities import ReadingWindow

    if sum(given is not None for given in (split, file, text)) > 1:
        raise UserError("--split, --file and --text are three different things to score: give one of them")
    use_plugins(with_, trust)
    opened, window = open_run(run, runs), ReadingWindow(segment, stride, state)
    if text is not None:
        scored, scores = score_sentence(opened, text, window, checkpoint)
        report = audited(opened)
        if as_json:
            tokens = [{"token": p, "nats": n} for p, n in zip(scored.pieces, scored.nats, strict=True)]
            print_json("score", {**printing.run_as_json(opened, scores, report), "tokens": tokens})
        else:
            printing.show_sentence(scored, scores, report)
    else:
        if file is not None:
            scores = score_file(opened, file, window, checkpoint)
        else:
            scores = score_splits_again(opened, split, window, checkpoint)
        report = audited(opened)
        if as_json:
            print_json("score", printing.run_as_json(opened, scores, report))
        else:
            printing.show_labelled(scores, report)
    if strict and (report.failures or not report.findings):
        raise typer.Exit(1)
