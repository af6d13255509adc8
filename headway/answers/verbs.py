"""The schema of every command's `--json` answer.

Separate from the package's other modules because defining fifty schemas takes longer than most commands about runs.
"""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from headway.answers.looking import LookSchema
from headway.answers.matching import MatchSchema
from headway.answers.recipes import BenchSchema, RecipeSchema, RecipesSchema, TuneSchema
from headway.answers.runs import (
    AuditSchema,
    CacheSchema,
    ClassifySchema,
    CompareSchema,
    ExportSchema,
    FillSchema,
    ImportSchema,
    RunsSchema,
    SampleSchema,
    ScoreAnswerSchema,
    TrainSchema,
    TranslateSchema,
)
from headway.answers.scaling import ScalingAdviseSchema, ScalingFitSchema, ScalingPlanSchema
from headway.answers.solving import ConstructionSchema, FixedLayerSchema, KeySchema, MatrixSchema, SolvedQuerySchema
from headway.answers.studies import (
    CaseSchema,
    CasesSchema,
    ConclusionSchema,
    PlanSchema,
    StudyEnsemblesSchema,
    StudyRunSchema,
)
from headway.core.errors import UserError, did_you_mean

SCHEMAS: dict[str, type[BaseModel]] = {
    "train": TrainSchema,
    "continue": TrainSchema,
    "compare": CompareSchema,
    "score": ScoreAnswerSchema,
    "audit": AuditSchema,
    "sample": SampleSchema,
    "look": LookSchema,
    "classify": ClassifySchema,
    "fill": FillSchema,
    "translate": TranslateSchema,
    "match": MatchSchema,
    "export": ExportSchema,
    "import": ImportSchema,
    "recipe": RecipeSchema,
    "recipes": RecipesSchema,
    "runs": RunsSchema,
    "bench": BenchSchema,
    "cache": CacheSchema,
    "cases": CasesSchema,
    "case": CaseSchema,
    "tune": TuneSchema,
    "study plan": PlanSchema,
    "study run": StudyRunSchema,
    "study results": ConclusionSchema,
    "study report": ConclusionSchema,
    "study ensembles": StudyEnsemblesSchema,
    "scaling plan": ScalingPlanSchema,
    "scaling run": StudyRunSchema,
    "scaling fit": ScalingFitSchema,
    "scaling advise": ScalingAdviseSchema,
    "solve query": SolvedQuerySchema,
    "solve key": KeySchema,
    **{f"solve {verb}": ConstructionSchema for verb in ("convolution", "shift", "mean-pool", "max-pool")},
    "solve matrix": MatrixSchema,
    "solve fixed-layer": FixedLayerSchema,
}


def checked(verb: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """A command's answer, checked and serialized by its schema."""
    return SCHEMAS[verb].model_validate(answer).model_dump(mode="json", by_alias=True, exclude_unset=True)


def without_nan(tree: Any, path: str = "") -> tuple[Any, list[str]]:
    """The tree with null for numbers that are not finite, and the paths of those numbers."""
    if isinstance(tree, float):
        return (tree, []) if math.isfinite(tree) else (None, [path])
    if not isinstance(tree, dict | list):
        return tree, []
    keys = tree if isinstance(tree, dict) else range(len(tree))
    found = {key: without_nan(tree[key], f"{path}.{key}" if path else str(key)) for key in keys}
    values, lost = (
        {key: value for key, (value, _) in found.items()},
        [one for _, more in found.values() for one in more],
    )
    return values if isinstance(tree, dict) else list(values.values()), lost


def json_schema(verb: str) -> dict[str, Any]:
    if verb not in SCHEMAS:
        raise UserError(f"no command '{verb}' answers with --json{did_you_mean(verb, SCHEMAS)}")
    return SCHEMAS[verb].model_json_schema(mode="serialization")
