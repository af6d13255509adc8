"""What several verbs take, and how all of them print JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder that holds run folders.", metavar="DIR")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
Changes = Annotated[
    list[str] | None, typer.Argument(help="Changes, such as model.positions=alibi seed=3.", metavar="KEY=VALUE")
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", help="A Python file of your own: variants, audits … May be repeated.", metavar="FILE"),
]
Trust = Annotated[bool, typer.Option("--trust", help="Run the code that lies in the run or study folder.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if an audit fails.")]
Which = Annotated[str, typer.Option("--checkpoint", help="auto, best, last, or a step.", metavar="WHICH")]


def use_plugins(files: Sequence[str] | None, trust: bool = False) -> None:
    """What `--with` and `--trust` ask for, before anything is read."""
    from headway.core.plugins import use

    use(files or [], trust)


def print_json(verb: str, answer: Mapping[str, Any]) -> None:
    """Nothing that the verb's schema does not have."""
    from headway.answers import checked

    print(json.dumps(checked(verb, answer), ensure_ascii=False, allow_nan=False))
