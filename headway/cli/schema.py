"""`headway schema`: what --json prints, as JSON Schema."""

import json
from typing import Annotated

import typer


def schema(
    verb: Annotated[
        list[str] | None, typer.Argument(help="A verb, such as `train` or `study plan`; default: all.", metavar="VERB")
    ] = None,
) -> None:
    """Print the JSON Schema of what a verb prints with --json; without a verb, of all of them, by verb."""
    from headway.answers.verbs import SCHEMAS, json_schema

    found = json_schema(" ".join(verb)) if verb else {name: json_schema(name) for name in SCHEMAS}
    print(json.dumps(found, indent=2, ensure_ascii=False))
