"""The scores of masked language models computed a second time, by plain definitions. As in audit/scores/recount.py,
nothing here uses headway/scoring, or the code that masks tokens in training.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from headway.audit.scores.recount import CLOSE, Answer, Asked, Counted, CountedOneByOne, exp
from headway.core.random import key
from headway.data.marks import Marks
from headway.data.running.rows import TextRows
from headway.data.tokenizers import Tokenizer
from headway.scoring.score import Score

AT_ONCE = 2**22
"""Number of logits in memory at a time: 32 MB in float64."""


@dataclass(frozen=True)
class MaskedRecount(CountedOneByOne):
    text: str
    """The text, read again."""
    tokenizer: Tokenizer
    used: TextRows
    """The rows that the scorer uses."""
    longest: int
    """Maximum number of tokens of a row, not counting special tokens."""
    by_line: bool
    share: float
    """Share of each row that is masked."""

    @cached_property
    def rows(self) -> list[list[int]]:
        """The rows of the text, made again."""
        texts = self.text.split("\n") if self.by_line else [self.text]
        ids = [self.tokenizer.encode(text).ids.tolist() for text in texts]
        return [row[k : k + self.longest] for row in ids for k in range(0, len(row), self.longest)]

    @property
    def whole(self) -> slice:
        return slice(0, len(self.rows))

    @property
    def parts(self) -> list[slice]:
        """At the beginning, in the middle and at the end."""
        n, some = len(self.rows), 6
        return [slice(begin, min(begin + some, n)) for begin in sorted({max(0, (n - some) * k // 2) for k in range(3)})]

    @torch.no_grad()
    def count(self, part: slice, answer: Answer) -> Counted:
        rows, marks = self.rows[part], self.tokenizer.marks
        assert marks is not None
        nats: dict[int, list[float]] = {}
        hits = close = 0
        by_length: dict[int, list[int]] = {}
        for k, row in enumerate(rows):
            by_length.setdefault(len(row), []).append(k)
        for length, here in by_length.items():
            at_once = max(1, AT_ONCE // ((length + marks.room()) * self.tokenizer.size))
            for first in range(0, len(here), at_once):
                some = here[first : first + at_once]
                hidden = {k: chosen(k, length, self.longest, self.share, marks) for k in some}
                shown = [[marks.mask if p in hidden[k] else token for p, token in enumerate(rows[k])] for k in some]
                table = torch.as_tensor(np.stack([marks.around([np.array(row)]) for row in shown])).long()
                logits = answer(table[None])[0].double().cpu()
                for k, said in zip(some, logits, strict=True):
                    nats[k] = []
                    for place in hidden[k]:
                        log_probabilities = said[marks.before + place].log_softmax(-1)
                        nats[k].append(-float(log_probabilities[rows[k][place]]))
                        likeliest = log_probabilities.topk(2)
                        hits += int(likeliest.indices[0]) == rows[k][place]
                        close += float(likeliest.values[0].exp() - likeliest.values[1].exp()) < CLOSE
        all_nats = np.array([one for k in sorted(nats) for one in nats[k]])
        mean = float(all_nats.mean())
        values = {"loss": mean, "masked_accuracy": hits / len(all_nats), "pseudo_perplexity": exp(mean)}
        pieces = np.array([np.mean(nats[k]) for k in sorted(nats)])
        return Counted(values, pieces, {"masked_accuracy": close / len(all_nats)})

    def given(self, part: slice) -> TextRows:
        return self.used.only(part)

    def size(self, part: slice) -> int:
        return sum(len(row) for row in self.rows[part])

    def compare(self) -> str | None:
        ours, used = self.rows, self.used
        if len(ours) != len(used):
            return f"{len(used):,} rows are scored, but the text has {len(ours):,}"
        if [len(row) for row in ours] != used.lengths.tolist():
            return "the scored rows are not as long as those of the text"
        if off := int((np.concatenate([np.array(row) for row in ours]) != used.ids).sum()):
            return f"{off:,} of the {len(used.ids):,} scored tokens are not those of the text"
        return None

    def not_of_the_whole(self, scores: Mapping[str, Score]) -> str | None:
        """The accuracy times the number of masked tokens must be an integer."""
        if "masked_accuracy" not in scores:
            return None
        there = sum(min(max(1, round(self.share * len(row))), len(row)) for row in self.rows)
        hits = scores["masked_accuracy"].value * there
        if abs(hits - round(hits)) <= 1e-6 * max(there, 1):
            return None
        return f"{there:,} tokens are masked, but {scores['masked_accuracy'].value:.6g} of them is not a whole number"

    def unaided(self, asked: Asked) -> list[float]:
        """The usual loss, since the model sees no later answers anyway: only the unmasked tokens are given."""
        found = zip(*(self.counts(part, asked) for part in self.parts), strict=True)
        return [float(np.concatenate([one.pieces for one in own]).mean()) for own in found]


def chosen(row: int, length: int, longest: int, share: float, marks: Marks) -> list[int]:
    """The masked positions of a row, from its index and length: those with the smallest draws, in this order."""
    count = min(max(1, round(share * length)), length)
    index = row * (longest + marks.room()) + marks.before + np.arange(length, dtype=np.uint64)
    draws = _draws(index) >> 1
    return sorted(range(length), key=lambda place: (int(draws[place]), place))[:count]


def _draws(index: np.ndarray) -> np.ndarray:
    """32 bits for each index: the hash of headway/core/random.py, for the stream of masks in scoring."""
    low = (1 << 32) - 1
    keys = [_mixed((key(0, "scored choice", half) & low) + _mixed(0x9E3779B1)) for half in (0, 1)]
    x = (index * 0x9E3779B1 + keys[0]) & low
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & low
    x = (x + keys[1]) & low
    x = ((x ^ (x >> 15)) * 0x846CA68B) & low
    return x ^ (x >> 16)


def _mixed(x: int) -> int:
    low = (1 << 32) - 1
    x &= low
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & low
    x = ((x ^ (x >> 15)) * 0x846CA68B) & low
    return x ^ (x >> 16)
