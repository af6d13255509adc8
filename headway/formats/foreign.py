"""Recipes for models that Headway does not implement: the whole config.json, and the parts of their shape that are
needed elsewhere. `transformers` runs these models (`models/borrowed/`)."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from headway.core.errors import UserError
from headway.formats.weights import Stored, check_finite
from headway.models.borrowed.module import CAUSAL, check_causal, shape_of, size_of, weights_of

_NOT_KEPT = ("transformers_version", "_name_or_path")
_DROPOUT = ("hidden_dropout_prob", "hidden_dropout", "resid_pdrop", "dropout")


class NotOursError(UserError):
    """A model of a known kind with settings that Headway's own implementation does not support."""


def encoder_tree(config: Mapping[str, Any], separator: int | None) -> dict[str, Any]:
    """The model part of a recipe for an encoder that runs in transformers."""
    segments: dict[str, Any] = {"kind": "none"}
    if isinstance(count := config.get("type_vocab_size"), int) and count > 1:
        segments = {"kind": "separated", "separator": separator, "count": count}
    return {
        **_tree(config),
        "norm": {"kind": "layer", "placement": "post"},
        "segments": segments,
        "dropout": float(config.get("hidden_dropout_prob", 0.0)),
    }


def decoder_tree(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model part of a recipe for a language model that runs in transformers."""
    check_causal(config)
    tree = _tree(config)
    rates = [config[key] for key in _DROPOUT if isinstance(config.get(key), int | float)]
    tree["mixer"]["heads"] = math.gcd(tree["mixer"]["heads"], tree["width"])  # heads may have a different width there
    return {**tree, "tied": bool(config.get("tie_word_embeddings", True)), "dropout": float(rates[0] if rates else 0)}


def check_size(config: Mapping[str, Any], kind: str, folder: Path, stored: Mapping[str, Stored]) -> None:
    """Check, before building it, that the model is not much larger than its files. (Missing parts may be new.)"""
    said, there = size_of(config, kind), sum(math.prod(one.shape) for one in stored.values())
    if said > 2 * there:
        raise UserError(f"{folder}: config.json describes {said:,} parameters, but the weights have {there:,}")


def read_decoder(folder: Path) -> dict[str, Tensor]:
    """The weights, under the names that they have in our model."""
    found, left = weights_of(folder, CAUSAL)
    if left:
        raise UserError(f"{folder}: these weights do not belong to the model of config.json: {', '.join(left)}")
    check_finite(found)
    return {f"body.{name}": tensor for name, tensor in found.items()}


def _tree(config: Mapping[str, Any]) -> dict[str, Any]:
    shape = shape_of(config)
    return {
        "body": {"config": {key: value for key, value in config.items() if key not in _NOT_KEPT}},
        **{key: shape[key] for key in ("layers", "width", "context")},
        "mixer": {"kind": "attention", "heads": shape["heads"]},
        "positions": {"kind": "none"},
        "feedforward": {"kind": "gelu", "hidden": shape.get("hidden")},
    }
