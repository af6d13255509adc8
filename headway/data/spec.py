"""The data part of a recipe: running text, texts that have labels, pairs of texts, or pictures with captions."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from headway.core.errors import did_you_mean
from headway.core.spec import Problem
from headway.core.variants import Variant
from headway.data.images.batches import PictureBatchSpec, ShuffledPictures
from headway.data.images.sources import PICTURE_SETS, has_classes
from headway.data.labelled import by_length  # noqa: F401 (to be known)
from headway.data.labelled.batches import RowBatchSpec, Shuffled
from headway.data.labelled.held_out import HeldOut
from headway.data.labelled.sources import LABELLED_SETS, Columns
from headway.data.pairs.batches import Buckets, PairBatchSpec
from headway.data.pairs.filters import Filters
from headway.data.pairs.sources import BY_RULE, PAIRED_SETS, Sides, is_direction
from headway.data.running.batches import BatchSpec, Crops
from headway.data.running.sources import CORPORA, why_no_encoding
from headway.data.tables import Column, WrittenAs
from headway.data.vocabularies import Char, Given, TokenizerSpec, Word


class DataSpec(Variant):
    """What a model learns from."""

    @abstractmethod
    def row_length(self, context: int) -> int:
        """Tokens per row of training, for a model of this context."""

    @property
    def rows_go_on(self) -> bool:
        """Whether rows continue those of the step before, so that a model can carry a state from batch to batch."""
        return False

    def problems_with(self, model: Any, scoring: Any) -> Iterator[Problem]:
        """What is read must fit the model, in training and in scoring. Keys are those of the recipe."""
        yield from ()

    def kept_in(self, folder: Path) -> Self:
        """The same data for a run in this folder. Vocabularies that were given, not learnt, are read from there: where
        they came from may be gone by now."""
        given = [name for name in type(self).model_fields if getattr(getattr(self, name), "is_given", False)]
        return self.model_copy(update={name: Given(path=str(folder / f"{name}.json")) for name in given})

    if TYPE_CHECKING:  # not every kind of data has what most have

        def __getattr__(self, name: str) -> Any: ...


class Text(DataSpec):
    """Which text, cut into which tokens, read in which order."""

    added: ClassVar[frozenset[str]] = frozenset({"encoding"})

    kind: Literal["text"] = "text"
    source: str = "python-docs"
    """python-docs (made from the running Python's documentation), arithmetic-in-words (made by rule); wikitext-2,
    tinyshakespeare or cse256-speeches (from the folder that HEADWAY_DATA names); files, with a path; or hub, with the
    name of a dataset there as path."""
    path: str | None = None
    """For source: files. A text file (.gz too), whose end becomes `valid`; or a folder of train, valid, test files.
    For source: hub. owner/name[@revision][/folder, file or pattern inside][#column that is the text]."""
    valid_fraction: float = Field(default=0.1, gt=0, lt=1)
    """How much of the end of a single file, or of a dataset without a `valid` of its own, becomes `valid`."""
    encoding: str | None = None
    """For source: files. How letters are written: cp1252, latin-1 …; null = UTF-8, or UTF-16 where a file begins so."""
    tokenizer: TokenizerSpec = Char()
    """What a token is: char, byte, word, bpe; or given, with the path of a run's tokenizer.json."""
    segment: int | None = Field(default=None, ge=1)
    """Tokens per training row; null = model.context."""
    batches: BatchSpec = Crops()
    """Which rows a step sees: crops (random), contiguous (in order, so that state can be carried), contiguous-shifted
    (the same, cut at other places in every pass over the text); lines, for masked-language-models."""

    def problems(self) -> Iterator[Problem]:
        if self.source not in CORPORA:
            hint = _other_kind(self.source, LABELLED_SETS, "labelled") or did_you_mean(self.source, CORPORA)
            yield Problem(("source",), f"there is no corpus called '{self.source}'{hint}")
        elif self.source == "files" and self.path is None:
            yield Problem(("source", "path"), "source: files needs a path, such as data.path=corpus.txt")
        elif self.source == "hub" and self.path is None:
            yield Problem(("source", "path"), "source: hub needs a path, such as data.path=owner/name")
        elif self.source not in ("files", "hub") and self.path is not None:
            reason = f"path is only read with source: files or hub, not with {self.source}; set data.source=files"
            yield Problem(("source", "path"), reason)
        if why := why_no_encoding(self.encoding):
            yield Problem(("encoding",), why)
        elif self.encoding is not None and self.source != "files":
            yield Problem(("source", "encoding"), f"{self.source} is written as it is; encoding is for source: files")

    def row_length(self, context: int) -> int:
        """Tokens per training row of a model with this context."""
        return self.segment or context

    @property
    def rows_go_on(self) -> bool:
        return self.batches.rows_go_on

    def problems_with(self, model: Any, scoring: Any) -> Iterator[Problem]:
        segment, context, limit = self.row_length(model.context), model.context, model.limit
        if model.reads_rows:
            yield from self._problems_of_rows(segment, context, scoring)
            return
        if self.batches.by_line:
            reason = "a language model reads on from line to line; rows of single lines are for masked-language-models"
            yield Problem(("data.batches", "model.kind"), reason)
        scored = scoring.segment or segment
        if model.horizon is not None and segment > context:
            reason = f"segments of {segment} tokens do not fit a model whose context is {context}"
            if limit is not None:
                reason += f", and the learned positions end at {limit}"
            yield Problem(("data.segment", "model.context"), reason)
        elif limit is not None and scored > limit:
            reason = f"learned positions end at {limit}, so segments of {scored} cannot be scored"
            yield Problem(("scoring.segment", "model.context"), reason)
        if scoring.stride and scoring.stride > scored:
            reason = f"a stride of {scoring.stride} would skip tokens between segments of {scored}"
            yield Problem(("scoring.stride", "scoring.segment"), reason)
        if scoring.state == "carried":
            if not model.remembers:
                reason = "no layer of this model carries a state; a recurrence does, and attention with mixer.memory"
                yield Problem(("scoring.state", "model.mixer"), reason)
            elif scoring.stride and scoring.stride != scored:
                reason = f"where state is carried every token is read once, so nothing strides by {scoring.stride}"
                yield Problem(("scoring.state", "scoring.stride"), f"{reason}; use state: fresh, or no stride")

    def _problems_of_rows(self, segment: int, context: int, scoring: Any) -> Iterator[Problem]:
        """Of models that read rows in both directions, each for itself."""
        if segment > context:
            reason = f"rows of {segment} tokens do not fit a model whose context is {context}"
            yield Problem(("data.segment", "model.context"), reason)
        if segment < 4:
            reason = f"rows of {segment} tokens: the first and the last are marks, and what is hidden needs a neighbour"
            yield Problem(("data.segment", "model.context"), f"{reason}; 4 at least")
        if scoring.segment or scoring.stride or scoring.state:
            reason = "hidden tokens are guessed in rows as long as those of training: nothing strides or goes on"
            yield Problem(("scoring.segment", "scoring.stride", "scoring.state"), reason)


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
            hint = _other_kind(self.source, CORPORA, "text") or did_you_mean(self.source, known)
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
            hint = _other_kind(self.source, CORPORA, "text") or _other_kind(self.source, LABELLED_SETS, "labelled")
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


class Pictures(DataSpec):
    """Which pictures with captions, of which size, captions cut into which tokens, read in which order."""

    kind: Literal["pictures"] = "pictures"
    source: str = "scenes"
    """scenes (coloured shapes, drawn by rule); tiny-imagenet-10 (from the folder that HEADWAY_DATA names); or files,
    with a path."""
    path: str | None = None
    """For source: files. A folder of pictures with captions.csv (columns file and caption) or with a folder for each
    class; or one that has such in train, valid and test."""
    size: int = Field(default=48, ge=4, le=1024)
    """Pixels of a side: all pictures are made this large."""
    template: str = "{}"
    """How the name of a class becomes a caption to learn from, where pictures have classes: a photo of a {}."""
    prompts: list[str] = Field(default=["a photo of a {}"])
    """How the name of a class is put when pictures are classified; of several, the mean of the embedded prompts."""
    rows: int | None = Field(default=None, ge=1)
    """Learn from this many pictures of train; null = from all."""
    valid_fraction: float = Field(default=0.1, ge=0, lt=1)
    """How much of train becomes `valid` where the source has none. 0 = nothing; then evaluate_on must name others."""
    among: int = Field(default=100, ge=2)
    """Pictures are looked for among so many, and captions among those of so many pictures."""
    tokenizer: TokenizerSpec = Word()
    """What a token of a caption is: char, byte, word, bpe; or given, with the path of a run's tokenizer.json."""
    batches: PictureBatchSpec = ShuffledPictures()
    """Which pictures a step sees, mirrored or moved."""

    @property
    def has_classes(self) -> bool:
        """Whether all that is known of the pictures are their classes."""
        return has_classes(self.source, self.path)

    def problems(self) -> Iterator[Problem]:
        if self.source not in PICTURE_SETS:
            hint = did_you_mean(self.source, PICTURE_SETS)
            yield Problem(("source",), f"there are no pictures called '{self.source}'{hint}")
        elif self.source == "files" and self.path is None:
            yield Problem(("source", "path"), "source: files needs a path, such as data.path=flowers/")
        elif self.source != "files" and self.path is not None:
            reason = f"path is only read with source: files, not with {self.source}; set data.source=files"
            yield Problem(("source", "path"), reason)
        for key, texts in (("template", [self.template]), ("prompts", self.prompts)):
            if wrong := [text for text in texts if text.count("{}") != 1]:
                yield Problem((key,), f"'{wrong[0]}' needs one {{}}, where the name of the class goes")
        if not self.prompts:
            yield Problem(("prompts",), "there is no prompt: write at least one, such as 'a photo of a {}'")

    def row_length(self, context: int) -> int:
        """Longer captions are cut, and END is kept."""
        return context

    def problems_with(self, model: Any, scoring: Any) -> Iterator[Problem]:
        if scoring.segment or scoring.stride or scoring.state:
            reason = "captions are read whole, one by one: there are no segments, nothing strides or goes on"
            yield Problem(("scoring.segment", "scoring.stride", "scoring.state"), reason)
        if model.context < 2:
            yield Problem(("model.context",), "a caption needs room for a token and END")
        if self.size % model.picture.patch:
            reason = f"pictures of {self.size} pixels cannot be cut into patches of {model.picture.patch}"
            yield Problem(("data.size", "model.picture.patch"), reason)


def _other_kind(source: str, known: Sequence[str], kind: str) -> str:
    return f"; as one of data.kind={kind} there is" if source in known else ""
