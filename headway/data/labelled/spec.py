"""The data part of a recipe, where it is texts that have labels."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from headway.core.errors import did_you_mean
from headway.core.spec import Problem
from headway.data.labelled import by_length  # noqa: F401 (to be known)
from headway.data.labelled.batches import RowBatchSpec, Shuffled
from headway.data.labelled.held_out import HeldOut
from headway.data.labelled.sources import LABELLED_SETS, Columns
from headway.data.running.sources import CORPORA, why_no_encoding
from headway.data.spec import DataSpec, known_as
from headway.data.tables import Column, WrittenAs
from headway.data.vocabularies import TokenizerSpec, Word


class Labelled(DataSpec):
    """Which labelled texts, cut into which tokens, read in which order."""

    added: ClassVar[frozenset[str]] = frozenset({"encoding", "delimiter", "empty", "test_fraction", "split_seed"})

    kind: Literal["labelled"] = "labelled"
    source: str = "python-modules"
    """python-modules (docstrings of the running Python, by package), arithmetic-in-words (made by rule);
    cse256-speeches, sst2 or verbal-arithmetic (from the folder that HEADWAY_DATA names); or files, with a path."""
    path: str | None = None
    """For source: files. A table with a text in each row (.csv, .tsv, .jsonl; .gz too), which is split into train,
    valid and test; or a folder of such, named train, valid and test."""
    text: Column | list[Column] = "text"
    """For source: files. The column that is the text: its name in the first line, or its number from 1; or a list of
    several, such as [title, description], whose texts are read as one row with separators between them."""
    label: Column = "label"
    """For source: files. The column that is the class."""
    header: bool | None = None
    """For source: files. Whether the first line names the columns; null = it does, if a column is given by name."""
    delimiter: str | None = Field(default=None, min_length=1, max_length=1)
    """For source: files. What separates cells; null = commas in .csv, tabs in .tsv, or as the first lines have it."""
    encoding: str | None = None
    """For source: files. How letters are written: cp1252, latin-1 …; null = UTF-8, or UTF-16 where a file begins so."""
    empty: Literal["refuse", "drop"] = "refuse"
    """For source: files. What becomes of rows without a text or a label."""
    valid_fraction: float = Field(default=0.1, ge=0, lt=1)
    """How much of train becomes `valid` where the source has none. 0 = nothing; then evaluate_on must name others."""
    test_fraction: float | None = Field(default=None, ge=0, lt=1)
    """For source: files. How much of train becomes `test` where there is none; null = of a single table as much as
    becomes valid, of a folder nothing."""
    split_seed: int = Field(default=0, ge=0)
    """For source: files. Which rows those are: of every class its share, and all rows of one text on the same side."""
    tokenizer: TokenizerSpec = Word()
    """What a token is: char, byte, word, bpe; or given, with the path of a run's tokenizer.json."""
    batches: RowBatchSpec = Shuffled()
    """Which texts a step sees."""

    def problems(self) -> Iterator[Problem]:
        known = LABELLED_SETS
        if self.source not in known:
            hint = known_as(self.source, CORPORA, "text") or did_you_mean(self.source, known)
            yield Problem(("source",), f"there is no labelled set called '{self.source}'{hint}")
        elif self.source == "files" and self.path is None:
            yield Problem(("source", "path"), "source: files needs a path, such as data.path=reviews.tsv")
        elif self.source != "files" and self.path is not None:
            reason = f"path is only read with source: files, not with {self.source}; set data.source=files"
            yield Problem(("source", "path"), reason)
        if self.source in known and self.source != "files":
            for key in ("text", "label", "header", "delimiter", "encoding", "empty", "test_fraction", "split_seed"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    yield Problem(("source", key), f"{self.source} has columns of its own; {key} is for source: files")
        elif isinstance(self.text, list) and len(self.text) < 2:
            reason = f"{len(self.text)} columns in a list: a row is a text, data.text=NAME, or several, [title, body]"
            yield Problem(("text",), reason)
        elif self.header is False and not all(isinstance(column, int) for column in self._columns):
            reason = "without a header, columns have no names; give their numbers, such as data.text=1 data.label=2"
            yield Problem(("header", "text", "label"), reason)
        if why := why_no_encoding(self.encoding):
            yield Problem(("encoding",), why)
        if self.valid_fraction + (self.test_fraction or 0) >= 1:
            yield Problem(
                ("valid_fraction", "test_fraction"), "together they are all of train: nothing is left to learn"
            )

    @property
    def _columns(self) -> list[Column]:
        return [*(self.text if isinstance(self.text, list) else [self.text]), self.label]

    @property
    def columns(self) -> Columns:
        return Columns(self.text, self.label, self.header, WrittenAs(self.encoding, self.delimiter), self.empty)

    @property
    def held_out(self) -> HeldOut:
        return HeldOut(self.valid_fraction, self.test_fraction, self.split_seed)

    def row_length(self, context: int) -> int:
        """Longer texts are cut."""
        return context

    def problems_with(self, model: Any, scoring: Any) -> Iterator[Problem]:
        if scoring.segment or scoring.stride or scoring.state:
            reason = "labelled texts are scored whole, one by one: there are no segments, nothing strides or goes on"
            yield Problem(("scoring.segment", "scoring.stride", "scoring.state"), reason)
