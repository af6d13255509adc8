"""Schemas of answers about runs: training, listing, scoring, audits, generation, classification, import and export."""

from typing import Any, Literal

from pydantic import Field, RootModel

from headway.answers.schema import Number, Schema
from headway.core.status import State


class ConfusionSchema(Schema):
    classes: list[str]
    counts: list[list[int]] = Field(
        default=[], description="One row per true class: how many of its texts were assigned to each class."
    )
    cells: list[list[int]] = Field(
        default=[], description="Instead of counts, for more than 32 classes: true class, predicted class, count."
    )


class ScoreSchema(Schema):
    value: Number
    label: str = Field(description="What was measured, in full: unit, split, how it was read.")
    interval: list[Number] = Field(default=[], description="95 %, if the score has one.")
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
    name: str = Field(description="The name of the score it is a baseline for.")


class ReportSchema(Schema):
    findings: list[FindingSchema]
    not_run: dict[str, str] = Field(description="Audits that do not apply, and why.")
    baselines: list[BaselineSchema]


class WeightsSchema(Schema):
    """Which checkpoint was scored."""

    step: int | None
    of: int | None = Field(description="The number of steps of the training.")
    chosen: str = Field(description="How it was chosen: the best by valid.loss, the last …")


class RunSchema(Schema):
    run: str = Field(description="Its folder.")
    scores: dict[str, ScoreSchema]
    audits: ReportSchema
    weights: WeightsSchema | None = None


class EndedRunSchema(RunSchema):
    status: State
    step: int | None
    reason: str | None


class TrainSchema(EndedRunSchema):
    """The first run; if there are several, every run under `runs`."""

    runs: list[EndedRunSchema] = Field(default=[])


class MeanSchema(Schema):
    value: Number
    interval: list[Number] | None = Field(description="95 % over seeds; for a single run, its own; null = unknown.")
    seeds: int


class AheadSchema(Schema):
    """Compared with the first arm: above 0 is better."""

    by: Number
    unit: str
    interval: list[Number] | None = Field(description="95 % over seeds; null = too few seeds.")
    seeds: int = Field(description="The number of seeds compared.")
    told_apart: bool = Field(description="Whether the interval excludes 0, without any correction.")


class ComparedArmSchema(Schema):
    """Runs that differ only in the seed."""

    name: str
    runs: dict[str, str] = Field(description="The folder of each seed.")
    scores: dict[str, MeanSchema]
    beside_first: dict[str, AheadSchema]


class CompareSchema(Schema):
    arms: list[ComparedArmSchema]
    differences: dict[str, list[Any]] = Field(
        description="Recipe keys that differ, with a value for each arm; – = no such key."
    )
    notes: list[str] = Field(description="Reasons for caution.")


class RunStateSchema(Schema):
    """What the folder tells, without asking the process."""

    running: bool
    process: int | None
    since: str | None
    step: int
    total: int | None
    last: dict[str, Any] | None = Field(description="The last event.")


class ListedRunSchema(RunSchema):
    facts: dict[str, Any] = Field(description="The contents of run.json.")
    state: RunStateSchema


class RunsSchema(Schema):
    runs: list[ListedRunSchema]
    damaged: dict[str, str] = Field(default={}, description="Runs that cannot be read, and why.")


class TokenSchema(Schema):
    token: str
    nats: Number


class ScoredSchema(RunSchema):
    tokens: list[TokenSchema] = Field(default=[], description="For a given text: the loss of each token.")


class GainSchema(Schema):
    """How much better an ensemble is than the mean of its members; above 0 is better."""

    gain: float
    unit: str
    interval: list[float] | None = Field(description="95 %, resampling pieces of the split, for these runs.")
    pieces: int
    mean: float
    ensemble: float
    members: list[float]


class EnsembleSchema(Schema):
    """With --ensemble: the averaged probabilities of several runs."""

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
    segments: int = Field(description="The number of segments averaged in by_position.")


class RunByLengthSchema(Schema):
    run: str
    lengths: list[LengthSchema]


class ArmByLengthSchema(Schema):
    name: str
    trained_on: int
    runs: list[RunByLengthSchema]


class LengthsSchema(Schema):
    """With --lengths: nats per token with segments of several lengths."""

    split: str
    tokens: int
    arms: list[ArmByLengthSchema]
    file: str | None


class ScoreAnswerSchema(RootModel[ScoredSchema | EnsembleSchema | LengthsSchema]):
    """A run; with --ensemble, an ensemble; with --lengths, scores by segment length."""


class ExplanationSchema(Schema):
    audit: str
    about: str
    explanation: str


class TrialSchema(Schema):
    fault: str
    kind: str
    audit: str = Field(description="The audit meant to detect it.")
    outcome: Literal["seen", "not seen", "cannot show"]
    sentence: str = Field(description="What that audit says, or why the fault cannot show in this recipe.")
    instead: list[str] = Field(description="Audits that detected it if the one meant for it did not.")
    seconds: float


class SelfTestSchema(Schema):
    recipe: str
    clean: ReportSchema = Field(description="Findings without any fault.")
    faults: list[TrialSchema]
    stopped: bool = Field(description="Interrupted by Ctrl-C before all faults were tried.")


class AuditSchema(RootModel[ReportSchema | ExplanationSchema | SelfTestSchema]):
    """A report; with --explain, an explanation; with --self-test, the result of every fault."""


class SampleSchema(Schema):
    run: str
    prompt: str
    text: str
    note: str | None
    texts: list[str] = Field(default=[], description="With --count: all of them.")


class ClassifiedTextSchema(Schema):
    run: str
    text: str
    classes: dict[str, float]
    tokens: int
    unknown: int
    notes: list[str]


class ClassifiedFileSchema(Schema):
    """A file or stdin."""

    run: str
    notes: list[str]
    file: str | None = Field(description="The file that the table was written to, if any.")
    rows: list[dict[str, Any]] = Field(
        description="The columns of each row, with the predicted class, its probability, and that of each class."
    )


class ClassifySchema(RootModel[ClassifiedTextSchema | ClassifiedFileSchema]):
    """One text, or many."""


class GuessSchema(Schema):
    token: str
    probability: float


class FillSchema(Schema):
    run: str
    text: str
    filled: str = Field(description="The text with the most likely token at every [MASK].")
    places: list[list[GuessSchema]] = Field(description="For every [MASK], most likely first.")
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
    runs: list[str] = Field(default=[], description="All runs of an ensemble.")
    decoding: str
    translations: list[TranslationSchema] = Field(default=[])
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


class CacheEntrySchema(Schema):
    name: str
    bytes: int
    days: float = Field(description="Days since its last use.")
    current: bool = Field(description="Whether this version of Headway reads it.")


class CacheSchema(Schema):
    folder: str
    bytes: int
    cleared: bool
    entries: list[CacheEntrySchema]
