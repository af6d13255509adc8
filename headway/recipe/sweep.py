"""Sweeps: vary a recipe, `seed=0..3`, `training.optimizer.learning_rate=1e-3,3e-3`, in all combinations."""

import itertools
import math
import re
from collections.abc import Sequence

from headway.core.errors import UserError
from headway.recipe.recipe import Recipe

MAX_REPLICAS = 4096


def varied(base: Recipe, name: str, variations: Sequence[str]) -> tuple[list[str], list[Recipe]]:
    """A name and a recipe per combination of values; the base itself, under its own name, if nothing varies."""
    axes = [_axis(variation) for variation in variations]
    keys = [key for key, _ in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"--vary {key} is given twice: give all values together, {key}=A,B,C")
    _check_count(math.prod(len(values) for _, values in axes))
    names, recipes = [], []
    for values in itertools.product(*(values for _, values in axes)):
        changes = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        tail = [f"{key.rsplit('.', 1)[-1]}-{value}" for key, value in zip(keys, values, strict=True)]
        names.append("-".join([name, *tail]))
        recipes.append(base.with_changes(changes))
    return names, recipes


def _axis(variation: str) -> tuple[str, list[str]]:
    key, equals, text = variation.partition("=")
    if not equals or not text:
        raise UserError(f"--vary {variation}: write --vary KEY=VALUES, for example --vary seed=0..7")
    values: list[str] = []
    for piece in text.split(","):
        spanned = re.fullmatch(r"(\d{1,19})\.\.(\d{1,19})", piece.strip())
        if spanned and int(spanned[1]) > int(spanned[2]):
            raise UserError(f"--vary {variation}: {piece} counts backwards")
        if spanned:
            _check_count(int(spanned[2]) - int(spanned[1]) + 1)
        values += map(str, range(int(spanned[1]), int(spanned[2]) + 1)) if spanned else [piece.strip()]
    if len(set(values)) < len(values):
        raise UserError(f"--vary {variation}: a value is given twice")
    return key.strip(), values


def _check_count(count: int) -> None:
    """Raise a UserError if there are too many, before they are listed."""
    if count > MAX_REPLICAS:
        raise UserError(f"{count:,} combinations are more than the limit of one population ({MAX_REPLICAS})")
