"""Cheap retrieval baselines: chance, and colours alone.

`colours` is a ridge regression from a histogram of 64 colours to the words of the caption; candidates are ranked by how
well their words agree. It sees no shapes and no positions, only how much of each colour there is. Its one setting was
chosen once, on the valid split of `scenes` (docs/log.md).
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from headway.audit.audit import Baseline
from headway.scoring.metrics import ACCURACY, CAPTIONS_AT, PICTURES_AT
from headway.scoring.pictures.retrieval import chances, groups, hits_at
from headway.scoring.score import Score

RIDGE = 0.1
AT_ONCE = 1024


def measured(data: Any, split: str, among: int, prompts: Sequence[str], with_classes: bool) -> list[Baseline]:
    """The baselines chance and `colours` on one split of a `PictureSet`."""
    pairs, train = data.split(split), data.split("train")
    dealt = list(groups(pairs, among))
    how = f"{split} · {len(pairs):,} pairs"
    chance, found = chances(dealt), []
    weights, words = _fitted(train)
    predicted = _histograms(pairs.pixels) @ weights
    caption_words = _bags(pairs.captions, words)
    hits: dict[str, list[np.ndarray]] = {CAPTIONS_AT[1].name: [], PICTURES_AT[1].name: []}
    for group in dealt:
        said = _cosines(predicted[group.pictures], caption_words[group.captions])
        asked, right = said[: group.asked], group.belong[: group.asked]
        whose = right.any(0)
        hits[CAPTIONS_AT[1].name].append(hits_at(1, asked, right))
        hits[PICTURES_AT[1].name].append(hits_at(1, said.T[whose], group.belong.T[whose]))
    for name, of_groups in hits.items():
        if with_classes and name == CAPTIONS_AT[1].name:
            continue
        value = float(np.concatenate(of_groups).mean())
        found.append(Baseline("chance", Score(f"{split}.{name}", chance[name], f"of random guessing · {how}")))
        found.append(Baseline("colours", Score(f"{split}.{name}", value, f"by the colours of a picture · {how}")))
    if with_classes:
        classes, used = data.classes, np.unique(pairs.picture)
        names = _bags([prompts[0].replace("{}", name) for name in classes], words)
        right = pairs.classes[used]
        value = float((_cosines(predicted[used], names).argmax(1) == right).mean())
        name, n = f"{split}.{ACCURACY.name}", f"{split} · {len(used):,} pictures of {len(classes)} classes"
        commonest = np.bincount(train.classes).argmax()
        share = float((right == commonest).mean())
        found.append(Baseline("chance", Score(name, share, f"of always answering '{classes[commonest]}' · {n}")))
        found.append(Baseline("colours", Score(name, value, f"by the colours of a picture · {n}")))
    return found


def _fitted(train: Any) -> tuple[Float[np.ndarray, "F W"], dict[str, int]]:
    words = {word: k for k, word in enumerate(sorted({word for one in train.captions for word in _words(one)}))}
    x, y = _histograms(train.pixels)[train.picture], _bags(train.captions, words)
    return np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y), words


def _histograms(pixels: UInt8[np.ndarray, "P 3 S S"]) -> Float[np.ndarray, "P F"]:
    """The share of each of 4 × 4 × 4 colours, its square root, and 1."""
    found = np.ones((len(pixels), 129))
    for first in range(0, len(pixels), AT_ONCE):
        some = pixels[first : first + AT_ONCE] >> 6
        cells = (some[:, 0].astype(np.int64) * 16 + some[:, 1] * 4 + some[:, 2]).reshape(len(some), -1)
        places = cells + 64 * np.arange(len(some))[:, None]
        counts = np.bincount(places.ravel(), minlength=64 * len(some)).reshape(len(some), 64) / cells.shape[1]
        found[first : first + AT_ONCE, :128] = np.concatenate((counts, np.sqrt(counts)), 1)
    return found


def _bags(captions: Sequence[str], words: dict[str, int]) -> Float[np.ndarray, "N W"]:
    found = np.zeros((len(captions), len(words)))
    for row, caption in zip(found, captions, strict=True):
        for word in _words(caption):
            if word in words:
                row[words[word]] += 1
    return found


def _words(caption: str) -> list[str]:
    return re.findall(r"\w+", caption.lower())


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    sizes = np.linalg.norm(one, axis=1)[:, None] * np.linalg.norm(other, axis=1)
    return one @ other.T / np.maximum(sizes, 1e-12)
