"""Faults for self-tests: what each breaks, which audit should catch it, and how it is planted and removed again.

    bed = Bed("positions", ATTENTION)                   # the faults of one file, and what they all need

    @bed.plant("order", positions("rotary"))
    def one_angle_for_all(patch):
        honest = RotaryPositions.rotate
        patch.setattr(RotaryPositions, "rotate", lambda self, x, at: honest(self, x, torch.ones_like(at)))

A fault is in one of four places: in Headway's own modules (`plant`), in a model that was built and trained (`spoil`),
in the recipe (`settings`), or in the data (`data`). Defining it registers it, in a user's own file as well: if you add
a mixer, a position scheme, a task or a kernel, add its faults. `headway audit RECIPE --self-test` plants all faults
whose needs the recipe meets, one after the other.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getattr_static
from typing import Any, Protocol

import numpy as np

from headway.core.variants import Registry
from headway.recipe.recipe import Recipe

Random = np.random.Generator


class Patch(Protocol):
    """Replaces attributes until it is undone; pytest's monkeypatch is one."""

    def setattr(self, target: Any, name: str, value: Any, /) -> Any: ...


@dataclass(frozen=True)
class Need:
    """A property that a recipe must have for a fault to show."""

    what: str
    """The property, as a phrase after "it needs": rotary positions."""
    is_met: Callable[[Recipe], bool]
    changes: tuple[str, ...] = ()
    """Changes that give a recipe this property."""


def _nothing(given: Any) -> None:
    """The default: change nothing."""


@dataclass(frozen=True)
class Fault:
    name: str
    caught_by: str
    """The audit that should catch it."""
    kind: str
    """Its group: leaks, scores …"""
    needs: tuple[Need, ...] = ()
    """Properties of a recipe without which the fault cannot show."""
    also: tuple[str, ...] = ()
    """Other audits that check the same thing, and may fail as well."""
    put: Callable[[Patch], None] = _nothing
    """Patches Headway's own modules."""
    spoil: Callable[[Any], None] = _nothing
    """Changes the model after it was built and trained."""
    recipe: tuple[str, ...] = ()
    """Changes of the recipe that are the fault."""
    of: type | None = None
    """For a fault of data, the type that the audits are given: `RowSet`, `TextSet` …"""
    data: Callable[[Any, Random], Any] | None = None
    """Returns such data with the fault; a pure function of the data and the random generator."""
    trains: bool = False
    """Whether it must be planted before training; others also show in a model that was trained without them."""

    @property
    def words(self) -> str:
        return self.name.replace("_", " ")

    @property
    def changes(self) -> tuple[str, ...]:
        """Changes that give a recipe everything the fault needs."""
        return tuple(change for need in self.needs for change in need.changes)

    def why_not(self, recipe: Recipe) -> str | None:
        """What is missing in this recipe for the fault to show, or None."""
        missing = [need.what for need in self.needs if not need.is_met(recipe)]
        return f"it needs {' and '.join(missing)}" if missing else None

    def into(self, clean: Any, seed: int = 0) -> Any:
        """The data with the fault."""
        assert self.data is not None, f"{self.name} is not a fault of data"
        return self.data(clean, np.random.default_rng(seed))


FAULTS: Registry[Fault] = Registry("fault")


class Bed:
    """The faults of one file, which share their kind and these needs."""

    def __init__(self, kind: str, *needs: Need) -> None:
        self.kind, self.needs = kind, needs
        self.faults: list[Fault] = []

    def add(self, name: str, caught_by: str, *needs: Need, module: str, **facts: Any) -> Fault:
        fault = Fault(name, caught_by, facts.pop("kind", self.kind), (*self.needs, *needs), **facts)
        assert all(fault.name != other.name for other in self.faults), f"two faults are called {name}"
        self.faults.append(FAULTS.add(name, fault, module))
        return fault

    def plant(self, caught_by: str, *needs: Need, **facts: Any):
        """Decorator of a function that patches modules; its name is the fault's."""

        def keep(put: Callable[[Patch], None]) -> Callable[[Patch], None]:
            self.add(put.__name__, caught_by, *needs, module=put.__module__, put=put, **facts)
            return put

        return keep

    def spoil(self, caught_by: str, *needs: Need, **facts: Any):
        """Decorator of a function that changes a model."""

        def keep(spoil: Callable[[Any], None]) -> Callable[[Any], None]:
            self.add(spoil.__name__, caught_by, *needs, module=spoil.__module__, spoil=spoil, **facts)
            return spoil

        return keep

    def settings(self, name: str, caught_by: str, *changes: str, needs: tuple[Need, ...] = (), **facts: Any) -> None:
        """Add a fault of the recipe itself."""
        self.add(name, caught_by, *needs, module=_asking(), recipe=changes, trains=True, **facts)

    def data(self, of: type, caught_by: str, name: str, change: Callable[[Any, Random], Any], *needs: Need) -> None:
        """Add a fault of this type of data."""
        self.add(name, caught_by, *needs, module=_asking(), of=of, data=change)


def _asking() -> str:
    """The name of the module that called the bed."""
    return sys._getframe(2).f_globals["__name__"]


class Patches:
    """Plain patches that can be undone."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def setattr(self, target: Any, name: str, value: Any, /) -> None:
        getattr_static(target, name)  # AttributeError if it has moved, since then the patch would have no effect
        self._before.append((target, name, vars(target).get(name, self)))
        setattr(target, name, value)

    def undo(self) -> None:
        while self._before:
            target, name, value = self._before.pop()
            if value is self:  # it was inherited from a base class
                delattr(target, name)
            else:
                setattr(target, name, value)


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Context manager: the fault is in the modules."""
    patches = Patches()
    try:
        fault.put(patches)
        yield
    finally:
        patches.undo()
