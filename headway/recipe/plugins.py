"""The plugins of a recipe or study: which it uses, their copies in its folder, and whether code found there may run.

Those that a run needs are stored in its folder and are part of the recipe's hash. Code found in a run or study
folder may come from anybody, so it only runs with the user's permission. How a plugin is run is in `core/plugins.py`.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway.core.errors import CodeNotRunError, UserError
from headway.core.files import write_whole
from headway.core.plugins import Plugin, load_installed, load_plugin, loaded
from headway.core.reading import check_own, read_text
from headway.core.seal import read_sealed
from headway.core.spec import Spec
from headway.core.variants import Registry, Variant

FOLDER = "plugins"


def used_by(*specs: Spec) -> list[Plugin]:
    """The plugins that define some part of these specs."""
    if not loaded():
        return []
    classes = {cls for spec in specs for part in _parts(spec) for cls in type(part).__mro__}
    return [plugin for plugin in loaded() if any(map(plugin.brings, classes))]


def concerning(*specs: Spec) -> list[Plugin]:
    """The plugins used by these specs, and those with audits and metrics, which apply to every model."""
    variants = [slot.variants for slot in Variant.__subclasses__()]
    looking = [r for r in Registry.everywhere if not any(r is known for known in variants)]
    used = used_by(*specs)
    return [p for p in loaded() if p in used or any(registry.of_module(p.module) for registry in looking)]


def texts_for(*specs: Spec) -> dict[str, str]:
    """The plugin files that another process needs to use these specs, by name. Installed packages are not included:
    each process finds its own."""
    return {plugin.name: plugin.text for plugin in concerning(*specs) if plugin.is_file}


def _parts(value: Any) -> Iterator[Spec]:
    if isinstance(value, Spec):
        yield value
        for name in type(value).model_fields:
            yield from _parts(getattr(value, name))
    elif isinstance(value, list | tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _parts(inner)


def write_into(folder: Path, plugins: Iterable[Plugin]) -> list[str]:
    """Store plugin files in a folder. Returns the names by which the folder's YAML refers to them."""
    kept = list(plugins)
    for plugin in kept:
        if plugin.is_file:
            check_own(folder / FOLDER)
            (folder / FOLDER).mkdir(exist_ok=True)
            write_whole(folder / FOLDER / plugin.name, plugin.text)
    return named_in_folders(kept)


def named_in_folders(plugins: Iterable[Plugin]) -> list[str]:
    """The names by which the YAML of a folder refers to plugins stored in it."""
    return [f"{FOLDER}/{plugin.name}" if plugin.is_file else plugin.name for plugin in plugins]


def changed_since(folder: Path, plugins: Iterable[Plugin]) -> str:
    """Which plugin differs from the copy in the folder; empty if none does."""
    for plugin in plugins:
        kept = folder / FOLDER / plugin.name
        if plugin.is_file and kept.is_file() and read_text(kept) != plugin.text:
            return f"{plugin.path} differs from the copy in the folder: {kept}"
    return ""


# --- permission ------------------------------------------------------------------------------------------------------

_trusting = False


def use(files: Sequence[str | Path] = (), trust: bool = False) -> None:
    """Load plugin files for a command, and set whether code stored in the folders it opens may run."""
    global _trusting
    _trusting = trust
    for file in files:
        load_plugin(file)


def load_named(tree: dict[str, Any], folder: Path, title: str, is_asked: bool) -> None:
    """Remove `plugins: […]` from a YAML tree, and load them. Files are looked up in the folder. `is_asked`: the user
    wrote this YAML, so its files may run."""
    load_installed()
    names = tree.pop("plugins", None)
    if names is None:
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{title}: plugins: expected a list of Python files, not {names!r}")
    for name in names:
        if not name.endswith(".py"):
            _check_installed(name, title)
        elif is_asked:
            load_plugin(folder / name)
        elif not _is_given(folder / name):
            if not _trusting:
                raise CodeNotRunError(_not_run(folder / name, title))
            with suppress(FileNotFoundError):
                read_sealed(folder / name, folder)  # only the original file is trusted
            load_plugin(folder / name)


def _is_given(file: Path) -> bool:
    """Whether the file has been run already, or the user gave another version, which then takes precedence."""
    text = read_text(file) if file.is_file() else None
    if any(plugin.text == text for plugin in loaded()):
        return True
    given = next((plugin for plugin in loaded() if plugin.name == file.name), None)
    if given is not None and text is not None:
        print(f"warning: using {given.path} instead of {file}, which differs", file=sys.stderr)
    return given is not None


def _not_run(file: Path, title: str) -> str:
    lines = len(read_text(file).splitlines()) if file.is_file() else 0
    return (
        f"{title} needs code stored in the folder, {file} ({lines} lines), which only runs with your permission; "
        f"if you trust it, add --with {file}, or --trust for all code in the folder"
    )


def _check_installed(name: str, title: str) -> None:
    wanted = name.partition("==")[0]
    there = [plugin.name for plugin in loaded() if not plugin.is_file]
    if name in there:
        return
    if wanted not in [one.partition("==")[0] for one in there]:
        raise UserError(
            f"{title} needs the package {name}: it is not installed, or defines no plugin; pip install {name}"
        )
    print(f"warning: {title} was made with {name}, but {', '.join(there)} is installed", file=sys.stderr)
