"""The shapes written in annotations, checked at every call: jaxtyping's import hook with a lighter decorator.

Its own decorator binds the arguments by name and checks them twice, for better messages; on tensors as small as those
of the tests that took half of all their time."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import beartype

_theirs = jaxtyping.jaxtyped


def check_shapes_of(modules: list[str]) -> None:
    """Of every function in these modules, from when they are imported."""
    jaxtyping.jaxtyped = _checked
    jaxtyping.install_import_hook(modules, "beartype.beartype")


def _checked(thing: Any = None, **settings: Any) -> Any:
    if thing is None and settings:
        return functools.partial(_checked, **settings)
    return _with_axes(thing) if inspect.isfunction(thing) else _theirs(thing, **settings)


def _with_axes(function: Callable) -> Callable:
    """The names of axes mean the same in all arguments of one call and in what it returns."""
    checked = beartype(function)
    if not any("jaxtyping" in str(annotation) for annotation in function.__annotations__.values()):
        return checked

    @functools.wraps(function)
    def call(*arguments, **named):
        with _theirs("context"):
            return checked(*arguments, **named)

    return call
