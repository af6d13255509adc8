"""Files of the user's own: a position scheme, a mixer, an optimizer, an audit … without a fork.

`--with my_attention.py`, `plugins: [my_attention.py]` in a recipe or study, or `headway.load_plugin("my_attention.py")`
runs the file, and the variants in it are known like those of the house (`variants.py`). Installed packages offer
theirs by the entry point group `headway.plugins`.

A mistake in the file is one message with its line. What a run needs is kept in its folder, and counts in the recipe's
hash. Code that lies in a run or study folder is somebody's program: it is never run unless the user says so.
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
    """The file's name; of a package `name==version`."""
    path: str
    """Where it was read, for messages."""
    text: str
    """All of it; of a package its name and version again."""
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
    """What a command is to know: these files, and whether it may run those that lie in the folders it opens."""
    global _trusting
    _trusting = trust
    for file in files:
        load_plugin(file)


# --- loading ---------------------------------------------------------------------------------------------------------


def load_plugin(file: str | Path) -> Plugin:
    """Run a file, so that what is in it is known. One that was changed is run anew, and takes the old one's place."""
    path = Path(file)
    if path.suffix != ".py":
        raise UserError(f"{file}: a plugin is a Python file, and its name ends in .py")
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
    """The same of a file that lies on another machine, or nowhere."""
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
    sys.modules[plugin.module] = module  # where classes are looked for by whoever wants to know their annotations
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
    """As if it had never been read."""
    for registry in Registry.everywhere:
        registry.forget(plugin.module)
    sys.modules.pop(plugin.module, None)
    _loaded.pop(plugin.module, None)


@functools.cache
def load_installed() -> None:
    """What packages offer. One that is broken is named, and keeps nobody from working with the others."""
    for entry in metadata.entry_points(group=GROUP):
        if entry.module in _loaded or entry.dist is None:
            continue
        name = f"{entry.dist.name}=={entry.dist.version}"
        try:
            found = entry.load()
        except Exception as error:
            print(f"passing over the plugin {name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        file = getattr(found, "__file__", None) or sys.modules[entry.module].__file__
        _loaded[entry.module] = Plugin(name, str(file), name, entry.module)


# --- mistakes --------------------------------------------------------------------------------------------------------


def _check(plugin: Plugin, module: types.ModuleType) -> None:
    """What would else come out when somebody uses it, in words that are not about this file."""
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == plugin.module]
    for cls in own:
        if not issubclass(cls, Variant) or is_slot(cls) or any(cls in c.__bases__ for c in own):
            continue
        slot = next(c for c in cls.__mro__ if is_slot(c))
        if "kind" not in inspect.get_annotations(cls):
            word = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()
            reason = (
                f'{cls.__name__} is a {slot.__name__} without a kind of its own: kind: Literal["{word}"] = "{word}"'
            )
            raise UserError(f"{_place(plugin, cls)}: {reason}")
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            asked = ", ".join(f"{name}{_parameters(getattr(slot, name))}" for name in missing)
            raise UserError(f"{_place(plugin, cls)}: {cls.__name__} is a {slot.__name__}, and lacks {asked}")
        for name, method in vars(cls).items():
            _check_called(plugin, cls, name, method, getattr(slot, name, None))
    if not any(registry.of_module(plugin.module) for registry in Registry.everywhere):
        slots = ", ".join(sorted(slot.__name__ for slot in Variant.__subclasses__()))
        raise UserError(f"{plugin.path}: there is nothing in it that Headway could use: no subclass of {slots}")


def _check_called(plugin: Plugin, cls: type, name: str, method: Any, asked: Any) -> None:
    if not inspect.isfunction(method) or not inspect.isfunction(asked) or name.startswith("_"):
        return
    try:
        inspect.signature(method).bind(*inspect.signature(asked).parameters)
    except TypeError:
        place = f"{plugin.path}:{method.__code__.co_firstlineno}"
        is_, should_be = _parameters(method), _parameters(asked)
        raise UserError(f"{place}: {cls.__name__}.{name}{is_} is called as {name}{should_be}") from None


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
        return str(error)  # from `_check`, with its place
    return blamed_on_plugin(error, [plugin]) or f"{plugin.path}: {_said(error)}"


def blamed_on_plugin(error: BaseException, among: Sequence[Plugin] | None = None) -> str | None:
    """What went wrong inside a plugin, with the user's file and line; None where no plugin had a part in it."""
    among = loaded() if among is None else among
    paths = {plugin.path for plugin in among}
    if frame := next((f for f in reversed(_frames(error)) if f.filename in paths), None):
        return f"{frame.filename}:{frame.lineno}: {_said(error)}"
    for plugin in among:  # called with arguments that it does not take: there the traceback ends before it
        for cls in vars(sys.modules[plugin.module]).values():
            if isinstance(cls, type) and plugin.brings(cls) and re.search(rf"\b{cls.__name__}\b", str(error)):
                return f"{_place(plugin, cls)}: {_said(error)}"
    return None


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line; with the file and line of a plugin, where one had a part in it."""
    if not isinstance(error, UserError) and (told := blamed_on_plugin(error)):
        return told
    if isinstance(error, OSError) and error.strerror:  # a full disk is nobody's mistake, and needs no name of a class
        return error.strerror + (f" ({error.filename})" if error.filename else "")
    return _said(error)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def _said(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")


# --- what a recipe needs, and what a folder keeps --------------------------------------------------------------------


def used_by(*specs: Spec) -> list[Plugin]:
    """The plugins that some part of these comes from."""
    if not _loaded:
        return []
    classes = {cls for spec in specs for part in _parts(spec) for cls in type(part).__mro__}
    return [plugin for plugin in loaded() if any(map(plugin.brings, classes))]


def concerning(*specs: Spec) -> list[Plugin]:
    """Those, and those with audits and metrics, which look at whatever is trained."""
    variants = [slot.variants for slot in Variant.__subclasses__()]
    looking = [r for r in Registry.everywhere if not any(r is known for known in variants)]
    used = used_by(*specs)
    return [p for p in loaded() if p in used or any(registry.of_module(p.module) for registry in looking)]


def texts_for(*specs: Spec) -> dict[str, str]:
    """What another process must be told to know what we know of these: files, by their names. Packages it finds for
    itself, where they are installed."""
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
    """Keep these files in a folder, whole. Gives what its YAML is to name them as."""
    kept = list(plugins)
    for plugin in kept:
        if plugin.is_file:
            check_own(folder / FOLDER)
            (folder / FOLDER).mkdir(exist_ok=True)
            write_whole(folder / FOLDER / plugin.name, plugin.text)
    return named_in_folders(kept)


def named_in_folders(plugins: Iterable[Plugin]) -> list[str]:
    """What the YAML of a folder that keeps them names them as."""
    return [f"{FOLDER}/{plugin.name}" if plugin.is_file else plugin.name for plugin in plugins]


def changed_since(folder: Path, plugins: Iterable[Plugin]) -> str:
    """Which of these are not what the folder keeps; empty if none is."""
    for plugin in plugins:
        kept = folder / FOLDER / plugin.name
        if plugin.is_file and kept.is_file() and read_text(kept) != plugin.text:
            return f"{plugin.path} is not what it was: {kept}"
    return ""


def load_named(tree: dict[str, Any], folder: Path, title: str, is_asked: bool) -> None:
    """Take `plugins: […]` out of what a YAML file holds, and see that they are known. Files are looked for in its
    folder; `is_asked` = the user wrote this YAML, or it is as if: the files may be run."""
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
                read_sealed(folder / name, folder)  # what is trusted is what was written
            load_plugin(folder / name)


def _is_given(file: Path) -> bool:
    """Run already, or the user has given another version, which is what counts then."""
    text = read_text(file) if file.is_file() else None
    if any(plugin.text == text for plugin in loaded()):
        return True
    given = next((plugin for plugin in loaded() if plugin.name == file.name), None)
    if given is not None and text is not None:
        print(f"warning: {given.path} takes the place of {file}, which is not the same", file=sys.stderr)
    return given is not None


def _not_run(file: Path, title: str) -> str:
    lines = len(read_text(file).splitlines()) if file.is_file() else 0
    return (
        f"{title} needs code that lies in the folder, {file} ({lines} lines), and code that comes with a folder is not "
        f"run unasked; if you know what it does: --with {file}, or --trust for all that lies there"
    )


def _check_installed(name: str, title: str) -> None:
    wanted = name.partition("==")[0]
    there = [plugin.name for plugin in loaded() if not plugin.is_file]
    if name in there:
        return
    if wanted not in [one.partition("==")[0] for one in there]:
        raise UserError(
            f"{title} needs the package {name}: it is not installed, or offers no plugin; pip install {name}"
        )
    print(f"warning: {title} was made with {name}, and installed is {', '.join(there)}", file=sys.stderr)
