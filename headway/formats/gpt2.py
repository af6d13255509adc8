"""GPT-2's format beside ours: names of weights, keys of config.json, and what has no counterpart.

    ours                                      GPT-2's
    embedding.weight              [V, D]      transformer.wte.weight                  [V, D]
    layers.0.feedforward.into     [H, D]      transformer.h.0.mlp.c_fc.weight         [D, H]   ("Conv1D": turned)

Both directions read the same tables. `why_not` says what of a model has no GPT-2 form, `model_tree` refuses the
configurations that have no form here; weights only change names, so nothing is lost on the way there and back.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.core.errors import UserError, did_you_mean
from headway.formats.foreign import NotOursError
from headway.formats.weights import Key, check_fit
from headway.models.language_model import LanguageModelSpec
from headway.models.spec import ModelSpec
from headway.nn.attention import AttentionSpec

# --- weights ---------------------------------------------------------------------------------------------------------

WRITTEN = LanguageModelSpec
"""The one model that this is another way to write down."""
PREFIX = "transformer."  # of all names but the output's; models saved without their output layer lack it
OUTPUT = "lm_head.weight"


class WeightName(NamedTuple):
    """One tensor, under both names. `shape` is GPT-2's, in the letters of `_sizes`."""

    ours: str
    theirs: str
    shape: str
    turned: bool = False
    """GPT-2 keeps the matrices of its layers as [in, out], we as [out, in]."""


AROUND_LAYERS = (
    WeightName("embedding.weight", "transformer.wte.weight", "V D"),
    WeightName("positions.table.weight", "transformer.wpe.weight", "T D"),
    WeightName("norm.weight", "transformer.ln_f.weight", "D"),
    WeightName("norm.bias", "transformer.ln_f.bias", "D"),
)
IN_A_LAYER = (  # layers.N.… and transformer.h.N.…
    WeightName("around_mixer.norm.weight", "ln_1.weight", "D"),
    WeightName("around_mixer.norm.bias", "ln_1.bias", "D"),
    WeightName("mixer.project.together.weight", "attn.c_attn.weight", "D 3D", turned=True),  # queries, keys, values
    WeightName("mixer.project.together.bias", "attn.c_attn.bias", "3D"),
    WeightName("mixer.output.weight", "attn.c_proj.weight", "D D", turned=True),
    WeightName("mixer.output.bias", "attn.c_proj.bias", "D"),
    WeightName("around_feedforward.norm.weight", "ln_2.weight", "D"),
    WeightName("around_feedforward.norm.bias", "ln_2.bias", "D"),
    WeightName("feedforward.into.weight", "mlp.c_fc.weight", "D H", turned=True),
    WeightName("feedforward.into.bias", "mlp.c_fc.bias", "H"),
    WeightName("feedforward.output.weight", "mlp.c_proj.weight", "H D", turned=True),
    WeightName("feedforward.output.bias", "mlp.c_proj.bias", "D"),
)
UNTIED = (WeightName("output.weight", OUTPUT, "V D"),)

# Masks that older versions of transformers saved among the weights.
BUFFERS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")


def weight_names(model: LanguageModelSpec) -> list[WeightName]:
    """Every tensor of a model of this shape."""
    layers = [
        weight._replace(ours=f"layers.{n}.{weight.ours}", theirs=f"{PREFIX}h.{n}.{weight.theirs}")
        for n in range(model.layers)
        for weight in IN_A_LAYER
    ]
    return [*AROUND_LAYERS, *layers, *(() if model.tied else UNTIED)]


def to_gpt2(weights: Mapping[str, Tensor], model: LanguageModelSpec) -> dict[str, Tensor]:
    """Our weights under GPT-2's names."""
    return {weight.theirs: _turned(weights[weight.ours], weight) for weight in weight_names(model)}


def from_gpt2(tensors: Mapping[str, Tensor], model: LanguageModelSpec, vocabulary: int) -> dict[str, Tensor]:
    """GPT-2's weights under our names, in float32, after checking that all are there and nothing else is."""
    found = {_full_name(name): t for name, t in tensors.items() if not BUFFERS.fullmatch(name.removeprefix(PREFIX))}
    if model.tied:  # then the output matrix is the embedding table, and a copy of it says nothing new
        table, output = found.get(f"{PREFIX}wte.weight"), found.pop(OUTPUT, None)
        if table is not None and output is not None and not torch.equal(table, output):
            raise UserError(f"{OUTPUT} differs from wte.weight, but config.json says tie_word_embeddings: true")
    expected = {weight.theirs: weight for weight in weight_names(model)}
    sizes = _sizes(model, vocabulary)
    shapes = {name: [sizes[letter] for letter in weight.shape.split()] for name, weight in expected.items()}
    check_fit(found, shapes, f"a GPT-2 of {model.layers} layers")
    return {weight.ours: _turned(found[name].float(), weight) for name, weight in expected.items()}


def _sizes(model: LanguageModelSpec, vocabulary: int) -> dict[str, int]:
    width = model.width
    return {
        "V": vocabulary,
        "T": model.context,
        "D": width,
        "3D": 3 * width,
        "H": model.feedforward.hidden or 4 * width,
    }


def _turned(tensor: Tensor, weight: WeightName) -> Tensor:
    return (tensor.mT if weight.turned else tensor).contiguous()


def _full_name(name: str) -> str:
    return name if name == OUTPUT or name.startswith(PREFIX) else PREFIX + name


# --- config.json -----------------------------------------------------------------------------------------------------


KEYS = (
    Key("n_layer", ("layers",), 12),
    Key("n_embd", ("width",), 768),
    Key("n_positions", ("context",), 1024),
    Key("n_head", ("mixer", "heads"), 12),
    Key("n_inner", ("feedforward", "hidden"), None),
    Key("resid_pdrop", ("dropout",), 0.1),  # embd_pdrop is the same number here
    Key("attn_pdrop", ("mixer", "dropout"), 0.1),
    Key("tie_word_embeddings", ("tied",), True),
)
VOCABULARY = ("vocab_size", 50257)
ACTIVATION = ("activation_function", "gelu_new")
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}
EPS = 1e-5
ALWAYS: dict[str, Any] = {  # what our attention and norms do, and GPT-2 by default
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "layer_norm_epsilon": EPS,
}


def why_not(model: ModelSpec) -> list[str]:
    """Everything about a model that GPT-2 has no form for, in words."""
    feedforward = model.feedforward
    mixer, positions, activation = model.mixers[0], model.positions.kind, feedforward.kind
    if not isinstance(mixer, AttentionSpec) or any(other != mixer for other in model.mixers):
        return ["model.mixer: GPT-2's layers are attention, and all alike"]
    fusion = mixer.fusion.kind
    asked = (
        (isinstance(model, WRITTEN), f"kind: GPT-2 is a {WRITTEN().kind}, not a {model.kind}"),
        (positions == "learned", f"positions: GPT-2 learns a vector per position, and has no {positions}"),
        (fusion == "concat", f"mixer.fusion: GPT-2 concatenates its heads, and has no {fusion}"),
        (mixer.similarity.is_product, f"mixer.similarity: GPT-2 compares by products, not {mixer.similarity.kind}"),
        (mixer.window is None, f"mixer.window: GPT-2 sees all of the past, not only {mixer.window} slots"),
        (
            not mixer.memory,
            f"mixer.memory: GPT-2 begins anew with every segment, without {mixer.memory} slots",
        ),
        (mixer.bias, "mixer.bias: GPT-2's projections have biases"),
        (activation in ACTIVATIONS.values(), f"feedforward.kind: GPT-2 has gelu, gelu-tanh, relu, not {activation}"),
        (feedforward.bias, "feedforward.bias: GPT-2's feed-forward maps have biases"),
        (model.norm.kind == "layer", f"norm.kind: GPT-2 has LayerNorm, not {model.norm.kind}"),
        (model.norm.placement == "pre", "norm.placement: GPT-2's norms stand before each sublayer, not after it"),
        (model.norm.eps in (None, EPS), f"norm.eps: GPT-2's norms add {EPS:g}"),
        (not model.norm.of_embeddings, "norm.of_embeddings: GPT-2's embeddings have no norm of their own"),
        (not getattr(model, "output_bias", False), "output_bias: GPT-2's output adds none"),
        (not model.scale_embedding, "scale_embedding: GPT-2's embeddings are read as they are"),
    )
    return [f"model.{words}" for fits, words in asked if not fits]


def written(model: ModelSpec) -> LanguageModelSpec:
    """A model that `why_not` has nothing against."""
    assert isinstance(model, WRITTEN)
    return model


def config_of(model: LanguageModelSpec, vocabulary: int, end_of_text: int | None) -> dict[str, Any]:
    """config.json for a model that `why_not` has nothing against."""
    tree = model.model_dump(mode="json") | {"mixer": model.mixers[0].model_dump(mode="json")}  # all are alike
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == model.feedforward.kind)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        VOCABULARY[0]: vocabulary,
        **{key.theirs: key.read_from(tree) for key in KEYS},
        "embd_pdrop": model.dropout,
        ACTIVATION[0]: activation,
        **ALWAYS,
        "bos_token_id": end_of_text,  # GPT-2's own number for these, 50256, would be no token of a small vocabulary
        "eos_token_id": end_of_text,
        "dtype": "float32",
    }


def model_tree(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The model part of a recipe from config.json, still to be validated, and what there is to say about it."""
    wrong = [
        f"{key}: {config[key]!r}, where only {only!r} has a form here"
        for key, only in ALWAYS.items()
        if config.get(key, only) != only
    ]
    activation = config.get(*ACTIVATION)
    if activation not in ACTIVATIONS:
        wrong.append(f"{ACTIVATION[0]}: there is no '{activation}' here{did_you_mean(str(activation), ACTIVATIONS)}")
    if wrong:
        raise NotOursError(
            "config.json asks for what Headway's models do not do:\n" + "\n".join(f"  {w}" for w in wrong)
        )
    tree: dict[str, Any] = {"feedforward": {"kind": ACTIVATIONS[activation]}}
    for key in KEYS:
        key.put_into(tree, config.get(key.theirs, key.default))
    notes, embedding_dropout = [], config.get("embd_pdrop", 0.1)
    if embedding_dropout != tree["dropout"]:
        notes.append(
            f"embd_pdrop is {embedding_dropout} and resid_pdrop {tree['dropout']}: here they are one number, "
            f"model.dropout={tree['dropout']}, which only training notices"
        )
    return tree, notes
