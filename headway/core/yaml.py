"""YAML as recipes use it: plain values, and the line every key stands on.

Differs from PyYAML's defaults where those surprise people: `1e-3` is a number, `no` and `off` are words, and a key that
is given twice is an error.
"""

import json
import re
from typing import Any

import yaml

from headway.core.errors import UserError

Path = tuple[str, ...]
DEEPEST = 20  # no recipe goes as deep, but an alias of itself (`&a {b: *a}`) has no end
MOST_CHANGES_SAID = 5


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict = {}  # noqa: RUF012 (PyYAML's own way to be told)


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
    """The mapping a YAML text holds, and the line of every key in it."""
    try:
        node = yaml.compose(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{name}: not valid YAML: {_first_line(error)}") from None
    if node is None:
        return {}, {}
    lines: dict[Path, int] = {}
    tree = _value(node, (), name, lines)
    if not isinstance(tree, dict):
        raise UserError(f"{name}: expected keys and values, found {_kind(tree)}")
    return tree, lines


def read_value(text: str) -> Any:
    """One value, as it would be read after a colon in a file."""
    try:
        node = yaml.compose(text, _Loader)
    except yaml.YAMLError:
        return text  # a word that only looks like broken YAML
    return None if node is None else _value(node, (), "", {})


def write_value(value: Any) -> str:
    """A value as YAML reads it back: JSON, without quotes around words that need none."""
    if isinstance(value, list):
        return f"[{', '.join(map(write_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{write_value(key)}: {write_value(inner)}' for key, inner in value.items())}}}"
    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[A-Za-z]\w*([ .-]\w+)*", value) and read_value(value) == value:
        return value
    # What cannot be printed is escaped in YAML's way: JSON's has no letters beyond U+FFFF.
    shown = (c if c.isprintable() else f"\\U{ord(c):08x}" for c in value.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{"".join(shown)}"'


def write_tree(tree: dict[str, Any]) -> str:
    """As `read_tree` reads it back: what would look like a number or a truth to it is put in quotes."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=118)


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Every value of a tree by its dotted key."""
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    return {key: value for name, inner in tree.items() for key, value in flat(inner, f"{prefix}{name}.").items()}


def what_changed(was: dict[str, Any], now: dict[str, Any]) -> str:
    """`training.clip was 1.0 and is None, …`: of two flat trees, in words; empty where they are the same."""
    keys = sorted(key for key in {*was, *now} if was.get(key) != now.get(key))
    changes = ", ".join(f"{key} was {was.get(key)} and is {now.get(key)}" for key in keys[:MOST_CHANGES_SAID])
    return changes + (f" and {len(keys) - MOST_CHANGES_SAID} more" if len(keys) > MOST_CHANGES_SAID else "")


def _value(node: yaml.Node, path: Path, name: str, lines: dict[Path, int]) -> Any:
    if len(path) > DEEPEST:
        raise UserError(f"{name}:{node.start_mark.line + 1}: {path[0]} is nested more than {DEEPEST} levels deep")
    if isinstance(node, yaml.MappingNode):
        tree: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise UserError(f"{name}:{line}: a key must be a word, not a list or a mapping")
            key = str(key_node.value)
            if key in tree:
                raise UserError(f"{name}:{line}: {'.'.join((*path, key))} is given twice")
            lines[*path, key] = line
            tree[key] = _value(value_node, (*path, key), name, lines)
        return tree
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, str(k)), name, lines) for k, item in enumerate(node.value)]
    if node.tag == "tag:yaml.org,2002:float":
        special = node.value.lower().replace(".inf", "inf").replace(".nan", "nan")
        return float(special.replace("_", ""))
    if node.tag == "tag:yaml.org,2002:int":
        return int(node.value.replace("_", ""))
    if node.tag == "tag:yaml.org,2002:bool":
        return node.value.lower() == "true"
    return None if node.tag == "tag:yaml.org,2002:null" else str(node.value)


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"the single value {value!r}"


def _first_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return place + (getattr(error, "problem", None) or str(error).splitlines()[0])
