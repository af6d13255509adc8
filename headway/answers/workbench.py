"""Schemas of answers that only the workbench uses."""

from typing import Any

from pydantic import Field

from headway.answers.runs import ListedRunSchema
from headway.answers.schema import Number, Schema
from headway.answers.studies import ConclusionSchema


class AboutSchema(Schema):
    folder: str
    read_only: bool = Field(description="Nothing can be started or stopped.")
    headway: str = Field(description="The version of Headway.")


class HeadlineSchema(Schema):
    split: str
    value: Number


class RunRowSchema(Schema):
    name: str = Field(description="Its path in the served folder.")
    study: str | None = Field(default=None, description="The study it belongs to.")
    state: str = Field(description="A status, or `running`, `killed`, `cannot be read`, `not read yet`.")
    reason: str | None = None
    step: int
    total: int | None = None
    since: str | None = None
    created: str | None = None
    seconds: Number = None
    parameters: int | None = None
    recipe: str | None = Field(default=None, description="The recipe that its command named.")
    hash: str | None = None
    arm: str | None = None
    metric: str = ""
    lower: bool = Field(default=True, description="Whether lower is better.")
    scores: list[HeadlineSchema] = Field(default=[])
    failed: list[str] = Field(default=[], description="Failed audits, each in a few words.")
    warned: list[str] = Field(default=[])
    passed: int = 0


class RunTableSchema(Schema):
    folder: str
    there: bool = Field(description="False: the folder no longer exists.")
    unread: int = Field(description="Runs whose files have not been read yet; their rows only have a name.")
    at: int = Field(description="The number of the latest change: /api/events?topic=runs@AT streams what follows.")
    runs: list[RunRowSchema]


class PointsSchema(Schema):
    steps: list[int]
    values: list[Number]


class CurvesSchema(Schema):
    at: int = Field(description="The byte of metrics.jsonl read up to; `run:NAME@BYTE` continues from there.")
    columns: dict[str, PointsSchema]


class RecipeKeySchema(Schema):
    key: str
    value: str = Field(description="As YAML.")
    meaning: str
    depth: int
    differs: bool | None = Field(default=None, description="From the packaged recipe; null: unknown.")
    packaged: str | None = Field(default=None, description="The packaged recipe's value.")


class OpenedRunSchema(ListedRunSchema):
    name: str
    said: str = Field(description="The status as a sentence.")
    word: str = Field(description="The status in one word, as in the table.")
    study: str | None
    recipe: list[RecipeKeySchema] = Field(description="Every key in order, with its meaning.")
    environment: dict[str, Any]
    began_from: str | None = Field(description="The recipe that its command named.")
    command: str = Field(description="The command that makes this run again.")
    events: list[dict[str, Any]]


class RecipeDifferenceSchema(Schema):
    base: str
    keys: dict[str, list[str | None]] = Field(description="Key → the value of the base, and that of the run.")


class ComparedSchema(Schema):
    runs: list[str]
    keys: dict[str, list[str | None]] = Field(description="Keys that differ, with the value of every run.")


class JobSchema(Schema):
    job: str
    command: str
    process: int
    started: float
    running: bool
    code: int | None
    said: str


class JobsSchema(Schema):
    jobs: list[JobSchema]


class StoppedSchema(Schema):
    stopped: str
    process: int


class ListedStudySchema(Schema):
    name: str
    title: str
    exercise: bool = Field(description="Solved, not trained.")
    running: bool
    runs: int = Field(description="The planned number.")
    ended: int
    failed: int
    outcomes: list[str] = Field(description="Outcomes of its verdicts, as last stored.")
    report: bool
    changed: float = Field(description="Seconds since 1970.")


class StudiesSchema(Schema):
    studies: list[ListedStudySchema]


class CellSchema(Schema):
    arm: str
    seed: int | None
    state: str
    step: int
    name: str | None = Field(default=None, description="The run's name, once it has started.")
    reason: str | None = None
    total: int | None = None
    scores: list[HeadlineSchema] | None = None
    metric: str | None = None
    failed: list[str] | None = None
    seconds: Number = None


class OpenedStudySchema(Schema):
    name: str
    title: str
    process: int | None = Field(description="The process that trains it now.")
    arms: list[str]
    cells: dict[str, CellSchema] = Field(description="Every planned run, by its folder's name.")
    ended: int
    seconds_left: Number = Field(description="Estimated from the runs so far.")
    report: bool
    log: str
    command: str = Field(description="The command that resumes it.")


class ShownRowSchema(Schema):
    name: str
    cells: list[str]
    remark: str
    beside: bool


class ShownTableSchema(Schema):
    caption: str
    columns: list[str]
    rows: list[ShownRowSchema]
    notes: list[str]


class DrawnSchema(Schema):
    picture: str = Field(description="SVG.")
    caption: str


class StudyPageSchema(Schema):
    told: ConclusionSchema = Field(description="The answer of `headway study results --json`.")
    about: str
    seeds: list[int]
    early: bool = Field(description="Not all runs have ended, so verdicts may change.")
    marks: list[str] = Field(description="The interval of every verdict as SVG; empty if it has none.")
    tables: list[ShownTableSchema]
    figures: list[DrawnSchema]
    questions: list[str]


class StandingSchema(Schema):
    reported: str
    quick: str | None = Field(default=None, description="Whether the conclusion holds; null: not run here.")
    full: str | None = None


class StandingsSchema(Schema):
    cases: dict[str, StandingSchema]


class CaseSizeSchema(Schema):
    quick: bool
    takes: str
    folder: str
    status: str | None = None
    where: str | None = None
    measured: ShownTableSchema | None = None
    said: list[str] = Field(default=[])


class OpenedCaseSchema(Schema):
    case: str
    title: str
    reported: str
    sizes: list[CaseSizeSchema]
    studies: str = Field(description="The folder of its studies, by name; empty: the served folder itself.")
