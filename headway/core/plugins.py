"""Plugins: Python files with a user's own position scheme, mixer, optimizer, audit …, without a fork.

`--with my_attention.py`, `plugins: [my_attention.py]` in a recipe or study, or `headway.load_plugin("my_attention.py")`
runs the file; its variants can then be used like built-in ones (`variants.py`). Installed packages offer theirs through
the entry point group `headway.plugins`.

An error in the file is reported as one message with its line. The plugins that a run needs are stored in its folder and
are part of the recipe's hash. Code found in a run or study folder may come from anybody, so it only runs with the
user's permission.
"""

import functools
import hashlib
import inspect
import linecache
import re
import sys
import traceback
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from headway.core.errors import CodeNotRunError, UserError, did_you_mean
from headway.core.files import write_whole
from headway.core.reading import check_own, read_text
from headway.core.seal import read_sealed
from headway.core.spec import Spec
from headway.core.variants import Registry, Variant, is_slot

GROUP = "headway.plugins"
FOLDER = "plugins"


@dataclass(frozen=True)
class Plugin:
    name: str
    """The file's name, or `name==version` for a package."""
    path: str
    """Where it was read from, for messages."""
    text: str
    """The file's source; for a package, its name and version."""
    module: str

    @property
    def is_file(self) -> bool:
        return self.name.endswith(".py")

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def brings(self, cls: type) -> bool:
        return cls.__module__ == self.module or cls.__module__.startswith(f"{self.module}.")


_loaded: dict[str, Plugin] = {}  # by module
_trusting = False


def loaded() -> list[Plugin]:
    return list(_loaded.values())


def use(files: Sequence[str | Path] = (), trust: bool = False) -> None:
    """Load plugin files for a command, and set whether code stored in the folders it opens may run."""
    global _trusting
    _trusting = trust
    for file in files:
        load_plugin(file)


# --- loading ---------------------------------------------------------------------------------------------------------


def load_plugin(file: str | Path) -> Plugin:
    """Run a plugin file and register what it defines. If the file has changed, the new version replaces the old."""
    path = Path(file)
    if path.suffix != ".py":
        raise UserError(f"{file}: a plugin is a Python file, so its name must end in .py")
    try:
        text = read_text(path, through_links=True)
    except FileNotFoundError:
        raise UserError(
            f"there is no file {file}{did_you_mean(str(file), map(str, path.parent.glob('*.py')))}"
        ) from None
    for old in [p for p in loaded() if Path(p.path).resolve() == path.resolve() and p.text != text]:
        forget(old)
    return load_text(path.name, text, str(path))


def load_text(name: str, text: str, path: str | None = None) -> Plugin:
    """Load a plugin from its source, for example on another machine."""
    path = path or name
    stem = re.sub(r"\W", "_", name.removesuffix(".py"))
    plugin = Plugin(name, path, text, f"headway_plugin_{stem}_{hashlib.sha256(text.encode()).hexdigest()[:12]}")
    if plugin.module not in _loaded:
        _run(plugin)
        _loaded[plugin.module] = plugin
    return _loaded[plugin.module]


def _run(plugin: Plugin) -> None:
    module = types.ModuleType(plugin.module)
    module.__file__ = plugin.path
    sys.modules[plugin.module] = module  # needed to resolve the annotations of its classes
    lines = plugin.text.splitlines(keepends=True)
    linecache.cache[plugin.path] = (len(plugin.text), None, lines, plugin.path)
    try:
        exec(compile(plugin.text, plugin.path, "exec", dont_inherit=True), vars(module))
        _check(plugin, module)
    except BaseException as error:
        forget(plugin)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise UserError(_why(plugin, error)) from None


def forget(plugin: Plugin) -> None:
    """Unregister everything a plugin defined."""
    for registry in Registry.everywhere:
        registry.forget(plugin.module)
    sys.modules.pop(plugin.module, None)
    _loaded.pop(plugin.module, None)


@functools.cache
def load_installed() -> None:
    """Load the plugins of installed packages. A broken one is reported and skipped."""
    for entry in metadata.entry_points(group=GROUP):
        if entry.module in _loaded or entry.dist is None:
            continue
        name = f"{entry.dist.name}=={entry.dist.version}"
        try:
            found = entry.load()
        except Exception as error:
            print(f"skipping the plugin {name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        file = getattr(found, "__file__", None) or sys.modules[entry.module].__file__
        _loaded[entry.module] = Plugin(name, str(file), name, entry.module)


# --- mistakes --------------------------------------------------------------------------------------------------------


def _check(plugin: Plugin, module: types.ModuleType) -> None:
    """Check a plugin's classes on loading: used later, they would fail with messages that do not name this file."""
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == plugin.module]
    for cls in own:
        if not issubclass(cls, Variant) or is_slot(cls) or any(cls in c.__bases__ for c in own):
            continue
        slot = next(c for c in cls.__mro__ if is_slot(c))
        if "kind" not in inspect.get_annotations(cls):
            word = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()
            reason = f'{cls.__name__} is a {slot.__name__} without its own kind; add kind: Literal["{word}"] = "{word}"'
            raise UserError(f"{_place(plugin, cls)}: {reason}")
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            asked = ", ".join(f"{name}{_parameters(getattr(slot, name))}" for name in missing)
            raise UserError(f"{_place(plugin, cls)}: {cls.__name__} is a {slot.__name__}, but lacks {asked}")
        for name, method in vars(cls).items():
            _check_called(plugin, cls, name, method, getattr(slot, name, None))
    if not any(registry.of_module(plugin.module) for registry in Registry.everywhere):
        slots = ", ".join(sorted(slot.__name__ for slot in Variant.__subclasses__()))
        raise UserError(f"{plugin.path}: it defines nothing that Headway can use: no subclass of {slots}")


def _check_called(plugin: Plugin, cls: type, name: str, method: Any, asked: Any) -> None:
    if not inspect.isfunction(method) or not inspect.isfunction(asked) or name.startswith("_"):
        return
    try:
        inspect.signature(method).bind(*inspect.signature(asked).parameters)
    except TypeError:
        place = f"{plugin.path}:{method.__code__.co_firstlineno}"
        is_, should_be = _parameters(method), _parameters(asked)
        raise UserError(f"{place}: {cls.__name__}.{name}{is_} will be called as {name}{should_be}") from None


def _parameters(method: Any) -> str:
    if not inspect.isfunction(method):
        return ""
    return f"({', '.join(name for name in inspect.signature(method).parameters if name != 'self')})"


def _place(plugin: Plugin, cls: type) -> str:
    found = re.search(rf"^class {cls.__name__}\b", plugin.text, re.MULTILINE)
    return f"{plugin.path}:{plugin.text.count(chr(10), 0, found.start()) + 1}" if found else plugin.path


def _why(plugin: Plugin, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename == plugin.path:
        return f"{plugin.path}:{error.lineno}: {error.msg}"
    if isinstance(error, UserError) and not any(f.filename == plugin.path for f in _frames(error)):
        return str(error)  # from `_check`, and already has a line
    return blamed_on_plugin(error, [plugin]) or f"{plugin.path}: {_said(error)}"


def blamed_on_plugin(error: BaseException, among: Sequence[Plugin] | None = None) -> str | None:
    """An error inside a plugin, with the user's file and line; None if no plugin was involved."""
    among = loaded() if among is None else among
    paths = {plugin.path for plugin in among}
    if frame := next((f for f in reversed(_frames(error)) if f.filename in paths), None):
        return f"{frame.filename}:{frame.lineno}: {_said(error)}"
    for plugin in among:  # wrong arguments: the traceback ends before it enters the plugin
        for cls in vars(sys.modules[plugin.module]).values():
            if isinstance(cls, type) and plugin.brings(cls) and re.search(rf"\b{cls.__name__}\b", str(error)):
                return f"{_place(plugin, cls)}: {_said(error)}"
    return None


def reason_of(error: BaseException) -> str:
    """An error in one line, with the file and line of a plugin if one was involved."""
    if not isinstance(error, UserError) and (told := blamed_on_plugin(error)):
        return told
    if isinstance(error, OSError) and error.strerror:  # a full disk, for example: the class name would not help
        return error.strerror + (f" ({error.filename})" if error.filename else "")
    return _said(error)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def _said(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")


# --- what a recipe needs, and what a folder keeps --------------------------------------------------------------------


def used_by(*specs: Spec) -> list[Plugin]:
    """The plugins that define some part of these specs."""
    if not _loaded:
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
