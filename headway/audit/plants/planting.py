"""A fault, the audit that is meant for it, and how it is put in and taken out again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol


class Patch(Protocol):
    """What puts something else in the place of an attribute, until it is undone; pytest's monkeypatch is one."""

    def setattr(self, target: Any, name: str, value: Any, /) -> Any: ...


@dataclass(frozen=True)
class Fault:
    name: str
    caught_by: str
    """The audit that is meant to see it."""
    also: tuple[str, ...]
    """Others that look at the same thing, and may fail as well."""
    put: Callable[[Patch], None]
    """Into Headway's own modules."""
    models: Literal["any", "language-model", "classifier"] = "any"
    changes: Sequence[str] = ()
    """To the recipe, under which it shows."""
    trains: bool = False
    """It must be there when training is; others are enough when scores are computed."""


class Patches:
    """Plain patches that can be undone."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def setattr(self, target: Any, name: str, value: Any, /) -> None:
        self._before.append((target, name, vars(target)[name]))
        setattr(target, name, value)

    def undo(self) -> None:
        while self._before:
            setattr(*self._before.pop())


@contextmanager
def planted(plant: Fault) -> Iterator[None]:
    """As long as this lasts, the fault is there."""
    patches = Patches()
    try:
        plant.put(patches)
        yield
    finally:
        patches.undo()


class Bed:
    """The plants of one file, in its order."""

    def __init__(self) -> None:
        self.plants: list[Fault] = []

    def plant(self, caught_by: str, *changes: str, also: tuple[str, ...] = (), **facts: Any):
        """Make a plant of a function, whose name is its name."""

        def keep(put: Callable[[Patch], None]) -> Callable[[Patch], None]:
            self.plants.append(Fault(put.__name__, caught_by, also, put, changes=changes, **facts))
            return put

        return keep
