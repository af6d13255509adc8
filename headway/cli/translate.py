"""`headway translate`: translates a text, a file, or what comes down the pipe, by one run or by several as one."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import AsJson, RunsFolder, Trust, Which, With, print_json, use_plugins
from headway.core.errors import UserError

if TYPE_CHECKING:
    from headway.run.folder import Run


def translate(
    words: Annotated[
        list[str],
        typer.Argument(
            help="A translator's run: its name or folder; several translate as one. And the text, or else a file, a "
            "split, or stdin.",
            metavar="RUN… [TEXT]",
        ),
    ],
    file: Annotated[Path | None, typer.Option(help="Translate this file, line by line; - = stdin.")] = None,
    split: Annotated[str | None, typer.Option(help="Translate this split of the run's own data.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="With --split: a table of every sentence (TSV).", metavar="FILE")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Keep so many beginnings; default: as the recipe scores.")] = None,
    nbest: Annotated[int, typer.Option(help="Give so many translations of each text.", min=1)] = 1,
    length_penalty: Annotated[float | None, typer.Option(help="Of beam search; 0 favours short ones.", min=0)] = None,
    no_repeat: Annotated[int | None, typer.Option(help="No run of so many tokens twice.", min=1)] = None,
    temperature: Annotated[float | None, typer.Option(help="Draw instead: 0 = the likeliest, 1 = as learnt.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest tokens only.", min=1)] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw only among the likeliest that reach this sum.", min=0, max=1)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draw; default: 0.", min=0)] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of the file, or of what comes down the pipe: cp1252, latin-1 …")
    ] = None,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Translate a text, a file line by line, or stdin."""
    from headway.core.files import write_whole
    from headway.experiment.evaluate import translate_texts, translated_split

    if file is not None and split is not None:
        raise UserError("--file and --split are different things to translate: give one of them")
    if (split is None) != (out is None):
        raise UserError("--split and --out go together: every sentence of the split becomes a row of the table")
    if split is not None and nbest > 1:
        raise UserError(f"--nbest {nbest}: the table of a split has one translation of each sentence, the best")
    if split is not None and encoding is not None:
        raise UserError("--encoding says how a file or a pipe is read, and --split reads neither")
    draws = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    searches = {"size": beam, "nbest": None if nbest == 1 else nbest}
    searches |= {"length_penalty": length_penalty, "no_repeat": no_repeat}
    draws, searches = ({key: v for key, v in given.items() if v is not None} for given in (draws, searches))
    use_plugins(with_, trust)
    opened, text = _told_apart(words, file is not None or split is not None, runs)
    how = _decoding(opened[0].recipe.scoring.decoding, draws, searches)
    about = {"run": str(opened[0].folder), "decoding": how.label}
    if len(opened) > 1:
        about["runs"] = [str(one.folder) for one in opened]
    if split is not None and out is not None:
        rows = translated_split(opened, split, how, checkpoint)
        write_whole(out, "".join("\t".join(row) + "\n" for row in rows))
        if as_json:
            print_json("translate", {**about, "file": str(out)})
        else:
            print(out)
        return
    if text is not None and encoding is not None:
        raise UserError("--encoding says how a file or a pipe is read, and the text is given")
    texts = [text] if text is not None else _lines(file, encoding)
    with _bar(len(texts)) as told:
        found = translate_texts(opened, texts, how, checkpoint, told)
    if as_json:
        answers = [one.as_json() for one in found]
        print_json("translate", {**about, "translations": answers})
        return
    for k, one in enumerate(found):
        for rank, (said, score) in enumerate(one.hypotheses[:nbest], 1):
            print(said if nbest == 1 else f"{k + 1}\t{rank}\t{score:.4f}\t{said}")
        for note in one.notes:
            print(f"line {k + 1}: {note}" if len(found) > 1 else note, file=sys.stderr)


def _told_apart(words: list[str], is_told_what: bool, home: Path) -> "tuple[list[Run], str | None]":
    """The runs, and the text: of several words the last, unless it was said elsewhere what to translate."""
    from headway.run.folder import open_run

    *names, text = words
    if not names:
        return [open_run(text, home)], None
    opened = [open_run(name, home) for name in names]
    if is_told_what:
        try:
            return [*opened, open_run(text, home)], None
        except UserError as problem:
            what = "a text, --file and --split are different things to translate: give one of them"
            raise UserError(f"{problem}; and {what}") from None
    if _names_a_run(text, home):
        note = f"'{text}' is taken for the text, and there is a run of that name"
        print(f"{note}: with --file - all are runs, and texts come down the pipe", file=sys.stderr)
    return opened, text


def _names_a_run(text: str, home: Path) -> bool:
    try:
        return any((folder / "run.json").exists() for folder in (home / text, Path(text)))
    except (OSError, ValueError):  # longer than a name of a file may be, or with a sign that none has
        return False


def _decoding(recipes: Any, draws: dict[str, Any], searches: dict[str, Any]) -> Any:
    """As the recipe scores, but for what is asked for here."""
    from headway.scoring.decoding import HIGHEST_PENALTY, MOST_BEGINNINGS, Beam, Greedy, Sampled

    ends = {key: getattr(recipes, key) for key in ("per_source", "extra")}
    beam, nbest, temperature = searches.get("size"), searches.get("nbest", 1), draws.get("temperature")
    if beam is not None and beam < 1:
        raise UserError(f"--beam {beam}: at least one beginning must be kept; 1 is the likeliest token, always")
    if (asked := max(beam or 1, nbest)) > MOST_BEGINNINGS:
        option = "--nbest" if asked == nbest else "--beam"
        raise UserError(f"{option} {asked}: at most {MOST_BEGINNINGS:,} beginnings are kept")
    if temperature is not None and not 0 <= temperature < math.inf:
        raise UserError(f"a temperature must be 0 (always the likeliest) or more, not {temperature:g}")
    if (penalty := searches.get("length_penalty", 0)) > HIGHEST_PENALTY:
        raise UserError(f"--length-penalty {penalty:g}: from {HIGHEST_PENALTY} on nothing counts but the length")
    if draws and searches:
        one, other = (_option(next(iter(given))) for given in (draws, searches))
        raise UserError(f"{one} is of drawing, and {other} of beam search: give one of them")
    if draws:
        if temperature is None and not isinstance(recipes, Sampled):
            told = f"{_option(next(iter(draws)))} is of drawing, and translations are not drawn ({recipes.label})"
            raise UserError(f"{told}: give --temperature, too")
        base = recipes if isinstance(recipes, Sampled) else Sampled(**ends)
        return base.model_copy(update=draws)
    if not searches:
        return recipes
    base = recipes if isinstance(recipes, Beam) else Beam(**ends)
    size = beam if beam is not None else max(base.size, nbest)
    if size < nbest:
        raise UserError(f"--nbest {nbest} of --beam {size}: no more can be given than are kept")
    if size == 1 and not {"length_penalty", "no_repeat"} & searches.keys():
        return Greedy(**ends)
    return base.model_copy(update={"nbest": nbest, **searches, "size": size})


def _option(key: str) -> str:
    return "--beam" if key == "size" else f"--{key.replace('_', '-')}"


def _lines(file: Path | None, encoding: str | None) -> list[str]:
    """Of a file, or of stdin, which is read in the same way: a text a line, empty ones too."""
    from headway.data.pairs.sources import lines_in
    from headway.data.running.sources import decoded, why_no_encoding, written_in

    if why := why_no_encoding(encoding):
        raise UserError(f"--encoding: {why}")
    if file is not None and str(file) != "-":
        if not (text := written_in(file.expanduser(), encoding, "--encoding ")):
            raise UserError(f"'{file}' is empty: there is nothing to translate")
        return lines_in(text)
    if file is None and sys.stdin.isatty():
        raise UserError(
            'there is nothing to translate: give a text, --file, or a pipe: echo "…" | headway translate RUN'
        )
    pipe = getattr(sys.stdin, "buffer", None)  # its bytes are read as those of a file, whatever the locale says
    content = sys.stdin.read().encode() if pipe is None else pipe.read()
    if not content:
        raise UserError("nothing came down the pipe: there is nothing to translate")
    return lines_in(decoded(content, Path("stdin"), encoding, "--encoding "))


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], object]]:
    """How many are done, where somebody is looking and there are many."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("translating", total=total)
        yield lambda done: progress.update(task, completed=done)
