"""Attention by construction for an interactive page: which keys can be selected, by which query, or why none can.

Everything is computed by `headway.solve`. Answers are those of `headway solve … --json`, with additions for drawing.
Queries and keys take milliseconds and do not need torch; constructions are computed by a worker, which has it.
"""

from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from headway.core.errors import UserError
from headway.workbench.bench import Here

router = APIRouter(prefix="/api/ask/solve", tags=["solve"])

Numbers = Annotated[list[float], Field(max_length=64)]
Table = Annotated[list[Numbers], Field(min_length=1, max_length=64)]


class OnPaper(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AskedForQuery(OnPaper):
    keys: Table
    wanted: Numbers
    """One weight per key; they are normalized."""
    within: float = 1e-3
    scaled: bool = False


class AskedForKey(AskedForQuery):
    query: Numbers
    replace: int
    norm: float | None = None


class AskedForConstruction(OnPaper):
    what: str
    """convolution, shift, mean-pool or max-pool."""
    taps: Numbers = []
    places: int = 1
    """The distance of a shift, or the number of slots of a window."""
    centre: int | None = None
    tokens: int = Field(default=8, ge=1, le=64)
    """The length of the sequence whose attention is shown."""


class AskedForMatrix(OnPaper):
    weights: Table
    width: int = Field(default=2, ge=1, le=16)


@router.post("/query")
def query(asked: AskedForQuery) -> dict[str, Any]:
    """A query with the wanted weights, or a certificate that there is none; and which keys can be selected at all."""
    from headway.solve.queries import find_query

    scale = len(asked.keys[0]) ** -0.5 if asked.scaled and asked.keys[0] else 1.0
    answer = find_query(asked.keys, _shares(asked.wanted), asked.within, scale)
    return {**answer.as_json(), "corners": corners(answer.keys)}


@router.post("/key")
def key(asked: AskedForKey) -> dict[str, Any]:
    """A key to replace another, so that this query has the wanted weights; or the best there is."""
    from headway.solve.keys import find_key

    scale = len(asked.keys[0]) ** -0.5 if asked.scaled and asked.keys[0] else 1.0
    wanted = _shares(asked.wanted)
    answer = find_key(asked.query, asked.keys, asked.replace, wanted, asked.norm, asked.within, scale)
    return {**answer.as_json(), "corners": corners(answer.keys)}


@router.post("/construction")
async def construction(asked: AskedForConstruction, bench: Here) -> dict[str, Any]:
    """An attention layer that is a convolution, a shift or a pool: its weights, and its attention on a sequence."""
    return await bench.models.ask("headway.workbench.solving:constructed", **asked.model_dump())


@router.post("/matrix")
async def matrix(asked: AskedForMatrix, bench: Here) -> dict[str, Any]:
    """Y = AX as vec(Y) = M·vec(X), for both ways to stack X into a vector."""
    return await bench.models.ask("headway.workbench.solving:as_matrices", **asked.model_dump())


def corners(keys: np.ndarray) -> list[int]:
    """The keys that some query can select: the corners of the convex hull, in order around it (in a plane), without
    duplicate keys. In exact arithmetic, like the judgement of queries."""
    points = [tuple(map(Fraction, map(float, key))) for key in keys]
    alone = [k for k, point in enumerate(points) if points.count(point) == 1]
    if keys.shape[1] == 1:
        ends = {min(points), max(points)}
        return [k for k in alone if points[k] in ends]
    if keys.shape[1] != 2:
        return []
    order = sorted(range(len(points)), key=lambda k: points[k])

    def half(indices: list[int]) -> list[int]:
        chain: list[int] = []
        for k in indices:
            while len(chain) > 1 and _turn(*(points[c] for c in (*chain[-2:], k))) <= 0:
                chain.pop()
            chain.append(k)
        return chain

    around = half(order)[:-1] + half(order[::-1])[:-1] or order[:1]
    return [k for k in dict.fromkeys(around) if k in alone]


def _turn(a: tuple[Fraction, ...], b: tuple[Fraction, ...], c: tuple[Fraction, ...]) -> Fraction:
    return (b[0] - a[0]) * (c[1] - b[1]) - (b[1] - a[1]) * (c[0] - b[0])


def _shares(wanted: list[float]) -> list[float]:
    """Normalize weights from sliders."""
    total = sum(wanted)
    if not wanted or min(wanted) < 0 or not 0 < total < float("inf"):
        raise UserError("the wanted weights must not be negative, and not all zero")
    return [one / total for one in wanted]


# --- in the worker ---------------------------------------------------------------------------------------------------


def constructed(what: str, taps: list[float], places: int, centre: int | None, tokens: int) -> dict[str, Any]:
    import torch

    from headway.core.errors import did_you_mean
    from headway.solve.relative import convolution, max_pool, mean_pool, shift

    makers = {
        "convolution": lambda: convolution(taps, centre),
        "shift": lambda: shift(places),
        "mean-pool": lambda: mean_pool(places, centre),
        "max-pool": lambda: max_pool(places, centre),
    }
    if what not in makers:
        raise UserError(f"there is no construction '{what}'{did_you_mean(what, makers)}")
    made = makers[what]()
    given = torch.zeros(tokens, 1, dtype=torch.float64)
    given[tokens // 2] = 1.0  # an impulse: the response shows the kernel, reversed
    ramp = torch.linspace(-1, 1, tokens, dtype=torch.float64)[:, None]
    return {
        **made.as_json(),
        "attention": made.attention(ramp).tolist(),
        "impulse": given[:, 0].tolist(),
        "response": made(given)[:, 0].tolist(),
        "directly": made.direct(given)[:, 0].tolist(),
    }


def as_matrices(weights: list[list[float]], width: int) -> dict[str, Any]:
    from headway.solve.kronecker import stacked, stacked_derivation

    if len({len(row) for row in weights}) > 1:
        raise UserError("the rows of the weights have different lengths")
    rows, columns = stacked(weights, width, "rows"), stacked(weights, width, "columns")
    return {
        "width": width,
        "rows": rows.tolist(),
        "columns": columns.tolist(),
        "derivation": stacked_derivation(weights, width),
    }
