"""The scores of translators a second time, by plain definitions; as in headway/audit/recount.py, nothing here uses
headway/scoring.

    pairs   read from their files again → tokens, cut, without any padding → log-softmax in float64 → nats, counts
            and, where decoding is greedy, every target written once more, all of it computed again for every token
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.audit.recount import CLOSE, Answer, Counted, Recount
from headway.data.pairs import sources as pair_sources
from headway.data.tokenizers import Tokenizer

AT_ONCE = 64


@dataclass(frozen=True)
class PairRecount(Recount):
    rows: Sequence[tuple[str, str]]
    """Read again."""
    used: Any
    """The pairs that the scorer takes for them."""
    source: Tokenizer
    target: Tokenizer
    context: int
    decoding: Any
    """Its spec."""
    ends: bool
    """No target can be longer than the context: learned positions end there."""

    @property
    def whole(self) -> np.ndarray:
        return np.arange(len(self.rows))

    @property
    def parts(self) -> list[np.ndarray]:
        return [np.unique(np.linspace(0, len(self.rows) - 1, 24).astype(int))]

    def count(self, part: np.ndarray, answer: Answer) -> Counted:
        rows = [self.rows[k] for k in part]
        sources, targets = (
            [[*ids[: self.context - 1].tolist(), tokenizer.size] for ids in tokenizer.encode_rows(side)]
            for tokenizer, side in ((self.source, [s for s, _ in rows]), (self.target, [t for _, t in rows]))
        )
        nats, right, close = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
        for some in _alike([(len(s), len(t)) for s, t in zip(sources, targets, strict=True)]):
            asked = torch.tensor([targets[k] for k in some])
            begun = torch.cat((torch.full((len(some), 1), self.target.size), asked[:, :-1]), 1)
            said = _chances(answer, [sources[k] for k in some], begun)
            of_right = said.gather(-1, asked[..., None])[..., 0]
            nats[some], right[some] = -of_right.sum(-1).numpy(), (said.argmax(-1) == asked).sum(-1).numpy()
            best = said.topk(2).values.exp()
            close[some] |= ((best[..., 0] - best[..., 1]) < CLOSE).any(-1).numpy()
        lengths = np.array([len(ids) for ids in targets])
        values = {"loss": float(nats.sum() / lengths.sum()), "token_accuracy": float(right.sum() / lengths.sum())}
        if self.decoding.kind == "greedy":
            hits = self._exact(rows, sources, answer, close)
            values["exact_match"] = sum(hits) / len(hits)
        may_be_off = float(close.sum() / len(close))
        return Counted(values, nats / lengths, dict.fromkeys(("token_accuracy", "exact_match"), may_be_off))

    def _exact(
        self, rows: Sequence[tuple[str, str]], sources: list[list[int]], answer: Answer, close: Any
    ) -> list[bool]:
        """Whether the likeliest tokens, one after the other, are the target; what is too close to call is noted."""
        written: list[list[int]] = [[] for _ in rows]
        for some in _alike([(len(s),) for s in sources]):
            limit = math.ceil(self.decoding.per_source * (len(sources[some[0]]) - 1)) + self.decoding.extra
            limit = min(limit, self.context - 1) if self.ends else limit
            going = list(some)
            for length in range(limit):
                begun = torch.tensor([[self.target.size, *written[k]] for k in going])
                said = _chances(answer, [sources[k] for k in going], begun)[:, -1]
                best, chosen = said.topk(2)
                for k, two, token in zip(list(going), best.exp().tolist(), chosen[:, 0].tolist(), strict=True):
                    close[k] |= two[0] - two[1] < CLOSE
                    if token == self.target.size:
                        going.remove(k)
                    else:
                        assert len(written[k]) == length
                        written[k].append(token)
                if not going:
                    break
        texts = [self.target.decode(ids) for ids in written]
        return [text.split() == right.split() for text, (_, right) in zip(texts, rows, strict=True)]

    def given(self, part: np.ndarray) -> Any:
        return self.used.only(part)

    def size(self, part: np.ndarray) -> int:
        return len(part) * self.context

    def compare(self) -> str | None:
        theirs = list(zip(self.used.source.texts, self.used.target.texts, strict=True))
        if len(theirs) != len(self.rows):
            return f"{len(theirs):,} pairs are scored, and the source has {len(self.rows):,}"
        if off := sum(tuple(row) != one for row, one in zip(self.rows, theirs, strict=True)):
            return f"{off:,} of the {len(theirs):,} pairs that are scored have another text in the source"
        for tokenizer, side, texts in (
            (self.source, self.used.source, [s for s, _ in self.rows]),
            (self.target, self.used.target, [t for _, t in self.rows]),
        ):
            ids = tokenizer.encode_rows(texts)
            ends = np.cumsum([len(one) for one in ids])
            if not np.array_equal(ends, side.ends) or not np.array_equal(np.concatenate(ids), side.ids):
                return "the tokens that are scored are not those of the texts"
        return None


def pairs_again(
    source: str, path: str | None, sides: Any, split: str, used: dict[str, list[tuple[str, str]]]
) -> list[tuple[str, str]]:
    """The pairs of a split as its files have them. What was held out of train, or is made by a program, is taken as it
    was read."""
    if source in pair_sources.EMBEDDED:
        return used[split]
    found = pair_sources.read_pairs(source, path, sides)
    if split not in found or split == "train":
        return used[split]
    return [(pair.source, pair.target) for pair in found[split]]


@torch.no_grad()
def _chances(answer: Answer, sources: list[list[int]], begun: Tensor) -> Tensor:
    """The logarithms of the chances behind every token [rows, T, V], in float64."""
    logits = answer(begun[None], sources=torch.tensor(sources)[None])[0].double().cpu()
    logits = logits - logits.amax(-1, keepdim=True)
    return logits - logits.exp().sum(-1, keepdim=True).log()


def _alike(lengths: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """The rows of one length, a few at a time: nothing is ever filled up."""
    found = []
    for length in dict.fromkeys(lengths):
        here = [k for k, other in enumerate(lengths) if other == length]
        found += [here[first : first + AT_ONCE] for first in range(0, len(here), AT_ONCE)]
    return found
