"""Reads and writes Marian's config.json and generation_config.json: the model and decoding of a recipe from their keys,
and back.

`model_tree` refuses configurations that Headway cannot represent, and `why_not` lists what Marian cannot represent of a
model. The names of the weights are in `marian.py`.
"""

from collections.abc import Mapping
from typing import Any

from headway.core.errors import UserError, did_you_mean
from headway.formats.marian import Numbering
from headway.formats.misfit import Misfit, misfits
from headway.formats.weights import Key
from headway.models.encoder_decoder import EncoderDecoderSpec
from headway.models.spec import ModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.positions import Sinusoidal

KEYS = (
    Key("d_model", ("width",), 1024),
    Key("decoder_layers", ("layers",), 12),
    Key("encoder_layers", ("encoder_layers",), 12),
    Key("max_position_embeddings", ("context",), 1024),
    Key("decoder_attention_heads", ("mixer", "heads"), 16),
    Key("decoder_ffn_dim", ("feedforward", "hidden"), 4096),
    Key("dropout", ("dropout",), 0.1),
    Key("attention_dropout", ("mixer", "dropout"), 0.0),
    Key("scale_embedding", ("scale_embedding",), False),
)
VOCABULARY = ("vocab_size", 58101)
ACTIVATION = ("activation_function", "gelu")
ACTIVATIONS = {
    "swish": "silu",
    "silu": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
}
ALWAYS: dict[str, Any] = {  # keys that Marian's folders may have, but transformers ignores
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
    "extra_pos_embeddings": 0,
    "add_bias_logits": False,
    "is_encoder_decoder": True,
}
ONLY_TRAINING = ("activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
"""Keys that only affect training, and that Headway does not have."""
EPS = 1e-5
SINUSOIDAL = {"kind": "sinusoidal", "size": 1.0, "base": 10000.0, "layout": "halves"}


def numbering(config: Mapping[str, Any]) -> Numbering:
    source = config.get(*VOCABULARY)
    shared = config.get("share_encoder_decoder_embeddings", True)
    target = source if shared else config.get("decoder_vocab_size") or source
    for key, value in ((VOCABULARY[0], source), ("decoder_vocab_size", target)):
        if not isinstance(value, int) or value < 2:
            raise UserError(f"config.json: {key}: expected a whole number of tokens, not {value!r}")
    end = config.get("eos_token_id", 0)
    if not isinstance(end, int) or not 0 <= end < min(source, target):
        raise UserError(f"config.json: eos_token_id: expected one token of both vocabularies, not {end!r}")
    return Numbering(source, target, end)


def model_tree(config: Mapping[str, Any], numbers: Numbering, biased: bool) -> tuple[dict[str, Any], list[str]]:
    """The model part of a recipe from config.json, still to be validated, with notes. `biased`: whether the output bias
    is not zero."""
    wrong = [
        f"{key}: {config[key]!r}, but transformers and Headway always use {only!r}"
        for key, only in ALWAYS.items()
        if config.get(key, only) != only
    ]
    given = {key.theirs: config.get(key.theirs, key.default) for key in KEYS}
    if (ffn := config.get("encoder_ffn_dim", 4096)) != given["decoder_ffn_dim"]:
        wrong.append(f"encoder_ffn_dim: {ffn}, but decoder_ffn_dim is {given['decoder_ffn_dim']}; they must be equal")
    activation = config.get(*ACTIVATION)
    if activation not in ACTIVATIONS:
        wrong.append(f"{ACTIVATION[0]}: '{activation}' is not supported{did_you_mean(str(activation), ACTIVATIONS)}")
    shared, tied = config.get("share_encoder_decoder_embeddings", True), config.get("tie_word_embeddings", True)
    if shared and not tied:
        wrong.append(
            "tie_word_embeddings: False with share_encoder_decoder_embeddings; here a table shared by both embeddings "
            "is also the output matrix"
        )
    start = config.get("decoder_start_token_id", config.get("pad_token_id"))
    if not isinstance(start, int) or not 0 <= start < numbers.target:
        wrong.append(f"decoder_start_token_id: expected a token of {numbers.target:,}, not {start!r}")
    if wrong:
        raise UserError(
            "config.json needs what Headway's models do not support:\n" + "\n".join(f"  {w}" for w in wrong)
        )
    tree: dict[str, Any] = {"kind": "encoder-decoder", "norm": {"kind": "layer", "placement": "post"}}
    tree |= {"positions": SINUSOIDAL, "tied": "all" if shared else "output" if tied else "none", "output_bias": biased}
    tree |= {"begin": None if start == numbers.end else numbers.ours(start)}
    tree["feedforward"] = {"kind": ACTIVATIONS[activation]}
    for key in KEYS:
        key.put_into(tree, given[key.theirs])
    if (heads := config.get("encoder_attention_heads", 16)) != given["decoder_attention_heads"]:
        tree["encoder_mixer"] = {"kind": "attention", **tree["mixer"], "heads": heads}
    told = [f"{key} is {config[key]}" for key in ONLY_TRAINING if config.get(key)]
    return tree, [f"{', '.join(told)}: not supported, which only affects further training"] if told else []


def why_not(model: ModelSpec) -> list[Misfit]:
    """Everything about a model that Marian cannot represent."""
    if not isinstance(model, EncoderDecoderSpec):
        return [Misfit("model.kind", f"Marian is an {EncoderDecoderSpec().kind}, not a {model.kind}")]
    encoder, own = model.encoder.mixers, model.mixers
    crossing = [model.cross_for(one) for one in own]
    if not all(isinstance(one, AttentionSpec) for one in (*encoder, *own, *crossing)):
        return [Misfit("model.mixer", "Marian's layers are attention, in encoder and decoder")]
    attention = [one for one in (*encoder, *own, *crossing) if isinstance(one, AttentionSpec)]
    fusions, dropouts = {one.fusion.kind for one in attention}, {one.dropout for one in attention}
    products = all(one.similarity.is_product for one in attention)
    waves, feedforward = model.positions, model.feedforward
    marians = f"{{{', '.join(f'{k}: {v}' for k, v in SINUSOIDAL.items())}}}"
    like = isinstance(waves, Sinusoidal) and {k: getattr(waves, k) for k in SINUSOIDAL} == SINUSOIDAL
    asked = (
        (
            len({one.number_of_heads for one in encoder})
            == 1
            == len({one.number_of_heads for one in (*own, *crossing)}),
            "mixer.heads",
            None,
            "Marian has one number of heads for all encoder layers, and one for all decoder layers",
        ),
        (fusions == {"concat"}, "mixer.fusion", "concat", "Marian's heads are concatenated"),
        (products, "mixer.similarity", "scaled-dot", "Marian uses dot products"),
        (all(one.bias for one in attention), "mixer.bias", "true", "Marian's projections have biases"),
        (all(one.window is None for one in attention), "mixer.window", "null", "Marian's attention covers everything"),
        (len(dropouts) == 1, "mixer.dropout", None, "Marian has one dropout rate for all attention"),
        (like, "positions", marians, f"Marian's are {marians}"),
        (feedforward.kind in ACTIVATIONS.values(), "feedforward.kind", "gelu", f"Marian has no {feedforward.kind}"),
        (feedforward.bias, "feedforward.bias", "true", "Marian's feed-forward layers have biases"),
        (model.norm.kind == "layer", "norm.kind", "layer", f"Marian has LayerNorm, not {model.norm.kind}"),
        (model.norm.placement == "post", "norm.placement", "post", "Marian's norms come after each sublayer (post)"),
        (model.norm.eps in (None, EPS), "norm.eps", "null", f"Marian's norms have eps {EPS:g}"),
        (not model.norm.of_embeddings, "norm.of_embeddings", "false", "Marian has no norm after the embeddings"),
    )
    return misfits(asked)


def written(model: ModelSpec) -> EncoderDecoderSpec:
    """A model accepted by `why_not`, with its exact type."""
    assert isinstance(model, EncoderDecoderSpec)
    return model


def config_of(model: EncoderDecoderSpec, numbers: Numbering) -> dict[str, Any]:
    """config.json for a model accepted by `why_not`."""
    tree = model.model_dump(mode="json") | {
        "mixer": model.mixers[0].model_dump(mode="json")
    }  # all layers have the same
    hidden = model.feedforward.hidden_units(model.width)
    start = numbers.end if model.begin is None else numbers.theirs(model.begin)
    told = {key.theirs: key.read_from(tree) for key in KEYS}
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        **told,
        "encoder_layers": model.encoder.layers,
        "encoder_attention_heads": model.encoder.mixers[0].number_of_heads,
        "decoder_ffn_dim": hidden,
        "encoder_ffn_dim": hidden,
        VOCABULARY[0]: numbers.source,
        "decoder_vocab_size": numbers.target,
        ACTIVATION[0]: next(theirs for theirs, ours in ACTIVATIONS.items() if ours == model.feedforward.kind),
        "share_encoder_decoder_embeddings": model.tied == "all",
        "tie_word_embeddings": model.tied != "none",
        "eos_token_id": numbers.end,
        "pad_token_id": start,
        "decoder_start_token_id": start,
        "forced_eos_token_id": numbers.end,
        "is_encoder_decoder": True,
        "dtype": "float32",
    }


def generation_of(model: EncoderDecoderSpec, numbers: Numbering, decoding: Any) -> dict[str, Any]:
    """generation_config.json: how the recipe decodes, as far as that file can say."""
    config = config_of(model, numbers)
    said = {key: config[key] for key in ("eos_token_id", "pad_token_id", "decoder_start_token_id")}
    said |= {"forced_eos_token_id": numbers.end, "max_length": model.context}
    if model.begin is not None:
        said["bad_words_ids"] = [[numbers.theirs(model.begin)]]
    if decoding.kind == "beam":
        said |= {"num_beams": decoding.size, "length_penalty": decoding.length_penalty, "early_stopping": "never"}
        said |= {} if decoding.no_repeat is None else {"no_repeat_ngram_size": decoding.no_repeat}
    return said


def decoding_tree(config: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, Any]:
    """The decoding settings, from generation_config.json or, in older folders, from config.json."""
    beams = generation.get("num_beams") or config.get("num_beams") or 1
    if beams == 1:
        return {"kind": "greedy"}
    penalty = generation.get("length_penalty", config.get("length_penalty"))
    tree = {"kind": "beam", "size": beams, "length_penalty": float(1.0 if penalty is None else penalty)}
    once = generation.get("no_repeat_ngram_size", config.get("no_repeat_ngram_size"))
    return {**tree, "no_repeat": once} if once else tree
