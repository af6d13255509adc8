"""Validation of the inputs to the solvers: keys, wanted weights, indices, tolerances.

The wanted behaviour is a distribution over the keys. `select` and `average` create the usual ones; any other is an
array.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike

from headway.core.errors import UserError

Keys = Float64[np.ndarray, "n d"]
Weights = Float64[np.ndarray, "n"]
Vector = Float64[np.ndarray, "d"]


def select(index: int, n: int) -> Weights:
    """All attention on one of n keys."""
    return average([index], n)


def average(indices: Sequence[int] | None, n: int) -> Weights:
    """Equal attention on each of these keys (None = all n), none elsewhere."""
    chosen = list(range(n)) if indices is None else [checked_index(i, n) for i in indices]
    if not chosen:
        raise UserError("an average needs at least one key")
    for i in chosen:
        if chosen.count(i) > 1:
            raise UserError(f"key {i} is listed {chosen.count(i)} times; list each key of an average once")
    wanted = np.zeros(n)
    wanted[chosen] = 1 / len(chosen)
    return wanted


def checked_keys(given: ArrayLike) -> Keys:
    keys = _numbers("keys", given)
    if keys.ndim != 2 or 0 in keys.shape:
        raise UserError(f"keys must be a table with one key per row, n × d; this is {_shape(keys)}")
    bad = np.argwhere(~np.isfinite(keys))
    if len(bad):
        row, column = bad[0]
        raise UserError(f"key {row} has {keys[row, column]} at index {column}; keys must be finite numbers")
    return keys


def checked_query(given: ArrayLike, width: int) -> Vector:
    query = _numbers("the query", given)
    if query.shape != (width,):
        raise UserError(f"the query is {_shape(query)}; keys of {width} numbers need a query of {width}")
    if not np.isfinite(query).all():
        raise UserError(f"the query contains {query[~np.isfinite(query)][0]}; it must consist of finite numbers")
    return query


def checked_distribution(given: ArrayLike, n: int, name: str = "the wanted weights") -> Weights:
    wanted = _numbers(name, given)
    if wanted.shape != (n,):
        raise UserError(f"there are {n} keys, but {name} are {_shape(wanted)}; give one weight per key")
    if not (np.isfinite(wanted) & (wanted >= 0)).all():
        j = int(np.argmin(np.isfinite(wanted) & (wanted >= 0)))
        raise UserError(f"{name} have {wanted[j]:g} for key {j}; weights must be between 0 and 1")
    total = float(wanted.sum())
    if abs(total - 1) > 1e-9:
        raise UserError(f"{name} sum to {total:.9g}, not to 1; divide them by their sum")
    return wanted / total


def checked_index(index: int, n: int) -> int:
    if not 0 <= index < n:
        raise UserError(f"there is no key {index}; the {n} keys are numbered 0 to {n - 1}")
    return int(index)


def checked_within(within: float, wanted: Weights) -> float:
    """ε, the largest allowed total-variation distance from the wanted weights.

    If one weight is 1, the others can be as small as float64 allows; weights such as 1/3 are rounded themselves.
    """
    if not 0 < within < 1:
        raise UserError(f"within = {within:g}: the allowed distance must be above 0 and below 1")
    least = 1e-300 if wanted.max() == 1 else 1e-14
    if within < least:
        of = "" if wanted.max() == 1 else " of more than one key"
        raise UserError(
            f"within = {within:g}: float64 cannot resolve such small differences of weights{of}; give at least "
            f"{least:g}"
        )
    return float(within)


def checked_positive(name: str, value: float) -> float:
    if not (np.isfinite(value) and value > 0):
        raise UserError(f"{name} = {value:g}; it must be above 0")
    return float(value)


def _numbers(what: str, given: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} must be numbers, with the same count in every row: {error}") from error


def _shape(array: np.ndarray) -> str:
    if array.ndim == 1:
        return f"{len(array)} number{'' if len(array) == 1 else 's'}"
    return "a table of " + " × ".join(map(str, array.shape)) if array.ndim else "a single number"
