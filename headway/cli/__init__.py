"""The command line: which verbs there are, and how errors are shown. Nothing heavy is imported at the top."""

import errno
import os
import sys
from typing import Annotated

import typer

from headway import __version__
from headway.cli import (
    audit,
    bench,
    cache,
    case,
    classify,
    compare,
    continue_,
    export,
    fill,
    import_,
    look,
    match,
    open_,
    recipe,
    runs,
    sample,
    scaling,
    schema,
    score,
    solve,
    study,
    train,
    translate,
    tune,
)
from headway.cli.shown import nothing_sent
from headway.core.errors import EndedElsewhereError, UserError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="A laboratory for attention models: change one thing, and know whether it mattered.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"headway {__version__}")
        raise typer.Exit


@app.callback()
def _before_any_verb(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.add_typer(solve.app, name="solve")
app.add_typer(study.app, name="study")
app.add_typer(scaling.app, name="scaling")

app.command(epilog="Example: headway train shakespeare-char-cpu model.positions=alibi --vary seed=0..3")(train.train)
app.command("continue", epilog='Example: headway continue demo --for "500 steps"')(continue_.continue_)
app.command(epilog="Example: headway compare demo demo-alibi")(compare.compare)
app.command(epilog='Example: headway score shakespeare-char-cpu --text "To be, or not to be"')(score.score)
app.command(epilog="Example: headway audit shakespeare-char-cpu, or headway audit --explain causality")(audit.audit)
app.command(epilog='Example: headway sample shakespeare-char-cpu --prompt "ROMEO:" --tokens 200')(sample.sample)
app.command(epilog='Example: headway look speeches-lm "We are at war." -o maps.html')(look.look)
app.command(epilog='Example: headway classify python-modules "Run the event loop until the future is done."')(
    classify.classify
)
app.command(epilog='Example: headway fill masked-demo "Return the [MASK] of the file."')(fill.fill)
app.command(epilog='Example: headway translate pig-latin "reading" --beam 5 --nbest 3')(translate.translate)
app.command(epilog='Example: headway match scenes --images test:0..11 --captions "two red circles above a blue star"')(
    match.match
)
app.command(epilog="Example: headway export shakespeare-char-cpu --to gpt2 -o shakespeare-gpt2")(export.export)
app.command("import", epilog="Example: headway import gpt2/ --name gpt2 data.source=files data.path=corpus.txt")(
    import_.import_
)
app.command(epilog="Example: headway recipe shakespeare-char-cpu model.positions=t5")(recipe.recipe)
app.command(epilog="Example: headway recipes --json")(recipe.recipes)
app.command(epilog="Example: headway runs --runs demo")(runs.runs)
app.command("open", epilog="Example: headway open --port 8765")(open_.open_)
app.command(epilog="Example: headway bench --size tiny --size small")(bench.bench)
app.command(epilog="Example: headway cache --clear --older-than 30")(cache.cache)
app.command(epilog="Example: headway schema study plan")(schema.schema)
app.command(epilog="Example: headway cases --json")(case.cases)
app.command(epilog="Example: headway case B7 --quick")(case.case)
app.command(epilog="Example: headway tune demo --over training.optimizer.learning_rate=1e-4..1e-1:log")(tune.tune)


def main() -> None:
    """What is printed by a verb, or about it, is shown."""
    with nothing_sent():
        _run()


def _run() -> None:
    """Run a verb. A user's mistake is one message and exit code 2; only our own mistakes show a traceback."""
    # Threads that wait by spinning cost nothing on an idle machine, and a factor of ten where other programs want the
    # cores too (docs/log.md). To be said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from headway.cli.progress import Waiting
    from headway.core.progress import listening

    try:
        with Waiting() as waiting, listening(waiting):
            app(prog_name="headway")  # also for `python -m headway.cli`
    except EndedElsewhereError:
        sys.exit(2)
    except UserError as error:
        print(f"headway: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone away, as `headway … | head` does
        sys.exit(0)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            print(f"headway: no file has as long a name as {str(error.filename)[:60]}…", file=sys.stderr)
            sys.exit(2)
        if error.strerror is None:
            raise  # not the system's, but something that calls itself so
        place = f" ({error.filename})" if error.filename else ""
        print(f"headway: {error.strerror}{place}; what was saved before is whole", file=sys.stderr)
        sys.exit(2)
    except UnicodeError as error:
        print(f"headway: what was read, or is to be written, is no text: {error}", file=sys.stderr)
        sys.exit(2)
    except (RecursionError, MemoryError) as error:
        what = "is nested too deep to be read" if isinstance(error, RecursionError) else "does not fit into the memory"
        print(f"headway: what was asked for {what}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # of pathlib, before Python 3.13
            print(f"headway: {error}", file=sys.stderr)
            sys.exit(2)
        from headway.core.plugins import blamed_on_plugin

        if (told := blamed_on_plugin(error)) is None:
            raise
        print(f"headway: {told}", file=sys.stderr)
        sys.exit(2)
