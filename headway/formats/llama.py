"""Reads Llama's format: names of weights, keys of config.json, and what Headway does not support.

Mistral, Qwen2 and SmolLM are the same decoder with the same names. Only the layout differs from ours, and nothing is
approximated:

- Rotary positions rotate pairs of dimensions: i and i + d/2 of a head in Llama, 2i and 2i + 1 here. The rows of queries
  and keys are reordered.
- Several heads may share keys and values (https://arxiv.org/abs/2305.13245). Here every head has its own copy, which is
  the same until it is trained.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headway.formats.foreign import NotOursError
from headway.formats.weights import Key, check_fit
from headway.models.language_model import LanguageModelSpec

KINDS = ("llama", "mistral", "qwen2")
"""The `model_type`s of config.json."""
KEYS = (
    Key("num_hidden_layers", ("layers",), 32),
    Key("hidden_size", ("width",), 4096),
    Key("num_attention_heads", ("mixer", "heads"), 32),
    Key("intermediate_size", ("feedforward", "hidden"), 11008),
    Key("max_position_embeddings", ("context",), 2048),
    Key("rms_norm_eps", ("norm", "eps"), 1e-6),
    Key("attention_dropout", ("mixer", "dropout"), 0.0),
    Key("tie_word_embeddings", ("tied",), False),
)
OUTPUT, PREFIX = "lm_head.weight", "model."


def model_tree(config: Mapping[str, Any], biased: bool) -> dict[str, Any]:
    """The model part of a recipe from config.json, still to be validated. `biased`: queries, keys and values have a
    bias, which only the weights show."""
    heads, width = config.get("num_attention_heads", 32), config.get("hidden_size", 4096)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = rope.get("rope_type", rope.get("type", "default"))
    asked = (
        (
            config.get("hidden_act", "silu") == "silu",
            f"hidden_act: {config.get('hidden_act')}; only silu is supported",
        ),
        (config.get("head_dim") in (None, width // heads), f"head_dim: {config.get('head_dim')}, not width / heads"),
        (scaling == "default", f"rope_scaling: '{scaling}'; only plain rotary positions are supported"),
        (not config.get("mlp_bias"), "mlp_bias: only feed-forward layers without a bias are supported"),
        (heads % key_heads(config) == 0, f"num_key_value_heads: {key_heads(config)} does not divide {heads} heads"),
    )
    if wrong := [words for fits, words in asked if not fits]:
        lines = "\n".join(f"  {words}" for words in wrong)
        raise NotOursError(f"config.json needs what Headway's decoders do not support:\n{lines}")
    tree: dict[str, Any] = {
        "positions": {"kind": "rotary", "base": float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))},
        "mixer": {"bias": biased},
        "feedforward": {"kind": "swiglu", "bias": False},
        "norm": {"kind": "rms", "placement": "pre"},
    }
    for key in KEYS:
        key.put_into(tree, config.get(key.theirs, key.default))
    tree["mixer"]["dropout"] = float(tree["mixer"]["dropout"])
    window = config.get("sliding_window")
    if window is not None and config.get("use_sliding_window", True) and window < tree["context"]:
        if config.get("layer_types") and len(set(config["layer_types"])) > 1:
            raise NotOursError("config.json: layer_types: only layers with the same attention window are supported")
        tree["mixer"]["window"] = window
    return tree


def key_heads(config: Mapping[str, Any]) -> int:
    """The number of heads with their own keys and values."""
    return config.get("num_key_value_heads") or config.get("num_attention_heads", 32)


def is_biased(tensors: Mapping[str, Tensor]) -> bool:
    return any(name.endswith("self_attn.q_proj.bias") for name in tensors)


def from_llama(tensors: Mapping[str, Tensor], model: LanguageModelSpec, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Llama's weights under our names, in float32, after checking that exactly the expected ones are there."""
    found = {_full_name(name): t for name, t in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    if model.tied:  # the output matrix is the embedding table, and any copy of it redundant
        found.pop(OUTPUT, None)
    heads, groups = model.mixers[0].number_of_heads or 1, key_heads(config)
    check_fit(found, _shapes(model, config), f"a Llama of {model.layers} layers")
    own = {"embedding.weight": found[f"{PREFIX}embed_tokens.weight"], "norm.weight": found[f"{PREFIX}norm.weight"]}
    if not model.tied:
        own["output.weight"] = found[OUTPUT]
    for n in range(model.layers):
        of = {name: found[f"{PREFIX}layers.{n}.{name}"] for name in _in_a_layer(model)}
        own |= {f"layers.{n}.{name}": tensor for name, tensor in _layer(of, heads, groups).items()}
    return {name: tensor.float().contiguous() for name, tensor in own.items()}


def _layer(of: Mapping[str, Tensor], heads: int, groups: int) -> dict[str, Tensor]:
    made = {
        "around_mixer.norm.weight": of["input_layernorm.weight"],
        "mixer.output.weight": of["self_attn.o_proj.weight"],
        "around_feedforward.norm.weight": of["post_attention_layernorm.weight"],
        "feedforward.into.weight": torch.cat((of["mlp.gate_proj.weight"], of["mlp.up_proj.weight"])),
        "feedforward.output.weight": of["mlp.down_proj.weight"],
    }
    for kind in ("weight", "bias") if "self_attn.q_proj.bias" in of else ("weight",):
        q, k, v = (of[f"self_attn.{part}_proj.{kind}"] for part in "qkv")
        q, k = paired(q, heads), paired(k, groups)
        made[f"mixer.project.together.{kind}"] = torch.cat((q, _shared(k, heads, groups), _shared(v, heads, groups)))
    if "self_attn.q_proj.bias" in of:  # our attention has biases everywhere or nowhere
        made["mixer.output.bias"] = of.get("self_attn.o_proj.bias", torch.zeros(len(of["self_attn.o_proj.weight"])))
    return made


def paired(rows: Tensor, heads: int) -> Tensor:
    """Reorder rows of queries or keys so that i and i + d/2 of each head are adjacent."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def unpaired(rows: Tensor, heads: int) -> Tensor:
    """The inverse of `paired`: Llama's order."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def _shared(rows: Tensor, heads: int, groups: int) -> Tensor:
    return rows.unflatten(0, (groups, -1)).repeat_interleave(heads // groups, 0).flatten(0, 1)


def _in_a_layer(model: LanguageModelSpec) -> dict[str, str]:
    """Names and shapes of a layer's weights. D: width, K: width of keys and values, H: hidden units."""
    bias = {f"self_attn.{part}_proj.bias": size for part, size in (("q", "D"), ("k", "K"), ("v", "K"))}
    return {
        "input_layernorm.weight": "D",
        "self_attn.q_proj.weight": "D D",
        "self_attn.k_proj.weight": "K D",
        "self_attn.v_proj.weight": "K D",
        "self_attn.o_proj.weight": "D D",
        "post_attention_layernorm.weight": "D",
        "mlp.gate_proj.weight": "H D",
        "mlp.up_proj.weight": "H D",
        "mlp.down_proj.weight": "D H",
        **(bias if getattr(model.mixers[0], "bias", False) else {}),
    }


def _shapes(model: LanguageModelSpec, config: Mapping[str, Any]) -> dict[str, list[int]]:
    width, heads = model.width, model.mixers[0].number_of_heads or 1
    hidden, vocabulary = model.feedforward.hidden_units(width), config["vocab_size"]
    sizes = {"D": width, "K": width // heads * key_heads(config), "H": hidden, "V": vocabulary}
    shapes = {f"{PREFIX}embed_tokens.weight": "V D", f"{PREFIX}norm.weight": "D"}
    shapes |= {} if model.tied else {OUTPUT: "V D"}
    for n in range(model.layers):
        shapes |= {f"{PREFIX}layers.{n}.{name}": letters for name, letters in _in_a_layer(model).items()}
        if config.get("attention_bias"):
            shapes[f"{PREFIX}layers.{n}.self_attn.o_proj.bias"] = "D"
    return {name: [sizes[letter] for letter in letters.split()] for name, letters in shapes.items()}


def _full_name(name: str) -> str:
    return name if name == OUTPUT or name.startswith(PREFIX) else PREFIX + name
