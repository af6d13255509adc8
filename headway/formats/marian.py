"""Reads and writes Marian's weights: their names, and the numbers of tokens.

    ours                                          Marian's
    embedding.weight                  [V, D]      model.shared.weight                               [V, D]
    layers.0.mixer.project.together   [3D, D]     model.decoder.layers.0.self_attn.q_proj, k_proj, v_proj  [D, D] each
    layers.0.cross.project.queries    [D, D]      model.decoder.layers.0.encoder_attn.q_proj        [D, D]
    output_bias                       [V]         final_logits_bias                                 [1, V]

END is our last token, while Marian's may have any number (`eos_token_id`), so rows of tables are reordered. Targets
begin with END here, and mostly with the padding token there, which is `model.begin`. Both directions use the same
tables. config.json is in `marian_config.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headway.core.errors import UserError
from headway.formats.weights import check_fit
from headway.models.encoder_decoder import EncoderDecoderSpec

# --- numbers of tokens -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbering:
    """The number of tokens of each side, and Marian's number for END."""

    source: int
    target: int
    end: int

    def order(self, size: int) -> list[int]:
        """Marian's token numbers in our order."""
        return [*(k for k in range(size) if k != self.end), self.end]

    def ours(self, theirs: int) -> int:
        """Our number of a token that is not END."""
        return theirs - (theirs > self.end)

    def theirs(self, ours: int) -> int:
        return ours + (ours >= self.end)


# --- weights ---------------------------------------------------------------------------------------------------------


class StackedWeight(NamedTuple):
    """One of our tensors, and Marian's tensors that it concatenates."""

    ours: str
    theirs: tuple[str, ...]
    shape: tuple[int, ...]
    """The shape of each of Marian's tensors."""
    tokens: int | None = None
    """For a table with this many tokens, whose rows are reordered; None for other tensors."""


BIAS = "final_logits_bias"
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
_TABLES = "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
_OUTPUT = "lm_head.weight"
_TIED = {  # if the first is there, the others are copies of it
    "all": (_TABLES[0], (*_TABLES[1:], _OUTPUT)),
    "output": (_TABLES[2], (_OUTPUT,)),
    "none": ("", ()),
}


def weight_names(model: EncoderDecoderSpec, numbers: Numbering) -> Iterator[StackedWeight]:
    """The names of all tensors of a model of this shape."""
    width, hidden = model.width, model.feedforward.hidden_units(model.width)

    def linear(ours: str, *theirs: str, into: int = width, out: int = width) -> Iterator[StackedWeight]:
        yield StackedWeight(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), (out, into))
        yield StackedWeight(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), (out,))

    def norm(ours: str, theirs: str) -> Iterator[StackedWeight]:
        for part in ("weight", "bias"):
            yield StackedWeight(f"{ours}.{part}", (f"{theirs}.{part}",), (width,))

    def attention(ours: str, theirs: str, projected: Mapping[str, str]) -> Iterator[StackedWeight]:
        for name, of in projected.items():
            yield from linear(f"{ours}.project.{name}", *(f"{theirs}.{letter}_proj" for letter in of))
        yield from linear(f"{ours}.output", f"{theirs}.out_proj")

    def layer(ours: str, theirs: str) -> Iterator[StackedWeight]:
        yield from attention(f"{ours}.mixer", f"{theirs}.self_attn", {"together": "qkv"})
        yield from norm(f"{ours}.around_mixer.norm", f"{theirs}.self_attn_layer_norm")
        yield from linear(f"{ours}.feedforward.into", f"{theirs}.fc1", out=hidden)
        yield from linear(f"{ours}.feedforward.output", f"{theirs}.fc2", into=hidden)
        yield from norm(f"{ours}.around_feedforward.norm", f"{theirs}.final_layer_norm")

    shared, encoder, decoder = ((name,) for name in _TABLES)
    target = numbers.target, width
    if model.tied == "all":
        yield StackedWeight("embedding.weight", shared, target, numbers.target)
    else:
        yield StackedWeight("embedding.weight", decoder, target, numbers.target)
        yield StackedWeight("encoder.embedding.weight", encoder, (numbers.source, width), numbers.source)
    if model.tied == "none":
        yield StackedWeight("output.weight", (_OUTPUT,), target, numbers.target)
    for n in range(model.encoder.layers):
        yield from layer(f"encoder.layers.{n}", f"model.encoder.layers.{n}")
    for n in range(model.layers):
        theirs = f"model.decoder.layers.{n}"
        yield from layer(f"layers.{n}", theirs)
        yield from attention(f"layers.{n}.cross", f"{theirs}.encoder_attn", {"queries": "q", "keys_values": "kv"})
        yield from norm(f"layers.{n}.around_cross.norm", f"{theirs}.encoder_attn_layer_norm")


def to_marian(weights: Mapping[str, Tensor], model: EncoderDecoderSpec, numbers: Numbering) -> dict[str, Tensor]:
    """Our weights under Marian's names."""
    found = {}
    for name in weight_names(model, numbers):
        tensor = weights[name.ours]
        if name.tokens is not None:
            tensor = tensor[torch.tensor(numbers.order(name.tokens)).argsort()]
        found |= dict(zip(name.theirs, (part.contiguous() for part in tensor.chunk(len(name.theirs))), strict=True))
    bias = weights["output_bias"] if model.output_bias else torch.zeros(numbers.target)
    return {**found, BIAS: bias[torch.tensor(numbers.order(numbers.target)).argsort()][None]}


def from_marian(tensors: Mapping[str, Tensor], model: EncoderDecoderSpec, numbers: Numbering) -> dict[str, Tensor]:
    """Marian's weights under our names, in float32, after checking that exactly the expected ones are there."""
    found = dict(tensors)
    for name in _POSITIONS:  # older versions of transformers saved these constants
        _check_sinusoids(found.pop(name, None), name, model)
    first, copies = _TIED[model.tied]
    for name in copies:
        if name in found and first in found and not torch.equal(found[name], found[first]):
            raise UserError(f"{name} differs from {first}, but config.json says that they are tied")
        copy = found.pop(name, None)
        if copy is not None:  # some versions save the table under another of its names
            found.setdefault(first, copy)
    bias = found.pop(BIAS, torch.zeros(1, numbers.target))
    names = list(weight_names(model, numbers))
    shapes = {theirs: name.shape for name in names for theirs in name.theirs}
    what = f"a Marian of {model.encoder.layers} and {model.layers} layers"
    check_fit({**found, BIAS: bias}, {**shapes, BIAS: (1, numbers.target)}, what)
    made = {}
    for name in names:
        tensor = torch.cat([found[theirs].float() for theirs in name.theirs])
        made[name.ours] = tensor if name.tokens is None else tensor[numbers.order(name.tokens)]
    if model.output_bias:
        made["output_bias"] = bias[0].float()[numbers.order(numbers.target)]
    return made


def _check_sinusoids(table: Tensor | None, name: str, model: EncoderDecoderSpec) -> None:
    if table is None:
        return
    if table.ndim != 2 or table.shape[1] != model.width:
        raise UserError(f"these weights do not fit config.json: {name} is {list(table.shape)}")
    positions = model.positions.build(1, model.width, 1, model.context)
    waves = positions.embed(torch.zeros(1, 1, *table.shape), torch.arange(len(table)))[0, 0]
    if not torch.allclose(table.float(), waves, atol=1e-2 if table.dtype != torch.float32 else 1e-4):
        raise UserError(f"{name} is not the sinusoidal table of Marian's positions")
