"""Reads and writes YAML for recipes: plain values, with the line number of every key.

It differs from PyYAML's defaults where those are surprising: `1e-3` is a number, `no` and `off` are strings, and a
duplicate key is an error. The text may come from anybody, so its length, its nesting depth and its size with aliases
expanded are limited, and the limits are checked before anything grows.
"""

import json
import re
from functools import lru_cache
from typing import Any

import yaml

from headway.core.errors import UserError

Path = tuple[str, ...]
MAX_DEPTH = 20  # deeper than any recipe; an alias of itself (`&a {b: *a}`) would never end
MAX_CHARACTERS = 1_000_000  # characters
MAX_VALUES = 20_000  # with aliases expanded: ten lines of them can stand for billions of values
MAX_DIGITS = 100
MAX_CHANGES_SHOWN = 5


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict = {}  # noqa: RUF012 (PyYAML's own interface)
    depth = nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Limit the depth: PyYAML recurses once per level, and must stop before Python's stack overflows."""
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        if self.depth > MAX_DEPTH + 1:
            raise _too_deep(self.peek_event().start_mark)
        if self.nodes > 2 * MAX_VALUES:  # keys are nodes too
            raise _too_many(self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^(?:[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.?(?:inf|Inf)|\.?(?:nan|NaN))$"),
    list("-+0123456789.niIN"),
)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict = _Loader.yaml_implicit_resolvers


def read_tree(text: str, name: str) -> tuple[dict[str, Any], dict[Path, int]]:
    """Read the mapping in a YAML text, and the line of every key in it."""
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"{name}: it has {len(text):,} characters, more than the limit of {MAX_CHARACTERS:,}")
    try:
        node = yaml.compose(text, _Loader)
    except _RefusedError as error:
        raise UserError(f"{name}:{error.line}: {error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{name}: not valid YAML: {_first_line(error)}") from None
    if node is None:
        return {}, {}
    reading = _Reading()
    try:
        tree = reading.value(node, ())
    except _RefusedError as error:
        raise UserError(f"{name}:{error.line}: {error}") from None
    lines = reading.lines
    if not isinstance(tree, dict):
        raise UserError(f"{name}: expected keys and values, found {_kind(tree)}")
    return tree, lines


def read_value(text: str) -> Any:
    """Read one value as if it followed a colon in a file."""
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"a value has {len(text):,} characters, more than the limit of {MAX_CHARACTERS:,}")
    try:
        node = yaml.compose(text, _Loader)
        return None if node is None else _Reading().value(node, ())
    except _RefusedError as error:
        shown = text if len(text) <= 40 else f"{text[:39]}…"
        raise UserError(f"{shown}: {error}") from None
    except yaml.YAMLError:
        return text  # a string that only looks like broken YAML


def write_value(value: Any) -> str:
    """Write a value so that YAML reads it back: JSON, without quotes around plain words."""
    if isinstance(value, list):
        return f"[{', '.join(map(write_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{write_value(key)}: {write_value(inner)}' for key, inner in value.items())}}}"
    if not isinstance(value, str):
        return json.dumps(value)
    if _is_a_word(value):
        return value
    # Unprintable characters are escaped in YAML's way: JSON's escapes end at U+FFFF.
    shown = (c if c.isprintable() else f"\\U{ord(c):08x}" for c in value.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{"".join(shown)}"'


@lru_cache(maxsize=1000)
def _is_a_word(text: str) -> bool:
    """Whether a string needs no quotes. Cached, since the recipes of a population contain the same words."""
    return bool(re.fullmatch(r"[A-Za-z]\w*([ .-]\w+)*", text)) and read_value(text) == text


def write_tree(tree: dict[str, Any]) -> str:
    """Write a tree so that `read_tree` reads it back: strings that look like numbers or booleans are quoted."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=118)


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Every value of a tree by its dotted key."""
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    return {key: value for name, inner in tree.items() for key, value in flat(inner, f"{prefix}{name}.").items()}


def what_changed(was: dict[str, Any], now: dict[str, Any]) -> str:
    """The differences of two flat trees: `training.clip was 1.0 and is None, …`; empty if they are the same."""
    keys = sorted(key for key in {*was, *now} if was.get(key) != now.get(key))
    changes = ", ".join(f"{key} was {was.get(key)} and is {now.get(key)}" for key in keys[:MAX_CHANGES_SHOWN])
    return changes + (f" and {len(keys) - MAX_CHANGES_SHOWN} more" if len(keys) > MAX_CHANGES_SHOWN else "")


class _RefusedError(UserError):
    """Valid YAML that is not accepted; the caller knows the file's name and adds it to the line."""

    def __init__(self, reason: str, mark: yaml.Mark):
        super().__init__(reason)
        self.line = mark.line + 1


def _too_deep(mark: yaml.Mark) -> _RefusedError:
    return _RefusedError(f"values are nested more than {MAX_DEPTH} levels deep", mark)


def _too_many(mark: yaml.Mark) -> _RefusedError:
    return _RefusedError(f"with its aliases expanded, this is more than {MAX_VALUES:,} values", mark)


class _Reading:
    """Turns nodes into plain values and counts them; an alias counts wherever it is used."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self.values = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.values += 1
        if len(path) > MAX_DEPTH:
            raise _too_deep(node.start_mark)
        if self.values > MAX_VALUES:
            raise _too_many(node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, str(k))) for k, item in enumerate(node.value)]
        return _scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _RefusedError("a key must be a word, not a list or a mapping", key_node.start_mark)
            key = str(key_node.value)
            if key in tree:
                raise _RefusedError(f"{'.'.join((*path, key))} is given twice", key_node.start_mark)
            self.lines[*path, key] = key_node.start_mark.line + 1
            tree[key] = self.value(value_node, (*path, key))
        return tree


def _scalar(node: yaml.Node) -> Any:
    kind, text = node.tag.removeprefix("tag:yaml.org,2002:"), str(node.value)
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "int" and len(text.lstrip("+-")) > MAX_DIGITS:
        raise _RefusedError(f"a number with {len(text):,} digits is too long", node.start_mark)
    try:
        if kind == "int":
            return int(text.replace("_", ""))
        if kind == "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan").replace("_", ""))
    except ValueError:  # an explicit tag: !!int three
        raise _RefusedError(f"'{text}' is not of type {kind}", node.start_mark) from None
    return text


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"the single value {value!r}"


def _first_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return place + (getattr(error, "problem", None) or str(error).splitlines()[0])
