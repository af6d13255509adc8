"""`extends: demo` in a recipe file: start from that recipe and change what the file says.

    extends: demo                 # a packaged recipe, or a file, relative to this one
    model: {positions: alibi}     # the rest of the model stays
    training: {optimizer: sgd}    # another kind has other settings, so it starts from defaults

Mappings are merged key by key; lists, words and parts of another kind are replaced. The result is a complete recipe:
its hash and the copy in a run folder do not depend on the files it was composed of.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.yaml import read_tree
from headway.recipe import plugins
from headway.recipe.library import packaged, read_text

Key = tuple[str, ...]
MAX_CHAIN = 10


def written(name: str, default_kind: Callable[[Key], str | None]) -> tuple[dict[str, Any], dict[Key, str], str]:
    """The tree of a recipe merged with all it extends, where each key was written, and its title for messages.
    `default_kind` gives the kind of a part that states none."""
    chain = _chain(name)
    tree, places = {}, {}
    for title, own, lines in reversed(chain):
        own_places = {key: f"{title}:{line}" for key, line in lines.items() if key != ("extends",)}
        gone = _lay_over(tree, own, (), default_kind)
        places = {key: place for key, place in places.items() if not any(key[: len(g)] == g for g in gone)} | own_places
    return tree, places, chain[0][0]


def _chain(name: str) -> list[tuple[str, dict[str, Any], dict[Key, int]]]:
    """The recipe itself, what it extends, what that extends …; also loads each file's plugins."""
    found, seen, is_asked, said_in = [], [], True, ""
    while True:
        here = name if name in packaged() else str(Path(name).resolve())
        if here in seen:
            circle = " → ".join([Path(one).name for one in seen[seen.index(here) :]] + [Path(here).name])
            raise UserError(f"{said_in}extends: a recipe cannot extend itself: {circle}")
        if len(seen) == MAX_CHAIN:
            raise UserError(f"{said_in}extends: a chain of more than {MAX_CHAIN} recipes")
        seen.append(here)
        try:
            text, title = read_text(name)
        except UserError as error:
            raise UserError(f"{said_in}extends: {error}" if said_in else str(error)) from None
        tree, lines = read_tree(text, title)
        folder = Path(name).parent
        # Files in a run folder may come from somebody else, and so may whatever they extend.
        is_asked = is_asked and not (folder / "run.json").exists()
        plugins.load_named(tree, folder, title, is_asked)
        found.append((title, tree, lines))
        if "extends" not in tree:
            return found
        said_in = f"{title}:{lines['extends',]}: "
        other = tree.pop("extends")
        if not isinstance(other, str) or not other:
            reason = f"expected the name of one packaged recipe or YAML file, not {other!r}"
            raise UserError(f"{said_in}extends: {reason}")
        name = other if other in packaged() or Path(other).is_absolute() else str(folder / other)
        if other not in packaged() and Path(other).suffix not in (".yaml", ".yml") and "/" not in other:
            name = other  # not a file name either: the error then lists the recipes


def _lay_over(
    under: dict[str, Any], over: Mapping[str, Any], path: Key, default_kind: Callable[[Key], str | None]
) -> list[Key]:
    """Merge `over` into `under`. Returns the paths that were replaced entirely."""
    gone = []
    for name, new in over.items():
        here = (*path, name)
        old = under.get(name)
        if isinstance(old, str) and isinstance(new, dict):  # `positions: rotary` means {kind: rotary}
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
