"""`headway translate`: translate a text, a file, or stdin, with one run or an ensemble."""

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
            help="A translator, by name or folder; several form an ensemble. Then the text, unless it comes from a "
            "file, a split, or stdin.",
            metavar="RUN… [TEXT]",
        ),
    ],
    file: Annotated[Path | None, typer.Option(help="Translate this file, one text per line; - = stdin.")] = None,
    split: Annotated[str | None, typer.Option(help="Translate this split of the run's own data.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="With --split: write a TSV table here.", metavar="FILE")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beam width; default: as in the recipe's scoring.")] = None,
    nbest: Annotated[
        int,
        typer.Option(help="Print this many translations of each text, with its number, the rank and the score.", min=1),
    ] = 1,
    length_penalty: Annotated[
        float | None, typer.Option(help="Length penalty of beam search; 0 favours short translations.", min=0)
    ] = None,
    no_repeat: Annotated[int | None, typer.Option(help="Repeat no n-gram of this many tokens.", min=1)] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sample: 0 = greedy, 1 = the model's probabilities.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens only.", min=1)] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Nucleus sampling: this share of probability.", min=0, max=1)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the sampling; default: 0.", min=0)] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of the file or of stdin, such as cp1252 or latin-1.")
    ] = None,
    checkpoint: Which = "auto",
    runs: RunsFolder = Path("runs"),
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Translate a text, a file (one text per line), or stdin."""
    from headway.core.files import write_whole
    from headway.experiment.evaluate import translate_texts, translated_split

    if file is not None and split is not None:
        raise UserError("give either --file or --split, not both")
    if (split is None) != (out is None):
        raise UserError("--split and --out go together: the translated split is written as a table")
    if split is not None and nbest > 1:
        raise UserError(f"--nbest {nbest}: a split's table has only the best translation of each sentence")
    if split is not None and encoding is not None:
        raise UserError("--encoding applies to a file or stdin, not to --split")
    draws = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    searches = {"size": beam, "nbest": None if nbest == 1 else nbest}
    searches |= {"length_penalty": length_penalty, "no_repeat": no_repeat}
    draws, searches = ({key: v for key, v in given.items() if v is not None} for given in (draws, searches))
    use_plugins(with_, trust)
    opened, text = _runs_and_text(words, file is not None or split is not None, runs)
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
        raise UserError("--encoding applies to a file or stdin, not to a text on the command line")
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


def _runs_and_text(words: list[str], is_told_what: bool, home: Path) -> "tuple[list[Run], str | None]":
    """The runs and the text: the last of several words is the text, unless --file or --split is given."""
    from headway.run.folder import open_run

    *names, text = words
    if not names:
        return [open_run(text, home)], None
    opened = [open_run(name, home) for name in names]
    if is_told_what:
        try:
            return [*opened, open_run(text, home)], None
        except UserError as problem:
            what = "give only one of a text, --file and --split"
            raise UserError(f"{problem}; {what}") from None
    if _names_a_run(text, home):
        note = f"'{text}' is taken as the text, although there is a run of that name"
        print(f"{note}; to use it as a run, add --file - and pipe the texts in", file=sys.stderr)
    return opened, text


def _names_a_run(text: str, home: Path) -> bool:
    try:
        return any((folder / "run.json").exists() for folder in (home / text, Path(text)))
    except (OSError, ValueError):  # too long for a file name, or with a character that none can have
        return False


def _decoding(recipes: Any, draws: dict[str, Any], searches: dict[str, Any]) -> Any:
    """How to decode: as the recipe's scoring does, except for the options given."""
    from headway.scoring.decoding import HIGHEST_PENALTY, MAX_HYPOTHESES, Beam, Greedy, Sampled

    ends = {key: getattr(recipes, key) for key in ("per_source", "extra")}
    beam, nbest, temperature = searches.get("size"), searches.get("nbest", 1), draws.get("temperature")
    if beam is not None and beam < 1:
        raise UserError(f"--beam {beam}: the beam width must be at least 1 (greedy)")
    if (asked := max(beam or 1, nbest)) > MAX_HYPOTHESES:
        option = "--nbest" if asked == nbest else "--beam"
        raise UserError(f"{option} {asked}: at most {MAX_HYPOTHESES:,} hypotheses are kept")
    if temperature is not None and not 0 <= temperature < math.inf:
        raise UserError(f"--temperature {temperature:g}: expected 0 (greedy) or more")
    if (penalty := searches.get("length_penalty", 0)) > HIGHEST_PENALTY:
        raise UserError(f"--length-penalty {penalty:g}: from {HIGHEST_PENALTY} on, only the length would count")
    if draws and searches:
        one, other = (_option(next(iter(given))) for given in (draws, searches))
        raise UserError(f"{one} applies to sampling and {other} to beam search: give only one of them")
    if draws:
        if temperature is None and not isinstance(recipes, Sampled):
            told = f"{_option(next(iter(draws)))} applies to sampling, but the recipe decodes by {recipes.label}"
            raise UserError(f"{told}: give --temperature too")
        base = recipes if isinstance(recipes, Sampled) else Sampled(**ends)
        return base.model_copy(update=draws)
    if not searches:
        return recipes
    base = recipes if isinstance(recipes, Beam) else Beam(**ends)
    size = beam if beam is not None else max(base.size, nbest)
    if size < nbest:
        raise UserError(f"--nbest {nbest} with --beam {size}: a beam gives at most as many translations as its width")
    if size == 1 and not {"length_penalty", "no_repeat"} & searches.keys():
        return Greedy(**ends)
    return base.model_copy(update={"nbest": nbest, **searches, "size": size})


def _option(key: str) -> str:
    return "--beam" if key == "size" else f"--{key.replace('_', '-')}"


def _lines(file: Path | None, encoding: str | None) -> list[str]:
    """The lines of a file or of stdin, empty ones too. Both are decoded in the same way."""
    from headway.data.pairs.sources import lines_in
    from headway.data.running.sources import decoded, read_any_text, why_no_encoding

    if why := why_no_encoding(encoding):
        raise UserError(f"--encoding: {why}")
    if file is not None and str(file) != "-":
        if not (text := read_any_text(file.expanduser(), encoding, "--encoding ")):
            raise UserError(f"'{file}' is empty: no text to translate")
        return lines_in(text)
    if file is None and sys.stdin.isatty():
        raise UserError('no text to translate: give a text, --file, or a pipe: echo "…" | headway translate RUN')
    pipe = getattr(sys.stdin, "buffer", None)  # stdin is read as bytes, like a file, whatever the locale
    content = sys.stdin.read().encode() if pipe is None else pipe.read()
    if not content:
        raise UserError("no text to translate: the pipe was empty")
    return lines_in(decoded(content, Path("stdin"), encoding, "--encoding "))


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], object]]:
    """A progress bar, if there is a terminal and more than one text."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("translating", total=total)
        yield lambda done: progress.update(task, completed=done)
