"""A recipe as a form: every key with its meaning, its possible values, and its current value.

The form is generated from the spec classes (choices, ranges and docstrings) and from a tree of plain values. The tree
need not be a valid recipe: while somebody types, it is invalid most of the time, and the form remains. Errors are
reported by the same code as on the command line.
"""

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headway.core.errors import UserError
from headway.core.spec import Spec, documentation
from headway.core.variants import Variant, is_slot
from headway.core.yaml import read_value, write_value

NAMES: Mapping[Any, str] = {bool: "truth", int: "whole", float: "number", str: "text"}
"""The input for each plain type; other types are entered as in a recipe."""
ENDS = ((Ge, "ge", "least"), (Gt, "gt", "above"), (Le, "le", "most"), (Lt, "lt", "below"))


def fields_of(cls: type[Spec], tree: Mapping[str, Any], was: Mapping[str, Any], prefix: str = "") -> list[dict]:
    """The form fields of a spec class. `tree`: the given values; `was`: those of the original."""
    found, means = [], documentation(cls)
    for name, field in sorted(cls.model_fields.items(), key=lambda item: item[0] != "kind"):
        written = field.alias or name
        if name == "kind" and issubclass(cls, Variant):  # chosen by the field that contains the variant
            continue
        value, before = tree.get(written, _default(field)), was.get(written, _default(field))
        found.append(_field(field, f"{prefix}{written}", written, _one_line(means.get(name)), value, before))
    return found


def _field(field: FieldInfo, key: str, name: str, meaning: str, value: Any, before: Any) -> dict[str, Any]:
    options, nullable = _options(field.annotation)
    made: dict[str, Any] = {"key": key, "name": name, "meaning": meaning, "nullable": nullable}
    made |= {"value": typed(value), "was": typed(before)}
    slots = [one for one in options if isinstance(one, type) and issubclass(one, Variant) and is_slot(one)]
    if slots and not isinstance(value, list):
        return made | _variant(slots[0], key, value, before)
    first = options[0] if options else str
    if isinstance(first, type) and issubclass(first, Spec) and not isinstance(value, list):
        inner = fields_of(first, _mapping(value), _mapping(before), f"{key}.")
        return made | {"kind": "part", "fields": inner, "meaning": made["meaning"] or _one_line(first.__doc__)}
    if len(options) == 1 and typing.get_origin(first) is Literal:
        return made | {"kind": "choice", "choices": [typed(one) for one in typing.get_args(first)]}
    if len(options) == 1 and first in NAMES:
        return made | {"kind": NAMES[first], **dict(_range(field))}
    return made | {"kind": "written"}


def _variant(slot: type[Variant], key: str, value: Any, before: Any) -> dict[str, Any]:
    """A choice of kinds, each with its own settings."""
    tree, was = (_mapping({"kind": one} if isinstance(one, str) else one) for one in (value, before))
    kind = tree.get("kind")
    chosen = slot.variants.get(kind) if isinstance(kind, str) else None
    same = tree.get("kind") == was.get("kind")
    return {
        "kind": "variant",
        "choices": [{"kind": k, "meaning": _one_line(cls.__doc__)} for k, cls in slot.variants.items()],
        "value": kind,
        "was": was.get("kind"),
        "about": _one_line(chosen.__doc__) if chosen else "",
        "fields": fields_of(chosen, tree, was if same else {}, f"{key}.") if chosen else [],
    }


def _options(annotation: Any) -> tuple[list[Any], bool]:
    """The possible types, and whether null is allowed."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _options(typing.get_args(annotation)[0])
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        inner = [_options(one) for one in typing.get_args(annotation)]
        return [one for options, _ in inner for one in options], any(null for _, null in inner)
    return ([], True) if annotation in (None, type(None)) else ([annotation], False)


def _range(field: FieldInfo) -> Iterator[tuple[str, Any]]:
    """The limits of a number: `least` and `most` are allowed themselves, `above` and `below` are not."""
    names: Sequence[tuple[Any, str, str]] = (
        (Ge, "ge", "least"),
        (Gt, "gt", "above"),
        (Le, "le", "most"),
        (Lt, "lt", "below"),
    )
    for one in field.metadata:
        for cls, attribute, name in names:
            if isinstance(one, cls):
                yield name, getattr(one, attribute)


def _default(field: FieldInfo) -> Any:
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, Spec):
        return default.model_dump(mode="json", by_alias=True)
    if isinstance(default, list):
        return [one.model_dump(mode="json") if isinstance(one, Spec) else one for one in default]
    if default is PydanticUndefined:
        return None
    return default if isinstance(default, str | int | float | bool | dict | None) else str(default)


def typed(value: Any) -> str:
    """A value as it is typed on the command line: quoted only if it would be read as something else otherwise."""
    if isinstance(value, str) and value.strip() == value and value:
        try:
            if read_value(value) == value:
                return value
        except UserError:
            pass
    return write_value(value)


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
