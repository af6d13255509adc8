"""A pretrained model as the start of ours: `model: {kind: classifier, start: {kind: pretrained, from: minilm}}`.

`from` is a folder as transformers writes it, a name on the hub, or the name of a model that comes as a Python package
(`packages.py`). Its weights settle the shape of the model and its tokens; how they are written down is known by family
(`bert.py`). Weights are read from safetensors and from nothing else, and no code that lies beside them is run.
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
"""What of a model its weights settle: of these, all that is not named in `FREE`."""
FREE = ("context", "dropout", "mixer.dropout")
"""What may be given by hand all the same. (Fewer positions are the first of those that there are.)"""


class PretrainedTokens(TokenizerSpec):
    """The tokens that a borrowed model knows, with those that it puts around every text."""

    model_config = ConfigDict(serialize_by_alias=True)

    kind: Literal["pretrained"] = "pretrained"
    is_given: ClassVar[bool] = True
    origin: str = Field(alias="from")
    """Whose: as in model.start.from."""

    def learn(self, text: str) -> Tokenizer:
        return borrowed(self.origin).tokenizer

    def identity(self) -> str:
        return borrowed(self.origin).tokenizer.to_json()


class Lender(Protocol):
    """Somebody's model, whose weights another may begin with."""

    @property
    def was(self) -> str:
        """What it was trained to be."""
        ...

    @property
    def settled(self) -> Mapping[str, Any]:
        """The model part of a recipe, as far as the weights settle it."""
        ...

    @property
    def vocabulary(self) -> int: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def checksum(self) -> str: ...
    def take(self, model: EncoderSpec) -> Taken: ...


class Lent(StartSpec):
    """The weights of another model, and with them its shape and its tokens. What the task needs beside is new, and
    drawn by the seed."""

    said_in: ClassVar[str]
    """The key that names it."""

    @abstractmethod
    def lender(self) -> Any:
        """Whose weights they are: a `Lender`."""

    @property
    @abstractmethod
    def called(self) -> str:
        """Its name, in words."""

    def shape(self) -> Mapping[str, Any]:
        """What of a model follows from it."""
        return self.lender().settled

    def completed(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        if all(key in tree for key in SHAPE):  # as a run folder has it: the model itself may be gone by now
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
                f"the tokenizer has {model.vocabulary:,} tokens, and {self.called} vectors for {found.vocabulary:,}: "
                "leave data.tokenizer out, and it is the one that belongs to them"
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
    """The weights of somebody else's model, or of a run, and with them its shape and its tokens. What the task needs
    beside is new, and drawn by the seed."""

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
    """What is new, and what was left."""
    new = list(dict.fromkeys(one.rsplit(".", 2)[0] if "." in one else one for one in own if one not in taken.weights))
    unused = {one.rsplit(".", 1)[0] for one in taken.weights if one not in own}
    guesses = {one.rsplit(".", 1)[0] for one in taken.weights if one in (bert.OUTPUT_BIAS, *bert.OF_GUESSES)}
    if "cls" in taken.left:  # which is told by that name, or has found its place
        unused -= guesses
    left = [f"{one}.*" for one in taken.left if one != "cls" or bert.OUTPUT_BIAS not in own] + sorted(unused)
    lines = [f"starts from {name} ({found.was}); new, and still to be learnt: {', '.join(new) or 'nothing'}"]
    return lines + ([f"{name} has more, which has no place here: {', '.join(left)}"] if left else [])


def _merge(tree: dict[str, Any], settled: Mapping[str, Any], path: tuple[str, ...]):
    """Put what is settled into a tree that may have some of it; gives what contradicts, as (key, reason)."""
    for key, value in settled.items():
        here, name = (*path, key), ".".join((*path, key))
        given = tree.get(key)
        if isinstance(given, str) and isinstance(value, dict):  # `positions: learned` is short for {kind: learned}
            given = {"kind": given}
        if key not in tree or (key == "body" and given is None):
            tree[key] = value
        elif key == "body":  # a config.json of others, whole
            if given != value:
                yield name, "its config.json has changed since"
        elif isinstance(given, list) and isinstance(value, list) and len(given) == len(value):
            for k, (one, other) in enumerate(zip(given, value, strict=True)):
                yield from _merge(one, other, (*here, str(k)))
        elif isinstance(given, list) and isinstance(value, dict):  # one for each layer
            tree[key] = [dict(one) if isinstance(one, dict) else {"kind": one} for one in given]
            for k, one in enumerate(tree[key]):
                yield from _merge(one, value, (*here, str(k)))
        elif isinstance(given, dict) and isinstance(value, dict):
            tree[key] = dict(given)
            yield from _merge(tree[key], value, here)
        elif name == "context" and isinstance(given, int) and isinstance(value, int):
            if given > value:
                yield name, f"{given} tokens are more than it has positions for ({value})"
        elif given != value and name not in FREE and ".".join(p for p in here if not p.isdigit()) not in FREE:
            yield name, f"its weights are for {value}, not for {given!r}"


def _without(tree: Mapping[str, Any], settled: Mapping[str, Any]) -> dict[str, Any]:
    """What a tree says beyond what is settled."""
    left = {}
    for key, value in tree.items():
        if key in settled and value == settled[key]:
            continue
        if isinstance(value, dict) and isinstance(settled.get(key), dict):
            value = _without(value, settled[key])
        if value != {}:
            left[key] = value
    return left
