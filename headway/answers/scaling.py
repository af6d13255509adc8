"""Schemas of the answers of `scaling`: laws and the points they are fitted to."""

from headway.answers.schema import Number, Schema


class EstimateSchema(Schema):
    value: Number
    low: Number
    high: Number


class FlopsPerTokenSchema(Schema):
    factor: float
    power: float


class IsoFlopSchema(Schema):
    flops: float
    points: int
    missing: str
    parameters: EstimateSchema | None
    loss: Number


class LeftOutSchema(Schema):
    flops: float
    points: int
    error: Number
    bias: Number


class ConventionSchema(Schema):
    name: str
    alpha: EstimateSchema
    beta: EstimateSchema
    parameters_exponent: EstimateSchema
    tokens_exponent: EstimateSchema
    curves_exponent: EstimateSchema | None


class ScalingFitSchema(Schema):
    source: str
    columns: dict[str, str]
    points: int
    not_finite: int
    repeated: int
    law: dict[str, EstimateSchema]
    flops_per_token: FlopsPerTokenSchema
    objective: float
    starts: int
    starts_that_reach_it: int
    resamples: int
    spread: float
    exponents: dict[str, EstimateSchema]
    budgets: list[IsoFlopSchema]
    left_out: list[LeftOutSchema]
    outliers: list[int]
    below_floor: int
    conventions: list[ConventionSchema]
    notes: list[str]


class ByCurvesSchema(Schema):
    parameters: EstimateSchema
    tokens: EstimateSchema


class AdviceSchema(Schema):
    flops: float
    usable: bool
    parameters: EstimateSchema | None
    tokens: EstimateSchema | None
    loss: EstimateSchema | None
    by_curves: ByCurvesSchema | None
    beyond: float
    notes: list[str]


class ScalingAdviseSchema(Schema):
    source: str
    advice: list[AdviceSchema]


class SizeOnLadderSchema(Schema):
    arm: str
    width: int
    layers: int
    parameters: int
    tokens: int
    tokens_per_parameter: float
    passes: float
    steps: int
    flops: int
    flops_6nd: float
    rate: float
    seconds: float


class ClimbedRungSchema(Schema):
    flops: float
    expected: float
    sizes: list[SizeOnLadderSchema]


class TunedRateSchema(Schema):
    rate: float
    losses: dict[str, float]


class ScalingPlanSchema(Schema):
    title: str
    rungs: list[ClimbedRungSchema]
    runs: int
    seconds: float
    tuned: TunedRateSchema | None
    notes: list[str]
