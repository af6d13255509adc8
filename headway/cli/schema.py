"""`headway schema`: the JSON Schema of what --json prints."""

import json
from typing import Annotated

import typer


def schema(
    verb: Annotated[
        list[str] | None,
        typer.Argument(help="A command, such as `train` or `study plan`; default: all.", metavar="VERB"),
    ] = None,
) -> None:
    """Print the JSON Schema of a command's --json output; without an argument, those of all commands."""
    from headway.answers.verbs import SCHEMAS, json_schema

    found = json_schema(" ".join(verb)) if verb else {name: json_schema(name) for name in SCHEMAS}
    print(json.dumps(found, indent=2, ensure_ascii=False))
