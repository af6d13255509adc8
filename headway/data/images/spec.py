"""The data part of a recipe for pictures with captions."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from headway.core.errors import did_you_mean
from headway.core.spec import Problem
from headway.data.images.batches import PictureBatchSpec, ShuffledPictures
from headway.data.images.sources import PICTURE_SETS, has_classes
from headway.data.spec import DataSpec
from headway.data.vocabularies import TokenizerSpec, Word


class Pictures(DataSpec):
    """Which pictures with captions, of which size, captions cut into which tokens, read in which order."""

    kind: Literal["pictures"] = "pictures"
    source: str = "scenes"
    """scenes (rendered coloured shapes), tiny-imagenet-10 (from the folder that HEADWAY_DATA names), or files, with a
    path."""
    path: str | None = None
    """For source: files. A folder of pictures with a captions.csv (columns file and caption), or with one folder per
    class; or a folder with train, valid and test folders of that kind."""
    size: int = Field(default=48, ge=4, le=1024)
    """Height and width in pixels; every picture is resized to it."""
    template: str = "{}"
    """Where pictures have classes instead of captions: how a class name becomes a caption to train on, such as a photo
    of a {}."""
    prompts: list[str] = Field(default=["a photo of a {}"])
    """How a class name is written for zero-shot classification; with several prompts, their embeddings are averaged."""
    rows: int | None = Field(default=None, ge=1)
    """Train on this many pictures only; null = all of train."""
    valid_fraction: float = Field(default=0.1, ge=0, lt=1)
    """The fraction of train held out as `valid` where the source has no such split. 0 = none; evaluate_on must then
    name other splits."""
    among: int = Field(default=100, ge=2)
    """How many candidates retrieval chooses from: each picture is to be found among this many pictures, each caption
    among this many captions."""
    tokenizer: TokenizerSpec = Word()
    """What a token of a caption is: char, byte, word, bpe; or given, with the path of a run's tokenizer.json."""
    batches: PictureBatchSpec = ShuffledPictures()
    """The order of the pictures, and how they are augmented."""

    @property
    def has_classes(self) -> bool:
        """Whether the pictures have classes instead of captions."""
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
                yield Problem((key,), f"'{wrong[0]}' must contain {{}} exactly once, where the class name goes")
        if not self.prompts:
            yield Problem(("prompts",), "give at least one prompt, such as 'a photo of a {}'")

    def row_length(self, context: int) -> int:
        """Longer captions are truncated but keep END."""
        return context

    def problems_with(self, model: Any, scoring: Any) -> Iterator[Problem]:
        if scoring.segment or scoring.stride or scoring.state:
            reason = "captions are scored whole: segment, stride and state do not apply"
            yield Problem(("scoring.segment", "scoring.stride", "scoring.state"), reason)
        if model.context < 2:
            yield Problem(("model.context",), "a caption needs room for at least a token and END: set 2 or more")
        if self.size % model.picture.patch:
            reason = f"pictures of {self.size} pixels cannot be cut into patches of {model.picture.patch}"
            yield Problem(("data.size", "model.picture.patch"), reason)
