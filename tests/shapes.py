"""Checks shape annotations at every call: jaxtyping's import hook with a faster decorator.

jaxtyping's own decorator binds the arguments by name and checks them twice, for better messages. With tensors as small
as those of the tests, that took half of all test time. Whether a call matches its annotations depends only on types,
dtypes and shapes, so a combination that passed once is not checked again."""

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable
from dataclasses import is_dataclass
from typing import Any

import jaxtyping
from beartype import beartype
from torch import Tensor
from torch.nn import Parameter

_theirs = jaxtyping.jaxtyped


def check_shapes_of(modules: list[str]) -> None:
    """Checks every function of these modules, if called before they are imported."""
    jaxtyping.jaxtyped = _checked
    jaxtyping.install_import_hook(modules, "beartype.beartype")


def _checked(thing: Any = None, **settings: Any) -> Any:
    if thing is None and settings:
        return functools.partial(_checked, **settings)
    if inspect.isclass(thing) and is_dataclass(thing) and "__init__" in vars(thing):
        thing.__init__ = _with_axes(thing.__init__)
    return _with_axes(thing) if inspect.isfunction(thing) else thing


def _with_axes(function: Callable) -> Callable:
    """The name of an axis means the same size in all arguments of a call and in its result."""
    if not any("jaxtyping" in str(annotation) for annotation in function.__annotations__.values()):
        # A nested function is created at every call of the outer one, and inspecting it takes longer than calling it.
        # Triton kernels are not called as functions: Triton reads their source and looks arguments up by name.
        is_kernel = any("constexpr" in str(annotation) for annotation in function.__annotations__.values())
        return function if is_kernel or "<locals>" in function.__qualname__ else beartype(function)
    checked = beartype(function)
    right: dict[Hashable, set[Hashable]] = {}
    """For each signature of the arguments, the signatures of the results that passed."""
    answers = []

    @beartype
    @functools.wraps(function)
    def answered(*arguments, **named):
        return answers.pop()

    @functools.wraps(function)
    def call(*arguments, **named):
        given = (_kinds(arguments), tuple(named), _kinds(named.values())) if named else _kinds(arguments)
        if given not in right:
            with _theirs("context"):
                answer = checked(*arguments, **named)
            right.setdefault(given, set()).add(_kind(answer))  # setdefault, because a recursive call may have added it
            return answer
        answer = function(*arguments, **named)
        if (returned := _kind(answer)) not in right[given]:
            answers.append(answer)
            with _theirs("context"):
                answered(*arguments, **named)
            right[given].add(returned)
        return answer

    return call


def _kinds(values: Iterable[Any]) -> tuple[Hashable, ...]:
    return tuple([_kind(value) for value in values])


def _kind(value: Any) -> Hashable:
    """Everything about a value that an annotation can check."""
    kind = type(value)
    if kind is Tensor or kind is Parameter:
        return value.dtype, value.shape
    if kind is str or kind is bool:
        return value
    if isinstance(value, tuple | list):
        return kind, _kinds(value)
    if isinstance(value, dict):
        return kind, tuple(value), _kinds(value.values())
    return (kind, value.dtype, tuple(value.shape)) if hasattr(value, "dtype") and hasattr(value, "shape") else kind
