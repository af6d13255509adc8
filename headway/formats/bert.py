"""Reads and writes BERT's weights: their names in every family of BERT's kind, in both directions.

    ours                                     BERT's
    embedding                                embeddings.word_embeddings
    layers.0.mixer.project.together          encoder.layer.0.attention.self.query, .key, .value    (concatenated)

RoBERTa, ELECTRA and DistilBERT are the same encoder under other names (`FAMILIES`). RoBERTa's positions start at 2; its
first two position embeddings, which no token ever uses, are dropped when reading and written as zeros. Both directions
use the same tables. config.json is in `bert_config.py`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.formats.weights import Key, Taken, check_fit
from headway.models.encoder import EncoderSpec


class Renamed(NamedTuple):
    """A module with a weight, and mostly a bias, under both names. Several of theirs are concatenated in ours."""

    ours: str
    theirs: tuple[str, ...]
    outputs: str
    """The output size of each of theirs, in the letters of `_sizes`."""
    inputs: str | None = None
    bias: bool = True


@dataclass(frozen=True)
class EncoderFamily:
    """The format of one family of models."""

    class_name: str
    """The class of the bare encoder in transformers."""
    prefix: str
    """Prefix of all names of the encoder in models saved with a head."""
    layer: str
    """Prefix of the names of a layer."""
    around: tuple[Renamed, ...]
    in_a_layer: tuple[Renamed, ...]
    keys: tuple[Key, ...]
    activation: str = "hidden_act"
    types: str | None = "type_vocab_size"
    """The key with the number of segments; None = it has none."""
    after_padding: bool = False
    """Whether positions start after the padding token's number, instead of at 0."""
    eps: str | None = "layer_norm_eps"
    """The key of the norms' epsilon; None = always 1e-12."""
    pooler: bool = True
    """Whether the bare encoder has a pooler."""

    def first_position(self, padding: int | None) -> int:
        """The row of the position table that the first token uses."""
        return (1 if padding is None else padding) + 1 if self.after_padding else 0

    def maps(self, model: EncoderSpec) -> Iterator[Renamed]:
        """The modules of an encoder of this shape, without its pooler."""
        yield from self.around
        for n in range(model.layers):
            for one in self.in_a_layer:
                theirs = tuple(f"{self.layer}{n}.{name}" for name in one.theirs)
                yield one._replace(ours=f"layers.{n}.{one.ours}", theirs=theirs)


_WORDS = Renamed("embedding", ("embeddings.word_embeddings",), "V", "D", bias=False)
_POSITIONS = Renamed("positions.table", ("embeddings.position_embeddings",), "T", "D", bias=False)
_NORM = Renamed("embedding_norm", ("embeddings.LayerNorm",), "D")
_TYPES = Renamed("segments.table", ("embeddings.token_type_embeddings",), "S", "D", bias=False)
POOLER = Renamed("pooler.dense", ("pooler.dense",), "D", "D")
MASKED_HEAD = "cls.predictions."
TRANSFORM = (
    Renamed("transform.into", (f"{MASKED_HEAD}transform.dense",), "D", "D"),
    Renamed("transform.norm", (f"{MASKED_HEAD}transform.LayerNorm",), "D"),
)
"""The head that predicts masked tokens, with a bias per token (`MASKED_HEAD` + bias) and the embedding table."""
OUTPUT_BIAS = "output_bias"
MASKED_HEAD_WEIGHTS = tuple(f"{one.ours}.{kind}" for one in TRANSFORM for kind in ("weight", "bias"))

_BERT_LAYER = (
    Renamed("mixer.project.together", tuple(f"attention.self.{part}" for part in ("query", "key", "value")), "D", "D"),
    Renamed("mixer.output", ("attention.output.dense",), "D", "D"),
    Renamed("around_mixer.norm", ("attention.output.LayerNorm",), "D"),
    Renamed("feedforward.into", ("intermediate.dense",), "H", "D"),
    Renamed("feedforward.output", ("output.dense",), "D", "H"),
    Renamed("around_feedforward.norm", ("output.LayerNorm",), "D"),
)
_DISTILBERT_LAYER = (
    Renamed("mixer.project.together", ("attention.q_lin", "attention.k_lin", "attention.v_lin"), "D", "D"),
    Renamed("mixer.output", ("attention.out_lin",), "D", "D"),
    Renamed("around_mixer.norm", ("sa_layer_norm",), "D"),
    Renamed("feedforward.into", ("ffn.lin1",), "H", "D"),
    Renamed("feedforward.output", ("ffn.lin2",), "D", "H"),
    Renamed("around_feedforward.norm", ("output_layer_norm",), "D"),
)
_BERT_KEYS = (
    Key("num_hidden_layers", ("layers",), 12),
    Key("hidden_size", ("width",), 768),
    Key("num_attention_heads", ("mixer", "heads"), 12),
    Key("intermediate_size", ("feedforward", "hidden"), 3072),
    Key("max_position_embeddings", ("context",), 512),
    Key("hidden_dropout_prob", ("dropout",), 0.1),
    Key("attention_probs_dropout_prob", ("mixer", "dropout"), 0.1),
)
_DISTILBERT_KEYS = (
    Key("n_layers", ("layers",), 6),
    Key("dim", ("width",), 768),
    Key("n_heads", ("mixer", "heads"), 12),
    Key("hidden_dim", ("feedforward", "hidden"), 3072),
    Key("max_position_embeddings", ("context",), 512),
    Key("dropout", ("dropout",), 0.1),
    Key("attention_dropout", ("mixer", "dropout"), 0.1),
)
_AROUND = (_WORDS, _POSITIONS, _TYPES, _NORM)
_ROBERTA = EncoderFamily(
    "RobertaModel", "roberta.", "encoder.layer.", _AROUND, _BERT_LAYER, _BERT_KEYS, after_padding=True
)

FAMILIES: dict[str, EncoderFamily] = {
    "bert": EncoderFamily("BertModel", "bert.", "encoder.layer.", _AROUND, _BERT_LAYER, _BERT_KEYS),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": EncoderFamily(
        "ElectraModel", "electra.", "encoder.layer.", _AROUND, _BERT_LAYER, _BERT_KEYS, pooler=False
    ),
    "distilbert": EncoderFamily(
        "DistilBertModel",
        "distilbert.",
        "transformer.layer.",
        (_WORDS, _POSITIONS, _NORM),
        _DISTILBERT_LAYER,
        _DISTILBERT_KEYS,
        activation="activation",
        types=None,
        eps=None,
        pooler=False,
    ),
}
"""By the `model_type` in config.json."""

BUFFERS = re.compile(r".*(position_ids|token_type_ids)")  # older versions of transformers saved these
_KINDS = ("weight", "bias")
_OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))


def from_bert(tensors: Mapping[str, Tensor], model: EncoderSpec, config: Mapping[str, Any]) -> Taken:
    """The weights of the encoder, and of its pooler if it has one, after checking that they are complete and fit."""
    family, vocabulary = FAMILIES[config["model_type"]], config["vocab_size"]
    first = family.first_position(config.get("pad_token_id"))
    found = {_current_name(name): tensor for name, tensor in tensors.items() if not BUFFERS.fullmatch(name)}
    with_prefix = any(name.startswith(family.prefix) for name in found)
    own = {n.removeprefix(family.prefix): t for n, t in found.items() if n.startswith(family.prefix) or not with_prefix}
    left = list(dict.fromkeys(n.split(".")[0] for n in found if with_prefix and not n.startswith(family.prefix)))
    maps = list(family.maps(model))
    if any(name.startswith("pooler.") for name in own):
        maps.append(POOLER)
    places = f"{_POSITIONS.theirs[0]}.weight"
    sizes = _sizes(model, vocabulary)
    if places in own:  # a shorter context uses the first positions
        sizes["T"] = max(config.get("max_position_embeddings", 512), sizes["T"] + first)
    check_fit(own, _shapes(maps, sizes), f"a {family.class_name} of {model.layers} layers")
    weights = {}
    for one in maps:
        for kind in ("weight", "bias") if one.bias else ("weight",):
            parts = [own[f"{name}.{kind}"].float() for name in one.theirs]
            weights[f"{one.ours}.{kind}"] = torch.cat(parts) if len(parts) > 1 else parts[0]
    if any(name.startswith(MASKED_HEAD) for name in found) and _is_tied(found, weights["embedding.weight"]):
        weights |= _masked_head(found, sizes)
    weights["positions.table.weight"] = weights["positions.table.weight"][first : first + model.context].contiguous()
    return Taken(weights, left)


def _is_tied(found: Mapping[str, Tensor], embedding: Tensor) -> bool:
    """Whether the output matrix is the embedding table, as here. A head with its own matrix is not supported."""
    table = found.get(f"{MASKED_HEAD}decoder.weight")
    return table is None or torch.equal(table.float(), embedding)


def _masked_head(found: Mapping[str, Tensor], sizes: dict[str, int]) -> dict[str, Tensor]:
    """The pretrained head for masked tokens."""
    output = {
        f"{MASKED_HEAD}decoder.weight",
        f"{MASKED_HEAD}decoder.bias",
    }  # copies of the embedding table and of the bias
    own = {name: t for name, t in found.items() if name.startswith(MASKED_HEAD) and name not in output}
    bias = f"{MASKED_HEAD}bias"
    if bias not in own and f"{MASKED_HEAD}decoder.bias" in found:
        own[bias] = found[f"{MASKED_HEAD}decoder.bias"]
    check_fit(own, {**_shapes(list(TRANSFORM), sizes), bias: [sizes["V"]]}, "the head of a BertForMaskedLM")
    made = {f"{one.ours}.{kind}": own[f"{one.theirs[0]}.{kind}"].float() for one in TRANSFORM for kind in _KINDS}
    return {**made, OUTPUT_BIAS: own[bias].float()}


def to_masked_bert(weights: Mapping[str, Tensor], model: EncoderSpec, padding: int) -> dict[str, Tensor]:
    """The weights of a masked language model, under the names of a BertForMaskedLM."""
    encoder = {
        f"{FAMILIES['bert'].prefix}{name}": tensor for name, tensor in to_bert(weights, model, padding, "bert").items()
    }
    head = {f"{one.theirs[0]}.{kind}": weights[f"{one.ours}.{kind}"] for one in TRANSFORM for kind in _KINDS}
    return {**encoder, **head, f"{MASKED_HEAD}bias": weights[OUTPUT_BIAS]}


def to_bert(weights: Mapping[str, Tensor], model: EncoderSpec, padding: int, model_type: str) -> dict[str, Tensor]:
    """Our weights under the names of a bare encoder."""
    family, made = FAMILIES[model_type], {}
    maps = [*family.maps(model), *((POOLER,) if f"{POOLER.ours}.weight" in weights else ())]
    for one in maps:
        for kind in ("weight", "bias") if one.bias else ("weight",):
            if one == _TYPES and f"{one.ours}.{kind}" not in weights:  # a single segment type adds nothing
                made[f"{one.theirs[0]}.{kind}"] = torch.zeros(1, model.width)
                continue
            parts = weights[f"{one.ours}.{kind}"].chunk(len(one.theirs))
            made |= {f"{name}.{kind}": part.contiguous() for name, part in zip(one.theirs, parts, strict=True)}
    before = torch.zeros(family.first_position(padding), model.width)
    places = f"{_POSITIONS.theirs[0]}.weight"
    return {**made, places: torch.cat((before, made[places]))}


def _current_name(name: str) -> str:
    for old, new in _OLD_NAMES:
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def _shapes(maps: list[Renamed], sizes: dict[str, int]) -> dict[str, list[int]]:
    shapes = {}
    for one in maps:
        for name in one.theirs:
            shapes[f"{name}.weight"] = [sizes[one.outputs], *([sizes[one.inputs]] if one.inputs else [])]
            if one.bias:
                shapes[f"{name}.bias"] = [sizes[one.outputs]]
    return shapes


def _sizes(model: EncoderSpec, vocabulary: int) -> dict[str, int]:
    hidden = model.feedforward.hidden_units(model.width)
    return {
        "V": vocabulary,
        "T": model.context,
        "S": getattr(model.segments, "count", 1),
        "D": model.width,
        "H": hidden,
    }
