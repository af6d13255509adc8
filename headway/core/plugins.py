"""Plugins: Python files with a user's own position scheme, mixer, optimizer, audit …, without a fork.

`--with my_attention.py`, `plugins: [my_attention.py]` in a recipe or study, or `headway.load_plugin("my_attention.py")`
runs the file; its variants can then be used like built-in ones (`variants.py`). Installed packages offer theirs through
the entry point group `headway.plugins`.

An error in the file is reported as one message with its line. Which plugins a recipe uses, and whether code found in a
folder may run, is decided in `recipe/plugins.py`.
"""

import functools
import hashlib
import inspect
import linecache
import re
import sys
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from headway.core.errors import UserError, did_you_mean
from headway.core.reading import read_text
from headway.core.variants import Registry, Variant, is_slot

GROUP = "headway.plugins"


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


def loaded() -> list[Plugin]:
    return list(_loaded.values())


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
