"""Audits of what a translator writes: is it a translation at all, and does it depend on nothing but its source?

Some sources of the split that the score is judged by are translated, as they are for the score; what is looked at is
what people see first in a bad translator: it copies, it stops too early or never, it says one thing again and again.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.translation import searching
from headway.data.pairs.dataset import ids_of
from headway.scoring.translation import Translated, decoded, translated

ROWS = 64
ALONE = 6
DOUBTS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.17, 0.12, 0.08, 0.05)
"""What scores are multiplied by, the first that is small enough."""
FAVOURS_LONG = 16.0
"""A length penalty with which what goes on is better than what ends, however unlikely it becomes."""
COPIES, SAME_BY_CHANCE = 8, 1e-6
"""Of a source whose translations are drawn; so seldom may all be one."""
TIMES = 4
"""As often must something be said on end to be a loop."""


@dataclass(frozen=True)
class Written:
    """Some translations, and how they came about."""

    model: Any
    pairs: Any
    """As the scorer has them."""
    tokenizer: Any
    """Of targets."""
    decoding: Any
    """Its spec."""

    @classmethod
    def of(cls, scored: Any, split: str) -> "Written":
        task = scored.task
        pairs = task.data.split(split)
        rows = np.unique(np.linspace(0, len(pairs) - 1, ROWS).astype(int))
        return cls(scored.model, pairs.only(rows), task.data.target_tokenizer, task.recipe.scoring.decoding)

    @cached_property
    def found(self) -> Translated:
        return translated(self.model, self.pairs, self.tokenizer, self.decoding)[0]


@audit("scores")
def copied_sources(written: Written) -> Outcome:
    """Translations are not copies of their sources.

    The share of translations that are their source, but for white space, is set beside the share of references that
    are. A tenth more is a warning, a half more a failure: the translator has learnt that copying costs little, as it
    does where train holds many untranslated rows (data.filters.untranslated).
    """
    shares = [_share_equal(written.found.sources, texts) for texts in (written.found.texts, written.found.references)]
    excess = shares[0] - shares[1]
    says = f"{shares[0]:.0%} of {len(written.found.texts)} translations are their source, {shares[1]:.0%} of references"
    return (failed if excess > 0.5 else warned if excess > 0.1 else passed)(excess, says)


@audit("scores")
def length_ratio(written: Written) -> Outcome:
    """Translations are about as long as references.

    The tokens of all translations are divided by those of all references. BLEU punishes what is too short, and rewards
    nothing for length: outside of 0.8 to 1.25 is a warning, outside of 0.5 to 2 a failure. What is too short comes from
    a beam without a length penalty, what is too long from translations that do not end.
    """
    ours = sum(len(one.tokens) for one in written.found.best)
    theirs = int((written.pairs.target.lengths - 1).sum())
    if not theirs:
        raise DoesNotApply("all references are empty")
    ratio = ours / theirs
    says = f"translations have {ratio:.2f} times the tokens of references"
    off = abs(math.log(ratio)) if ratio else math.inf
    return (failed if off > math.log(2) else warned if off > math.log(1.25) else passed)(ratio, says)


@audit("scores")
def repetition_loops(written: Written) -> Outcome:
    """Translations do not say one thing again and again, and end by themselves.

    A run of one to four tokens that stands four times on end is a loop, unless the reference has one, too; so is a
    translation that its length limit has ended. Above 2 % of the translations it is a warning, above 20 % a failure.
    A translator that loops has lost the source: train it for longer, or search with a beam and no_repeat.
    """
    found = written.found
    references = ids_of(written.pairs.target)
    loops = [
        one.cut or (_loops(one.tokens) and not _loops(right.tolist()))
        for one, right in zip(found.best, references, strict=True)
    ]
    share = sum(loops) / len(loops)
    says = f"{sum(loops)} of {len(loops)} translations repeat themselves or do not end"
    if share:
        text = found.texts[loops.index(True)]
        says += f", such as “{text[:60]}{'…' if len(text) > 60 else ''}”"
    return (failed if share > 0.2 else warned if share > 0.02 else passed)(share, says)


@audit("scores")
def decoded_alone(written: Written) -> Outcome:
    """A source gets the translation that it gets alone, with a cache or without.

    Six sources are translated once more, one at a time and with everything computed anew for every token, and what is
    written must be as likely as before, within a thousandth. (Sums of another shape round differently, so a tie may
    fall the other way: the words may differ then.) When it fails, scores depend on the size of a batch: look for
    padding that is read, and for a cache that is mixed up when rows leave the batch or beams change places.
    """
    rows = np.arange(min(ALONE, len(written.pairs)))
    some = written.pairs.only(rows)
    if written.decoding.kind == "sampled":
        raise DoesNotApply("translations are drawn: which they are depends on which rows they are")
    alone = decoded(written.model, ids_of(some.source), some.target.end, written.decoding, cached=False, at_once=1)[0]
    worst = 0.0
    for k, (mine,) in enumerate([best[:1] for best in alone]):
        ours = written.found.best[k]
        off = abs(mine.nats - ours.nats) / max(mine.nats, 0.1)
        if not off <= 1e-3:
            one, other = (f"“{written.tokenizer.decode(h.tokens)[:50]}” ({h.nats:.4g} nats)" for h in (mine, ours))
            return failed(off, f"alone {one}, among others {other} is written for the same source")
        worst = max(worst, off)
    return passed(worst, f"{len(rows)} sources get the same translations alone and anew as among others from a cache")


@audit("scores")
def searched(written: Written) -> Outcome:
    """What is written is what its search is to find, also where the model is in doubt.

    A model that is sure of its words hides what is wrong with a search: whatever is kept, the same is written. So all
    scores of tokens are made smaller, until the likeliest has no more than half of the chance, and six sources are
    translated as the recipe says, together and from a cache, though no longer than a quarter of the source and eight
    tokens; where no run may come twice, once more, with room for some and long ones favoured. By a plain search, one
    source at a time and with all of it computed again for every token, the three best must have the same scores, within
    a thousandth (or the best, where no more are kept). Where tokens are drawn, those of 64 sources must be among the
    ones that top-k and top-p leave, and be as surprising, on the whole, as the temperature makes them, within five
    standard errors; and copies of one source must not all get one translation, where that is less likely than one in a
    million. When it fails, look for a length penalty that is not used, or of another length, for an END that is counted
    twice or not at all, for runs that may come twice, for beginnings that change places in one part of the cache and
    not in another, for a temperature that is turned round, and for random numbers that all rows share.
    """
    how, most = written.decoding, None if written.model.spec.limit is None else written.model.spec.context - 1
    if how.kind not in ("greedy", "beam", "sampled"):
        raise DoesNotApply("nothing is known of how this decodes")
    asked = _Doubted(written.model, written.pairs.target.end, how, most)
    sources = [ids for ids in ids_of(written.pairs.source) if len(ids)]
    if not sources:
        raise DoesNotApply("all sources are empty")
    with searching.in_doubt(written.model, asked.doubt(sources)):
        return asked.drawn(sources) if how.kind == "sampled" and how.temperature else asked.found(sources[:ALONE])


@dataclass(frozen=True)
class _Doubted:
    """A translator in doubt."""

    model: Any
    end: int
    """Of targets."""
    how: Any
    """The recipe's decoding."""
    most: int | None
    """Tokens that a target can have; None = any number."""

    def found(self, sources: Sequence[np.ndarray]) -> Outcome:
        worst, compared = 0.0, 0
        for how in self._ways:
            ours = decoded(self.model, sources, self.end, how)[0]
            for source, found in zip(map(self._whole, sources), ours, strict=True):
                right = self._plainly(source, how)
                if right is None:  # too close to call
                    continue
                compared += 1
                if len(found) != len(right):
                    return failed(None, f"{len(right)} translations of a source are to be found, and {len(found)} are")
                for rank, (one, other) in enumerate(zip(found, right, strict=True), 1):
                    off = other.off(one.nats, one.score)
                    if not off <= 1e-3:
                        both = f"{one.nats:.5g} nats and the score {one.score:.5g}, where a plain search finds"
                        return failed(off, f"in doubt, number {rank} has {both} {other.nats:.5g} and {other.score:.5g}")
                    worst = max(worst, off)
        if not compared:
            raise DoesNotApply("which beginnings are kept is too close to call, for every source")
        return passed(worst, f"in doubt, what is written is what a plain search finds ({compared} searches)")

    @property
    def _ways(self) -> Iterator[Any]:
        """As the recipe decodes, but for the length; and where no run may come twice, once more such that long ones
        are favoured, in which it might."""
        how = self.how.model_copy(update={"per_source": 0.25, "extra": 8})
        if how.kind == "beam":
            size = min(how.size, 8)
            how = how.model_copy(update={"size": size, "nbest": min(size, 3)})
        yield how
        if how.kind == "beam" and how.no_repeat is not None:
            yield how.model_copy(update={"length_penalty": FAVOURS_LONG, "extra": 8 + 4 * how.no_repeat})

    def drawn(self, sources: Sequence[np.ndarray]) -> Outcome:
        how, excess, variance, outside, tokens = self.how, 0.0, 0.0, 0, 0
        for source, (best, *_) in zip(sources, decoded(self.model, sources, self.end, how)[0], strict=True):
            by, ids = self._drawn_by(source, best)
            surprise, weights = -by, by.exp()
            of_each = surprise.gather(1, torch.tensor(ids)[:, None])[:, 0]
            there, surprise = of_each.isfinite(), surprise.masked_fill(weights == 0, 0)
            mean = (weights * surprise).sum(1)
            excess += float((of_each - mean)[there].sum())
            variance += float((weights * (surprise - mean[:, None]).square()).sum(1)[there].sum())
            outside, tokens = outside + int((~there).sum()), tokens + len(ids)
        if outside > tokens / 100:  # at the borders of top-k and top-p rounding has a say
            return failed(
                outside / tokens, f"{outside} of {tokens} tokens are drawn though {how.label} leaves them out"
            )
        off = excess / math.sqrt(variance) if variance else 0.0
        more = f"{excess / max(tokens, 1):+.2g} nats more surprising than they should be"
        says = f"{tokens} tokens that were drawn are {more}"
        says += f": {off:+.1f} standard errors ({how.label})"
        if abs(off) > 5:
            return failed(off, says)
        if (chance := self._chance_of_copies(sources[0])) < SAME_BY_CHANCE:
            return failed(chance, f"{COPIES} copies of one source get one translation: rows share their random numbers")
        return passed(off, says)

    def _drawn_by(self, source: np.ndarray, best: Any) -> tuple[torch.Tensor, list[int]]:
        """What each token of a translation, and END if it was drawn, was drawn by; and these tokens."""
        ids = [*best.tokens, *([] if best.cut else [self.end])]
        begun = torch.tensor([[self.end, *best.tokens]])
        said = searching.chances(self._answer, [self._whole(source)], begun)[0, : len(ids)]
        return searching.drawn_by(said, self.how, self.model.never_written), ids

    def _chance_of_copies(self, source: np.ndarray) -> float:
        """How likely all copies of a source get the translation of the first, where they do; 1 where they do not."""
        found = [best for best, *_ in decoded(self.model, [source] * COPIES, self.end, self.how)[0]]
        if len({best.tokens for best in found}) > 1:
            return 1.0
        by, ids = self._drawn_by(source, found[0])
        return math.exp((COPIES - 1) * float(by.gather(1, torch.tensor(ids)[:, None]).clamp(min=-100).sum()))

    def doubt(self, sources: Sequence[np.ndarray]) -> float:
        """What scores must be multiplied by, so that the likeliest token has half of the chance on average."""
        said = torch.cat([searching.chances(self._answer, [self._whole(ids)], self._begun) for ids in sources[:ALONE]])
        return next((by for by in DOUBTS if (by * said).softmax(-1).amax(-1).mean() <= 0.5), DOUBTS[-1])

    @property
    def _begun(self) -> torch.Tensor:
        return torch.tensor([[self.end]])

    def _plainly(self, source: list[int], how: Any) -> list[searching.WholeText] | None:
        following = searching.after(self._answer, source, self.end)
        most, never = searching.limit(how, source, self.most), self.model.never_written
        if how.kind == "beam" and not searching.takes_the_likeliest(how):
            return searching.best_ended(following, how, self.end, most, never)
        return searching.likeliest(following, self.end, most, never)

    def _whole(self, ids: np.ndarray) -> list[int]:
        """A source as it is read: cut, and with its END."""
        return [*ids[: self.model.spec.context - 1].tolist(), self.model.source_vocabulary - 1]

    def _answer(self, ids: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
        device = next(self.model.parameters()).device
        return self.model(sources.to(device), ids.to(device))


def _share_equal(ones: Sequence[str], others: Sequence[str]) -> float:
    return sum(a.split() == b.split() and bool(a.split()) for a, b in zip(ones, others, strict=True)) / max(
        1, len(ones)
    )


def _loops(tokens: Sequence[int]) -> bool:
    """Whether a run of one to four tokens stands four times on end."""
    tokens = list(tokens)
    for n in range(1, 5):
        for first in range(len(tokens) - TIMES * n + 1):
            run = tokens[first : first + n]
            if tokens[first : first + TIMES * n] == run * TIMES:
                return True
    return False


WRITTEN_AUDITS: tuple[Audit, ...] = (copied_sources, length_ratio, repetition_loops, decoded_alone, searched)
