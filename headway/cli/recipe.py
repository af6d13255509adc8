"""`headway recipe NAME` and `headway recipes`: print a recipe, and list the packaged ones."""

import sys
from typing import Annotated

from headway.cli.options import A_RECIPE, AsJson, Changes, Trust, With, print_json, use_plugins


def recipe(
    name: Annotated[str, A_RECIPE],
    changes: Changes = None,
    with_: With = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Print a complete recipe with a comment for every key. The output is itself a recipe."""
    from headway.recipe.library import head_comment, read_text
    from headway.recipe.recipe import load
    from headway.recipe.text import annotated

    use_plugins(with_, trust)
    made = load(name, changes or [])
    if as_json:
        print_json("recipe", {"name": name, "hash": made.hash, "recipe": made.model_dump(mode="json")})
    else:
        print(head_comment(read_text(name)[0]) + f"# hash: {made.hash}\n\n" + annotated(made), end="")


def recipes(as_json: AsJson = False) -> None:
    """List the packaged recipes."""
    from headway.cli import printing
    from headway.recipe.library import first_sentence, packaged

    lines = {name: first_sentence(text) for name, text in sorted(packaged().items())}
    if as_json:
        print_json("recipes", {"recipes": lines})
    else:
        printing.show_table(["recipe", "description"], [[name, line] for name, line in lines.items()])
        print(
            "headway recipe NAME prints one with a comment for every key; headway train NAME trains it", file=sys.stderr
        )
