"""Starts training from a pretrained model: `model: {kind: classifier, start: {kind: pretrained, from: minilm}}`.

`from` is a folder as transformers writes it, a name on the hub, or the name of a model that comes as a Python package
(`packages.py`). Its weights determine the shape of the model and its tokens; `bert.py` knows the format of each family.
Weights are read from safetensors only, and no code in the folder is run.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

import torch
from pydantic import ConfigDict, Field

from headway.core.errors import UserError
from headway.core.spec import Problem
from headway.core.validation import ImpossibleError
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import TokenizerSpec
from headway.formats import bert
from headway.formats.lender import Borrowed, borrowed
from headway.formats.own_run import OwnRun
from headway.formats.weights import (
    Taken,
)
from headway.models.encoder import EncoderSpec
from headway.models.start import StartSpec

SHAPE = ("layers", "width", "context", "mixer", "positions", "feedforward", "norm", "segments")
"""Parts of a model spec that its weights determine, except those named in `FREE`."""
FREE = ("context", "dropout", "mixer.dropout")
"""Keys that may still be chosen. (A shorter context uses the first positions.)"""


class PretrainedTokens(TokenizerSpec):
    """The vocabulary of a pretrained model, with its special tokens."""

    model_config = ConfigDict(serialize_by_alias=True)

    kind: Literal["pretrained"] = "pretrained"
    is_given: ClassVar[bool] = True
    origin: str = Field(alias="from")
    """The pretrained model, as in model.start.from."""

    def learn(self, text: str) -> Tokenizer:
        return borrowed(self.origin).tokenizer

    def identity(self) -> str:
        return borrowed(self.origin).tokenizer.to_json()


class Lender(Protocol):
    """A model whose weights another model can start from."""

    @property
    def was(self) -> str:
        """What it was trained as."""
        ...

    @property
    def settled(self) -> Mapping[str, Any]:
        """The model part of a recipe, as far as the weights determine it."""
        ...

    @property
    def vocabulary(self) -> int: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def checksum(self) -> str: ...
    def take(self, model: EncoderSpec) -> Taken: ...


class Lent(StartSpec):
    """The weights of another model, with its shape and tokens. What the task adds is initialized from the seed."""

    said_in: ClassVar[str]
    """The recipe key that names it."""

    @abstractmethod
    def lender(self) -> Any:
        """The model that provides the weights: a `Lender`."""

    @property
    @abstractmethod
    def called(self) -> str:
        """Its name, for messages."""

    def shape(self) -> Mapping[str, Any]:
        """What the weights determine of a model's shape."""
        return self.lender().settled

    def completed(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        if all(key in tree for key in SHAPE):  # complete, as in a run folder; the pretrained model may be gone
            return tree
        made = dict(tree)
        self._settle(made, self.shape())
        return made

    def short(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return _without(tree, self.shape())
        except UserError:
            return tree

    @property
    def facts(self) -> dict[str, Any]:
        return {"start": {"from": self.called, "sha256": self.lender().checksum}}

    @torch.no_grad()
    def fill(self, model: Any) -> list[str]:
        found, spec = self.lender(), model.spec
        self._settle(spec.model_dump(mode="json"), found.settled)
        if model.vocabulary != found.vocabulary:
            raise UserError(
                f"the tokenizer has {model.vocabulary:,} tokens, but {self.called} has embeddings for "
                f"{found.vocabulary:,}: leave out data.tokenizer to use the model's own"
            )
        taken, own = found.take(spec), dict(model.named_parameters())
        for name, tensor in taken.weights.items():
            if name in own:
                own[name].copy_(tensor.to(own[name].device).expand_as(own[name]))
        return _notes(self.called, found, taken, own)

    def _settle(self, tree: dict[str, Any], settled: Mapping[str, Any]) -> None:
        if wrong := list(_merge(tree, settled, ())):
            raise ImpossibleError([Problem((f"model.{key}", self.said_in), reason) for key, reason in wrong])


class Pretrained(Lent):
    """The weights of a pretrained model, or of a run, with its shape and tokens. What the task adds is initialized from
    the seed."""

    model_config = ConfigDict(serialize_by_alias=True)
    said_in: ClassVar[str] = "model.start.from"

    kind: Literal["pretrained"] = "pretrained"
    origin: str = Field(alias="from")
    """A folder with config.json, model.safetensors and tokenizer.json, as transformers writes it; the run folder of a
    masked-language-model or classifier; a model on the hub, owner/name[@revision]; or one that comes as a Python
    package: minilm."""

    @property
    def called(self) -> str:
        return self.origin

    @property
    def tokenizer(self) -> dict[str, Any]:
        return {"kind": "pretrained", "from": self.origin}

    def lender(self) -> Borrowed | OwnRun:
        return borrowed(self.origin)


def _notes(name: str, found: Lender, taken: Taken, own: Mapping[str, Any]) -> list[str]:
    """Notes on which weights are new, and which were left out."""
    new = list(dict.fromkeys(one.rsplit(".", 2)[0] if "." in one else one for one in own if one not in taken.weights))
    unused = {one.rsplit(".", 1)[0] for one in taken.weights if one not in own}
    guesses = {one.rsplit(".", 1)[0] for one in taken.weights if one in (bert.OUTPUT_BIAS, *bert.MASKED_HEAD_WEIGHTS)}
    if "cls" in taken.left:  # already covered by that name, or used
        unused -= guesses
    left = [f"{one}.*" for one in taken.left if one != "cls" or bert.OUTPUT_BIAS not in own] + sorted(unused)
    lines = [f"starts from {name} ({found.was}); newly initialized: {', '.join(new) or 'nothing'}"]
    return lines + ([f"{name} has more weights, which are not used: {', '.join(left)}"] if left else [])


def _merge(tree: dict[str, Any], settled: Mapping[str, Any], path: tuple[str, ...]):
    """Merge what the weights determine into a tree that may contain some of it; yields contradictions (key, reason)."""
    for key, value in settled.items():
        here, name = (*path, key), ".".join((*path, key))
        given = tree.get(key)
        if isinstance(given, str) and isinstance(value, dict):  # `positions: learned` is short for {kind: learned}
            given = {"kind": given}
        if key not in tree or (key == "body" and given is None):
            tree[key] = value
        elif key == "body":  # the whole config.json of a model that runs in transformers
            if given != value:
                yield name, "its config.json has changed"
        elif isinstance(given, list) and isinstance(value, list) and len(given) == len(value):
            for k, (one, other) in enumerate(zip(given, value, strict=True)):
                yield from _merge(one, other, (*here, str(k)))
        elif isinstance(given, list) and isinstance(value, dict):  # one per layer
            tree[key] = [dict(one) if isinstance(one, dict) else {"kind": one} for one in given]
            for k, one in enumerate(tree[key]):
                yield from _merge(one, value, (*here, str(k)))
        elif isinstance(given, dict) and isinstance(value, dict):
            tree[key] = dict(given)
            yield from _merge(tree[key], value, here)
        elif name == "context" and isinstance(given, int) and isinstance(value, int):
            if given > value:
                yield name, f"{given} tokens are more than its {value} positions"
        elif given != value and name not in FREE and ".".join(p for p in here if not p.isdigit()) not in FREE:
            yield name, f"its weights are for {value}, not for {given!r}"


def _without(tree: Mapping[str, Any], settled: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a tree that the weights do not determine."""
    left = {}
    for key, value in tree.items():
        if key in settled and value == settled[key]:
            continue
        if isinstance(value, dict) and isinstance(settled.get(key), dict):
            value = _without(value, settled[key])
        if value != {}:
            left[key] = value
    return left
