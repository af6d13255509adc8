"""Verbs that ask something of a finished run."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.errors import UserError
from headway.verbs.options import AsJson, Changes, RunsFolder, Strict, Which, print_json


def score(
    run: Annotated[str, typer.Argument(help="A run's name or folder.", metavar="RUN")],
    split: Annotated[list[str] | None, typer.Option(help="Which splits; default: those of the recipe.")] = None,
    file: Annotated[Path | None, typer.Option(help="Score a text file instead.")] = None,
    text: Annotated[str | None, typer.Option(help="Score this text, token by token.")] = None,
    segment: Annotated[int | None, typer.Option(help="Tokens seen at once.", min=1)] = None,
    stride: Annotated[int | None, typer.Option(help="How far the window moves.", min=1)] = None,
    checkpoint: Which = "auto",
    strict: Strict = False,
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Perplexity or accuracy of a split, perplexity of a file or a sentence, with what it was measured on."""
    from headway import printing
    from headway.rescore import audited, score_file, score_sentence, score_splits_again
    from headway.run import open_run

    if sum(given is not None for given in (split, file, text)) > 1:
        raise UserError("--split, --file and --text are three different things to score: give one of them")
    opened = open_run(run, runs)
    if text is not None:
        scored, scores = score_sentence(opened, text, segment, stride, checkpoint)
        report = audited(opened)
        if as_json:
            tokens = [{"token": p, "nats": n} for p, n in zip(scored.pieces, scored.nats, strict=True)]
            print_json({**printing.run_as_json(opened, scores, report), "tokens": tokens})
        else:
            printing.show_sentence(scored, scores, report)
    else:
        if file is not None:
            scores = score_file(opened, file, segment, stride, checkpoint)
        else:
            scores = score_splits_again(opened, split, segment, stride, checkpoint)
        report = audited(opened)
        if as_json:
            print_json(printing.run_as_json(opened, scores, report))
        else:
            printing.show_labelled(scores, report)
    if strict and (report.failures or not report.findings):
        raise typer.Exit(1)


def audit(
    name: Annotated[
        str | None, typer.Argument(help="A run; or a recipe, before it is trained.", metavar="RUN|RECIPE")
    ] = None,
    changes: Changes = None,
    explain: Annotated[
        str | None, typer.Option(help="Say what this audit does, why, and what to do when it fails.", metavar="AUDIT")
    ] = None,
    strict: Strict = False,
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Check what a score rests on: the model, the data, the training."""
    from headway import printing
    from headway.audit.audit import find_audit
    from headway.audit.report import ALL_AUDITS, audit_by_name

    if explain is not None:
        found = find_audit(explain, ALL_AUDITS)
        if as_json:
            print_json({"audit": found.name, "about": found.about, "explanation": found.explanation})
        else:
            printing.show_explanation(found)
        return
    if name is None:
        raise UserError("give a run or a recipe to audit, or --explain AUDIT")
    report = audit_by_name(name, changes or [], runs)
    if as_json:
        print_json(report.as_json())
    else:
        printing.show_report(report)
    if strict and report.failures:
        raise typer.Exit(1)


def sample(
    run: Annotated[str, typer.Argument(help="A run's name or folder.", metavar="RUN")],
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "\n",
    tokens: Annotated[int, typer.Option(help="How many tokens to draw.", min=1)] = 200,
    temperature: Annotated[float, typer.Option(help="0 = always the likeliest, 1 = as learnt.", min=0)] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Only among the k likeliest.", min=1)] = None,
    top_p: Annotated[float | None, typer.Option(help="Only the likeliest that reach this sum.", min=0, max=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.", min=0)] = 0,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Let a model write."""
    from headway.rescore import sample_text
    from headway.run import open_run

    opened = open_run(run, runs)
    show: Callable[[str], Any] = (lambda piece: None) if as_json else _print_now
    text, note = sample_text(opened, prompt, tokens, temperature, top_k, top_p, seed, checkpoint, show)
    if as_json:
        print_json({"run": str(opened.folder), "prompt": prompt, "text": text, "note": note})
    else:
        print()
        if note:
            print(note, file=sys.stderr)


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
    from headway import printing
    from headway.look import terminal
    from headway.look.drawing import check_place
    from headway.looking import look as look_into
    from headway.run import open_run

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


def classify(
    run: Annotated[str, typer.Argument(help="A classifier's run: its name or folder.", metavar="RUN")],
    text: Annotated[str, typer.Argument(help="The text.", metavar="TEXT")],
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Which class a text is of, by a classifier: the probability of each."""
    from headway import printing
    from headway.rescore import classify_text
    from headway.run import open_run

    opened = open_run(run, runs)
    found = classify_text(opened, text, checkpoint)
    if as_json:
        print_json({"run": str(opened.folder), "text": text, **found.as_json()})
        return
    printing.show_chances(found.chances)
    for note in found.notes:
        print(note, file=sys.stderr)


def _print_now(piece: str) -> None:
    print(piece, end="", flush=True)
