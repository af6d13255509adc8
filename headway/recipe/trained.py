"""Start from a model that is trained first: one recipe begins with the weights of another.

    model: {kind: classifier, start: {kind: trained, recipe: arithmetic-bert}}

Shape and tokenizer follow from the other recipe, so this one can be read, checked and planned before anything is
trained. The pretrained run is in the cache under its hash: it is trained once for all recipes that start from it, and
may be deleted at any time (`experiment/first.py` trains it again).
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headway import __version__
from headway.core.errors import UserError
from headway.data import cache
from headway.data.running import corpus
from headway.data.running.spec import Text
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import TokenizerSpec
from headway.formats.own_run import OwnRun, is_run, shape_of
from headway.formats.pretrained import Lent

if TYPE_CHECKING:
    from headway.recipe.recipe import Recipe


@functools.lru_cache(maxsize=32)
def _recipe(name: str, changes: tuple[str, ...]) -> "Recipe":
    from headway.recipe.recipe import load

    recipe = load(name, changes)
    if not recipe.model.reads_rows or not isinstance(recipe.data, Text):
        raise UserError(f"{name} trains a {recipe.model.kind}: expected a masked-language-model")
    return recipe


class TrainedFirst(Lent):
    """Start from the model of another recipe, which is trained first if necessary."""

    said_in: ClassVar[str] = "model.start.recipe"

    kind: Literal["trained"] = "trained"
    recipe: str
    """A packaged recipe's name, or a YAML file: of a masked-language-model."""
    changes: list[str] = Field(default=[])
    """To that recipe: key.path=value."""

    @property
    def before(self) -> "Recipe":
        return _recipe(self.recipe, tuple(self.changes))

    @property
    def called(self) -> str:
        return " ".join((self.recipe, *self.changes))

    @property
    def folder(self) -> Path:
        """The folder of the pretrained run."""
        return cache.folder() / "trained" / f"{Path(self.recipe).stem}-{self.before.hash}-{__version__}"

    @property
    def tokenizer(self) -> dict[str, Any]:
        return {"kind": "trained", "recipe": self.recipe, "changes": list(self.changes)}

    def shape(self) -> Mapping[str, Any]:
        """The shape, from the recipe alone, without training."""
        return shape_of(self.before.model.model_dump(mode="json"), self.called)

    def lender(self) -> OwnRun:
        if not is_run(self.folder):
            raise UserError(
                f"the model to start from, {self.called}, has not been trained yet: headway train does that"
            )
        return OwnRun(self.called, self.folder)

    @property
    def is_there(self) -> bool:
        return is_run(self.folder)


class TrainedTokens(TokenizerSpec):
    """The tokenizer of the recipe that is trained first."""

    kind: Literal["trained"] = "trained"
    is_given: ClassVar[bool] = True
    recipe: str
    """As in model.start."""
    changes: list[str] = Field(default=[])
    """As in model.start."""

    def learn(self, text: str) -> Tokenizer:
        data = _recipe(self.recipe, tuple(self.changes)).data
        return corpus.load(
            data.source, data.path, data.valid_fraction, data.tokenizer, data.encoding
        ).tokenizer.with_marks()

    def identity(self) -> str:
        return self.learn("").to_json()
