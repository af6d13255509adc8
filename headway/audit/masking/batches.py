"""Audits of what is hidden in training: does it show, is it as much as was said, and from everywhere?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed
from headway.audit.data.batches import FEW_ROWS, Place, TextPlaces
from headway.data.marks import Marks
from headway.data.running.rows import TextRows
from headway.models.masked_language_model import Masking

STEPS = 24
"""Of training that are looked at."""
ENOUGH = 6000
"""Chosen tokens, by which shares are known to a hundredth or two."""
SIGMAS = 5.5
"""Standard errors that chance does not reach, in any of the questions asked, once in a million trainings."""


@dataclass(frozen=True, eq=False)
class HiddenInTraining:
    """Some batches of a training; and the same steps on a text in which every token is another."""

    batches: Sequence[Any]
    """`MaskedBatch`es of one replica."""
    changed: Sequence[Any]
    """By the same steps, of a text that has another token at every place."""
    spec: Masking
    marks: Marks
    words: np.ndarray
    """The tokens of text."""

    @cached_property
    def asked(self) -> list[Tensor]:
        """Of each batch, which places count [1, B, K]."""
        return [
            torch.ones_like(b.places, dtype=torch.bool) if b.asked is None else b.asked.to(torch.bool)
            for b in self.batches
        ]

    @cached_property
    def inputs(self) -> np.ndarray:
        """What stands in the place of each token that is asked for."""
        put = [b.inputs.gather(2, b.places)[asked] for b, asked in zip(self.batches, self.asked, strict=True)]
        return torch.cat(put).cpu().numpy()

    @cached_property
    def targets(self) -> np.ndarray:
        return torch.cat([b.targets[a] for b, a in zip(self.batches, self.asked, strict=True)]).cpu().numpy()

    @cached_property
    def text(self) -> list[Tensor]:
        """Of each batch, which of its tokens are of text [B, T]."""
        found = []
        for batch in self.batches:
            rows = batch.restored[0]
            real = torch.ones_like(rows, dtype=torch.bool) if batch.padding_mask is None else batch.padding_mask[0]
            found.append(real & ~torch.isin(rows, torch.tensor(self.marks.all, device=rows.device)))
        return found


@audit("data")
def hidden_tokens(given: HiddenInTraining) -> Outcome:
    """What a model is to guess is nowhere in what it reads.

    Of some steps of training, every token that is asked for is looked at: what stands in its place must be [MASK], a
    token that was drawn, or, as often as the recipe says, the token itself. Then the same steps are taken on a text in
    which every token is another one. Where [MASK] stands it must stand again, and where a token was drawn the same must
    be drawn: whatever else depends on what is hidden tells of it. One such place is a failure. A model that is shown
    its answers copies them: its loss falls as that of no honest one does, and what it learnt is of no use. Look at
    where rows are copied before tokens are hidden in them, and at what else is given to the model.
    """
    leaks = 0
    kept = given.inputs == given.targets
    expected = 1 - given.spec.masked - given.spec.random + given.spec.random / len(given.words)
    n, seen = len(kept), int(kept.sum())
    if seen > n * expected and not _likely(seen, n, expected):
        sentence = f"{seen:,} of {n:,} tokens that are asked for stand in the input as they are ({seen / n:.1%})"
        return failed(seen / n, f"{sentence}; {expected:.1%} should", "shows what is hidden")
    for batch, other, asked in zip(given.batches, given.changed, given.asked, strict=True):
        if not torch.equal(batch.places[asked], other.places[asked]):
            return failed(None, "which tokens are chosen depends on what they are", "shows what is hidden")
        one, two = (b.inputs.gather(2, b.places)[asked] for b in (batch, other))
        exchanged = (one != batch.targets[asked]) & (two != other.targets[asked])
        leaks += int(((one != two) & exchanged).sum())
    if leaks:
        sentence = f"what stands in the place of {leaks:,} of {n:,} hidden tokens depends on what they are"
        return failed(leaks / n, sentence, "shows what is hidden")
    return passed(
        seen / n, f"of {n:,} tokens that are asked for {seen / n:.1%} are shown, as the recipe says, and no others"
    )


@audit("data")
def masking(given: HiddenInTraining) -> Outcome:
    """As many tokens are hidden as the recipe says, of all kinds and from everywhere, and others at every step.

    Of every row the share of tokens that model.masking says must be asked for, rounded and at least one: there is no
    threshold, and marks and padding are never among them. Of these, as many must be hidden behind [MASK], and as many
    exchanged for drawn tokens of text, as the recipe says; they must stand at all places of rows alike, and be as
    frequent or rare as all tokens are; and two steps must not choose the same places. What is drawn may be off by 5.5
    standard errors, which chance does in one of many millions. Each of these makes another task of it, with a loss that
    looks fine: more hidden is harder, frequent words alone are easy, and places that never change leave most of the
    text unasked.
    """
    for batch, asked, text in zip(given.batches, given.asked, given.text, strict=True):
        wanted = _wanted(text.sum(1), given.spec.share)
        count = asked[0].sum(1)
        if not torch.equal(wanted, count):
            row = int((wanted != count).nonzero()[0, 0])
            sentence = f"of {int(text[row].sum())} tokens of a row {int(count[row])} are asked for"
            return failed(float(count[row]), f"{sentence}, and {given.spec.share:.0%} are {int(wanted[row])}")
        if not bool(text.gather(1, batch.places[0])[asked[0]].all()):
            return failed(None, "marks or padding are among the tokens that are asked for")
        twice = batch.places[0].masked_fill(~asked[0], -1).sort(1).values
        if bool(((twice[:, 1:] == twice[:, :-1]) & (twice[:, 1:] >= 0)).any()):
            return failed(None, "a token of a row is asked for twice")
    return _drawn_as_said(given) or passed(
        given.spec.share, f"{len(given.targets):,} tokens are asked for, {given.spec.share:.0%} of each row, as said"
    )


def _drawn_as_said(given: HiddenInTraining) -> Outcome | None:
    """What is drawn at random, or None where all is well."""
    n, spec = len(given.targets), given.spec
    covered = int((given.inputs == given.marks.mask).sum())
    if not _likely(covered, n, spec.masked):
        return failed(covered / n, f"[MASK] stands for {covered / n:.1%} of {n:,} tokens; {spec.masked:.0%} should be")
    put = (given.inputs != given.marks.mask) & (given.inputs != given.targets)
    expected = spec.random * (1 - 1 / len(given.words))
    if not _likely(int(put.sum()), n, expected):
        return failed(
            put.mean(), f"{put.mean():.1%} of {n:,} tokens are exchanged for others; {expected:.1%} should be"
        )
    strange = int((~np.isin(given.inputs[put], given.words)).sum())
    if strange:
        return failed(strange / n, f"{strange:,} tokens are exchanged for what is no text")
    if put.sum() > 200 and len(given.words) > 1 and (off := _uneven(given.inputs[put], given.words)) is not None:
        return failed(None, f"tokens are exchanged for some tokens only: {off}")
    if (off := _one_sided(given)) is not None:
        return failed(None, off)
    alike = [(k, k + 1) for k in range(len(given.batches) - 1) if _same_places(given, k, k + 1)]
    if alike:
        return failed(None, f"steps {alike[0][0] + 1} and {alike[0][1] + 1} hide tokens at the same places")
    return None


def _wanted(tokens: Tensor, share: float) -> Tensor:
    counts = [min(max(1, round(share * n)), n) for n in tokens.tolist()]
    return torch.tensor(counts, device=tokens.device)


def _likely(found: int, n: int, share: float) -> bool:
    """Whether so many of n are what this share lets expect."""
    return abs(found - n * share) <= SIGMAS * math.sqrt(n * max(share * (1 - share), 1 / n))


def _uneven(drawn: np.ndarray, words: np.ndarray) -> str | None:
    """In words, where numbers that should be drawn from all words alike are not: in some eighth there are too few."""
    eighths = np.searchsorted(words, drawn) * 8 // len(words)
    sizes = np.bincount(np.arange(len(words)) * 8 // len(words), minlength=8) / len(words)
    for k, (count, size) in enumerate(zip(np.bincount(eighths, minlength=8), sizes, strict=True)):
        if not _likely(int(count), len(drawn), float(size)):
            return f"{count} of {len(drawn)} are from the {k + 1}. eighth of the vocabulary, {size:.0%} of it"
    return None


def _one_sided(given: HiddenInTraining) -> str | None:
    """In words, where chosen tokens are not like all tokens: at other places of their rows, or of other frequencies."""
    at, where, rarity, of_all = [], [], [], []
    everything = torch.cat([batch.restored[0][text] for batch, text in zip(given.batches, given.text, strict=True)])
    counts = torch.bincount(everything, minlength=int(everything.max()) + 1).double()
    nats = -(counts / counts.sum()).clamp(min=1e-12).log()
    for batch, asked, text in zip(given.batches, given.asked, given.text, strict=True):
        place = (text.cumsum(1) - 0.5) / text.sum(1, keepdim=True)  # 0 … 1 within its row
        at.append(place.gather(1, batch.places[0])[asked[0]])
        where.append(place[text])
        rarity.append(nats[batch.targets[asked]])
        of_all.append(nats[batch.restored[0][text]])
    place, anywhere, rare, usual = (torch.cat(found).double().numpy() for found in (at, where, rarity, of_all))
    for k in range(8):
        inside = ((place * 8).astype(int) == k).sum()
        share = float(((anywhere * 8).astype(int) == k).mean())
        if not _likely(int(inside), len(place), share):
            there = f"{inside / len(place):.1%} of what is hidden is in the {k + 1}. eighth of its row"
            return f"{there}, and {share:.1%} of all tokens are"
    error = usual.std() / math.sqrt(len(rare))
    if abs(rare.mean() - usual.mean()) > SIGMAS * max(error, 1e-9):
        kind = "rarer" if rare.mean() > usual.mean() else "more frequent"
        return (
            f"hidden tokens are {kind} than others: {rare.mean():.3f} nats by frequency, and {usual.mean():.3f} of all"
        )
    return None


def _same_places(given: HiddenInTraining, one: int, other: int) -> bool:
    a, b = given.batches[one].places, given.batches[other].places
    return a.shape == b.shape and a.numel() > 8 and torch.equal(a.sort(2).values, b.sort(2).values)


class RestoredPlaces(TextPlaces):
    """Rows of a batch with nothing hidden, in running text."""

    def __init__(self, ids: np.ndarray, marks: Marks):
        super().__init__(ids)
        self.marks = marks

    def __call__(self, batch: Any) -> list[Place | None]:
        text = slice(self.marks.before, -self.marks.behind or None)
        rows = batch.restored[0, :, text].cpu().numpy().astype(self.ids.dtype)
        some = np.linspace(0, len(rows) - 1, min(self.few, len(rows))).round().astype(int)
        return [self._find(rows[k]) for k in some]


class RestoredLines:
    """Rows of a batch with nothing hidden, among the lines of a text."""

    def __init__(self, rows: TextRows, marks: Marks):
        self.marks = marks
        begins = rows.ends - rows.lengths
        lines = [tuple(rows.ids[begin:end].tolist()) for begin, end in zip(begins, rows.ends, strict=True)]
        last = {line: k for k, line in enumerate(lines)}
        first = {line: k for k, line in reversed(list(enumerate(lines)))}
        self.known = {line: Place(first[line], last[line]) for line in last}

    def __call__(self, batch: Any) -> list[Place | None]:
        some = np.linspace(0, batch.inputs.shape[1] - 1, min(FEW_ROWS, batch.inputs.shape[1])).round().astype(int)
        found = []
        for k in some:
            ids = batch.restored[0, k][batch.padding_mask[0, k]].tolist()
            found.append(self.known.get(tuple(ids[self.marks.before : len(ids) - self.marks.behind])))
        return found


def looked_at(sampler: Any, changed: Any, spec: Masking, marks: Marks, words: np.ndarray) -> HiddenInTraining:
    """As many steps as give enough to judge by."""
    if len(words) < 2:
        raise DoesNotApply("there is only one kind of token, and nothing to hide")
    first = sampler.at(0)
    steps = range(max(3, min(4 * STEPS, math.ceil(ENOUGH / max(1, first.places[0].numel())))))
    return HiddenInTraining([sampler.at(k) for k in steps], [changed.at(k) for k in steps], spec, marks, words)


MASKING_AUDITS: list[Audit] = [hidden_tokens, masking]
