"""Schemas of answers about studies and cases."""

from typing import Any

from pydantic import Field, RootModel

from headway.answers.runs import GainSchema, ScoreSchema
from headway.answers.schema import Number, Schema
from headway.core.status import State


class ArmPlanSchema(Schema):
    parameters: int
    steps: int
    tokens: int
    flops: int
    seconds: float
    memory: int


class PlannedPopulationSchema(Schema):
    arms: list[str]
    runs: int
    at_once: int
    seconds: float


class SeedsCanShowSchema(Schema):
    question: str
    sentence: str
    effect: float | None
    interval: tuple[float, float] | None
    unit: str
    known_from: str


class PlanSchema(Schema):
    title: str
    runs: list[str]
    arms: dict[str, ArmPlanSchema]
    populations: list[PlannedPopulationSchema]
    processes: int
    gpus: int
    seconds: float
    memory: int
    warnings: list[str]
    power: list[SeedsCanShowSchema]


class ResultSchema(Schema):
    arm: str
    seed: int
    status: State
    scores: dict[str, ScoreSchema]
    failed_audits: list[str]
    parameters: int | None
    steps: int
    flops: int | None
    seconds: float


class VerdictSchema(Schema):
    question: dict[str, Any]
    outcome: str
    sentence: str
    notes: list[str]
    effect: Number
    interval: list[Number] | None
    unit: str
    relative: Number
    relative_interval: list[Number] | None
    factor: Number
    factor_interval: list[Number] | None
    bootstrap: list[Number] | None
    seeds: int
    p: Number
    p_corrected: Number
    p_permutation: Number
    smallest_visible: Number
    smallest_visible_interval: list[Number] | None
    smallest_visible_factor: Number
    method: str
    earlier_looks: list[str]
    arms: list[str]


class ClaimSchema(Schema):
    says: str
    standing: str
    why: str


class ConclusionSchema(Schema):
    study: str
    title: str
    runs: dict[str, ResultSchema]
    missing: dict[str, str]
    verdicts: list[VerdictSchema]
    claims: list[ClaimSchema]
    report: str | None


class ArmAsOneSchema(Schema):
    arm: str
    seeds: list[int]
    failed_audits: list[str]
    scores: dict[str, ScoreSchema]
    gains: dict[str, GainSchema]


class StudyEnsemblesSchema(Schema):
    """The seeds of every arm as an ensemble."""

    arms: list[ArmAsOneSchema]
    none: dict[str, str] = Field(description="Arms with too few runs, and how many they have.")


class StudyRunSchema(ConclusionSchema):
    interrupted: bool


class WorkedClaimSchema(ClaimSchema):
    reached: list[dict[str, Any]]
    derivation: list[str]


class WorkedAnswerSchema(Schema):
    asks: str
    answer: str
    reached: list[dict[str, Any]]
    derivation: list[str]


class WorkedExerciseSchema(Schema):
    title: str
    conclusion: str
    answered: Any
    standing: str
    instances: int
    seconds: float
    claims: list[WorkedClaimSchema]
    answers: list[WorkedAnswerSchema]
    report: str


class CaseSchema(RootModel[StudyRunSchema | WorkedExerciseSchema]):
    """A case that is trained, or one that is solved."""


class ListedCaseSchema(Schema):
    title: str
    quick: str
    full: str


class CasesSchema(Schema):
    cases: dict[str, ListedCaseSchema]
