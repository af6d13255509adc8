"""What several verbs take, and how all of them print JSON."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder that holds run folders.", metavar="DIR")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
Changes = Annotated[
    list[str] | None, typer.Argument(help="Changes, such as model.positions=alibi seed=3.", metavar="KEY=VALUE")
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if an audit fails.")]
Which = Annotated[str, typer.Option("--checkpoint", help="auto, best, last, or a step.", metavar="WHICH")]


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))
