"""A fault, the audit that is meant for it, and how it is put in and taken out again.

    bed = Bed("positions", ATTENTION)                   # the faults of one file, and what they all need

    @bed.plant("order", positions("rotary"))
    def one_angle_for_all(patch):
        honest = RotaryPositions.rotate
        patch.setattr(RotaryPositions, "rotate", lambda self, x, at: honest(self, x, torch.ones_like(at)))

A fault lies in one of four places: in Headway's own modules (`plant`), in a model that was built and trained (`spoil`),
in the recipe (`settings`), or in the data (`data`). Written down, it is known, also where the file is a user's own: who
adds a mixer, a position scheme, a task or a kernel adds its faults. `headway audit RECIPE --self-test` puts them into a
recipe, one after the other, as far as the recipe has what they need.
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
    """What puts something else in the place of an attribute, until it is undone; pytest's monkeypatch is one."""

    def setattr(self, target: Any, name: str, value: Any, /) -> Any: ...


@dataclass(frozen=True)
class Need:
    """Something that a recipe must have for a fault to show in it."""

    what: str
    """In words, after "it needs": rotary positions."""
    is_met: Callable[[Recipe], bool]
    changes: tuple[str, ...] = ()
    """To a recipe that has it not."""


def _nothing(given: Any) -> None:
    """Is changed."""


@dataclass(frozen=True)
class Fault:
    name: str
    caught_by: str
    """The audit that is meant to see it."""
    kind: str
    """Of which it is one: leaks, scores …"""
    needs: tuple[Need, ...] = ()
    """Without which it cannot show."""
    also: tuple[str, ...] = ()
    """Other audits that look at the same thing, and may fail as well."""
    put: Callable[[Patch], None] = _nothing
    """Into Headway's own modules."""
    spoil: Callable[[Any], None] = _nothing
    """The model, after it was built and trained."""
    recipe: tuple[str, ...] = ()
    """Changes that are the fault."""
    of: type | None = None
    """What data it lies in, as audits see them: `RowSet`, `TextSet` …"""
    data: Callable[[Any, Random], Any] | None = None
    """Such data with the fault in them; a pure function of them and of random numbers."""
    trains: bool = False
    """It must be there when training is; of others a model that was trained without them can tell."""

    @property
    def words(self) -> str:
        return self.name.replace("_", " ")

    @property
    def changes(self) -> tuple[str, ...]:
        """To a recipe that has nothing of what the fault needs."""
        return tuple(change for need in self.needs for change in need.changes)

    def why_not(self, recipe: Recipe) -> str | None:
        """What is missing for it to show in this recipe, or None."""
        missing = [need.what for need in self.needs if not need.is_met(recipe)]
        return f"it needs {' and '.join(missing)}" if missing else None

    def into(self, clean: Any, seed: int = 0) -> Any:
        """Data with the fault in them."""
        assert self.data is not None, f"{self.name} is no fault of data"
        return self.data(clean, np.random.default_rng(seed))


FAULTS: Registry[Fault] = Registry("fault")


class Bed:
    """The faults of one file: all of one kind, and all with these needs."""

    def __init__(self, kind: str, *needs: Need) -> None:
        self.kind, self.needs = kind, needs
        self.faults: list[Fault] = []

    def add(self, name: str, caught_by: str, *needs: Need, module: str, **facts: Any) -> Fault:
        fault = Fault(name, caught_by, facts.pop("kind", self.kind), (*self.needs, *needs), **facts)
        assert all(fault.name != other.name for other in self.faults), f"two faults are called {name}"
        self.faults.append(FAULTS.add(name, fault, module))
        return fault

    def plant(self, caught_by: str, *needs: Need, **facts: Any):
        """A function that patches modules; its name is the fault's."""

        def keep(put: Callable[[Patch], None]) -> Callable[[Patch], None]:
            self.add(put.__name__, caught_by, *needs, module=put.__module__, put=put, **facts)
            return put

        return keep

    def spoil(self, caught_by: str, *needs: Need, **facts: Any):
        """A function that changes a model."""

        def keep(spoil: Callable[[Any], None]) -> Callable[[Any], None]:
            self.add(spoil.__name__, caught_by, *needs, module=spoil.__module__, spoil=spoil, **facts)
            return spoil

        return keep

    def settings(self, name: str, caught_by: str, *changes: str, needs: tuple[Need, ...] = (), **facts: Any) -> None:
        """A fault of the recipe itself."""
        self.add(name, caught_by, *needs, module=_asking(), recipe=changes, trains=True, **facts)

    def data(self, of: type, caught_by: str, name: str, change: Callable[[Any, Random], Any], *needs: Need) -> None:
        """A fault of such data."""
        self.add(name, caught_by, *needs, module=_asking(), of=of, data=change)


def _asking() -> str:
    """The module that a bed was asked by."""
    return sys._getframe(2).f_globals["__name__"]


class Patches:
    """Plain patches that can be undone."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def setattr(self, target: Any, name: str, value: Any, /) -> None:
        getattr_static(target, name)  # AttributeError: it has moved, and in this place nothing would be planted
        self._before.append((target, name, vars(target).get(name, self)))
        setattr(target, name, value)

    def undo(self) -> None:
        while self._before:
            target, name, value = self._before.pop()
            if value is self:  # it was somebody else's: a base's
                delattr(target, name)
            else:
                setattr(target, name, value)


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """As long as this lasts, the fault is in the modules."""
    patches = Patches()
    try:
        fault.put(patches)
        yield
    finally:
        patches.undo()
