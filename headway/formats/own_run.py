"""Starts a run from another run's encoder.

Weights are copied by name, so both models have the same shape. Parts that only one of them has (a head, the output of a
masked language model) are left out, or newly initialized.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.reading import read_bytes
from headway.core.seal import read_sealed_text
from headway.core.yaml import read_tree
from headway.data.tokenizers import Tokenizer
from headway.formats.weights import Taken
from headway.models.encoder import EncoderSpec
from headway.models.spec import ModelSpec
from headway.nn.heads import Shuffle
from headway.training import checkpoint as checkpoints
from headway.training.checkpoint import Checkpoint

POSITIONS = "positions.table.weight"
DRAWN_ONCE = "shuffle", {"kind": "shuffle"}, Shuffle().model_dump(mode="json")
"""The fusions that depend on the seed, as recipes can contain them."""


def is_run(folder: Path) -> bool:
    return (folder / "run.json").exists() and (folder / "recipe.yaml").exists()


@dataclass(frozen=True)
class OwnRun:
    """A run folder of an encoder."""

    name: str
    """As the user wrote it."""
    folder: Path

    @functools.cached_property
    def recipe(self) -> dict[str, Any]:
        """The stored recipe. It was validated when the run was made, so it is not validated again."""
        path = self.folder / "recipe.yaml"
        try:
            tree, _ = read_tree(read_sealed_text(path), str(path))
            kind = ModelSpec.variants.find(tree["model"]["kind"])
        except (OSError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        if not issubclass(kind, EncoderSpec):
            what = tree["model"]["kind"]
            raise UserError(f"{self.name} is a run of a {what}: an encoder can only start from an encoder")
        return tree

    @property
    def was(self) -> str:
        return f"a {self.recipe['model']['kind']}"

    @property
    def settled(self) -> dict[str, Any]:
        """The model part of a recipe, as far as the weights determine it."""
        return shape_of(self.recipe["model"], self.name)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        path = self.folder / "tokenizer.json"
        try:
            return Tokenizer.from_json(read_sealed_text(path))
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None

    @property
    def vocabulary(self) -> int:
        return self.tokenizer.size

    @functools.cached_property
    def checkpoint(self) -> Checkpoint:
        """The best checkpoint if the recipe keeps it, otherwise the last."""
        home, training = self.folder / "checkpoints", self.recipe.get("training", {})
        kinds = ("best", "step") if training.get("keep_best") else ("step",)
        for kind in kinds:
            for step in checkpoints.saved_steps(home, kind):
                return checkpoints.load(checkpoints.step_folder(home, step, kind))
        raise UserError(f"{self.name} has no checkpoint yet: there is nothing to start from")

    @property
    def checksum(self) -> str:
        home = self.folder / "checkpoints"
        step = self.checkpoint.step
        files = (checkpoints.step_folder(home, step, kind) / checkpoints.WEIGHTS for kind in ("best", "step"))
        return checkpoints.checksum(read_bytes(next(file for file in files if file.exists()), None))

    def take(self, model: EncoderSpec) -> Taken:
        """The weights that a model of this shape can use."""
        weights = {name: tensor.float() for name, tensor in self.checkpoint.weights.items()}
        if POSITIONS in weights:  # a shorter context uses the first positions
            weights[POSITIONS] = weights[POSITIONS][: model.context].contiguous()
        heads = [name for name in weights if name.split(".")[0] in ("head", "pooler")]
        return Taken({name: tensor for name, tensor in weights.items() if name not in heads}, [])


def shape_of(model: dict[str, Any], called: str) -> dict[str, Any]:
    """The keys that weights determine, from the complete model part of a recipe."""
    keys = ("layers", "width", "context", "mixer", "positions", "feedforward", "norm", "segments", "scale_embedding")
    mixer = model["mixer"]
    mixers = mixer if isinstance(mixer, list) else [mixer]
    computed = [{key: value for key, value in one.items() if key not in ("backend", "dropout")} for one in mixers]
    if any(one.get("fusion") in DRAWN_ONCE for one in computed):
        raise UserError(
            f"no run can start from {called}: its heads are concatenated in an order that is drawn from its seed and "
            "not part of its weights; pre-train it with another model.mixer.fusion"
        )
    shape = {key: model[key] for key in keys if key in model}
    return {**shape, "mixer": computed if isinstance(mixer, list) else computed[0]}
