"""Audits of masking in training: are masked tokens really hidden, is the share right, and are they from everywhere?"""

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
"""Number of training steps for the checks, times four at most."""
ENOUGH = 6000
"""Number of masked tokens that give shares to within one or two hundredths."""
SIGMAS = 5.5
"""Tolerance in standard errors: no check exceeds it by chance in a million trainings."""


@dataclass(frozen=True, eq=False)
class HiddenInTraining:
    """Some training batches, and those of the same steps on a text in which every token is replaced by another."""

    batches: Sequence[Any]
    """`MaskedBatch`es of one replica."""
    changed: Sequence[Any]
    """Those of the same steps on the changed text."""
    spec: Masking
    marks: Marks
    words: np.ndarray
    """Token ids that are not special tokens."""

    @cached_property
    def asked(self) -> list[Tensor]:
        """For each batch, a mask of the places that count in the loss [1, B, K]."""
        return [
            torch.ones_like(b.places, dtype=torch.bool) if b.asked is None else b.asked.to(torch.bool)
            for b in self.batches
        ]

    @cached_property
    def inputs(self) -> np.ndarray:
        """The input at the place of each token that must be predicted."""
        put = [b.inputs.gather(2, b.places)[asked] for b, asked in zip(self.batches, self.asked, strict=True)]
        return torch.cat(put).cpu().numpy()

    @cached_property
    def targets(self) -> np.ndarray:
        return torch.cat([b.targets[a] for b, a in zip(self.batches, self.asked, strict=True)]).cpu().numpy()

    @cached_property
    def text(self) -> list[Tensor]:
        """For each batch, a mask of its tokens that are text [B, T]."""
        found = []
        for batch in self.batches:
            rows = batch.restored[0]
            real = torch.ones_like(rows, dtype=torch.bool) if batch.padding_mask is None else batch.padding_mask[0]
            found.append(real & ~torch.isin(rows, torch.tensor(self.marks.all, device=rows.device)))
        return found


@audit("data")
def hidden_tokens(given: HiddenInTraining) -> Outcome:
    """The tokens that a model must predict are not visible in its input.

    In some training steps, every token that must be predicted is checked: in its place there must be [MASK], a random
    token or, as often as the recipe says, the token itself. Then the same steps are taken on a text in which every
    token is replaced by another. Where there was [MASK] it must be again, and where there was a random token, the same
    one: anything else that depends on the hidden tokens reveals them. One such place is a failure. A model that sees
    its answers copies them: its loss falls faster than any honest one, and what it learns is useless. Look at where
    rows are copied before masking, and at what else is given to the model.
    """
    leaks = 0
    kept = given.inputs == given.targets
    expected = 1 - given.spec.masked - given.spec.random + given.spec.random / len(given.words)
    n, seen = len(kept), int(kept.sum())
    if seen > n * expected and not _likely(seen, n, expected):
        sentence = f"{seen:,} of {n:,} tokens to predict are visible in the input ({seen / n:.1%})"
        return failed(seen / n, f"{sentence}; {expected:.1%} should be", "shows what is hidden")
    for batch, other, asked in zip(given.batches, given.changed, given.asked, strict=True):
        if not torch.equal(batch.places[asked], other.places[asked]):
            return failed(None, "which tokens are masked depends on what they are", "shows what is hidden")
        one, two = (b.inputs.gather(2, b.places)[asked] for b in (batch, other))
        exchanged = (one != batch.targets[asked]) & (two != other.targets[asked])
        leaks += int(((one != two) & exchanged).sum())
    if leaks:
        sentence = f"the input in the place of {leaks:,} of {n:,} hidden tokens depends on what they are"
        return failed(leaks / n, sentence, "shows what is hidden")
    return passed(seen / n, f"of {n:,} tokens to predict {seen / n:.1%} are visible, as the recipe says, and no others")


@audit("data")
def masking(given: HiddenInTraining) -> Outcome:
    """Masking hides the right share of tokens, of all kinds and from everywhere, and different ones at every step.

    In every row exactly the share of tokens in model.masking must be predicted, rounded and at least one, and special
    tokens and padding never. Of these, the shares replaced by [MASK] and by random text tokens must be those of the
    recipe; they must be spread evenly over positions, and be as frequent or rare as all tokens; and two steps must not
    mask the same places. Random shares may be off by 5.5 standard errors, which chance exceeds once in many millions.
    Each of these errors changes the task, with a loss that looks fine: more masking is harder, frequent words alone are
    easy, and places that never change leave most of the text unused.
    """
    for batch, asked, text in zip(given.batches, given.asked, given.text, strict=True):
        wanted = _wanted(text.sum(1), given.spec.share)
        count = asked[0].sum(1)
        if not torch.equal(wanted, count):
            row = int((wanted != count).nonzero()[0, 0])
            sentence = f"of {int(text[row].sum())} tokens of a row {int(count[row])} must be predicted"
            return failed(float(count[row]), f"{sentence}; {given.spec.share:.0%} would be {int(wanted[row])}")
        if not bool(text.gather(1, batch.places[0])[asked[0]].all()):
            return failed(None, "special tokens or padding are among the tokens that must be predicted")
        twice = batch.places[0].masked_fill(~asked[0], -1).sort(1).values
        if bool(((twice[:, 1:] == twice[:, :-1]) & (twice[:, 1:] >= 0)).any()):
            return failed(None, "a token of a row must be predicted twice")
    return _drawn_as_said(given) or passed(
        given.spec.share,
        f"{len(given.targets):,} tokens must be predicted, {given.spec.share:.0%} of each row, as asked",
    )


def _drawn_as_said(given: HiddenInTraining) -> Outcome | None:
    """Check what is random; None if all is well."""
    n, spec = len(given.targets), given.spec
    covered = int((given.inputs == given.marks.mask).sum())
    if not _likely(covered, n, spec.masked):
        return failed(covered / n, f"[MASK] replaces {covered / n:.1%} of {n:,} tokens; it should be {spec.masked:.0%}")
    put = (given.inputs != given.marks.mask) & (given.inputs != given.targets)
    expected = spec.random * (1 - 1 / len(given.words))
    if not _likely(int(put.sum()), n, expected):
        return failed(
            put.mean(), f"{put.mean():.1%} of {n:,} tokens are replaced by others; it should be {expected:.1%}"
        )
    strange = int((~np.isin(given.inputs[put], given.words)).sum())
    if strange:
        return failed(strange / n, f"{strange:,} tokens are replaced by tokens that are not text")
    if put.sum() > 200 and len(given.words) > 1 and (off := _uneven(given.inputs[put], given.words)) is not None:
        return failed(None, f"tokens are replaced by some tokens only: {off}")
    if (off := _one_sided(given)) is not None:
        return failed(None, off)
    alike = [(k, k + 1) for k in range(len(given.batches) - 1) if _same_places(given, k, k + 1)]
    if alike:
        return failed(None, f"steps {alike[0][0] + 1} and {alike[0][1] + 1} mask the same places")
    return None


def _wanted(tokens: Tensor, share: float) -> Tensor:
    counts = [min(max(1, round(share * n)), n) for n in tokens.tolist()]
    return torch.tensor(counts, device=tokens.device)


def _likely(found: int, n: int, share: float) -> bool:
    """Whether this count out of n is compatible with the share."""
    return abs(found - n * share) <= SIGMAS * math.sqrt(n * max(share * (1 - share), 1 / n))


def _uneven(drawn: np.ndarray, words: np.ndarray) -> str | None:
    """A phrase if drawn tokens are not uniform over the vocabulary: some eighth has too few or too many."""
    eighths = np.searchsorted(words, drawn) * 8 // len(words)
    sizes = np.bincount(np.arange(len(words)) * 8 // len(words), minlength=8) / len(words)
    for k, (count, size) in enumerate(zip(np.bincount(eighths, minlength=8), sizes, strict=True)):
        if not _likely(int(count), len(drawn), float(size)):
            return f"{count} of {len(drawn)} are from the {k + 1}. eighth of the vocabulary, {size:.0%} of it"
    return None


def _one_sided(given: HiddenInTraining) -> str | None:
    """A sentence if masked tokens are not like all tokens in their positions or frequencies."""
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
            there = f"{inside / len(place):.1%} of the masked tokens are in the {k + 1}. eighth of their row"
            return f"{there}, but {share:.1%} of all tokens"
    error = usual.std() / math.sqrt(len(rare))
    if abs(rare.mean() - usual.mean()) > SIGMAS * max(error, 1e-9):
        kind = "rarer" if rare.mean() > usual.mean() else "more frequent"
        return (
            f"masked tokens are {kind} than others: {rare.mean():.3f} nats by frequency, and {usual.mean():.3f} of all"
        )
    return None


def _same_places(given: HiddenInTraining, one: int, other: int) -> bool:
    a, b = given.batches[one].places, given.batches[other].places
    return a.shape == b.shape and a.numel() > 8 and torch.equal(a.sort(2).values, b.sort(2).values)


class RestoredPlaces(TextPlaces):
    """Finds unmasked rows of a batch in running text."""

    def __init__(self, ids: np.ndarray, marks: Marks):
        super().__init__(ids)
        self.marks = marks

    def __call__(self, batch: Any) -> list[Place | None]:
        text = slice(self.marks.before, -self.marks.behind or None)
        rows = batch.restored[0, :, text].cpu().numpy().astype(self.ids.dtype)
        some = np.linspace(0, len(rows) - 1, min(self.few, len(rows))).round().astype(int)
        return [self._find(rows[k]) for k in some]


class RestoredLines:
    """Finds unmasked rows of a batch among the lines of a text."""

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
    """The batches of as many steps as are needed for the checks."""
    if len(words) < 2:
        raise DoesNotApply("the vocabulary has only one token, so nothing can be masked")
    first = sampler.at(0)
    steps = range(max(3, min(4 * STEPS, math.ceil(ENOUGH / max(1, first.places[0].numel())))))
    return HiddenInTraining([sampler.at(k) for k in steps], [changed.at(k) for k in steps], spec, marks, words)


MASKING_AUDITS: list[Audit] = [hidden_tokens, masking]
