"""The base class of every part of a recipe.

A *spec* is a small frozen description of something that it can build. Variants of one idea (position schemes, head
fusions, optimizers …) are specs with different `kind`s: `variants.py`.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from inspect import get_annotations
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

LARGEST = 2**63 - 1
"""The largest 64-bit integer. A larger number in a recipe would fail somewhere later."""
LARGEST_FLOAT = 3.4e38
"""The largest number in a recipe: computations use float32."""


class Problem(NamedTuple):
    """One reason why a recipe cannot be run: the keys involved (as dotted paths) and a sentence."""

    keys: tuple[str, ...]
    reason: str


class Spec(BaseModel):
    """A frozen, strict description: unknown keys and values of the wrong type are errors. The docstring below a field
    is its documentation, in the code and on the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    added: ClassVar[frozenset[str]] = frozenset()
    """Keys added in later versions. At their default they do not count in a recipe's hash, so that existing runs still
    match their recipes."""

    called_elsewhere: ClassVar[Mapping[str, str]] = {}
    """For the whole tree: names of keys in other tools, and the name here; `{value}` stands for the given value. Used
    only for hints: each key has one name."""

    @model_validator(mode="before")
    @classmethod
    def _default_kinds(cls, given: Any) -> Any:
        """`optimizer: {learning_rate: 3e-4}` leaves the kind at its default."""
        if not isinstance(given, dict):
            return given
        filled = dict(given)
        for name, field in cls.model_fields.items():
            kind = getattr(field.default, "kind", None)
            if kind is not None and isinstance(filled.get(name), dict):
                filled[name] = {"kind": kind, **filled[name]}
            if kind is not None and isinstance(filled.get(name), list):  # for example one per layer
                filled[name] = [{"kind": kind, **one} if isinstance(one, dict) else one for one in filled[name]]
        return filled

    def problems(self) -> Iterator[Problem]:
        """Combinations that cannot work although each value is valid by itself. Keys are relative to this spec."""
        yield from ()

    def all_problems(self, prefix: str = "") -> Iterator[Problem]:
        """The problems of this spec and of all specs inside it, with keys from the root."""
        too_large = [*self._numbers_too_large()]
        for problem in too_large or self.problems():  # numbers that are too large are not used in further checks
            yield Problem(tuple(prefix + key for key in problem.keys), problem.reason)
        for name in type(self).model_fields:
            value: Any = getattr(self, name)
            if isinstance(value, Spec):
                yield from value.all_problems(f"{prefix}{name}.")
            for k, one in enumerate(value if isinstance(value, list) else []):
                if isinstance(one, Spec):
                    yield from one.all_problems(f"{prefix}{name}.{k}.")

    def _numbers_too_large(self) -> Iterator[Problem]:
        for name in type(self).model_fields:
            value = getattr(self, name)
            for one in value if isinstance(value, list) else [value]:
                most = LARGEST_FLOAT if isinstance(one, float) else LARGEST
                if isinstance(one, int | float) and abs(one) > most:
                    yield Problem((name,), f"{one:.3g} is too large; the limit is {most:.1e}")


@cache
def documentation(cls: type[Spec]) -> dict[str, str]:
    """The docstring below each field, its own or inherited. Read from the source when needed: collecting them when
    classes are created, as pydantic offers, takes a tenth of a command's startup."""
    found: dict[str, str] = {}
    for base in [one for one in reversed(cls.__mro__) if issubclass(one, Spec)]:
        below = _below_fields(base)
        for name in get_annotations(base).keys() & cls.model_fields.keys():
            found.pop(name, None)
            found |= {name: below[name]} if name in below else {}
    return found


def _below_fields(cls: type) -> dict[str, str]:
    try:
        written = _classes_in(inspect.getsource(sys.modules[cls.__module__]))[cls.__qualname__].body
    except (OSError, TypeError, SyntaxError, KeyError):  # entered interactively, without a source file
        return {}
    found: dict[str, str] = {}
    for field, text in pairwise(written):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as said)):
                found[name] = inspect.cleandoc(said)
            case _:
                pass
    return found


@lru_cache(maxsize=100)
def _classes_in(source: str) -> dict[str, ast.ClassDef]:
    """Class definitions by qualified name. (`inspect.getsource` of a class would parse the whole file every time.)"""
    found: dict[str, ast.ClassDef] = {}

    def look(node: ast.AST, above: str) -> None:
        for inner in ast.iter_child_nodes(node):
            match inner:
                case ast.ClassDef(name=name):
                    found[above + name] = inner
                    look(inner, f"{above}{name}.")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    look(inner, f"{above}{name}.<locals>.")
                case ast.stmt():
                    look(inner, above)
                case _:  # expressions contain no class definitions
                    pass

    look(ast.parse(source), "")
    return found


def as_ever(spec: Spec, tree: dict[str, Any]) -> dict[str, Any]:
    """The tree of a spec without later-added keys that are at their default."""
    kept = {}
    for name, value in tree.items():
        own, field = getattr(spec, name, None), type(spec).model_fields.get(name)
        if name in spec.added and field is not None and own == field.default:
            continue
        if isinstance(own, Spec) and isinstance(value, dict):
            value = as_ever(own, value)
        elif isinstance(own, list):
            value = [as_ever(one, v) if isinstance(one, Spec) else v for one, v in zip(own, value, strict=True)]
        kept[name] = value
    return kept


def _by_name(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


OR_BY_NAME = BeforeValidator(_by_name)
