"""Reads and writes GPT-2's format: names of weights, keys of config.json, and what has no counterpart.

    ours                                      GPT-2's
    embedding.weight              [V, D]      transformer.wte.weight                  [V, D]
    layers.0.feedforward.into     [H, D]      transformer.h.0.mlp.c_fc.weight         [D, H]   ("Conv1D": transposed)

Both directions use the same tables. `why_not` lists what GPT-2 cannot represent of a model, and `model_tree` refuses
configurations that Headway cannot represent. Weights only change their names, so a round trip loses nothing.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.core.errors import UserError, did_you_mean
from headway.formats.foreign import NotOursError
from headway.formats.misfit import Misfit, misfits
from headway.formats.weights import Key, check_fit
from headway.models.language_model import LanguageModelSpec
from headway.models.spec import ModelSpec
from headway.nn.attention import AttentionSpec

# --- weights ---------------------------------------------------------------------------------------------------------

WRITTEN = LanguageModelSpec
"""The only model class that has a GPT-2 form."""
PREFIX = "transformer."  # of all names except the output's; missing in models saved without their output layer
OUTPUT = "lm_head.weight"


class WeightName(NamedTuple):
    """A tensor's name here and in GPT-2. `shape` is GPT-2's, in the letters of `_sizes`."""

    ours: str
    theirs: str
    shape: str
    turned: bool = False
    """Transposed: GPT-2 stores the matrices of its layers as [in, out], we as [out, in]."""


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

# Masks that older versions of transformers saved with the weights.
BUFFERS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")


def weight_names(model: LanguageModelSpec) -> list[WeightName]:
    """The names of all tensors of a model of this shape."""
    layers = [
        weight._replace(ours=f"layers.{n}.{weight.ours}", theirs=f"{PREFIX}h.{n}.{weight.theirs}")
        for n in range(model.layers)
        for weight in IN_A_LAYER
    ]
    return [*AROUND_LAYERS, *layers, *(() if model.tied else UNTIED)]


def to_gpt2(weights: Mapping[str, Tensor], model: LanguageModelSpec) -> dict[str, Tensor]:
    """Our weights under GPT-2's names."""
    return {weight.theirs: _transposed(weights[weight.ours], weight) for weight in weight_names(model)}


def from_gpt2(tensors: Mapping[str, Tensor], model: LanguageModelSpec, vocabulary: int) -> dict[str, Tensor]:
    """GPT-2's weights under our names, in float32, after checking that exactly the expected ones are there."""
    found = {_full_name(name): t for name, t in tensors.items() if not BUFFERS.fullmatch(name.removeprefix(PREFIX))}
    if model.tied:  # the output matrix is the embedding table, and any copy of it redundant
        table, output = found.get(f"{PREFIX}wte.weight"), found.pop(OUTPUT, None)
        if table is not None and output is not None and not torch.equal(table, output):
            raise UserError(f"{OUTPUT} differs from wte.weight, but config.json says tie_word_embeddings: true")
    expected = {weight.theirs: weight for weight in weight_names(model)}
    sizes = _sizes(model, vocabulary)
    shapes = {name: [sizes[letter] for letter in weight.shape.split()] for name, weight in expected.items()}
    check_fit(found, shapes, f"a GPT-2 of {model.layers} layers")
    return {weight.ours: _transposed(found[name].float(), weight) for name, weight in expected.items()}


def _sizes(model: LanguageModelSpec, vocabulary: int) -> dict[str, int]:
    width = model.width
    return {
        "V": vocabulary,
        "T": model.context,
        "D": width,
        "3D": 3 * width,
        "H": model.feedforward.hidden or 4 * width,
    }


def _transposed(tensor: Tensor, weight: WeightName) -> Tensor:
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
    Key("resid_pdrop", ("dropout",), 0.1),  # here it also stands for embd_pdrop
    Key("attn_pdrop", ("mixer", "dropout"), 0.1),
    Key("tie_word_embeddings", ("tied",), True),
)
VOCABULARY = ("vocab_size", 50257)
ACTIVATION = ("activation_function", "gelu_new")
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}
EPS = 1e-5
ALWAYS: dict[str, Any] = {  # how our attention and norms work, and GPT-2's by default
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "layer_norm_epsilon": EPS,
}


def why_not(model: ModelSpec) -> list[Misfit]:
    """Everything about a model that GPT-2 cannot represent."""
    feedforward = model.feedforward
    mixer, positions, activation = model.mixers[0], model.positions.kind, feedforward.kind
    if not isinstance(mixer, AttentionSpec) or any(other != mixer for other in model.mixers):
        return [Misfit("model.mixer", "all of GPT-2's layers are the same attention")]
    fusion = mixer.fusion.kind
    asked = (
        (isinstance(model, WRITTEN), "kind", None, f"GPT-2 is a {WRITTEN().kind}, not a {model.kind}"),
        (
            positions == "learned",
            "positions",
            "learned",
            f"GPT-2 learns an embedding per position and has no {positions}",
        ),
        (fusion == "concat", "mixer.fusion", "concat", f"GPT-2 concatenates its heads and has no {fusion}"),
        (
            mixer.similarity.is_product,
            "mixer.similarity",
            "scaled-dot",
            f"GPT-2 uses dot products, not {mixer.similarity.kind}",
        ),
        (
            mixer.window is None,
            "mixer.window",
            "null",
            f"GPT-2 attends to the whole context, not only {mixer.window} slots",
        ),
        (
            not mixer.memory,
            "mixer.memory",
            "0",
            f"GPT-2 carries no state between segments, such as {mixer.memory} slots",
        ),
        (mixer.bias, "mixer.bias", "true", "GPT-2's projections have biases"),
        (
            activation in ACTIVATIONS.values(),
            "feedforward.kind",
            "gelu",
            f"GPT-2 has gelu, gelu-tanh, relu, not {activation}",
        ),
        (feedforward.bias, "feedforward.bias", "true", "GPT-2's feed-forward layers have biases"),
        (model.norm.kind == "layer", "norm.kind", "layer", f"GPT-2 has LayerNorm, not {model.norm.kind}"),
        (model.norm.placement == "pre", "norm.placement", "pre", "GPT-2's norms come before each sublayer (pre)"),
        (model.norm.eps in (None, EPS), "norm.eps", "null", f"GPT-2's norms have eps {EPS:g}"),
        (not model.norm.of_embeddings, "norm.of_embeddings", "false", "GPT-2 has no norm after the embeddings"),
        (not getattr(model, "output_bias", False), "output_bias", "false", "GPT-2's output has no bias"),
        (not model.scale_embedding, "scale_embedding", "false", "GPT-2's embeddings are not scaled"),
    )
    return misfits(asked)


def written(model: ModelSpec) -> LanguageModelSpec:
    """A model accepted by `why_not`, with its exact type."""
    assert isinstance(model, WRITTEN)
    return model


def config_of(model: LanguageModelSpec, vocabulary: int, end_of_text: int | None) -> dict[str, Any]:
    """config.json for a model accepted by `why_not`."""
    tree = model.model_dump(mode="json") | {
        "mixer": model.mixers[0].model_dump(mode="json")
    }  # all layers have the same
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == model.feedforward.kind)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        VOCABULARY[0]: vocabulary,
        **{key.theirs: key.read_from(tree) for key in KEYS},
        "embd_pdrop": model.dropout,
        ACTIVATION[0]: activation,
        **ALWAYS,
        "bos_token_id": end_of_text,  # GPT-2's default for both, 50256, does not exist in a small vocabulary
        "eos_token_id": end_of_text,
        "dtype": "float32",
    }


def model_tree(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The model part of a recipe from config.json, still to be validated, with notes."""
    wrong = [
        f"{key}: {config[key]!r}; only {only!r} is supported"
        for key, only in ALWAYS.items()
        if config.get(key, only) != only
    ]
    activation = config.get(*ACTIVATION)
    if activation not in ACTIVATIONS:
        wrong.append(f"{ACTIVATION[0]}: '{activation}' is not supported{did_you_mean(str(activation), ACTIVATIONS)}")
    if wrong:
        raise NotOursError(
            "config.json needs what Headway's models do not support:\n" + "\n".join(f"  {w}" for w in wrong)
        )
    tree: dict[str, Any] = {"feedforward": {"kind": ACTIVATIONS[activation]}}
    for key in KEYS:
        key.put_into(tree, config.get(key.theirs, key.default))
    notes, embedding_dropout = [], config.get("embd_pdrop", 0.1)
    if embedding_dropout != tree["dropout"]:
        notes.append(
            f"embd_pdrop is {embedding_dropout} and resid_pdrop {tree['dropout']}; Headway has only one value, "
            f"model.dropout={tree['dropout']}, which only affects training"
        )
    return tree, notes
