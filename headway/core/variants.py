"""Extensible sets of variants (position schemes, mixers, audits …).

A recipe has *slots* (positions, head fusion, optimizer …), and each slot takes one of several *variants*, chosen by
`kind`. The slot is a class with the interface of its variants; a variant is a subclass with a kind:

    class PositionSpec(Variant):                        # the slot
        @abstractmethod
        def build(self, replicas: int, width: int, heads: int, context: int) -> Positions: ...

    class Alibi(PositionSpec):                          # a variant: defining the class registers it
        kind: Literal["alibi"] = "alibi"

A field `positions: PositionSpec = Learned()` then takes `alibi`, `{kind: rotary, base: 500}` or `Rotary(base=500)`.
Kinds are looked up when a recipe is read, so a user's own class works like a built-in one.
"""

import sys
import typing
from collections.abc import Iterator, Mapping
from inspect import get_annotations
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from headway.core.errors import UserError, did_you_mean
from headway.core.spec import Spec

T = TypeVar("T")


class _Entry(NamedTuple, Generic[T]):
    thing: T
    module: str
    place: str
    """Where it was defined, for messages: `my_attention.py:12`."""


class Registry(Mapping[str, T]):
    """Named things of one kind, in the order in which they were added."""

    everywhere: ClassVar[list["Registry[Any]"]] = []

    def __init__(self, what: str):
        Registry.everywhere.append(self)
        self.what = what  # in messages: "audit", "kind of PositionSpec"
        self._entries: dict[str, _Entry[T]] = {}

    def add(self, name: str, thing: T, module: str) -> T:
        """Add a thing. The same module may redefine a name (a notebook cell run again, a changed file); two modules
        with the same name are an error."""
        known, place = self._entries.get(name), _line_now_running(module)
        if known is not None and known.module != module:
            raise UserError(f"name clash: {self.what} '{name}' is defined in {known.place} and in {place}")
        self._entries[name] = _Entry(thing, module, place)
        return thing

    def find(self, name: str) -> T:
        if name not in self._entries:
            raise UserError(f"there is no {self.what} '{name}'{did_you_mean(name, list(self))}")
        return self[name]

    def of_module(self, module: str) -> list[str]:
        """The names that a module added."""
        return [name for name, entry in self._entries.items() if entry.module == module]

    def forget(self, module: str) -> None:
        """Remove everything that a module added."""
        self._entries = {name: entry for name, entry in self._entries.items() if entry.module != module}

    def __getitem__(self, name: str) -> T:
        return self._entries[name].thing

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def is_slot(cls: type) -> bool:
    """Whether a class is a slot, whose variants a recipe chooses from."""
    return "variants" in vars(cls)


def kinds(cls: type[Spec]) -> list[str]:
    """The names by which a recipe selects this class; none for a mere base class."""
    field = cls.model_fields.get("kind")
    if field is None or not isinstance(field.default, str):
        return []
    is_choice = typing.get_origin(field.annotation) is Literal
    return list(typing.get_args(field.annotation)) if is_choice else [field.default]


class Variant(Spec):
    """The base of all slots: a direct subclass is a slot, and classes below it that have a kind are its variants."""

    kind: Any
    """In every variant the name, or names, by which recipes select it: Literal["alibi"] = "alibi"."""
    variants: ClassVar[Registry[type[Spec]]]

    def __init_subclass__(cls, **_: Any) -> None:
        if not hasattr(cls, "variants"):
            cls.variants = Registry(f"{cls.__name__} of kind")

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        # A class that inherits its kind is not registered again: it can be used as a value, but not by name.
        for kind in kinds(cls) if "kind" in get_annotations(cls) else ():
            cls.variants.add(kind, cls, cls.__module__)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if not is_slot(cls):
            return handler(source)
        # `any`: the value in a slot is serialized by its own class, not by the slot's class.
        written = core_schema.simple_ser_schema("any")
        return core_schema.no_info_plain_validator_function(cls._chosen, serialization=written)

    @classmethod
    def _chosen(cls, given: Any) -> Spec:
        """Accepts `alibi` as short for `{kind: alibi}`."""
        if isinstance(given, cls):
            return given
        if isinstance(given, str):
            given = {"kind": given}
        if not isinstance(given, dict):
            raise PydanticKnownError("model_attributes_type")
        if "kind" not in given:
            raise PydanticCustomError("kind_missing", "its kind is missing", {"known": list(cls.variants)})
        kind = given["kind"]
        if not isinstance(kind, str) or kind not in cls.variants:
            context = {"kind": str(kind), "known": list(cls.variants)}
            raise PydanticCustomError("kind_unknown", "unknown kind '{kind}'", context)
        return cls.variants[kind].model_validate(given)


def _line_now_running(module: str) -> str:
    """The line of that module that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            file = Path(frame.f_code.co_filename)
            near = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
            return f"{near}:{frame.f_lineno}"
        frame = frame.f_back
    return module
