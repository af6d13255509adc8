"""Reads GGUF, the single-file format of llama.cpp: a decoder's weights, mostly quantized, its shape and vocabulary.

The result looks like a Llama folder: weights as float32 under Llama's names, and a matching config.json.
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)
"""

from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from torch import Tensor

from headway.core.errors import UserError, did_you_mean
from headway.formats.llama import unpaired

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
AROUND = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
PRE_TOKENIZERS = {
    "smollm": lambda: [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "gpt-2": lambda: [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "default": lambda: [pre_tokenizers.ByteLevel(add_prefix_space=False)],
}
"""Pre-tokenizers, by `tokenizer.ggml.pre`."""
_CONTROL = (3, 4)  # token types: control and user-defined


class Gguf(NamedTuple):
    config: dict[str, Any]
    """As in config.json."""
    tensors: dict[str, Tensor]
    """Under Llama's names."""
    tokenizer: tokenizers.Tokenizer
    rounded: list[str]
    """The quantized types of the weights."""


def read_gguf(path: Path) -> Gguf:
    try:
        import gguf
        from gguf.quants import dequantize  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            f"{path.name}: reading GGUF needs the package gguf: pip install 'headway[pretrained]'"
        ) from None
    try:
        reader = gguf.GGUFReader(path)  # pyright: ignore[reportAttributeAccessIssue]
        facts = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as problem:  # the library raises many kinds of errors
        raise UserError(f"{path} cannot be read as GGUF: {problem}") from None
    kind = facts.get("general.architecture")
    if kind not in ("llama", "mistral", "qwen2"):
        raise UserError(f"{path} is a '{kind}' model (general.architecture); only llama, mistral and qwen2 can be read")
    try:
        config = _config(kind, facts)
        tensors, types = {}, set()
        for one in reader.tensors:
            types.add(one.tensor_type.name)
            numbers = torch.from_numpy(dequantize(one.data, one.tensor_type).copy())
            tensors[_name(one.name, path)] = numbers.float()
    except KeyError as missing:
        raise UserError(f"{path} is incomplete: {missing} is missing") from None
    except (ValueError, NotImplementedError) as problem:
        raise UserError(f"{path}: its weights cannot be read: {problem}") from None
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    if kind != "qwen2":  # whose rotary pairs are stored as in its own folders
        for name, tensor in tensors.items():
            for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
                if f".{part}." in name:
                    tensors[name] = unpaired(tensor, config[heads])
    return Gguf(config, tensors, _tokenizer(path, facts), sorted(types - {"F32"}))


def _config(kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    heads = facts[f"{kind}.attention.head_count"]
    return {
        "model_type": kind,
        "num_hidden_layers": facts[f"{kind}.block_count"],
        "hidden_size": facts[f"{kind}.embedding_length"],
        "intermediate_size": facts[f"{kind}.feed_forward_length"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts.get(f"{kind}.attention.head_count_kv", heads),
        "max_position_embeddings": facts[f"{kind}.context_length"],
        # Stored in 32 bits: 9.99999975e-06 means 1e-5.
        "rms_norm_eps": float(f"{facts[f'{kind}.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(facts.get(f"{kind}.rope.freq_base", 10000.0)),
        "vocab_size": facts.get(f"{kind}.vocab_size", len(facts["tokenizer.ggml.tokens"])),
        "rope_scaling": {"rope_type": facts[key]} if (key := f"{kind}.rope.scaling.type") in facts else None,
    }


def _name(name: str, path: Path) -> str:
    """Llama's name of a weight: blk.3.attn_q.weight becomes model.layers.3.self_attn.q_proj.weight."""
    if name in AROUND:
        return AROUND[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in NAMES:
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"
    raise UserError(f"{path}: the weight {name} does not belong to a Llama")


def _tokenizer(path: Path, facts: dict[str, Any]) -> tokenizers.Tokenizer:
    model, cut = facts["tokenizer.ggml.model"], facts.get("tokenizer.ggml.pre", "default")
    if model != "gpt2" or cut not in PRE_TOKENIZERS:
        what = f"'{cut}' (tokenizer.ggml.pre)" if model == "gpt2" else f"'{model}' (tokenizer.ggml.model)"
        hint = did_you_mean(str(cut), PRE_TOKENIZERS) if model == "gpt2" else ""
        raise UserError(f"{path}: its vocabulary is of the kind {what}; only byte pairs can be read{hint}")
    names, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ", 1)) for pair in facts["tokenizer.ggml.merges"]]
    library = tokenizers.Tokenizer(models.BPE({name: k for k, name in enumerate(names)}, merges))
    library.pre_tokenizer = pre_tokenizers.Sequence(PRE_TOKENIZERS[cut]())
    library.decoder = decoders.ByteLevel()
    special = [name for name, kind in zip(names, kinds, strict=True) if kind in _CONTROL]
    library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return library
