"""The data part of a recipe, where it is running text."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from headway.core.errors import did_you_mean
from headway.core.spec import Problem
from headway.data.labelled.sources import LABELLED_SETS
from headway.data.running.batches import BatchSpec, Crops
from headway.data.running.sources import CORPORA, why_no_encoding
from headway.data.spec import DataSpec, known_as
from headway.data.vocabularies import Char, TokenizerSpec


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
            hint = known_as(self.source, LABELLED_SETS, "labelled") or did_you_mean(self.source, CORPORA)
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
