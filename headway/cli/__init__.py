"""The command line: registers all commands and reports errors. Nothing heavy is imported at the top."""

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
    """Run the command line with control characters in its output made visible."""
    with nothing_sent():
        _run()


def _run() -> None:
    """Run a command. User errors print one message and exit with code 2; only bugs in Headway show a traceback."""
    # Threads that spin while waiting slow training down tenfold when other programs use the cores (docs/log.md). This
    # must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from headway.cli.progress import Waiting
    from headway.core.progress import listening

    try:
        with Waiting() as waiting, listening(waiting):
            app(prog_name="headway")  # the same name under `python -m headway.cli`
    except EndedElsewhereError:
        sys.exit(2)
    except UserError as error:
        print(f"headway: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader closed the pipe, as in `headway … | head`
        sys.exit(0)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            print(f"headway: this file name is too long: {str(error.filename)[:60]}…", file=sys.stderr)
            sys.exit(2)
        if error.strerror is None:
            raise  # an OSError that did not come from the operating system
        place = f" ({error.filename})" if error.filename else ""
        print(f"headway: {error.strerror}{place}; everything saved before is intact", file=sys.stderr)
        sys.exit(2)
    except UnicodeError as error:
        print(f"headway: the input or output is not valid text: {error}", file=sys.stderr)
        sys.exit(2)
    except (RecursionError, MemoryError) as error:
        what = "is nested too deeply" if isinstance(error, RecursionError) else "does not fit into memory"
        print(f"headway: the request {what}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # raised by pathlib before Python 3.13
            print(f"headway: {error}", file=sys.stderr)
            sys.exit(2)
        from headway.core.plugins import blamed_on_plugin

        if (told := blamed_on_plugin(error)) is None:
            raise
        print(f"headway: {told}", file=sys.stderr)
        sys.exit(2)
