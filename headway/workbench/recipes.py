"""Recipes as pages show them: key by key, with their meanings, and side by side.

The text of a run's recipe.yaml contains all of that, so recipes are not parsed here, except in `packaged_whole`, which
runs in a worker.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml


@dataclass(frozen=True)
class RecipeKey:
    key: str
    """The full key: `training.optimizer.learning_rate`."""
    value: str
    """As written; empty for a key with keys below it."""
    meaning: str
    depth: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def keys_of(text: str) -> list[RecipeKey]:
    """Every key of an annotated recipe, in order, with the comment above it."""
    found: list[RecipeKey] = []
    above: list[str] = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        bare = line.strip()
        if not bare:
            above = []
        elif bare.startswith("#"):
            above.append(bare.lstrip("# "))
        elif bare.startswith("- ") and found:  # list items belong to the key above
            found[-1] = RecipeKey(
                found[-1].key, f"{found[-1].value} {bare}".strip(), found[-1].meaning, found[-1].depth
            )
        else:
            depth = len(line) - len(line.lstrip())
            name, _, value = bare.partition(":")
            path = [one for one in path if one[0] < depth] + [(depth, name)]
            key = ".".join(one for _, one in path)
            found.append(RecipeKey(key, value.strip(), " ".join(above), len(path) - 1))
            above = []
    return found


def compared(recipes: Sequence[Sequence[RecipeKey]]) -> dict[str, list[str | None]]:
    """The keys that differ, in order, with every recipe's value; None if a recipe does not have the key."""
    values = [{key.key: key.value for key in recipe if key.value or key.depth} for recipe in recipes]
    known = dict.fromkeys(key.key for recipe in recipes for key in recipe if key.value)
    rows = {key: [one.get(key) for one in values] for key in known}
    return {key: row for key, row in rows.items() if any(not _same(row[0], other) for other in row[1:])}


def _same(one: str | None, other: str | None) -> bool:
    """Whether two values are equal, such as 3e-3 and 0.003."""
    if one is None or other is None or one == other:
        return one == other
    try:
        return yaml.safe_load(one) == yaml.safe_load(other)
    except yaml.YAMLError:
        return False


def packaged_whole(name: str) -> str:
    """In a worker: a packaged recipe with all of its keys, as a run stores it."""
    from headway.core.errors import UserError
    from headway.recipe.library import packaged
    from headway.recipe.recipe import load
    from headway.recipe.text import annotated

    if name not in packaged():
        raise UserError(f"{name} is not a packaged recipe")
    return annotated(load(name, []))
