"""What varies in a study: factors with their levels, and the arms formed from them."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from headway.core.spec import Problem, Spec
from headway.core.yaml import write_value
from headway.recipe.naming import label

TRAINING_KEYS = ("data.segment", "data.batches.")
"""Keys under `data` that concern training: the text and its tokens stay the same."""


def _key_and_value(given: Any) -> Any:
    if isinstance(given, str) and not re.match(r"\s*[^=\s]+\s*=", given):
        raise PydanticCustomError("change", "expected KEY=VALUE, such as model.width=32")
    return given


Change = Annotated[str, BeforeValidator(_key_and_value)]
"""`key.path=value`, as on the command line."""


@dataclass(frozen=True)
class Arm:
    """One arm of a comparison: a name, and its changes to the base recipe."""

    name: str
    changes: tuple[str, ...]
    levels: Mapping[str, str] = field(default_factory=dict)
    """Factor → level, if the arms come from factors."""


class Factor(Spec):
    """A key of the recipe and its values; or several keys that vary together, each value a list; or named levels, each
    a list of changes like an arm."""

    key: str | None = None
    """The recipe key that varies, such as model.positions."""
    keys: list[str] | None = None
    """Several keys that vary together: each value is then a list with one entry per key."""
    values: list[Any] = Field(default=[])
    """The levels: the values that the key takes."""
    named: dict[str, list[Change]] = Field(default={})
    """Instead of keys and values: levels by name, each with its changes to the recipe."""

    def problems(self) -> Iterator[Problem]:
        given = [self.key is not None, self.keys is not None, bool(self.named)]
        if sum(given) != 1:
            reason = "give one of them: key, keys (several that vary together), or named (levels with names)"
            yield Problem(("key", "keys"), reason)
            return
        if bool(self.named) == bool(self.values):
            reason = "leave it out with named levels" if self.named else "expected at least 1 value, not []"
            yield Problem(("values",), reason)
            return
        if wrong := [name for name in self.named if label(name) != name]:
            yield Problem(("named",), f"'{wrong[0]}' cannot be part of a folder name; use '{label(wrong[0])}'")
        for value in self.values if self.keys else ():
            if not isinstance(value, list) or len(value) != len(self.keys or ()):
                reason = f"each value must be a list with {len(self.keys or ())} entries, one per key, not {value!r}"
                yield Problem(("values",), reason)
                return
        labels = [label(value) for value in self.values]
        for one in sorted({one for one in labels if labels.count(one) > 1}):
            yield Problem(("values",), f"two values would both be called '{one}'")

    @property
    def all_keys(self) -> list[str]:
        if self.named:
            return list(dict.fromkeys(key_of(change) for changes in self.named.values() for change in changes))
        return [self.key] if self.key is not None else self.keys or []

    def levels(self) -> dict[str, list[str]]:
        """Each level's name, and its changes to the recipe."""
        found = {name: list(changes) for name, changes in self.named.items()}
        for value in self.values:
            parts = [value] if self.key is not None else value
            found[label(value)] = [f"{key}={write_value(part)}" for key, part in zip(self.all_keys, parts, strict=True)]
        return found


def is_data(key: str) -> bool:
    """Whether a recipe key determines what is read: the text or its tokens."""
    return key.startswith("data.") and not f"{key}.".startswith(TRAINING_KEYS)


def key_of(change: str) -> str:
    """The key in `key.path=value`."""
    return change.partition("=")[0].strip()


def crossed(factors: Mapping[str, Factor]) -> list[Arm]:
    """An arm for every combination of levels, named after them: `alibi.64-2`."""
    arms = []
    for combination in itertools.product(*(factor.levels().items() for factor in factors.values())):
        levels = dict(zip(factors, (name for name, _ in combination), strict=True))
        arms.append(Arm(".".join(levels.values()), tuple(c for _, changes in combination for c in changes), levels))
    return arms
