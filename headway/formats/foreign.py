"""Models that are not of our shape, as recipes have them: their config.json whole, and of their shape what is asked for
elsewhere. `transformers` runs them (`models/borrowed/`)."""

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
    """A model whose kind is known here, and which asks for what ours do not do."""


def encoder_tree(config: Mapping[str, Any], separator: int | None) -> dict[str, Any]:
    """The model part of a recipe for an encoder that transformers runs."""
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
    """The same for a language model."""
    check_causal(config)
    tree = _tree(config)
    rates = [config[key] for key in _DROPOUT if isinstance(config.get(key), int | float)]
    tree["mixer"]["heads"] = math.gcd(tree["mixer"]["heads"], tree["width"])  # heads may have sizes of their own
    return {**tree, "tied": bool(config.get("tie_word_embeddings", True)), "dropout": float(rates[0] if rates else 0)}


def check_size(config: Mapping[str, Any], kind: str, folder: Path, stored: Mapping[str, Stored]) -> None:
    """Before it is built: not much larger than what the folder holds. (A part that the folder lacks may be new.)"""
    said, there = size_of(config, kind), sum(math.prod(one.shape) for one in stored.values())
    if said > 2 * there:
        raise UserError(f"{folder}: config.json says a model of {said:,} numbers, and its weights are {there:,}")


def read_decoder(folder: Path) -> dict[str, Tensor]:
    """Its weights, under the names that they have in a model of ours."""
    found, left = weights_of(folder, CAUSAL)
    if left:
        raise UserError(f"{folder}: these weights have no place in what config.json says: {', '.join(left)}")
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
