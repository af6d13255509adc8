"""The data part of a recipe, where it is pairs of texts, a source and its target."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from headway.core.errors import did_you_mean
from headway.core.spec import Problem
from headway.data.labelled.sources import LABELLED_SETS
from headway.data.pairs.batches import Buckets, PairBatchSpec
from headway.data.pairs.filters import Filters
from headway.data.pairs.sources import BY_RULE, PAIRED_SETS, Sides, is_direction
from headway.data.running.sources import CORPORA, why_no_encoding
from headway.data.spec import DataSpec, known_as
from headway.data.tables import WrittenAs
from headway.data.vocabularies import Char, TokenizerSpec


class Pairs(DataSpec):
    """Which pairs of texts, source and target, cut into which tokens, read in which order."""

    added: ClassVar[frozenset[str]] = frozenset({"rows", "encoding", "delimiter"})

    kind: Literal["pairs"] = "pairs"
    source: str = "pig-latin"
    """pig-latin, numbers-en-fr (made by rules); ted-en-fr, multi30k, pig-latin-course or pig-latin-large (from the
    folder that HEADWAY_DATA names); or files, with a path; or hub, with the name of a dataset there as path."""
    path: str | None = None
    """For source: files. A folder of parallel files (train.en, train.de, valid.en …), or a table with both sides in
    each row (.tsv, .csv), or a folder of such, named train, valid and test; .gz too.
    For source: hub. owner/name[@revision][/folder, file or pattern inside]; the sides are columns."""
    direction: str | None = None
    """From which side to which: en-de, by the endings of parallel files or the names of columns; 1-2, by the numbers of
    columns; null = as a known set has it, and in tables from the first column to the second."""
    header: bool | None = None
    """Of a table. Whether the first line names the columns; null = it does, if one is given by name."""
    delimiter: str | None = Field(default=None, min_length=1, max_length=1)
    """Of a table. What separates cells; null = commas in .csv and tabs in .tsv, or as the first lines have it."""
    encoding: str | None = None
    """For source: files. How letters are written: cp1252, latin-1 …; null = UTF-8, or UTF-16 where a file begins so."""
    filters: Filters = Filters()
    """What is dropped from train: metadata, empty, untranslated, longest, ratio."""
    rows: int | None = Field(default=None, ge=1)
    """Learn from this many pairs of train, whatever is held out; null = from all. Fewer are always among more."""
    exact: bool | None = None
    """Whether a source has one right translation, so that what counts is how many are exactly that, and not BLEU; null
    = as is known of the source: those made by rules have one."""
    valid_fraction: float = Field(default=0.1, ge=0, lt=1)
    """How much of train becomes `valid` where the source has none. 0 = nothing; then evaluate_on must name others."""
    tokenizer: TokenizerSpec = Char()
    """What a token is, on both sides: char, byte, word, bpe; or given, with the path of a run's tokenizer.json."""
    target_tokenizer: TokenizerSpec | None = None
    """Of the targets, where they have a vocabulary of their own; null = one is learnt on both sides together."""
    batches: PairBatchSpec = Buckets()
    """Which pairs a step sees."""

    @property
    def sides(self) -> Sides:
        return Sides(self.direction, self.header, WrittenAs(self.encoding, self.delimiter))

    @property
    def is_exact(self) -> bool:
        return self.source in BY_RULE if self.exact is None else self.exact

    def problems(self) -> Iterator[Problem]:
        if self.source not in PAIRED_SETS:
            hint = known_as(self.source, CORPORA, "text") or known_as(self.source, LABELLED_SETS, "labelled")
            hint = hint or did_you_mean(self.source, PAIRED_SETS)
            yield Problem(("source",), f"there are no pairs called '{self.source}'{hint}")
        elif self.source == "files" and self.path is None:
            yield Problem(("source", "path"), "source: files needs a path, such as data.path=corpus/ or pairs.tsv")
        elif self.source == "hub" and (self.path is None or self.direction is None):
            reason = "source: hub needs a path and a direction, such as data.path=owner/name data.direction=en-de"
            yield Problem(("source", "path", "direction"), reason)
        elif self.source not in ("files", "hub") and self.path is not None:
            reason = f"path is only read with source: files or hub, not with {self.source}; set data.source=files"
            yield Problem(("source", "path"), reason)
        if self.direction is not None:
            if not is_direction(self.direction):
                reason = f"'{self.direction}' is no direction; write from-to, such as en-de or 1-2"
                yield Problem(("direction",), reason)
            elif len(set(self.sides.both)) == 1:
                reason = f"'{self.direction}' has one side twice: every target would be its source"
                yield Problem(("direction",), f"{reason}; write from-to, such as en-de or 1-2")
            elif self.source in BY_RULE:
                yield Problem(("source", "direction"), f"{self.source} has one direction only")
        if why := why_no_encoding(self.encoding):
            yield Problem(("encoding",), why)

    def row_length(self, context: int) -> int:
        """Of either side, with its END: pairs with a longer one are not trained on."""
        return context

    def problems_with(self, model: Any, scoring: Any) -> Iterator[Problem]:
        if scoring.segment or scoring.stride:
            reason = "pairs are scored whole, one by one: there are no segments, and nothing strides"
            yield Problem(("scoring.segment", "scoring.stride"), reason)
        # Two that are given may cut in two ways and number alike; whether they do is seen when they are read.
        given = self.tokenizer.is_given and self.target_tokenizer is not None and self.target_tokenizer.is_given
        if self.target_tokenizer is not None and model.shares_vocabulary and not given:
            reason = f"{model.shares_vocabulary}, so the targets cannot have a vocabulary of their own"
            yield Problem(("data.target_tokenizer", "model"), reason)
