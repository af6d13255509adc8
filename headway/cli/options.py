"""Options shared by several commands, and how every command prints JSON."""

import gc
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder that contains the runs.", metavar="DIR")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


@contextmanager
def importing() -> Iterator[None]:
    """Switch the garbage collector off during the imports of a command that trains. Imports create no garbage, and
    collecting during them takes a twelfth of their time. Afterwards their objects are excluded from collection."""
    if "torch" in sys.modules:  # a later command in the same process: there may be garbage, and little left to import
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def recipes_like(incomplete: str) -> list[str]:
    """Complete a recipe's name in the shell: packaged recipes and YAML files."""
    from headway.recipe.library import packaged

    files = [str(file) for file in Path().glob(f"{incomplete}*.y*ml")] if "*" not in incomplete else []
    return sorted(name for name in (*packaged(), *files) if name.startswith(incomplete))


def runs_like(ctx: typer.Context, incomplete: str) -> list[str]:
    from headway.run.record import run_names

    return sorted(name for name in run_names(Path(ctx.params.get("runs") or "runs")) if name.startswith(incomplete))


def run_argument(help: str, metavar: str = "RUN") -> Any:
    """An argument that names one or more runs, with shell completion."""
    return typer.Argument(help=help, metavar=metavar, autocompletion=runs_like)


A_RECIPE = typer.Argument(
    help="A packaged recipe (see `headway recipes`), a YAML file, or a run folder.",
    metavar="RECIPE",
    autocompletion=recipes_like,
)
A_RUN = run_argument("A run's name or folder.")
Changes = Annotated[
    list[str] | None, typer.Argument(help="Changes, such as model.positions=alibi seed=3.", metavar="KEY=VALUE")
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", help="A Python file with your own variants, audits … May be repeated.", metavar="FILE"),
]
Trust = Annotated[bool, typer.Option("--trust", help="Allow the code stored in the run or study folder to run.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if an audit fails.")]
Which = Annotated[str, typer.Option("--checkpoint", help="auto, best, last, or a step number.", metavar="WHICH")]


def use_plugins(files: Sequence[str] | None, trust: bool = False) -> None:
    """Load the plugins given by `--with`, and those that `--trust` allows, before anything is read."""
    from headway.recipe.plugins import use

    use(files or [], trust)


def print_json(verb: str, answer: Mapping[str, Any]) -> None:
    """Print an answer after checking it against the command's schema. JSON has neither NaN nor infinity: they become
    null, with a note on stderr."""
    from headway.answers.verbs import checked, without_nan

    told, lost = without_nan(checked(verb, answer))
    if lost:
        more = f" and {len(lost) - 1:,} more" if len(lost) > 1 else ""
        print(f"not finite, written as null in the JSON: {lost[0]}{more}", file=sys.stderr)
    print(json.dumps(told, ensure_ascii=False, allow_nan=False))
