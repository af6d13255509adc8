"""`extends: demo` in a recipe file: the same as that recipe, except for what the file says itself.

    extends: demo                 # a packaged recipe, or a file, looked for beside this one
    model: {positions: alibi}     # the rest of the model stays
    training: {optimizer: sgd}    # another kind has other settings: it begins afresh

Parts are laid over each other key by key; a list, a word and a part of another kind take the place of what was there.
What comes of it is a whole recipe: its hash and what a run keeps know nothing of the files it was put together from.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.core import plugins
from headway.core.errors import UserError
from headway.core.yaml import read_tree
from headway.recipe.library import packaged, read_text

Key = tuple[str, ...]
MOST_FILES = 10


def written(name: str, default_kind: Callable[[Key], str | None]) -> tuple[dict[str, Any], dict[Key, str], str]:
    """The tree of a recipe with all that it extends, where each key was written, and what to call it in messages.
    `default_kind` says which kind a part is of where nobody has said."""
    chain = _chain(name)
    tree, places = {}, {}
    for title, own, lines in reversed(chain):
        own_places = {key: f"{title}:{line}" for key, line in lines.items() if key != ("extends",)}
        gone = _lay_over(tree, own, (), default_kind)
        places = {key: place for key, place in places.items() if not any(key[: len(g)] == g for g in gone)} | own_places
    return tree, places, chain[0][0]


def _chain(name: str) -> list[tuple[str, dict[str, Any], dict[Key, int]]]:
    """The recipe itself, what it extends, what that extends …; each file's own plugins are known afterwards."""
    found, seen, is_asked, said_in = [], [], True, ""
    while True:
        here = name if name in packaged() else str(Path(name).resolve())
        if here in seen:
            circle = " → ".join([Path(one).name for one in seen[seen.index(here) :]] + [Path(here).name])
            raise UserError(f"{said_in}extends: a recipe cannot extend itself: {circle}")
        if len(seen) == MOST_FILES:
            raise UserError(f"{said_in}extends: more than {MOST_FILES} recipes that each extend the next")
        seen.append(here)
        try:
            text, title = read_text(name)
        except UserError as error:
            raise UserError(f"{said_in}extends: {error}" if said_in else str(error)) from None
        tree, lines = read_tree(text, title)
        folder = Path(name).parent
        # What lies in a run's folder may be of somebody else's making, and so is whatever that extends.
        is_asked = is_asked and not (folder / "run.json").exists()
        plugins.load_named(tree, folder, title, is_asked)
        found.append((title, tree, lines))
        if "extends" not in tree:
            return found
        said_in = f"{title}:{lines['extends',]}: "
        other = tree.pop("extends")
        if not isinstance(other, str) or not other:
            reason = f"expected a packaged recipe's name or a YAML file, one, not {other!r}"
            raise UserError(f"{said_in}extends: {reason}")
        name = other if other in packaged() or Path(other).is_absolute() else str(folder / other)
        if other not in packaged() and Path(other).suffix not in (".yaml", ".yml") and "/" not in other:
            name = other  # no file's name either: the message says which recipes there are


def _lay_over(
    under: dict[str, Any], over: Mapping[str, Any], path: Key, default_kind: Callable[[Key], str | None]
) -> list[Key]:
    """Change `under` to what `over` says. Gives the parts of which nothing is left."""
    gone = []
    for name, new in over.items():
        here = (*path, name)
        old = under.get(name)
        if isinstance(old, str) and isinstance(new, dict):  # `positions: rotary` is short for {kind: rotary}
            old = {"kind": old}
        if isinstance(old, dict) and isinstance(new, dict):
            kind = old.get("kind", default_kind(here))
            if new.get("kind", kind) == kind:
                under[name] = old
                gone += _lay_over(old, new, here, default_kind)
                continue
        if name in under:
            gone.append(here)
        under[name] = new
    return gone
