"""What every part of a recipe has in common.

A *spec* is a small frozen description that stands beside the thing it describes and can build it. Variants of one idea
(position schemes, head fusions, optimizers …) are specs with different `kind`s: `variants.py`.
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
"""What 64 bits can count: nothing is so many, and much beneath would fail on the way."""
LARGEST_FLOAT = 3.4e38
"""What is computed with is float32."""


class Problem(NamedTuple):
    """One reason why a recipe cannot be run: the keys involved (as dotted paths) and a sentence."""

    keys: tuple[str, ...]
    reason: str


class Spec(BaseModel):
    """Frozen and strict: an unknown key or a value of another type is an error, and the docstring below a field
    is its documentation, in the code and on the command line alike."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    added: ClassVar[frozenset[str]] = frozenset()
    """Keys that came when there were recipes already. Left at their default they do not count in the hash of a recipe:
    the runs on people's disks still belong to theirs."""

    called_elsewhere: ClassVar[Mapping[str, str]] = {}
    """Of the whole tree: what people call a key who come from other tools, and what it is called here; `{value}` is
    what they gave. For hints; nothing is read under two names."""

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
            if kind is not None and isinstance(filled.get(name), list):  # one for each layer, for example
                filled[name] = [{"kind": kind, **one} if isinstance(one, dict) else one for one in filled[name]]
        return filled

    def problems(self) -> Iterator[Problem]:
        """Combinations that cannot work although each value alone is valid. Keys are relative to this spec."""
        yield from ()

    def all_problems(self, prefix: str = "") -> Iterator[Problem]:
        """The problems of this spec and of every spec inside it, with keys from the root."""
        too_large = [*self._numbers_too_large()]
        for problem in too_large or self.problems():  # what is no number to compute with is not computed with
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
                    yield Problem((name,), f"{one:.3g} is more than a number here can be; at most {most:.1e}")


@cache
def documentation(cls: type[Spec]) -> dict[str, str]:
    """Of each field the docstring below it, its own or that of the base it comes from. Read from the source when
    somebody asks: to read it as every class is made, as pydantic offers, takes a tenth of the start of a command."""
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
    except (OSError, TypeError, SyntaxError, KeyError):  # typed in somewhere, and written nowhere
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
    """By their full names. (`inspect.getsource` of a class would read the whole of its file, each time anew.)"""
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
                case _:  # an expression: no class is written in one
                    pass

    look(ast.parse(source), "")
    return found


def as_ever(spec: Spec, tree: dict[str, Any]) -> dict[str, Any]:
    """The tree of a spec without the keys that were added since and are not used."""
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
