"""Answers about runs: trained, listed, scored, audited; what they write, classify and translate; weights in and out."""

from typing import Any, Literal

from pydantic import Field, RootModel

from headway.answers.schema import Number, Schema
from headway.core.status import State


class ConfusionSchema(Schema):
    classes: list[str]
    counts: list[list[int]] = Field(
        default=[], description="A row for each true class: how many of its texts got which."
    )
    cells: list[list[int]] = Field(
        default=[], description="Of more than 32 classes, in place of counts: true class, chosen class, how many."
    )


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


class WeightsSchema(Schema):
    """Which checkpoint is scored."""

    step: int | None
    of: int | None = Field(description="How many steps training has taken.")
    chosen: str = Field(description="By what: the best by valid.loss, the last …")


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
    """Of the first run; of every one under `runs`, where there are several."""

    runs: list[EndedRunSchema] = Field(default=[])


class MeanSchema(Schema):
    value: Number
    interval: list[Number] | None = Field(description="95 %: over seeds; of a single run, its own; null = none known.")
    seeds: int


class AheadSchema(Schema):
    """Beside the first arm: above 0 is better."""

    by: Number
    unit: str
    interval: list[Number] | None = Field(description="95 %, over seeds; null = too few to say.")
    seeds: int = Field(description="That were compared.")
    told_apart: bool = Field(description="Whether the interval leaves 0 out; corrected for nothing.")


class ComparedArmSchema(Schema):
    """Runs that differ in their seeds alone."""

    name: str
    runs: dict[str, str] = Field(description="By seed, their folders.")
    scores: dict[str, MeanSchema]
    beside_first: dict[str, AheadSchema]


class CompareSchema(Schema):
    arms: list[ComparedArmSchema]
    differences: dict[str, list[Any]] = Field(
        description="By key of the recipe, a value for each arm; – = no such key."
    )
    notes: list[str] = Field(description="What stands against believing it.")


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
    damaged: dict[str, str] = Field(default={}, description="Runs that cannot be read, and why.")


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


class ClassifiedTextSchema(Schema):
    run: str
    text: str
    classes: dict[str, float]
    tokens: int
    unknown: int
    notes: list[str]


class ClassifiedFileSchema(Schema):
    """Of a file, or of a pipe."""

    run: str
    notes: list[str]
    file: str | None = Field(description="Where the table is, where it was written.")
    rows: list[dict[str, Any]] = Field(
        description="The columns of each row, with predicted, probability and the probability of all classes."
    )


class ClassifySchema(RootModel[ClassifiedTextSchema | ClassifiedFileSchema]):
    """Of one text, or of many."""


class GuessSchema(Schema):
    token: str
    probability: float


class FillSchema(Schema):
    run: str
    text: str
    filled: str = Field(description="With the likeliest token at every place.")
    places: list[list[GuessSchema]] = Field(description="For every [MASK], the likeliest first.")
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
    runs: list[str] = Field(default=[], description="All of them, where several translate as one.")
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
    days: float = Field(description="Since somebody has used it.")
    current: bool = Field(description="Whether this version of Headway reads it.")


class CacheSchema(Schema):
    folder: str
    bytes: int
    cleared: bool
    entries: list[CacheEntrySchema]
