"""What `--json` prints, verb by verb: one schema each. `headway schema` prints them as JSON Schema.

An answer is checked against its schema before it is printed, so what is written here is so. Keys with a default may be
absent; a number that is not finite is null.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from headway.core.errors import UserError, did_you_mean
from headway.core.status import State

Number = float | None


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid")


# --- runs ------------------------------------------------------------------------------------------------------------


class ConfusionSchema(Schema):
    classes: list[str]
    counts: list[list[int]] = Field(description="A row for each true class: how many of its texts got which.")


class ScoreSchema(Schema):
    value: Number
    label: str = Field(description="The whole truth about the number: unit, split, how it was read.")
    interval: list[Number] = Field(default=[], description="95 %, where the score has one.")
    confusion: ConfusionSchema | None = None


class FindingSchema(Schema):
    audit: str
    verdict: Literal["pass", "warn", "fail"]
    value: Number
    sentence: str
    seconds: float
    short: str | None = None


class BaselineSchema(ScoreSchema):
    method: str
    name: str = Field(description="Of the score that it is set beside.")


class ReportSchema(Schema):
    findings: list[FindingSchema]
    not_run: dict[str, str] = Field(description="Audits that do not apply, and why.")
    baselines: list[BaselineSchema]


class RunSchema(Schema):
    run: str = Field(description="Its folder.")
    scores: dict[str, ScoreSchema]
    audits: ReportSchema


class EndedRunSchema(RunSchema):
    status: State
    step: int | None
    reason: str | None


class TrainSchema(EndedRunSchema):
    """Of the first run; of every one under `runs`, where there are several."""

    runs: list[EndedRunSchema] = []


class RunStateSchema(Schema):
    """What the folder tells, without asking the process."""

    running: bool
    process: int | None
    since: str | None
    step: int
    total: int | None
    last: dict[str, Any] | None = Field(description="The last event.")


class ListedRunSchema(RunSchema):
    facts: dict[str, Any] = Field(description="run.json, as it stands.")
    state: RunStateSchema


class RunsSchema(Schema):
    runs: list[ListedRunSchema]


class TokenSchema(Schema):
    token: str
    nats: Number


class ScoredSchema(RunSchema):
    tokens: list[TokenSchema] = Field(default=[], description="Of a text that was typed.")


class GainSchema(Schema):
    """What runs as one have over the mean of them; above 0 is better."""

    gain: float
    unit: str
    interval: list[float] | None = Field(description="95 %, over pieces of the split, for these runs.")
    pieces: int
    mean: float
    ensemble: float
    members: list[float]


class EnsembleSchema(Schema):
    """With --ensemble: several runs as one, the mean of their probabilities."""

    scores: dict[str, ScoreSchema]
    members: list[RunSchema]
    gains: dict[str, GainSchema]


class LengthSchema(Schema):
    length: int
    stride: int = Field(description="Of the sliding window.")
    apart: Number
    sliding: Number
    carried: Number = Field(description="null = the model carries no state.")
    by_position: list[Number] = Field(description="Nats of the first token of a segment, of the second …")
    segments: int = Field(description="So many is that a mean of.")


class RunByLengthSchema(Schema):
    run: str
    lengths: list[LengthSchema]


class ArmByLengthSchema(Schema):
    name: str
    trained_on: int
    runs: list[RunByLengthSchema]


class LengthsSchema(Schema):
    """With --lengths: nats per token in segments of many lengths."""

    split: str
    tokens: int
    arms: list[ArmByLengthSchema]
    file: str | None


class ScoreAnswerSchema(RootModel[ScoredSchema | EnsembleSchema | LengthsSchema]):
    """Of a run; with --ensemble, of several as one; with --lengths, by the length of segments."""


class ExplanationSchema(Schema):
    audit: str
    about: str
    explanation: str


class TrialSchema(Schema):
    fault: str
    kind: str
    audit: str = Field(description="That is meant to see it.")
    outcome: Literal["seen", "not seen", "cannot show"]
    sentence: str = Field(description="Of that audit; or why the fault cannot show in this recipe.")
    instead: list[str] = Field(description="Audits that saw it, where the one meant for it did not.")
    seconds: float


class SelfTestSchema(Schema):
    recipe: str
    clean: ReportSchema = Field(description="What was found without any fault.")
    faults: list[TrialSchema]
    stopped: bool = Field(description="By Ctrl-C: there would have been more.")


class AuditSchema(RootModel[ReportSchema | ExplanationSchema | SelfTestSchema]):
    """A report; with --explain, an explanation; with --self-test, what became of every fault."""


class SampleSchema(Schema):
    run: str
    prompt: str
    text: str
    note: str | None
    texts: list[str] = Field(default=[], description="With --count: all of them.")


class ClassifySchema(Schema):
    run: str
    text: str
    classes: dict[str, float]
    tokens: int
    unknown: int
    notes: list[str]


class HypothesisSchema(Schema):
    text: str
    score: float


class TranslationSchema(Schema):
    source: str
    text: str
    hypotheses: list[HypothesisSchema]
    notes: list[str]


class TranslateSchema(Schema):
    run: str
    decoding: str
    translations: list[TranslationSchema] = []
    file: str | None = Field(default=None, description="The table of a split.")


class ExportSchema(Schema):
    run: str
    folder: str
    step: int
    files: list[str]


class ImportSchema(Schema):
    run: str
    parameters: int
    vocabulary: int
    notes: list[str]


# --- looking ---------------------------------------------------------------------------------------------------------


class HeadSchema(BaseModel):
    """A head, and its statistics by name."""

    model_config = ConfigDict(extra="allow")
    layer: int
    head: int


class LookedSchema(Schema):
    run: str
    show: Literal["heads", "rollout", "gradients"]
    tokens: list[str]
    unknown: list[Any]
    target: list[str] = Field(default=[], description="Of a translator: what it writes.")
    translation: str | None = None
    alignment: list[int] = Field(default=[], description="For each token of the target, the one of the source.")
    largest_difference: Number = None
    heads: list[HeadSchema] = []
    predictions: list[dict[str, Any]] = []


class MapsSchema(LookedSchema):
    beside: LookedSchema | None = Field(default=None, alias="with")
    comparison: dict[str, Any] | None = None
    file: str | None


class NormsSchema(Schema):
    """Of a Jacobian, by distance: 0, 1, 2 …"""

    typical: list[Number] = Field(description="‖J‖_F/√D: 1 for the identity.")
    largest: list[Number] | None = Field(description="‖J‖₂; null = the width is too large.")


class HiddenStateSchema(NormsSchema):
    units: int
    bound: list[Number] | None = Field(description="What the weights alone allow ‖J‖₂ to be; null = they do not say.")
    step_bound: Number
    singular_values: list[Number] = Field(description="Of one step's Jacobian, the largest first.")


class FlowOfRunSchema(Schema):
    run: str
    tokens: int
    segments: int
    losses: list[Number]
    streams: dict[str, NormsSchema]
    hidden: dict[str, HiddenStateSchema]


class FlowOfArmSchema(Schema):
    name: str
    runs: list[FlowOfRunSchema] = Field(description="They differ in their seed alone.")


class GradientFlowSchema(Schema):
    show: Literal["gradient-flow"]
    split: str
    arms: list[FlowOfArmSchema]
    file: str | None


class LookSchema(RootModel[MapsSchema | GradientFlowSchema]):
    pass


# --- recipes, machines, searches -------------------------------------------------------------------------------------


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


# --- studies and cases -----------------------------------------------------------------------------------------------


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
    workers: int | None
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
    bootstrap: list[Number] | None
    seeds: int
    p: Number
    p_corrected: Number
    p_permutation: Number
    smallest_visible: Number
    smallest_visible_interval: list[Number] | None
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
    """The seeds of every arm as one."""

    arms: list[ArmAsOneSchema]
    none: dict[str, str] = Field(description="Arms with too few runs, and how few.")


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
    """Of a case that is trained; of one that is solved."""


class ListedCaseSchema(Schema):
    title: str
    quick: str
    full: str


class CasesSchema(Schema):
    cases: dict[str, ListedCaseSchema]


# --- attention by construction ---------------------------------------------------------------------------------------


class SolvedSchema(Schema):
    derivation: list[str] = []
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
    """With --identity: a row for each key."""

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
    biases: list[list[Number]] = Field(description="null = −∞: not looked at.")
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


SCHEMAS: dict[str, type[BaseModel]] = {
    "train": TrainSchema,
    "score": ScoreAnswerSchema,
    "audit": AuditSchema,
    "sample": SampleSchema,
    "look": LookSchema,
    "classify": ClassifySchema,
    "translate": TranslateSchema,
    "export": ExportSchema,
    "import": ImportSchema,
    "recipe": RecipeSchema,
    "recipes": RecipesSchema,
    "runs": RunsSchema,
    "bench": BenchSchema,
    "cases": CasesSchema,
    "case": CaseSchema,
    "tune": TuneSchema,
    "study plan": PlanSchema,
    "study run": StudyRunSchema,
    "study results": ConclusionSchema,
    "study report": ConclusionSchema,
    "study ensembles": StudyEnsemblesSchema,
    "solve query": SolvedQuerySchema,
    "solve key": KeySchema,
    **{f"solve {verb}": ConstructionSchema for verb in ("convolution", "shift", "mean-pool", "max-pool")},
    "solve matrix": MatrixSchema,
    "solve fixed-layer": FixedLayerSchema,
}


def checked(verb: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a verb, as its schema has it."""
    return SCHEMAS[verb].model_validate(answer).model_dump(mode="json", by_alias=True, exclude_unset=True)


def json_schema(verb: str) -> dict[str, Any]:
    if verb not in SCHEMAS:
        raise UserError(f"there is no verb '{verb}' that answers with --json{did_you_mean(verb, SCHEMAS)}")
    return SCHEMAS[verb].model_json_schema(mode="serialization")
