"""What a contrastive loss is, by the formulas of the papers, pair by pair; nothing here uses headway/models."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def info_nce(spec: Any, logits: Tensor, also_right: Tensor) -> Tensor:
    """[B, B] → [B]: −log of the share that the right one has of exp(logits), along rows and along columns."""
    nats = []
    for k in range(len(logits)):
        candidates = [j for j in range(len(logits)) if j == k or not (_left_out(spec) and also_right[k, j])]
        whose = [j for j in range(len(logits)) if j == k or not (_left_out(spec) and also_right[j, k])]
        to_caption = torch.stack([logits[k, j] for j in candidates]).log_softmax(0)[candidates.index(k)]
        to_picture = torch.stack([logits[j, k] for j in whose]).log_softmax(0)[whose.index(k)]
        nats.append(-(to_caption + to_picture) / 2)
    return torch.stack(nats)


def sigmoid(spec: Any, logits: Tensor, also_right: Tensor) -> Tensor:
    """[B, B] → [B]: −Σ log σ(±logit), + for the right pair of a row and − for all others."""
    nats = []
    for k in range(len(logits)):
        compared = [j for j in range(len(logits)) if j == k or not (_left_out(spec) and also_right[k, j])]
        nats.append(-sum(torch.sigmoid(logits[k, j] if j == k else -logits[k, j]).log() for j in compared))
    return torch.stack(nats)


CONTRASTS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {"infonce": info_nce, "sigmoid": sigmoid}


def also_right(batch: Any) -> Tensor:
    """[B, B] of the one replica: pairs that belong together although they are of two rows."""
    same = [
        [
            j != k and bool(batch.caption[0, j] == batch.caption[0, k] or batch.picture[0, j] == batch.picture[0, k])
            for j in range(batch.caption.shape[1])
        ]
        for k in range(batch.caption.shape[1])
    ]
    return torch.tensor(same)


def clueless(spec: Any, same: Tensor) -> float:
    """InfoNCE where all logits are equal: the logarithm of how many there are to choose from."""
    left_out = same.sum(1) if _left_out(spec) else torch.zeros(len(same))
    return sum(math.log(len(same) - int(n)) for n in left_out) / len(same)


def _left_out(spec: Any) -> bool:
    return spec.repeats == "left-out"
