"""One run's model, loaded: answers questions about it.

Maps come in two sizes. Small ones are made for all heads at once: each cell is the largest weight in the block of
tokens it covers, since a mean would hide single large weights in long texts; the page colours them. Full maps are made
one at a time. Results for a text are kept until another text is used, so that switching between heads is free.
"""

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headway import tasks
from headway.core.errors import UserError
from headway.experiment.load import load_model
from headway.look.head_statistics import entropy_shares, rollout, statistics
from headway.look.maps import MapStack
from headway.look.reading import read
from headway.look.token_losses import Losing, each_switched_off, switched_off
from headway.nn.mixer import Mixer
from headway.run.folder import open_run
from headway.tasks.abilities import Classifies, Draw, FillsIn, MatchesPictures, Translates, Writes
from headway.workbench.looking.frames import half, pack
from headway.workbench.looking.pictures import FIRST, PictureDesk

SMALL = 96
"""The largest side of a small map, in cells."""
ALL_GRADIENTS = 64
"""For texts of up to this many tokens, gradients of all predictions are computed: a backward pass each."""
MAX_CHARACTERS = 200_000
EXAMPLES = ("Return the size of the file.", "the quick brown fox", "fox", "a", "0")
ABILITIES = {
    "classify": Classifies,
    "translate": Translates,
    "fill": FillsIn,
    "write": Writes,
    "match": MatchesPictures,
}

Off = Sequence[tuple[str, int, int]]
"""Heads to switch off: stack, layer and head number."""


class Subject:
    def __init__(self, folder: Path, checkpoint: str, trust: bool = False):
        self.run = open_run(str(folder), folder.parent, trust)
        # On the CPU: GPUs may be busy with trainings, and for one sentence a CPU is fast enough.
        self.model, saved = load_model(self.run, checkpoint, "cpu")
        self.task, self.step = tasks.of(self.run.recipe), saved.step
        self.paths = self.task.attention(self.model)
        self.pictures = PictureDesk(self.run, self.model)
        self._text: str | None = None
        self._stacks: list[MapStack] = []
        self._notes: list[str] = []
        self._answer: dict[str, Any] = {}
        self._losing: tuple[str, Losing] | None = None

    # --- what there is -----------------------------------------------------------------------------------------------

    def about(self) -> bytes:
        spec = self.run.recipe.model
        return pack(
            {
                "run": self.run.name,
                "kind": spec.kind,
                "models": self.task.models,
                "step": self.step,
                "context": spec.context,
                "abilities": [name for name, ability in ABILITIES.items() if issubclass(self.task, ability)],
                "stacks": {stack: list(layers) for stack, layers in self.paths.items()},
                "mask": self.run.tokenizer.mask_name if issubclass(self.task, FillsIn) else None,
                "example": self._example(),
            },
            {},
        )

    def _example(self) -> str | None:
        """An initial text that the vocabulary can read; for a model of pictures, the caption of the first one."""
        if issubclass(self.task, MatchesPictures):
            with contextlib.suppress(UserError):  # its data are missing, but pictures can still be uploaded
                return self.pictures.of_data(FIRST)[1]
        for text in EXAMPLES:
            try:
                return text if read(self.run.tokenizer, text) else None
            except UserError:
                continue
        return None

    # --- maps --------------------------------------------------------------------------------------------------------

    def maps(self, text: str) -> bytes:
        """Small maps of all heads. For a model without attention: the tokens, and a note."""
        self._look(text)
        shape = (sum(len(w) for stack in self._stacks for w in stack.layers.values()), SMALL, SMALL)
        small, heads, at, stacks = np.zeros(shape, np.uint8), [], 0, []
        for stack in self._stacks:
            height, width = (min(SMALL, len(side)) for side in (stack.rows, stack.columns))
            stacks.append(
                {
                    "name": stack.name,
                    "what": stack.what,
                    "rows": list(stack.rows),
                    "columns": list(stack.columns),
                    "small": [height, width],
                }
            )
            for layer, weights in stack.layers.items():
                pooled = F.adaptive_max_pool2d(weights, (height, width))
                small[at : at + len(weights), :height, :width] = _bytes(pooled)
                heads += [
                    {"stack": stack.name, "layer": layer, "head": head, "small": at + head}
                    for head in range(len(weights))
                ]
                at += len(weights)
        return pack({"stacks": stacks, "heads": heads, "notes": self._notes, **self._answer}, {"small": small})

    def numbers(self, text: str) -> bytes:
        """Statistics of every head, in the order of `maps`: entropy, distance, and what it attends to."""
        self._look(text)
        heads = [
            numbers
            for stack in self._stacks
            for weights in stack.layers.values()
            for numbers in _numbers(weights, of_itself=stack.name == "self" or stack.rows == stack.columns)
        ]
        return pack({"heads": heads}, {})

    def map(self, text: str, stack: str, layer: int, head: int) -> bytes:
        """One full map."""
        self._look(text)
        layers = self._stack(stack).layers
        if layer not in layers:
            raise UserError(f"{self.run.name} has no attention in layer {layer} of '{stack}'")
        if not 0 <= head < len(layers[layer]):
            raise UserError(f"{self.run.name} has no head {head} in layer {layer}")
        return pack(
            {"stack": stack, "layer": layer, "head": head}, {"map": half(layers[layer][head].float().numpy(force=True))}
        )

    def rollout(self, text: str, layer: int | None = None) -> bytes:
        self._look(text)
        (stack, *others) = self._stacks or [None]
        if stack is None:
            raise UserError(" ".join(self._notes))
        if others or stack.name != "self":
            raise UserError("rollout needs one sequence, but a translator has two")
        last = max(stack.layers) if layer is None else layer
        kept = [weights for number, weights in stack.layers.items() if number <= last]
        if not kept:
            raise UserError(f"{self.run.name} has no attention up to layer {last}")
        return pack({"stack": stack.name, "layer": last}, {"map": half(rollout(kept).float().numpy(force=True))})

    def _look(self, text: str) -> None:
        if text == self._text:
            return
        _check(text)
        self._text, self._stacks, self._notes, self._answer = None, [], [], {}
        if any(self.paths.values()):
            self._check_memory(text)
            found = self.task.maps(self.run, self.model, text)
            self._stacks, self._notes = found.all_stacks, list(found.notes)
            self._answer = {"tokens": list(found.sentence.tokens)}
        else:
            sentence = read(self.run.tokenizer, text)
            self._notes = [f"{self.run.name} has no attention, so there are no maps", *sentence.warnings]
            self._answer = {"tokens": list(sentence.tokens)}
        self._text = text

    def _check_memory(self, text: str) -> None:
        """Refuse a text whose maps do not fit into memory: they grow with the square of its length."""
        tokens = len(self.run.tokenizer.encode(text).ids)
        heads = sum(_heads(mixer) for mixer in self.model.modules() if isinstance(mixer, Mixer))
        needed, there = 3 * 4 * heads * tokens**2, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > there:
            fit = int(math.sqrt(there / (12 * heads)))
            raise UserError(
                f"{heads} maps of {tokens:,} tokens need {needed / 2**30:.1f} GiB, but {there / 2**30:.1f} are free: "
                f"a text of about {fit:,} tokens would fit"
            )

    def _stack(self, name: str) -> MapStack:
        for stack in self._stacks:
            if stack.name == name:
                return stack
        there = ", ".join(stack.name for stack in self._stacks) or "none"
        raise UserError(f"{self.run.name} has no maps of '{name}'; it has: {there}")

    # --- losses and gradients ----------------------------------------------------------------------------------------

    def losses(self, text: str, off: Off = ()) -> bytes:
        """The loss of every token, and the losses with these heads switched off, if any are given."""
        losing = self._losing_on(text)
        now = losing()
        header: dict[str, Any] = {"pieces": now.pieces, "what": now.what, "nats": [_finite(one) for one in now.nats]}
        if off:
            without = switched_off(self.model, losing, self._named(off))
            header["without"] = [_finite(one) for one in without.nats]
        return pack(header, {})

    def each_off(self, text: str) -> bytes:
        """How much the total loss rises when one head is switched off, for every head."""
        losing, counts = self._losing_on(text), {}
        if not any(self.paths.values()):
            raise UserError(f"{self.run.name} has no heads that can be switched off")
        self._look(text)
        names = {path: (stack, layer) for stack, layers in self.paths.items() for layer, path in layers.items()}
        for path, (stack, layer) in names.items():
            counts[path] = len(self._stack(stack).layers[layer])
        found = each_switched_off(self.model, losing, counts)
        told = [
            {"stack": names[path][0], "layer": names[path][1], "head": head, "nats": _finite(nats)}
            for (path, head), nats in found.items()
        ]
        return pack({"each": told}, {})

    def gradients(self, text: str, row: int | None = None) -> bytes:
        """Gradient shares of all predictions; for long texts, of the one after this token or after the last."""
        _check(text)
        tokens, rows = len(read(self.run.tokenizer, text).ids), None
        if tokens > ALL_GRADIENTS:
            rows = [tokens - 1 if row is None else row]
        try:
            found = self.task.gradients(self.run, self.model, text, rows)
        except UserError:
            if rows is None or row is not None:
                raise
            found = self.task.gradients(self.run, self.model, text)  # one prediction of the whole text
        said = found.explained
        header = {
            "rows": list(found.rows),
            "columns": list(found.sentence.tokens),
            "places": None if found.places is None or not found.per_token else list(found.places),
            "predicted": said.predicted,
            "sizes": [_finite(one) for one in said.sizes],
            "size_is": said.size_is,
            "what": said.what,
        }
        return pack(header, {"map": half(found.shares.float().numpy(force=True))})

    def _losing_on(self, text: str) -> Losing:
        _check(text)
        if self._losing is None or self._losing[0] != text:
            self._losing = text, self.task.losing(self.run, self.model, text)
        return self._losing[1]

    def _named(self, off: Off) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for stack, layer, head in off:
            path = self.paths.get(stack, {}).get(layer)
            if path is None:
                raise UserError(f"{self.run.name} has no attention in layer {layer} of '{stack}'")
            found.setdefault(path, []).append(head)
        return found

    # --- answers -----------------------------------------------------------------------------------------------------

    def classify(self, text: str) -> bytes:
        return pack(tasks.able(self.run, Classifies).classify(self.run, self.model, text).as_json(), {})

    def translate(self, text: str) -> bytes:
        how = self.run.recipe.scoring.decoding
        (found,) = tasks.able(self.run, Translates).translate(self.run, self.model, [text], how, lambda n: None)
        return pack(found.as_json(), {})

    def fill(self, text: str) -> bytes:
        return pack(tasks.able(self.run, FillsIn).fill_in(self.run, self.model, text, 5).as_json(), {})

    def write(self, text: str, seed: int = 0) -> bytes:
        how = Draw(tokens=60, seed=seed)
        written, slow = tasks.able(self.run, Writes).write(self.run, self.model, text, how, lambda piece: None)
        return pack({"prompt": text, "text": written, "notes": [slow] if slow else []}, {})

    def match(self, text: str, **given: str) -> bytes:
        return self.pictures.match(text, **given)


def _heads(mixer: Mixer) -> int:
    """The number of heads with maps; 12 if a plugin's module does not say."""
    spec = getattr(mixer, "spec", None)
    return (getattr(spec, "number_of_heads", None) or 12) if hasattr(mixer, "weights") else 0


def _numbers(weights: Tensor, of_itself: bool) -> list[dict[str, float | None]]:
    """Statistics of each head; those of distances only for self-attention."""
    if of_itself:
        found = statistics(weights)
        return [{name: _finite(value) for name, value in found.of(head).items()} for head in range(len(weights))]
    return [{"entropy_share": _finite(share)} for share in entropy_shares(weights).tolist()]


def _bytes(weights: Tensor) -> np.ndarray:
    """Square roots as bytes, as in the colour scale; weights above zero stay visible."""
    found = (weights.float().clamp(0, 1).sqrt() * 255).round()
    return torch.where((weights > 0) & (found == 0), 1.0, found).to(torch.uint8).numpy()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _check(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"the text has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
