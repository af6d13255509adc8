"""`headway classify`: classify a text, or every row of a file."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import AsJson, RunsFolder, Trust, Which, With, print_json, run_argument, use_plugins
from headway.core.errors import UserError

if TYPE_CHECKING:
    from headway.experiment.classify import InputTexts
    from headway.run.folder import Run

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")


def classify(
    run: Annotated[str, run_argument("A classifier: the run's name or folder.")],
    text: Annotated[
        list[str] | None, typer.Argument(help="The text; several, if the model reads several.", metavar="TEXT")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A table (.csv, .tsv, .jsonl), or a .txt file with one text per line; - = stdin."),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="With --file: the text's column; default: as in the recipe.")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="With --file: its encoding, such as cp1252 or latin-1.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the table to this file; default: stdout.", metavar="FILE")
    ] = None,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Classify a text, or every text of a file or pipe, with the probability of each class."""
    from headway.cli import printing
    from headway.data.marks import BETWEEN
    from headway.experiment.evaluate import classify_text
    from headway.run.folder import open_run

    use_plugins(with_, trust)
    if text and (file is not None or out is not None or column):
        raise UserError("give either a text or --file, not both (--out and --column need --file)")
    if out is not None and not out.name.endswith(ENDINGS):
        raise UserError(f"--out {out}: the file's name must end in one of {', '.join(ENDINGS)}")
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"--out {out}: {'this is a folder' if out.is_dir() else f'the folder {out.parent} is missing'}")
    opened = open_run(run, runs)
    if not text:
        _classify_all(opened, _input_texts(opened, file, column or [], encoding), out, checkpoint, as_json)
        return
    typed = BETWEEN.join(text)
    found = classify_text(opened, typed, checkpoint)
    if as_json:
        print_json("classify", {"run": str(opened.folder), "text": typed, **found.as_json()})
        return
    printing.show_probabilities(found.chances)
    for note in found.notes:
        print(note, file=sys.stderr)


def _input_texts(run: "Run", file: Path | None, columns: list[str], encoding: str | None) -> "InputTexts":
    from headway import tasks
    from headway.data.running.sources import why_no_encoding
    from headway.data.tables import column_of
    from headway.experiment.classify import text_from_pipe, texts_of_file, texts_of_lines
    from headway.tasks.abilities import Classifies, GivenFile

    tasks.able(run, Classifies)  # fails with an explanation before anything is read
    if why := why_no_encoding(encoding):
        raise UserError(f"--encoding: {why}")
    if file is not None and str(file) != "-":
        asked = tuple(map(column_of, columns))
        return texts_of_file(run, GivenFile(file.expanduser(), encoding, asked))
    if columns:
        raise UserError("--column names a column of a table: give the table with --file")
    if file is None and sys.stdin.isatty():
        raise UserError('no text to classify: give a text, --file, or a pipe: echo "…" | headway classify RUN')
    pipe = getattr(sys.stdin, "buffer", None)
    content = sys.stdin.read().encode() if pipe is None else pipe.read()
    if not content.strip():
        raise UserError("no text to classify: the pipe was empty")
    return texts_of_lines(run, text_from_pipe(content, encoding))


def _classify_all(run: "Run", brought: "InputTexts", out: Path | None, which: str, as_json: bool) -> None:
    from headway.cli.progress import Waiting
    from headway.core.files import write_whole
    from headway.experiment.classify import ClassifiedFile, classify_rows

    answers = ClassifiedFile(brought, out)
    with Waiting() as waiting:
        for places, told in classify_rows(run, brought, which, lambda done, of: waiting("texts classified", done, of)):
            answers.add(places, told)
    if out is not None:
        write_whole(out, answers.as_text())
    if as_json:
        about = {"run": str(run.folder), "notes": answers.notes, "file": None if out is None else str(out)}
        print_json("classify", {**about, "rows": answers.as_objects() if out is None else []})
        return
    print(answers.as_text() if out is None else out, end="" if out is None else "\n")
    for note in answers.notes:
        print(note, file=sys.stderr)
