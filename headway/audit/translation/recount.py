"""The scores of translators computed a second time, by plain definitions. As in audit/scores/recount.py, nothing here
uses headway/scoring.

    pairs   read from their files again → tokens, cut, without any padding → log-softmax in float64 → nats, counts
    texts   the stored translations and references that are read again → n-grams (ngrams.py) → BLEU, chrF …;
            and some translations decoded again, with everything recomputed for every token

So every score of texts is checked, however they were decoded; and for some of the texts, unless they were sampled, it
is checked that the model writes them.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headway.audit.scores.recount import CLOSE, Answer, Asked, Counted, CountedOneByOne, spread
from headway.audit.translation import searching
from headway.audit.translation.ngrams import counts_of, made_of
from headway.data.pairs import sources as pair_sources
from headway.data.tokenizers import Tokenizer
from headway.scoring.score import Score

AT_ONCE = 64
SEARCHED = 6
"""Number of sources that are decoded again by beam search."""
SAME = 1e-6
"""Tolerance of scores between 0 and 100 that are computed from the same counts."""


@dataclass(frozen=True)
class PairRecount(CountedOneByOne):
    rows: Sequence[tuple[str, str]]
    """The pairs, read again."""
    used: Any
    """The pairs that the scorer uses."""
    source: Tokenizer
    target: Tokenizer
    context: int
    decoding: Any
    """The recipe's decoding."""
    ends: bool
    """Whether learned positions end at the context, so that no target can be longer."""
    words: str
    """The tokenizer of BLEU."""
    trained_on: Collection[str]
    """The sources of train, with single blanks between words."""
    never: Sequence[int] = ()
    """Tokens that are never generated."""

    @property
    def whole(self) -> np.ndarray:
        return np.arange(len(self.rows))

    @property
    def parts(self) -> list[np.ndarray]:
        return [np.unique(np.linspace(0, len(self.rows) - 1, 24).astype(int))]

    @property
    def many(self) -> np.ndarray:
        return spread(len(self.rows))

    def losses(self, part: np.ndarray, asked: Asked) -> list[Counted]:
        return [self._losses(part, asked.alone(member)) for member in range(asked.members)]

    def _losses(self, part: np.ndarray, answer: Answer) -> Counted:
        sources, targets = self._tokens(part)
        nats, right, close = np.zeros(len(part)), np.zeros(len(part)), np.zeros(len(part), dtype=bool)
        for some in _alike([(len(s), len(t)) for s, t in zip(sources, targets, strict=True)]):
            asked = torch.tensor([targets[k] for k in some])
            begun = torch.cat((torch.full((len(some), 1), self.target.size), asked[:, :-1]), 1)
            said = searching.log_probabilities(answer, [sources[k] for k in some], begun)
            of_right = said.gather(-1, asked[..., None])[..., 0]
            nats[some], right[some] = -of_right.sum(-1).numpy(), (said.argmax(-1) == asked).sum(-1).numpy()
            best = said.topk(2).values.exp()
            close[some] |= ((best[..., 0] - best[..., 1]) < CLOSE).any(-1).numpy()
        lengths = np.array([len(ids) for ids in targets])
        values = {"loss": float(nats.sum() / lengths.sum()), "token_accuracy": float(right.sum() / lengths.sum())}
        return Counted(values, nats / lengths, {"token_accuracy": float(close.sum() / len(close))})

    def count(self, part: np.ndarray, answer: Answer) -> Counted:
        values, pieces, loose, _ = self._losses(part, answer)
        sources, _ = self._tokens(part)
        again: dict[int, str] = {}
        if searching.is_greedy(self.decoding):
            again = self._greedily(sources, answer)
            hits = [again[k].split() == self.rows[part[k]][1].split() for k in again]
            values["exact_match"] = sum(hits) / len(part)
            loose = {**loose, "exact_match": 1 - len(again) / len(part)}
        elif self.decoding.kind == "beam":
            some = np.unique(np.linspace(0, len(part) - 1, SEARCHED).astype(int)).tolist()
            found = {k: self._by_beam_search(sources[k], answer) for k in some}
            again = {k: text for k, text in found.items() if text is not None}
        return Counted(values, pieces, loose, again)

    def _tokens(self, part: np.ndarray) -> tuple[list[list[int]], list[list[int]]]:
        """Sources and targets as token ids, cut, each with END."""
        sides = zip(*(self.rows[k] for k in part), strict=True)
        sources, targets = (
            [[*ids[: self.context - 1].tolist(), tokenizer.size] for ids in tokenizer.encode_rows(list(side))]
            for tokenizer, side in zip((self.source, self.target), sides, strict=True)
        )
        return sources, targets

    def at_odds(self, part: np.ndarray, said: Mapping[str, Score], counted: Counted | None = None) -> str | None:
        """Translations are stored with the exact matches. All scores of texts are computed again from them."""
        texts = said["exact_match"].texts if "exact_match" in said else None
        if texts is None:  # an older version stored none
            return None
        if len(texts) != len(part):
            return f"there are {len(texts):,} translations of {len(part):,} sources"
        sources, right = zip(*(self.rows[k] for k in part), strict=True)
        lengths = [len(ids) for ids in self.source.encode_rows(sources)]
        unseen = [k for k, source in enumerate(sources) if " ".join(source.split()) not in self.trained_on]
        of_metric: dict[str, Any] = {}
        for name, score in said.items():
            metric, _, which = name.partition(".")
            if metric not in of_metric:
                of_metric[metric] = counts_of(metric, texts, right, self.words)
            counts, chosen = of_metric[metric], unseen if which == "unseen" else _chosen(which, lengths)
            if counts is None or chosen is None:
                continue
            again = made_of(metric, [counts[k] for k in chosen])
            if not abs(score.value - again) <= SAME:
                what = "from its stored translations, by its definition,"
                return f"{name} is stored as {score.value:.6g}; {what} it is {again:.6g}"
            if score.counts is not None and not np.allclose(score.counts, counts, atol=SAME):
                return f"the counts stored for {name} do not fit the stored translations and their references"
        for k, text in {} if counted is None else counted.texts.items():
            if text.split() != texts[k].split():
                both = f"the stored translation is “{_short(texts[k])}”, but decoding again gives “{_short(text)}”"
                return f"for the source “{_short(sources[k])}” {both}"
        return None

    # --- what would be written ---------------------------------------------------------------------------------------

    def _limit(self, source: list[int]) -> int:
        return searching.limit(self.decoding, source, self.context - 1 if self.ends else None)

    def _greedily(self, sources: list[list[int]], answer: Answer) -> dict[int, str]:
        """Greedy decoding of these sources, without the rows in which two tokens are too close to call."""
        written: list[list[int]] = [[] for _ in sources]
        close = set()
        for some in _alike([(len(s),) for s in sources]):
            going, length = list(some), len(sources[some[0]])
            for _ in range(self._limit(sources[some[0]]) if length > 1 else 0):  # an empty source has no translation
                begun = torch.tensor([[self.target.size, *written[k]] for k in going])
                said = searching.log_probabilities(answer, [sources[k] for k in going], begun)[:, -1]
                said[:, list(self.never)] = -math.inf
                best, chosen = said.topk(2)
                for k, two, token in zip(list(going), best.exp().tolist(), chosen[:, 0].tolist(), strict=True):
                    if two[0] - two[1] < CLOSE:
                        close.add(k)
                    if token == self.target.size or k in close:
                        going.remove(k)
                    else:
                        written[k].append(token)
                if not going:
                    break
        return {k: self.target.decode(ids) for k, ids in enumerate(written) if k not in close}

    def _by_beam_search(self, source: list[int], answer: Answer) -> str | None:
        """Beam search for one source; None if it is too close to call."""
        if len(source) == 1:
            return ""
        only_best = self.decoding.model_copy(update={"nbest": 1})
        following = searching.after(answer, source, self.target.size)
        found = searching.beam_search(following, only_best, self.target.size, self._limit(source), self.never)
        return None if found is None else self.target.decode(found[0].tokens)

    def given(self, part: np.ndarray) -> Any:
        return self.used.only(part)

    def size(self, part: np.ndarray) -> int:
        return len(part) * self.context

    def compare(self) -> str | None:
        theirs = list(zip(self.used.source.texts, self.used.target.texts, strict=True))
        if len(theirs) != len(self.rows):
            return f"{len(theirs):,} pairs are scored, but the source has {len(self.rows):,}"
        if off := sum(tuple(row) != one for row, one in zip(self.rows, theirs, strict=True)):
            return f"{off:,} of the {len(theirs):,} scored pairs have another text in the source"
        for tokenizer, side, texts in (
            (self.source, self.used.source, [s for s, _ in self.rows]),
            (self.target, self.used.target, [t for _, t in self.rows]),
        ):
            ids = tokenizer.encode_rows(texts)
            ends = np.cumsum([len(one) for one in ids])
            if not np.array_equal(ends, side.ends) or not np.array_equal(np.concatenate(ids), side.ids):
                return "the scored tokens are not those of the texts"
        return None


def pairs_again(
    source: str, path: str | None, sides: Any, split: str, used: dict[str, list[tuple[str, str]]]
) -> list[tuple[str, str]]:
    """The pairs of a split, read again from its files. Pairs that were held out of train, or are generated by a
    program, are taken as they were."""
    if source in pair_sources.EMBEDDED:
        return used[split]
    found = pair_sources.read_pairs(source, path, sides)
    if split not in found or split == "train":
        return used[split]
    return [(pair.source, pair.target) for pair in found[split]]


def _chosen(which: str, lengths: Sequence[int]) -> list[int] | None:
    """The rows of a score's part: "6-10" or "41+" tokens of the source; None for other parts."""
    if not which:
        return list(range(len(lengths)))
    named = re.fullmatch(r"(\d+)(?:-(\d+)|\+)", which)
    if named is None:
        return None
    low, high = int(named[1]), math.inf if named[2] is None else int(named[2])
    return [k for k, length in enumerate(lengths) if low <= length <= high]


def _short(text: str) -> str:
    return text if len(text) <= 50 else f"{text[:49]}…"


def _alike(lengths: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """The indices of rows of equal length, a few at a time, so that no padding is needed."""
    found = []
    for length in dict.fromkeys(lengths):
        here = [k for k, other in enumerate(lengths) if other == length]
        found += [here[first : first + AT_ONCE] for first in range(0, len(here), AT_ONCE)]
    return found
