"""Turns a tree of plain values into a spec, or into one message that lists everything wrong with it.

A validator stops checking a part once a piece of it is wrong. Here each wrong piece is recorded and removed, and the
rest is checked again, so that unknown keys, wrong types and impossible combinations are all reported at once.
"""

import copy
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headway.core.errors import UserError, did_you_mean
from headway.core.spec import Problem, Spec
from headway.core.variants import Variant, is_slot, kinds

S = TypeVar("S", bound=Spec)
Path = tuple[str, ...]


class ImpossibleError(UserError):
    """Each value is valid by itself, but they cannot be combined."""

    def __init__(self, problems: list[Problem]):
        super().__init__("\n".join(f"{', '.join(p.keys)}: {p.reason}" for p in problems))
        self.problems = problems


class InvalidError(UserError):
    """Everything that is wrong with one spec, one line per problem."""

    def __init__(self, title: str, complaints: dict[str, tuple[str, ...]]):
        count = "one thing is wrong" if len(complaints) == 1 else f"{len(complaints)} things are wrong"
        super().__init__(f"{title}: {count}\n" + "\n".join(f"  {c}" for c in complaints))
        self.complaints = complaints
        """Each line, with the keys it is about."""


def validated(cls: type[S], tree: dict[str, Any], title: str, place: Callable[[Path], str]) -> S:
    """Validate a tree. `place` says where a key was given: 'recipe.yaml:12', 'command line'; '' = unknown."""
    tree, complaints, left_out = copy.deepcopy(tree), {}, set()
    for _ in range(100):
        try:
            made = cls.model_validate(tree)
        except ImpossibleError as error:
            # A problem that involves a removed key is about its default, which the user did not choose.
            real = [p for p in error.problems if not any(_is_within(gone, key) for gone in left_out for key in p.keys)]
            complaints |= {_line(place, [tuple(key.split(".")) for key in p.keys], p.reason): p.keys for p in real}
            break
        except ValidationError as error:
            before = copy.deepcopy(tree)
            for detail in error.errors():
                path, value = _find(before, detail["loc"], detail["type"] == "missing")
                if ".".join(path) in left_out and detail["type"] == "missing":  # it was given, reported and removed
                    continue
                complaint = _line(place, [path], _reason(cls, before, path, value, detail))
                complaints[complaint] = (".".join(path),)
                left_out.add(".".join(path))
                _leave_out(tree, path)
            if tree == before:  # a missing key cannot be removed
                break
        else:
            if not complaints:
                return made
            break
    raise InvalidError(title, complaints)


def variants(cls: type[Spec], path: Sequence[str]) -> list[type[Spec]]:
    """The specs that may be at this path: several if a kind is chosen, none if there is no spec."""
    found = [cls]
    for part in path:
        if part.isdigit():  # an index into a list
            continue
        fields = [spec.model_fields[part].annotation for spec in found if part in spec.model_fields]
        found = list(dict.fromkeys(spec for annotation in fields for spec in _specs_in(annotation)))
    return found


def known_keys(cls: type[Spec], prefix: str = "") -> Iterator[str]:
    """Every dotted key that a recipe of this class may have, over all variants."""
    for name, field in cls.model_fields.items():
        written = prefix + (field.alias or name)
        yield written
        for inner in _specs_in(field.annotation):
            yield from known_keys(inner, f"{written}.")


def _is_within(path: str, key: str) -> bool:
    return path == key or path.startswith(f"{key}.")


def _line(place: Callable[[Path], str], paths: Sequence[Path], reason: str) -> str:
    places = ", ".join(dict.fromkeys(filter(None, map(place, paths))))
    return f"{places + ': ' if places else ''}{', '.join(map('.'.join, paths))}: {reason}"


def _reason(cls: type[Spec], tree: Any, path: Path, value: Any, detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(cls, tree, path, value)
    if kind in ("kind_unknown", "kind_missing"):
        return f"{detail['msg']}{did_you_mean(context.get('kind', ''), context['known'])}"
    if kind == "too_short":
        return f"expected at least {context['min_length']} of them, not {value!r}"
    if kind == "literal_error":
        choices = [c.strip("' ") for c in str(context["expected"]).replace(" or ", ", ").split(",")]
        return f"expected {context['expected']}, not {value!r}{_only_hint(str(value), choices)}"
    if kind == "missing":
        return "it is missing"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"expected keys and values, not {value!r}"
    text = detail["msg"].removeprefix("Input should be ")
    if text == detail["msg"]:
        text = text[0].lower() + text[1:]
    else:
        text = f"expected {'a number ' if text.startswith(('greater', 'less')) else ''}{text}"
    return f"{text}, not {value!r}" if not text.endswith("?") else text


def called_elsewhere(cls: type[Spec], key: str, value: Any = None) -> str | None:
    """Headway's name for a key of another tool: `n_layer` → `model.layers`."""
    name = key.rsplit(".", 1)[-1].lower().replace("-", "_")
    found = cls.called_elsewhere.get(name)
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 10
    return None if found is None else found.replace("{value}", str(number))


def _unknown(cls: type[Spec], tree: Any, path: Path, value: Any) -> str:
    """The reason for an unknown key: it is a setting of another variant, misspelt, at the wrong place, or another
    tool's name."""
    keys, (*parents, name) = list(known_keys(cls)), path
    ours = called_elsewhere(cls, name, value)
    variants, default = [cls], None
    for part in parents:
        tree = tree[int(part)] if isinstance(tree, list) else tree[part]
        if (field := cls.model_fields.get(part)) is not None:  # otherwise a name or list index chosen by the user
            variants, default = list(_specs_in(field.annotation)), getattr(field.default, "kind", None)
        if not isinstance(tree, dict):
            continue
        kind = tree.get("kind", default)
        cls = next((v for v in variants if kind in kinds(v)), variants[0])
    if owners := list(dict.fromkeys(kind for v in variants for kind in kinds(v) if name in v.model_fields)):
        return f"{tree.get('kind', default)} has no such setting; {', '.join(owners)} {_has(owners)}"
    if ours is not None:
        return f"unknown key; did you mean '{ours}'?"
    hint = did_you_mean(name, [field.alias or own for own, field in cls.model_fields.items()])
    elsewhere = [k for k in keys if k.rsplit(".", 1)[-1] == name]
    if elsewhere and "did you mean" not in hint:
        hint = f"; did you mean '{elsewhere[0]}'?"
    return f"unknown key{hint}"


def _has(owners: list[str]) -> str:
    return "has" if len(owners) == 1 else "have"


def _only_hint(given: str, known: list[str]) -> str:
    hint = did_you_mean(given, known)
    return hint if "did you mean" in hint else ""


def _find(tree: Any, location: tuple[int | str, ...], is_missing: bool) -> tuple[Path, Any]:
    """The path as the user wrote it. Pydantic's locations also name the chosen variant of a union."""
    path: list[str] = []
    node: Any = tree
    for part in location:
        if isinstance(node, dict | list) and (part in node if isinstance(node, dict) else isinstance(part, int)):
            node = node[part]  # pyright: ignore
            path.append(str(part))
        elif is_missing and part == location[-1] and isinstance(node, dict) and isinstance(part, str):
            return (*path, part), None  # the missing key
    return tuple(path), node


def _leave_out(tree: dict[str, Any], path: Path) -> None:
    node = tree
    for depth, part in enumerate(path[:-1], 1):
        inner = node.get(part)
        if isinstance(inner, list):  # a list is removed as a whole
            path = path[:depth]
            break
        if not isinstance(inner, dict):  # removed already
            return
        node = inner
    if path:
        node.pop(path[-1], None)


_HOLDING_OTHERS = (typing.Union, typing.Annotated, list, dict)


def _specs_in(annotation: Any) -> Iterator[type[Spec]]:
    if isinstance(annotation, type) and issubclass(annotation, Variant) and is_slot(annotation):
        yield from dict.fromkeys(annotation.variants.values())
    elif isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
    elif isinstance(annotation, types.UnionType) or typing.get_origin(annotation) in _HOLDING_OTHERS:
        for inner in typing.get_args(annotation):
            yield from _specs_in(inner)
