"""Reads and writes BERT's config.json: the model part of a recipe from its keys, and back.

`model_tree` refuses configurations that Headway cannot represent, and `why_not` lists what BERT cannot represent of a
model. The keys of each family are in `bert.py`, with the names of its weights.
"""

from collections.abc import Mapping
from typing import Any

from headway.core.errors import UserError, did_you_mean
from headway.formats.bert import FAMILIES
from headway.formats.misfit import Misfit, misfits
from headway.models.encoder import EncoderSpec
from headway.nn.attention import AttentionSpec

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
ALWAYS: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}


def is_ours(config: Mapping[str, Any]) -> bool:
    """Whether Headway's own encoder can represent a model of these families; otherwise it runs in transformers."""
    activation = config.get(FAMILIES[config["model_type"]].activation, "gelu")
    return activation in ACTIVATIONS and config.get("embedding_size") in (None, config.get("hidden_size"))


def model_tree(config: Mapping[str, Any], separator: int | None) -> dict[str, Any]:
    """The model part of a recipe from config.json, still to be validated. `separator`: the token after each text."""
    family = FAMILIES[config["model_type"]]
    wrong = [
        f"{key}: {config[key]!r}; only {only!r} is supported"
        for key, only in ALWAYS.items()
        if config.get(key, only) != only
    ]
    activation = config.get(family.activation, "gelu")
    if activation not in ACTIVATIONS:
        wrong.append(
            f"{family.activation}: '{activation}' is not supported{did_you_mean(str(activation), ACTIVATIONS)}"
        )
    if (own := config.get("embedding_size")) is not None and own != config.get("hidden_size"):
        wrong.append(f"embedding_size: {own}; only hidden_size ({config.get('hidden_size')}) is supported")
    if wrong:
        raise UserError(
            "config.json needs what Headway's encoders do not support:\n" + "\n".join(f"  {w}" for w in wrong)
        )
    tree: dict[str, Any] = {
        "positions": {"kind": "learned"},
        "mixer": {"kind": "attention", "bias": True},
        "feedforward": {"kind": ACTIVATIONS[activation], "bias": True},
        "norm": {"kind": "layer", "placement": "post", "of_embeddings": True},
        "segments": {"kind": "none"},
    }
    for key in family.keys:
        key.put_into(tree, config.get(key.theirs, key.default))
    tree["norm"]["eps"] = 1e-12 if family.eps is None else float(config.get(family.eps, 1e-12))
    tree["context"] -= family.first_position(config.get("pad_token_id"))
    if family.types is not None:
        count = config.get(family.types, 2)
        if family.after_padding and count != 1:  # RoBERTa's tokenizers do not distinguish two texts
            separator = None
        tree["segments"] = {"kind": "separated", "separator": separator, "count": count}
    return tree


def config_of(model: EncoderSpec, vocabulary: int, padding: int, model_type: str) -> dict[str, Any]:
    """config.json for a model accepted by `why_not`."""
    family = FAMILIES[model_type]
    tree: dict[str, Any] = model.model_dump(mode="json") | {
        "mixer": model.mixers[0].model_dump(mode="json")
    }  # all layers have the same
    tree["feedforward"]["hidden"] = model.feedforward.hidden_units(model.width)
    tree["context"] += family.first_position(padding)
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == model.feedforward.kind)
    config = {
        "architectures": [family.class_name],
        "model_type": model_type,
        "vocab_size": vocabulary,
        **{key.theirs: key.read_from(tree) for key in family.keys},
        family.activation: activation,
        "pad_token_id": padding,
        "dtype": "float32",
    }
    more = {family.eps: model.norm.eps or 1e-5, family.types: getattr(model.segments, "count", 1)}
    return config | {key: value for key, value in more.items() if key is not None}


def why_not(model: Any) -> list[Misfit]:
    """Everything about a model that BERT cannot represent."""
    if not isinstance(model, EncoderSpec):
        return [Misfit("model.kind", f"BERT is an encoder, and a {model.kind} is not")]
    mixer = model.mixers[0]
    if not isinstance(mixer, AttentionSpec) or any(other != mixer for other in model.mixers):
        return [Misfit("model.mixer", "all of BERT's layers are the same attention")]
    feedforward, norm = model.feedforward, model.norm
    asked = (
        (
            model.positions.kind == "learned",
            "positions",
            "learned",
            f"BERT learns an embedding per position, not {model.positions.kind}",
        ),
        (
            mixer.fusion.kind == "concat",
            "mixer.fusion",
            "concat",
            f"BERT concatenates its heads and has no {mixer.fusion.kind}",
        ),
        (
            mixer.similarity.is_product,
            "mixer.similarity",
            "scaled-dot",
            f"BERT uses dot products, not {mixer.similarity.kind}",
        ),
        (
            mixer.window is None,
            "mixer.window",
            "null",
            f"BERT attends to the whole text, not only {mixer.window} slots",
        ),
        (mixer.bias, "mixer.bias", "true", "BERT's projections have biases"),
        (feedforward.kind in ACTIVATIONS.values(), "feedforward.kind", "gelu", f"BERT has no {feedforward.kind}"),
        (feedforward.bias, "feedforward.bias", "true", "BERT's feed-forward layers have biases"),
        (norm.kind == "layer", "norm.kind", "layer", f"BERT has LayerNorm, not {norm.kind}"),
        (norm.placement == "post", "norm.placement", "post", "BERT's norms come after each sublayer (post)"),
        (norm.of_embeddings, "norm.of_embeddings", "true", "BERT's embeddings are normalized"),
        (not model.scale_embedding, "scale_embedding", "false", "BERT's embeddings are not scaled"),
    )
    return misfits(asked)
