"""Answers that only the pages of the workbench ask for."""

from typing import Any

from pydantic import Field

from headway.answers.runs import ListedRunSchema
from headway.answers.schema import Number, Schema
from headway.answers.studies import ConclusionSchema


class AboutSchema(Schema):
    folder: str
    read_only: bool = Field(description="Nothing can be started or stopped.")
    headway: str = Field(description="Its version.")


class HeadlineSchema(Schema):
    split: str
    value: Number


class RunRowSchema(Schema):
    name: str = Field(description="Its path in the folder that is served.")
    study: str | None = Field(default=None, description="That it is a run of.")
    state: str = Field(description="A status; or `running`, `killed`, `cannot be read`, `not read yet`.")
    reason: str | None = None
    step: int
    total: int | None = None
    since: str | None = None
    created: str | None = None
    seconds: Number = None
    parameters: int | None = None
    recipe: str | None = Field(default=None, description="That its command began from.")
    hash: str | None = None
    arm: str | None = None
    metric: str = ""
    lower: bool = Field(default=True, description="Whether lower is better.")
    scores: list[HeadlineSchema] = Field(default=[])
    failed: list[str] = Field(default=[], description="Audits, each in a few words.")
    warned: list[str] = Field(default=[])
    passed: int = 0


class RunTableSchema(Schema):
    folder: str
    there: bool = Field(description="False: the folder is gone.")
    unread: int = Field(description="Runs whose files were not read yet: their rows have a name alone.")
    at: int = Field(description="The last look that found something new: /api/events?topic=runs@AT tells what follows.")
    runs: list[RunRowSchema]


class PointsSchema(Schema):
    steps: list[int]
    values: list[Number]


class CurvesSchema(Schema):
    at: int = Field(description="Byte of metrics.jsonl up to which this is; `run:NAME@BYTE` goes on from there.")
    columns: dict[str, PointsSchema]


class RecipeKeySchema(Schema):
    key: str
    value: str = Field(description="As YAML.")
    meaning: str
    depth: int
    differs: bool | None = Field(default=None, description="From the recipe it began from; null: not known.")
    packaged: str | None = Field(default=None, description="What that one has.")


class OpenedRunSchema(ListedRunSchema):
    name: str
    said: str = Field(description="How it stands, in words.")
    word: str = Field(description="The same in one word, as in the table.")
    study: str | None
    recipe: list[RecipeKeySchema] = Field(description="Every key in order, with its meaning.")
    environment: dict[str, Any]
    began_from: str | None = Field(description="The recipe that its command named.")
    command: str = Field(description="That makes this run again.")
    events: list[dict[str, Any]]


class RecipeDifferenceSchema(Schema):
    base: str
    keys: dict[str, list[str | None]] = Field(description="Key → what the base has, and what the run has.")


class ComparedSchema(Schema):
    runs: list[str]
    keys: dict[str, list[str | None]] = Field(description="Those that are not the same in all, with every run's value.")


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
    runs: int = Field(description="That there are to be.")
    ended: int
    failed: int
    outcomes: list[str] = Field(description="Of its verdicts, as last written down.")
    report: bool
    changed: float = Field(description="Seconds since 1970.")


class StudiesSchema(Schema):
    studies: list[ListedStudySchema]


class CellSchema(Schema):
    arm: str
    seed: int | None
    state: str
    step: int
    name: str | None = Field(default=None, description="Of the run, once it has begun.")
    reason: str | None = None
    total: int | None = None
    scores: list[HeadlineSchema] | None = None
    metric: str | None = None
    failed: list[str] | None = None
    seconds: Number = None


class OpenedStudySchema(Schema):
    name: str
    title: str
    process: int | None = Field(description="That trains it now.")
    arms: list[str]
    cells: dict[str, CellSchema] = Field(description="Every run that is to be, by its folder's name.")
    ended: int
    seconds_left: Number = Field(description="By what the runs so far took.")
    report: bool
    log: str
    command: str = Field(description="That goes on with it.")


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
    told: ConclusionSchema = Field(description="As `headway study results --json` tells it.")
    about: str
    seeds: list[int]
    early: bool = Field(description="Not every run has ended: verdicts may change.")
    marks: list[str] = Field(description="Of every verdict, its interval as SVG; empty where it has none.")
    tables: list[ShownTableSchema]
    figures: list[DrawnSchema]
    questions: list[str]


class StandingSchema(Schema):
    reported: str
    quick: str | None = Field(default=None, description="How the conclusion stands; null: not run here.")
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
    studies: str = Field(description="Where its studies are, by name; empty: in the folder itself.")
