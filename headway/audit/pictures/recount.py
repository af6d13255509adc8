"""The scores of matching models computed a second time, by plain definitions. As in audit/scores/recount.py, nothing
here uses headway/scoring.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.audit.audit import Audit, Outcome, audit, failed, passed
from headway.audit.pictures.definitions import CONTRASTS
from headway.audit.scores.recount import Answer, Counted, CountedOneByOne
from headway.core import random
from headway.data.images.sources import RawPictures
from headway.data.tokenizers import Tokenizer
from headway.nn.taps import intervene
from headway.scoring.score import Score

CLOSE = 1e-5
"""Cosines closer than this: which is larger depends on the order of summation."""
AT = (1, 5)
AT_ONCE = 64
AGAIN = 24
"""Number of pictures that are generated or decoded again."""
Vectors = dict[Any, np.ndarray]


@dataclass(frozen=True)
class RetrievalRecount(CountedOneByOne):
    raw: RawPictures
    """The data, read again."""
    used: Any
    """The pairs that the scorer uses."""
    tokenizer: Tokenizer
    side: int
    """Side of a picture in pixels."""
    classes: tuple[str, ...] | None
    prompts: Sequence[str]
    context: int
    among: int
    batch: int
    contrast: Any
    """The recipe's contrast."""

    @property
    def whole(self) -> np.ndarray:
        return np.arange(len(self.raw.pairs))

    @property
    def parts(self) -> list[np.ndarray]:
        """As many pairs as two batches, evenly spaced: with fewer candidates, losses are lower."""
        return [np.unique(np.linspace(0, len(self.raw.pairs) - 1, 2 * self.batch).astype(int))]

    def size(self, part: np.ndarray) -> int:
        return len(part) * self.context

    def given(self, part: np.ndarray) -> Any:
        return self.used.only(part)

    @torch.no_grad()
    def count(self, part: np.ndarray, answer: Any) -> Counted:
        picture = [self.raw.pairs[k][0] for k in part]
        texts = [self.raw.pairs[k][1] for k in part]
        places = sorted(set(picture))
        picture_vectors = dict(zip(places, self._embed_pictures(places, answer), strict=True))
        caption_vectors = dict(zip(sorted(set(texts)), self._embed_captions(sorted(set(texts)), answer), strict=True))
        nats = self._nats(picture, texts, picture_vectors, caption_vectors, answer)
        values, loose = {"loss": float(np.mean(nats))}, {}
        found = self._found(picture, texts, picture_vectors, caption_vectors)
        for name, hits in found.items():
            if self.classes is None or not name.startswith("captions"):
                values[name], loose[name] = float(np.mean([hit for hit, _ in hits])), _share(close for _, close in hits)
        if self.classes is not None and self.raw.classes is not None:
            hits = self._classified(places, picture_vectors, answer)
            values["accuracy"], loose["accuracy"] = _share(hit for hit, _ in hits), _share(close for _, close in hits)
        return Counted(values, np.array(nats), loose)

    def _embed_pictures(self, places: list[int], answer: Any) -> list[np.ndarray]:
        found = []
        for first in range(0, len(places), AT_ONCE):
            some = torch.as_tensor(self.used.pixels[places[first : first + AT_ONCE]])
            found += list(answer.asked("see", some[None])[0].double().cpu().numpy())
        return found

    def _embed_captions(self, texts: list[str], answer: Answer) -> list[np.ndarray]:
        """Embeddings of captions. Those of one length are computed together, so that no padding is needed."""
        rows = [[*ids[: self.context - 1].tolist(), self.tokenizer.size] for ids in self.tokenizer.encode_rows(texts)]
        found: list[np.ndarray] = [np.zeros(0)] * len(rows)
        for length in {len(row) for row in rows}:
            here = [k for k, row in enumerate(rows) if len(row) == length]
            for first in range(0, len(here), AT_ONCE):
                some = here[first : first + AT_ONCE]
                vectors = answer(torch.tensor([[rows[k] for k in some]]))[0].double().cpu().numpy()
                for k, vector in zip(some, vectors, strict=True):
                    found[k] = vector
        return found

    def _nats(
        self, picture: list[int], texts: list[str], picture_vectors: Vectors, caption_vectors: Vectors, answer: Any
    ) -> list[float]:
        nats = [0.0] * len(picture)
        order = torch.randperm(len(picture), generator=random.generator("groups of pairs")).tolist()
        for rows in np.array_split(np.array(order), max(1, round(len(picture) / self.batch))):
            cosines = (
                np.array([picture_vectors[picture[k]] for k in rows])
                @ np.array([caption_vectors[texts[k]] for k in rows]).T
            )
            logits = answer.asked("logits", torch.as_tensor(cosines)[None].float())[0].double().cpu()
            same = [
                [k != j and (texts[k] == texts[j] or picture[k] == picture[j]) for j in rows.tolist()]
                for k in rows.tolist()
            ]
            losses = CONTRASTS[self.contrast.kind](self.contrast, logits, torch.tensor(same)).tolist()
            for k, loss in zip(rows.tolist(), losses, strict=True):
                nats[k] = loss
        return nats

    def _found(
        self, picture: list[int], texts: list[str], picture_vectors: Vectors, caption_vectors: Vectors
    ) -> dict[str, list[tuple[float, bool]]]:
        """For each metric, for every query: the probability that the right answer is found, and whether that depends on
        rounding."""
        belongs = set(zip(picture, texts, strict=True))
        places = sorted(set(picture))
        shuffled = torch.randperm(len(places), generator=random.generator("groups of pictures")).tolist()
        order = [places[k] for k in shuffled]
        names = [f"{what}_at_{k}" for what in ("captions", "pictures") for k in AT]
        found: dict[str, list[tuple[float, bool]]] = {name: [] for name in names}
        for begin in range(0, len(order), self.among):
            asked = order[begin : begin + self.among]
            here = [*asked, *order[: min(self.among - len(asked), len(order) - len(asked))]]
            among = set(here)
            captions = sorted({text for place, text in belongs if place in among})
            vectors, pictures = (
                np.array([caption_vectors[text] for text in captions]),
                np.array([picture_vectors[place] for place in here]),
            )
            for place in asked:
                scores = (vectors @ picture_vectors[place]).tolist()
                right = [(place, text) in belongs for text in captions]
                for k in AT:
                    found[f"captions_at_{k}"].append(_found_at(k, scores, right))
            for text in captions:
                if not any((place, text) in belongs for place in asked):
                    continue
                scores = (pictures @ caption_vectors[text]).tolist()
                right = [(place, text) in belongs for place in here]
                for k in AT:
                    found[f"pictures_at_{k}"].append(_found_at(k, scores, right))
        return found

    def _classified(
        self, places: list[int], picture_vectors: dict[int, np.ndarray], answer: Answer
    ) -> list[tuple[float, bool]]:
        assert self.classes is not None and self.raw.classes is not None
        means = []
        for name in self.classes:
            prompts = np.array(self._embed_captions([prompt.replace("{}", name) for prompt in self.prompts], answer))
            mean = prompts.mean(0)
            means.append(mean / math.sqrt(sum(x * x for x in mean.tolist())))
        found = []
        for place in places:
            scores = [float(picture_vectors[place] @ mean) for mean in means]
            best = max(range(len(scores)), key=scores.__getitem__)
            second = sorted(scores)[-2]
            found.append((float(self.classes[best] == self.raw.classes[place]), scores[best] - second < CLOSE))
        return found

    def not_of_the_whole(self, scores: Mapping[str, Score]) -> str | None:
        """An interval shows how many pictures it is computed from (95 %, Wilson)."""
        pictures, z = len({k for k, _ in self.raw.pairs}), 1.959964
        for name in ("captions_at_1", "accuracy"):
            score = scores.get(name)
            if score is None or score.interval is None:
                continue
            p, n = score.value, pictures
            half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
            low, high = ((p + z * z / (2 * n) + sign * half) / (1 + z * z / n) for sign in (-1, 1))
            if max(abs(low - score.interval[0]), abs(high - score.interval[1])) > 1e-4:
                said, right = (f"{first:.3f} to {last:.3f}" for first, last in (score.interval, (low, high)))
                return f"{name} {p:.3f} has a stored interval of {said}; for {n:,} pictures it should be {right}"
        return None

    def compare(self) -> str | None:
        pairs = [(int(k), text) for k, text in zip(self.used.picture, self.used.captions, strict=True)]
        if len(pairs) != len(self.raw.pairs):
            return f"{len(pairs):,} pairs are scored, but the source has {len(self.raw.pairs):,}"
        if self.used.names != self.raw.names:
            return "the scored pictures are not those of the source"
        if off := sum(tuple(one) != other for one, other in zip(self.raw.pairs, pairs, strict=True)):
            return f"{off:,} of {len(pairs):,} pairs have another picture or caption in the source"
        for k in np.unique(np.linspace(0, len(self.raw.names) - 1, AGAIN).astype(int)).tolist():
            if not np.array_equal(self.raw.read(k, self.side), self.used.pixels[k]):
                return f"the picture {self.raw.names[k]} is another one when it is read again"
        ids = self.tokenizer.encode_rows([text for _, text in pairs])
        if [len(one) for one in ids] != self.used.lengths.tolist() or not np.array_equal(
            np.concatenate(ids), self.used.ids
        ):
            return "the scored tokens are not those of the captions"
        return None


def _found_at(k: int, scores: list[float], right: list[bool]) -> tuple[float, bool]:
    """The probability of a hit among the first k, with ties in random order, and whether the ranking is too close to
    call."""
    best = max(score for score, is_right in zip(scores, right, strict=True) if is_right)
    wrong = [score for score, is_right in zip(scores, right, strict=True) if not is_right]
    before = sum(score > best for score in wrong)
    equal = [is_right for score, is_right in zip(scores, right, strict=True) if score == best]
    close = any(0 < abs(score - best) < CLOSE for score in wrong)
    room = min(max(k - before, 0), len(equal))
    if room == 0:
        return 0.0, close
    if len(equal) == 1 or all(equal):
        return 1.0, close
    if len(equal) <= 12:
        chosen = list(combinations(equal, room))
        return sum(any(one) for one in chosen) / len(chosen), close
    missed = 1.0
    for taken in range(room):
        missed *= max(0, len(equal) - sum(equal) - taken) / (len(equal) - taken)
    return 1 - missed, close


def _share(hits: Any) -> float:
    hits = list(hits)
    return sum(hits) / len(hits) if hits else math.nan


@audit("scores")
def says_nothing(scored: Any) -> Outcome:
    """A model with the same output for everything is scored as chance.

    The scorer is given the model with all embeddings replaced by one vector. Then no candidate differs from another,
    and the scores must be those of chance: k of the number of candidates, more if several are right. If it fails, equal
    scores count as found, or ties are broken in favour of the right answer: weak models get too high scores.
    """
    task, split = scored.task, scored.task.evidence.judged
    recount = scored.recounts[split]
    part = recount.parts[0]
    data = replace(task.data, splits={**task.data.splits, split: recount.given(part)})
    with intervene(scored.model, {"shown": _one_vector, "told": _one_vector}):
        (scores,) = replace(task, data=data).score(scored.model, [split])
    scored_values = {score.name.partition(".")[2]: score.value for score in scores}
    counted = recount.count(part, _SaysNothing(scored.answer))
    for name, value in counted.values.items():
        if "_at_" in name and name in scored_values and abs(scored_values[name] - value) > 1e-6:
            return failed(
                scored_values[name] - value,
                f"a model with constant outputs gets {scored_values[name]:.3g} of {name}; chance is {value:.3g}",
            )
    return passed(0, "a model with constant outputs is scored as chance")


def _one_vector(like: Tensor) -> Tensor:
    return torch.zeros_like(like).index_fill(-1, torch.tensor([0], device=like.device), 1.0)


class _SaysNothing:
    def __init__(self, answer: Any):
        self._answer = answer

    def __call__(self, ids: Tensor, **beside: Tensor) -> Tensor:
        return _one_vector(self._answer(ids, **beside))

    def asked(self, question: str, *given: Tensor) -> Tensor:
        found = self._answer.asked(question, *given)
        return _one_vector(found) if question == "see" else found


RETRIEVAL_AUDITS: tuple[Audit, ...] = (says_nothing,)
