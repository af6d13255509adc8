"""Retrieval scores: how often a picture finds its caption, and a caption its picture, among 100 candidates.

A split is divided into groups of 100 pictures (`data.among`), always the same ones. Within a group every picture looks
for its caption among all captions, and every caption for its picture. Any pair that belongs together anywhere in the
split counts as right: where two pictures share a caption, either is right, and the caption is a candidate only once.
Ties are counted by the probability that a right candidate comes first in random order, so a model that gives the same
score to everything is right as often as chance.

The loss is the training loss, in groups as large as the batches. If the pictures have classes, each is assigned to the
class with the nearest prompts.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.core import random
from headway.data.images.dataset import CaptionedPictures, with_end
from headway.data.tokenizers import Tokenizer
from headway.models.clip import Clip
from headway.scoring.metrics import ACCURACY, CAPTIONS_AT, FOUND_AT, LOSS, PICTURES_AT
from headway.scoring.score import Confusion, Score
from headway.stats.intervals import wilson

AT_ONCE = 256
"""Batch size for embedding pictures or captions."""


class RetrievalGroup(NamedTuple):
    asked: int
    """How many of the pictures, from the first, are queries in this group."""
    pictures: Int[np.ndarray, " P"]
    """All candidate pictures, as indices in the split."""
    captions: Int[np.ndarray, " C"]
    """Their captions, as the index of the first pair with each caption."""
    belong: Bool[np.ndarray, "P C"]
    """Whether a picture and a caption belong together."""


@dataclass(frozen=True, eq=False)
class Retrieved:
    """The results of one model on a split."""

    nats: Float[np.ndarray, " N"]
    """The loss of each pair."""
    by_picture: dict[int, Float[np.ndarray, " P"]]
    """By k: for each picture, whether its caption is among the k likeliest."""
    by_caption: dict[int, Float[np.ndarray, " C"]]
    """By k: for each caption, whether its picture is among the k likeliest."""
    among: tuple[float, float]
    """The mean number of candidate captions and of candidate pictures."""
    chance: dict[str, float]
    """The chance level of each metric."""
    chosen: Int[np.ndarray, " P"] | None
    """The predicted class of each picture, if there are classes."""

    def scores(self, split: str, pairs: CaptionedPictures, classes: tuple[str, ...] | None, batch: int) -> list[Score]:
        pictures, how = len(np.unique(pairs.picture)), f"{split} · {len(pairs):,} pairs"
        among = min(batch, len(pairs))
        found = [Score(f"{split}.{LOSS.name}", float(self.nats.mean()), f"nats per pair among {among:,} · {how}")]
        if self.chosen is not None and classes is not None:
            found.append(self._accuracy(split, pairs, classes, f"{split} · {pictures:,} pictures"))
        captions, shown = self.among
        for metrics, hits, whose, candidates in (
            (CAPTIONS_AT if classes is None else {}, self.by_picture, "pictures whose caption", captions),
            (PICTURES_AT, self.by_caption, "captions whose picture", shown),
        ):
            for k, metric in metrics.items():
                name, n = f"{split}.{metric.name}", len(hits[k])
                interval = wilson(float(hits[k].sum()), n)  # pyright: ignore[reportArgumentType]
                assert interval is not None
                where = "first" if k == 1 else f"among the first {k}"
                what = f"{whose} comes {where} of {candidates:,.0f}: {hits[k].sum():,.5g} of {n:,}"
                label = f"{what} · {_between(interval)} · chance {self.chance[metric.name]:.3g} · {how}"
                rows = "".join("1" if hit > 0.5 else "0" for hit in hits[k])
                found.append(Score(name, float(hits[k].mean()), label, interval, rows=rows))
        return found

    def _accuracy(self, split: str, pairs: CaptionedPictures, classes: tuple[str, ...], how: str) -> Score:
        assert self.chosen is not None and pairs.classes is not None
        right, C = pairs.classes[np.unique(pairs.picture)], len(classes)
        correct = self.chosen == right
        hits, n = int(correct.sum()), len(correct)
        interval = wilson(hits, n)
        counts = np.bincount(right * C + self.chosen, minlength=C * C).reshape(C, C)
        confusion = Confusion.of_rows(classes, counts.tolist())
        label = f"accuracy by prompts: {hits:,} of {n:,} · {_between(interval)} · {how} of {C} classes"
        rows = "".join("1" if one else "0" for one in correct)
        return Score(f"{split}.{ACCURACY.name}", hits / n, label, interval, confusion, rows)


def _between(interval: tuple[float, float] | None) -> str:
    assert interval is not None
    return f"95 % interval {interval[0]:.3f} – {interval[1]:.3f} (Wilson)"


@torch.no_grad()
def retrieve(
    model: Clip, pairs: CaptionedPictures, among: int, batch: int, prompts: Sequence[Sequence[np.ndarray]] | None = None
) -> list[Retrieved]:
    """Retrieval results of every replica. `prompts` are the tokenised prompts of each class."""
    model.eval()
    shown, told, own = embedded(model, pairs)
    dealt = list(groups(pairs, among))
    classes = None if prompts is None else embedded_prompts(model, prompts)
    used = np.unique(pairs.picture)
    found = []
    for r in range(model.replicas):
        cosines = [shown[r, group.pictures] @ told[r, group.captions].mT for group in dealt]
        hits = [_hits(group, said.double().numpy()) for group, said in zip(dealt, cosines, strict=True)]
        chosen = None if classes is None else (shown[r, used] @ classes[r].mT).argmax(1).numpy()
        found.append(
            Retrieved(
                _nats(model, r, shown[r, own], told[r], pairs, batch),
                {k: np.concatenate([one[0][k] for one in hits]) for k in FOUND_AT},
                {k: np.concatenate([one[1][k] for one in hits]) for k in FOUND_AT},
                (
                    float(np.mean([len(group.captions) for group in dealt])),
                    float(np.mean([len(group.pictures) for group in dealt])),
                ),
                chances(dealt),
                chosen,
            )
        )
    return found


def embedded(
    model: Clip, pairs: CaptionedPictures
) -> tuple[Float[Tensor, "R P E"], Float[Tensor, "R N E"], Int[Tensor, " N"]]:
    """Embeddings of all pictures and captions, on the CPU, and the picture index of each pair."""
    device = next(model.parameters()).device
    used, inverse = np.unique(pairs.picture, return_inverse=True)
    shown = torch.zeros(model.replicas, len(pairs.pixels), model.spec.shared)
    for some in np.split(used, range(AT_ONCE, len(used), AT_ONCE)):
        pictures = torch.as_tensor(pairs.pixels[some]).to(device).expand(model.replicas, -1, -1, -1, -1)
        shown[:, some] = model.see(pictures).float().cpu()
    table, lengths = pairs.padded(model.spec.context, model.end)
    told = embedded_captions(model, torch.as_tensor(table), torch.as_tensor(lengths))
    return shown, told, torch.as_tensor(used[inverse])


@torch.no_grad()
def embedded_captions(model: Clip, table: Int[Tensor, "N L"], lengths: Int[Tensor, " N"]) -> Float[Tensor, "R N E"]:
    device = next(model.parameters()).device
    told = torch.empty(model.replicas, len(table), model.spec.shared)
    for rows in lengths.argsort(stable=True).split(AT_ONCE):
        width = int(lengths[rows].max())
        ids = table[rows, :width].to(device, torch.int64).expand(model.replicas, -1, -1)
        padding_mask = (torch.arange(width) < lengths[rows][:, None]).to(device).expand(model.replicas, -1, -1)
        told[:, rows] = model(ids, padding_mask).float().cpu()
    return told


def embedded_prompts(model: Clip, prompts: Sequence[Sequence[np.ndarray]]) -> Float[Tensor, "R C E"]:
    """Each class as the normalised mean of its prompts' embeddings."""
    flat = [one for of_class in prompts for one in of_class]
    table, lengths = with_end(flat, model.spec.context, model.end)
    told = embedded_captions(model, torch.as_tensor(table), torch.as_tensor(lengths))
    means = told.view(model.replicas, len(prompts), -1, told.shape[-1]).mean(2)
    return torch.nn.functional.normalize(means, dim=-1)


def prompt_tokens(tokenizer: Tokenizer, classes: Sequence[str], templates: Sequence[str]) -> list[list[np.ndarray]]:
    return [tokenizer.encode_rows([text.replace("{}", name) for text in templates]) for name in classes]


def _nats(
    model: Clip,
    r: int,
    shown: Float[Tensor, "N E"],
    told: Float[Tensor, "N E"],
    pairs: CaptionedPictures,
    batch: int,
) -> Float[np.ndarray, " N"]:
    """The loss of each pair as in training, in groups of about the batch size."""
    nats = np.empty(len(pairs))
    scaled = model.contrast.of_replica(r)
    for rows in pair_groups(len(pairs), batch):
        some = torch.as_tensor(rows)
        caption, picture = (torch.as_tensor(one)[some] for one in (pairs.caption, pairs.picture))
        same = (caption[:, None] == caption) | (picture[:, None] == picture)
        also_right = same & ~torch.eye(len(rows), dtype=torch.bool)
        logits = scaled((shown[some].double() @ told[some].double().mT)[None])
        nats[rows] = scaled.losses(logits, also_right[None])[0].numpy()
    return nats


def pair_groups(pairs: int, batch: int) -> list[Int[np.ndarray, " B"]]:
    """All pairs, shuffled and split into groups of equal size (± 1), as near to the batch size as possible."""
    order = torch.randperm(pairs, generator=random.generator("groups of pairs")).numpy()
    return np.array_split(order, max(1, round(pairs / batch)))


def groups(pairs: CaptionedPictures, among: int) -> Iterator[RetrievalGroup]:
    """Each picture is a query once. If the last group is too small, pictures of the first group are added as
    candidates."""
    used = np.unique(pairs.picture)
    order = used[torch.randperm(len(used), generator=random.generator("groups of pictures")).numpy()]
    belongs = set(zip(pairs.picture.tolist(), pairs.caption.tolist(), strict=True))
    first = {caption: k for k, caption in reversed(list(enumerate(pairs.caption.tolist())))}
    captions_of: dict[int, list[int]] = {}
    for picture, caption in belongs:
        captions_of.setdefault(picture, []).append(caption)
    for begin in range(0, len(order), among):
        asked = order[begin : begin + among]
        pictures = np.concatenate((asked, order[: min(among - len(asked), len(order) - len(asked))]))
        captions = sorted({caption for picture in pictures.tolist() for caption in captions_of[picture]})
        belong = np.array([[(p, c) in belongs for c in captions] for p in pictures.tolist()])
        yield RetrievalGroup(len(asked), pictures, np.array([first[c] for c in captions]), belong)


def _hits(group: RetrievalGroup, said: Float[np.ndarray, "P C"]) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """By k: whether each query picture finds its caption, and whether each of their captions finds its picture."""
    asked = said[: group.asked], group.belong[: group.asked]
    whose = asked[1].any(0)  # captions of added candidates are queries in their own group
    return (
        {k: hits_at(k, *asked) for k in FOUND_AT},
        {k: hits_at(k, said.T[whose], group.belong.T[whose]) for k in FOUND_AT},
    )


def hits_at(k: int, said: Float[np.ndarray, "Q C"], right: Bool[np.ndarray, "Q C"]) -> Float[np.ndarray, " Q"]:
    """The probability that a right candidate is among the k highest scores, with ties in random order."""
    found = np.empty(len(said))
    for q, (scores, belongs) in enumerate(zip(said, right, strict=True)):
        best = scores[belongs].max()
        before = int((scores[~belongs] > best).sum())
        wrong, equal = int((scores[~belongs] == best).sum()), int((scores[belongs] == best).sum())
        room = min(max(k - before, 0), wrong + equal)
        found[q] = 1 - math.comb(wrong, room) / math.comb(wrong + equal, room)
    return found


def chances(dealt: Sequence[RetrievalGroup]) -> dict[str, float]:
    """The chance level of each metric: the hit rate when all scores are equal."""
    found = {}
    for k in FOUND_AT:
        hits = [_hits(group, np.zeros(group.belong.shape)) for group in dealt]
        found[CAPTIONS_AT[k].name] = float(np.concatenate([one[0][k] for one in hits]).mean())
        found[PICTURES_AT[k].name] = float(np.concatenate([one[1][k] for one in hits]).mean())
    return found


def spread_out(pairs: CaptionedPictures, at_most: int | None) -> CaptionedPictures:
    """A fixed random subset of at most so many pairs."""
    if at_most is None or len(pairs) <= at_most:
        return pairs
    order = torch.randperm(len(pairs), generator=random.generator("spread out")).numpy()
    return pairs.only(np.sort(order[: max(2, at_most)]))
