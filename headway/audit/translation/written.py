"""Audits of what a translator writes: is it a translation at all, and does it depend on nothing but its source?

Some sources of the split that the score is judged by are translated, as they are for the score; what is looked at is
what people see first in a bad translator: it copies, it stops too early or never, it says one thing again and again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.data.pairs.dataset import ids_of
from headway.scoring.translation import Translated, decoded, translated

ROWS = 64
ALONE = 6
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


WRITTEN_AUDITS: tuple[Audit, ...] = (copied_sources, length_ratio, repetition_loops, decoded_alone)
