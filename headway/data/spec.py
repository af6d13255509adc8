"""The data part of a recipe: running text, or texts that have labels."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from headway.data.batches import BatchSpec, Crops
from headway.data.sources import CORPORA
from headway.data.text import Char, TokenizerSpec
from headway.errors import did_you_mean
from headway.spec import CHOSEN_BY_KIND, OR_BY_NAME, Problem, Spec


class Text(Spec):
    """Which text, cut into which tokens, read in which order."""

    kind: Literal["text"] = "text"
    source: str = "python-docs"
    """python-docs (made from the running Python's documentation); wikitext-2, tinyshakespeare or cse256-speeches (from
    the folder that HEADWAY_DATA names); files, with a path; or hub, with the name of a dataset there as path."""
    path: str | None = None
    """For source: files. A text file (.gz too), whose end becomes `valid`; or a folder of train, valid, test files.
    For source: hub. owner/name[@revision][/folder, file or pattern inside][#column that is the text]."""
    valid_fraction: float = Field(default=0.1, gt=0, lt=1)
    """How much of the end of a single file, or of a dataset without a `valid` of its own, becomes `valid`."""
    tokenizer: TokenizerSpec = Char()
    """What a token is: char, word, bpe; or given, with the path of a run's tokenizer.json."""
    segment: int | None = Field(default=None, ge=1)
    """Tokens per training row; null = model.context."""
    batches: BatchSpec = Crops()
    """Which rows a step sees: crops (random), contiguous (in order, so that state can be carried)."""

    def problems(self) -> Iterator[Problem]:
        if self.source not in CORPORA:
            yield Problem(("source",), f"there is no corpus called '{self.source}'{did_you_mean(self.source, CORPORA)}")
        elif self.source == "files" and self.path is None:
            yield Problem(("source", "path"), "source: files needs a path, such as data.path=corpus.txt")
        elif self.source == "hub" and self.path is None:
            yield Problem(("source", "path"), "source: hub needs a path, such as data.path=owner/name")
        elif self.source not in ("files", "hub") and self.path is not None:
            reason = f"path is only read with source: files or hub, not with {self.source}; set data.source=files"
            yield Problem(("source", "path"), reason)

    def row_length(self, context: int) -> int:
        """Tokens per training row of a model with this context."""
        return self.segment or context


class Labelled(Spec):
    """Which labelled texts, cut into which tokens."""

    kind: Literal["labelled"] = "labelled"
    source: str = "python-modules"
    tokenizer: TokenizerSpec = Char()

    def row_length(self, context: int) -> int:
        """Longer texts are cut."""
        return context


DataSpec = Annotated[Text | Labelled, CHOSEN_BY_KIND, OR_BY_NAME]
