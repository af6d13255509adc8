"""The search space: recipe keys, each with a range or a list of choices.

    learning_rate: {key: training.optimizer.learning_rate, low: 1e-4, high: 1e-1, log: true}
    layers: {key: model.layers, low: 1, high: 4}
    positions: {key: model.positions, choices: [learned, alibi, rotary]}

On the command line the same is `--over training.optimizer.learning_rate=1e-4..1e-1:log --over model.layers=1..4 …`.
"""

import contextlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from headway.core.errors import UserError, did_you_mean
from headway.core.reading import read_text
from headway.core.spec import Problem, Spec
from headway.core.validation import called_elsewhere, known_keys, validated
from headway.core.yaml import read_tree, read_value
from headway.recipe.recipe import Recipe

EXAMPLE = "learning_rate: {key: training.optimizer.learning_rate, low: 1e-4, high: 1e-1, log: true}"
"""An example line of such a file."""
MAX_COMBINATIONS = 64  # combinations tried when looking for a valid one
MAX_POINTS = 1000
MAX_TRIALS = 100_000  # in a grid
MAX_INTEGERS = 10  # a grid tries all integers of a range if there are at most this many


def _number(given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise PydanticCustomError("number", "expected a number")
    return given


Number = Annotated[int | float, BeforeValidator(_number)]


class Between(Spec):
    """A range; of integers if both ends are integers."""

    key: str
    """The recipe's key."""
    low: Number
    high: Number
    log: bool = False
    """Logarithmic scale, for learning rates or widths."""
    points: int = Field(default=5, ge=2, le=MAX_POINTS)
    """The number of values that a grid takes from it."""

    def problems(self) -> Iterator[Problem]:
        if self.low >= self.high:
            yield Problem(("low", "high"), f"a range from {self.low} to {self.high} is empty")
        elif self.log and self.low <= 0:
            yield Problem(("low", "log"), f"a logarithmic range cannot start at {self.low}: low must be above 0")

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def distribution(self) -> Any:
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.is_whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(float(self.low), float(self.high), log=self.log)

    @property
    def ends(self) -> list[Any]:
        return [self.low, self.high]

    @property
    def grid(self) -> list[Any]:
        if self.is_whole and self.high - self.low < MAX_INTEGERS and not self.log:
            return list(range(int(self.low), int(self.high) + 1))
        spaced = np.geomspace if self.log else np.linspace
        values = spaced(self.low, self.high, self.points).tolist()
        if self.is_whole:
            return sorted({round(value) for value in values})
        return [self.low, *values[1:-1], self.high]  # the exact ends, without rounding errors

    def value(self, suggested: Any) -> Any:
        return suggested


class Among(Spec):
    """One of several values, of any type."""

    key: str
    """The recipe's key."""
    choices: list[Any] = Field(min_length=2)

    @property
    def labels(self) -> list[str]:
        """The choices as strings: Optuna cannot store lists and mappings."""
        return [choice if isinstance(choice, str) else json.dumps(choice) for choice in self.choices]

    @property
    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.labels)

    @property
    def ends(self) -> list[Any]:
        return self.choices

    @property
    def grid(self) -> list[Any]:
        return list(self.labels)

    def value(self, suggested: Any) -> Any:
        return self.choices[self.labels.index(suggested)]


Dimension = Between | Among
Space = Mapping[str, Dimension]


def read_space(path: Path) -> Space:
    """Read a search space from a YAML file."""
    try:
        tree, lines = read_tree(read_text(path, through_links=True), path.name)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; it should have lines such as\n  {EXAMPLE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    return {
        name: _dimension(name, given, f"{path.name}:{lines[(name,)]}")
        for name, given in tree.items()
        if (name,) in lines
    }


def over(texts: Sequence[str]) -> Space:
    """Parse ranges from the command line: KEY=LOW..HIGH, KEY=LOW..HIGH:log, KEY=A,B,C."""
    found: dict[str, Dimension] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not key or not values:
            raise UserError(f"--over {text}: write KEY=LOW..HIGH, KEY=LOW..HIGH:log, or KEY=A,B,C")
        ranged = re.fullmatch(r"(.+?)\.\.(.+?)(:log)?", values)
        if ranged:
            tree = {"low": read_value(ranged[1]), "high": read_value(ranged[2]), "log": ranged[3] is not None}
        else:
            tree = {"choices": [read_value(value.strip()) for value in values.split(",")]}
        name = key.rsplit(".", 1)[-1]
        name = key if name in found else name
        if name in found:
            raise UserError(f"--over {key} is given twice")
        found[name] = _dimension(name, {"key": key, **tree}, "--over")
    return found


def _dimension(name: str, given: Any, place: str) -> Dimension:
    if not isinstance(given, dict):
        expected = "expected a key with low and high, or with choices"
        raise UserError(f"{place}: {name}: {expected}, not {given!r}; for example\n  {EXAMPLE}")
    kind = Among if "choices" in given else Between
    made = validated(kind, given, name, lambda path: place)
    if problems := list(made.problems()):
        raise UserError(f"{place}: {name}: {problems[0].reason}")
    return made


def check_space(space: Space, base: Recipe) -> None:
    """Check that every key exists and is given once, and that the ends of every range can be valid."""
    if not space:
        ways = "give --over KEY=LOW..HIGH, or --space FILE with lines such as"
        raise UserError(f"there is nothing to search: {ways}\n  {EXAMPLE}")
    keys, seen = set(known_keys(Recipe)), dict[str, str]()
    for name, dimension in space.items():
        if dimension.key not in keys:
            ours = called_elsewhere(Recipe, dimension.key)
            hint = did_you_mean(dimension.key, keys) if ours is None else f"; did you mean '{ours}'?"
            raise UserError(f"{name}: recipes have no key '{dimension.key}'{hint}")
        if dimension.key in seen:
            raise UserError(f"{dimension.key} is given twice, as {seen[dimension.key]} and as {name}")
        seen[dimension.key] = name
        for value in dimension.ends:
            _check_value(name, value, space, base)


def _check_value(name: str, value: Any, space: Space, base: Recipe) -> None:
    """Check that a value is valid in the base recipe, or together with some values of the other keys."""
    try:
        base.with_changes([change(space[name].key, value)])
    except UserError:
        others = {other: dimension for other, dimension in space.items() if other != name}
        for ends in itertools.islice(
            itertools.product(*(d.ends for d in others.values())), MAX_COMBINATIONS if others else 0
        ):
            together = [change(d.key, end) for d, end in zip(others.values(), ends, strict=True)]
            with contextlib.suppress(UserError):
                base.with_changes([*together, change(space[name].key, value)])
                return
        raise


def changes(space: Space, suggested: Mapping[str, Any]) -> list[str]:
    """The changes of a trial to the base recipe."""
    return [change(space[name].key, space[name].value(value)) for name, value in suggested.items()]


def change(key: str, value: Any) -> str:
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"


def grid(space: Space) -> list[dict[str, Any]]:
    """All combinations of a grid."""
    if (count := math.prod(len(d.grid) for d in space.values())) > MAX_TRIALS:
        raise UserError(f"a grid of {count:,} combinations is too large; the limit is {MAX_TRIALS:,}")
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*(d.grid for d in space.values()))]
