"""Contrastive losses by the formulas of the papers, pair by pair; nothing here uses headway/models."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def info_nce(spec: Any, logits: Tensor, also_right: Tensor) -> Tensor:
    """[B, B] → [B]: −log of the right one's share of exp(logits), averaged over its row and its column."""
    nats = []
    for k in range(len(logits)):
        captions, pictures = (side[_compared(spec, same)] for side, same in _sides(logits, also_right, k))
        right = logits[k, k]
        nats.append((captions.exp().sum().log() + pictures.exp().sum().log()) / 2 - right)
    return torch.stack(nats)


def _sides(logits: Tensor, also_right: Tensor, k: int) -> list[tuple[Tensor, Tensor]]:
    """For picture k all captions, and for caption k all pictures; with a mask of those that are also right."""
    return [(logits[k], also_right[k]), (logits[:, k], also_right[:, k])]


def _compared(spec: Any, same: Tensor) -> Tensor:
    """A mask of the candidates that count."""
    return ~same if _left_out(spec) else torch.ones_like(same)


def sigmoid(spec: Any, logits: Tensor, also_right: Tensor) -> Tensor:
    """[B, B] → [B]: −Σ log σ(±logit), with + for the right pair of a row and − for all others."""
    nats = []
    for k in range(len(logits)):
        signs = -torch.ones_like(logits[k])
        signs[k] = 1
        chances = torch.sigmoid(signs * logits[k])[_compared(spec, also_right[k])]
        nats.append(-chances.log().sum())
    return torch.stack(nats)


CONTRASTS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {"infonce": info_nce, "sigmoid": sigmoid}


def also_right(batch: Any) -> Tensor:
    """[B, B] for the one replica: pairs of different rows that belong together."""
    captions, pictures = batch.caption[0].tolist(), batch.picture[0].tolist()
    rows = range(len(captions))
    same = [[j != k and (captions[j] == captions[k] or pictures[j] == pictures[k]) for j in rows] for k in rows]
    return torch.tensor(same, device=batch.caption.device)


def clueless(spec: Any, same: Tensor) -> float:
    """The InfoNCE loss if all logits are equal: the mean logarithm of the number of candidates."""
    left_out = same.sum(1) if _left_out(spec) else torch.zeros(len(same))
    return sum(math.log(len(same) - int(n)) for n in left_out) / len(same)


def _left_out(spec: Any) -> bool:
    return spec.repeats == "left-out"
