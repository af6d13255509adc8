"""Schemas of the answers of `solve`: attention by construction."""

from typing import Any

from pydantic import Field, RootModel

from headway.answers.schema import Number, Schema


class SolvedSchema(Schema):
    derivation: list[str] = Field(default=[])
    plot: str | None = None


class QuerySchema(SolvedSchema):
    keys: list[list[float]]
    wanted: list[float]
    within: float
    scale: float
    verdict: str
    query: list[Number]
    weights: list[float]
    error: float
    method: str
    margin: Number
    rounding: Number
    certificate: dict[str, Any] | None
    digits: list[str] | None
    norm: Number


class QueriesSchema(SolvedSchema):
    """With --identity: one row per key."""

    queries: list[list[Number]]
    weights: list[list[float]]
    answers: list[QuerySchema]


class SolvedQuerySchema(RootModel[QuerySchema | QueriesSchema]):
    pass


class KeySchema(SolvedSchema):
    query: list[float]
    keys: list[list[Number]]
    replaced: int
    wanted: list[float]
    within: float
    scale: float
    norm: Number
    verdict: str
    key: list[Number]
    score: Number
    weights: list[float]
    error: float
    least_error: float
    proportions: list[float]
    log_rest: Number
    weight_range: list[Number]
    norms: list[Number] | None


class ConstructionSchema(SolvedSchema):
    what: str
    channels: int
    heads: int
    width: int
    weights: dict[str, Any]
    biases: list[list[Number]] = Field(description="null = −∞: masked.")
    first_distance: int
    zeros: list[int]
    bound: Number
    worst_error: Number


class MatrixSchema(SolvedSchema):
    width: int
    rows: list[list[float]]
    columns: list[list[float]]


class FixedLayerSchema(SolvedSchema):
    verdict: str
    reason: str | None
    tokens: int
    width: int
    heads: int
    parameters: dict[str, int]
    misfit: Number
    moved: Number
    matrix_change: Number
    gap: Number
    inputs: list[Any]
    matrix: list[Any]
    constant: list[Any]
