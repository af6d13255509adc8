"""Schemas of answers about recipes, benchmarks and hyperparameter searches."""

from typing import Any

from headway.answers.schema import Schema


class RecipeSchema(Schema):
    name: str
    hash: str
    recipe: dict[str, Any]


class RecipesSchema(Schema):
    recipes: dict[str, str]


class FigureSchema(Schema):
    size: str
    replicas: int
    error: str | None = None
    device: str | None = None
    tokens_per_second: int | None = None
    parameters: int | None = None
    mfu: float | None = None
    gib: float | None = None


class BenchSchema(Schema):
    figures: list[FigureSchema]


class TuneSchema(Schema):
    best: str
    suggested: dict[str, Any]
    value: float
    trials: dict[str, int]
    importance: dict[str, float]
    test: dict[str, float]
    test_scored: int
    notes: list[str]
    folder: str
