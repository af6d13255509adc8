"""Audits of the batches that training reads: are they from the train split, from all of it, and does each text have its
own label?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from headway.audit.audit import Audit, Outcome, audit, failed, passed
from headway.data.labelled.dataset import Texts

ROWS, FEW_ROWS = 96, 12
"""How many rows are looked up in train in total, and per step (fewer in a text so long that each takes 0.1 seconds)."""
LONG = 20_000_000
"""Tokens."""
COUNTED = 1_000_000
"""How many tokens are counted to find out which are rare."""
BORDERS = 4000
"""How many transitions between steps are checked where rows carry a state: all of an epoch for most texts, in less than
a second."""
CHANCE = 1e-6
"""Maximum probability of a false alarm for randomly drawn rows."""


class Place(NamedTuple):
    """The first and the last position in train where a row is found."""

    first: int
    last: int


@dataclass(frozen=True, eq=False)
class ReadInTraining:
    """What training reads at each step, and how to find it in train."""

    sampler: Any
    """A sampler of one replica."""
    find: Callable[[Any], list[Place | None]]
    """Finds the rows of a batch; None for those not found."""
    everywhere: Sequence[Place]
    """Rows evenly spaced over train; empty if steps do not draw from all of it uniformly."""
    size: str
    """The size of train, as a phrase."""
    drawn: bool
    """Whether rows are drawn at random, so that no two steps have the same."""
    goes_on: bool
    """Whether each row continues the same row of the step before."""

    @property
    def epoch(self) -> int:
        return self.sampler.steps_per_epoch

    @property
    def steps(self) -> list[int]:
        """The steps to check: the first ones, the last of the epoch, the first of the next, and some between."""
        enough = max(2, ROWS // self.sampler.at(0).inputs.shape[1])
        between = np.linspace(0, max(self.epoch, enough) - 1, enough).astype(int).tolist()
        return sorted({0, 1, 2, self.epoch - 1, self.epoch, *between})


@audit("data")
def batches(reading: ReadInTraining) -> Outcome:
    """Training reads the train split: rows from all of it, others at every step, continued where they should be.

    Some steps are checked: the first, the last of an epoch, the first of the next, and some between. Each row, with the
    target of its last token, must be found in train; one that is not is a failure. Randomly drawn rows must come from
    all of train (the probability of a false alarm is one in a million), and no two steps may have the same. Where rows
    carry a state, each must begin with the token that the row before ended with, and no state may be dropped except at
    the start of an epoch; this is checked at every step of an epoch, or at thousands. If it fails, look at which split
    the sampler gets, at what it does with the step and the epoch, and at how a text is cut into streams: a model that
    was trained on the split it is scored on, or on a single batch, has a loss that looks fine.
    """
    steps = reading.steps
    taken = {step: reading.sampler.at(step) for step in steps}
    found = {step: reading.find(batch) for step, batch in taken.items()}
    rows = [place for places in found.values() for place in places]
    if strange := sum(place is None for place in rows):
        return failed(strange / len(rows), f"{strange} of {len(rows)} rows that training reads are no text of train")
    if (problem := _again(reading, taken, found) or _broken_off(reading, taken)) is not None:
        return failed(None, problem)
    known = [place for place in rows if place is not None]
    for where, share in _unread(reading.everywhere, known).items():
        if (1 - share) ** len(known) < CHANCE:
            sentence = f"the {where} of train ({share:.0%} of its {reading.size}) is never read"
            return failed(share, f"{sentence}: none of the {len(known)} rows that were looked up is from there")
    whence = ", from all parts of it," if reading.everywhere else ""
    return passed(0, f"{len(known)} rows of {len(steps)} steps are from train{whence} and different at every step")


def _unread(everywhere: Sequence[Place], known: Sequence[Place]) -> dict[str, float]:
    """The shares of train after and before everything that was read. A row that occurs several times in train may have
    been read at its first or its last occurrence."""
    if not everywhere:
        return {}
    reached, left = max(place.first for place in known), min(place.last for place in known)
    behind = float(np.mean([place.first > reached for place in everywhere]))
    return {"end": behind, "beginning": float(np.mean([place.last < left for place in everywhere]))}


def _again(reading: ReadInTraining, taken: dict[int, Any], found: dict[int, list[Place | None]]) -> str | None:
    """A problem if two steps have the same batch, unless the rows occur several times in train."""
    if not reading.drawn or reading.epoch < 2:
        return None
    before: dict[tuple[int, ...], int] = {}
    for step, places in found.items():
        firsts = tuple(place.first for place in places if place is not None)
        apart = {place.first for place in places if place is not None and place.first == place.last}
        same = before.setdefault(firsts, step)
        if same != step and len(apart) > 1 and torch.equal(taken[same].inputs, taken[step].inputs):
            return f"training reads the same rows at step {same + 1:,} and at step {step + 1:,}"
    return None


def _broken_off(reading: ReadInTraining, taken: dict[int, Any]) -> str | None:
    """A problem if rows should continue those of the step before and do not."""
    if not reading.goes_on:
        return None
    every, before = -(-reading.epoch // BORDERS), (-1, None)
    for step in range(1, reading.epoch):
        if step % every and step > BORDERS // 2:
            continue
        last = before[1] if before[0] == step - 1 else reading.sampler.at(step - 1)
        before = step, (here := reading.sampler.at(step))
        if not _go_on(last, here):
            return (
                f"the rows of step {step + 1:,} do not begin where those of step {step:,} end, so a state would be lost"
            )
        if bool(here.begins.any()):
            which = "" if bool(here.begins.all()) else "some of "
            return f"{which}the rows of step {step + 1:,} continue, but start without a state: it is dropped too early"
    for step in (step for step in taken if step and step % reading.epoch == 0):
        goes_on = step - 1 not in taken or _go_on(taken[step - 1], taken[step])  # unchecked counts as continued
        if not bool(taken[step].begins.all()) and not goes_on:
            return f"step {step + 1:,} starts a new epoch, but its rows continue from a state that is not theirs"
    return None


def _go_on(last: Any, here: Any) -> bool:
    """Whether the rows of a step begin where those of the step before end."""
    return torch.equal(here.inputs[..., 0], last.targets[..., -1])


class TextPlaces:
    """Finds rows of a batch, each with the target of its last token, in running text."""

    def __init__(self, ids: np.ndarray):
        self.ids, self.few = ids, FEW_ROWS if len(ids) <= LONG else 2
        self.kinds, self.counts = np.unique(ids[:COUNTED], return_counts=True)

    def __call__(self, batch: Any) -> list[Place | None]:
        """Look up some rows, from the first to the last: in streams, the end of the text is in the last row."""
        rows = torch.cat((batch.inputs[0], batch.targets[0, :, -1:]), 1).cpu().numpy().astype(self.ids.dtype)
        some = np.linspace(0, len(rows) - 1, min(self.few, len(rows))).round().astype(int)
        return [self._find(rows[k]) for k in some]

    def everywhere(self, length: int) -> list[Place]:
        """Rows of so many tokens, evenly spaced over the text."""
        begins = np.linspace(0, len(self.ids) - length, min(ROWS, 8 * self.few)).astype(int)
        return [place for at in begins if (place := self._find(self.ids[at : at + length])) is not None]

    def _find(self, row: np.ndarray) -> Place | None:
        """Search at the positions of the row's rarest tokens, and compare there from the first and from the last."""
        last = len(self.ids) - len(row)
        if last < 0:
            return None
        rarest, *rare = self._rarest_first(row)[:8].tolist()
        begins = np.flatnonzero(self.ids[rarest : rarest + last + 1] == row[rarest])
        for k in rare:
            if len(begins) == 0 or all(self._stands(row, int(begins[end])) for end in (0, -1)):
                break  # stop narrowing; a highly repetitive text would be compared everywhere
            begins = begins[self.ids[begins + k] == row[k]]
        standing = (at for at in begins.tolist() if self._stands(row, at))
        if (first := next(standing, None)) is None:
            return None
        return Place(first, next(at for at in begins[::-1].tolist() if self._stands(row, at)))

    def _rarest_first(self, row: np.ndarray) -> np.ndarray:
        """The positions in the row, sorted by how rare their token is in the text; ties keep their order."""
        kind = np.searchsorted(self.kinds, row).clip(max=len(self.kinds) - 1)
        return np.argsort(np.where(self.kinds[kind] == row, self.counts[kind], 0), kind="stable")

    def _stands(self, row: np.ndarray, at: int) -> bool:
        return bool((self.ids[at : at + len(row)] == row).all())


class RowPlaces:
    """Finds rows of a batch among texts that are cut as training cuts them."""

    def __init__(self, texts: Texts, context: int):
        table, lengths = texts.padded(context)
        rows = [tuple(row[:length]) for row, length in zip(table.tolist(), lengths.tolist(), strict=True)]
        last = {row: k for k, row in enumerate(rows)}
        first = {row: k for k, row in reversed(list(enumerate(rows)))}
        self.known = {row: Place(first[row], last[row]) for row in last}
        self.everywhere = [self.known[row] for row in rows]

    def __call__(self, batch: Any) -> list[Place | None]:
        return [self.known.get(row) for row in _rows(batch)]


@dataclass(frozen=True, eq=False)
class LabelledBatches:
    """Some training batches, and the texts they were made from."""

    batches: Sequence[Any]
    """`RowBatch`es: inputs [R, B, T], real, targets [R, B]."""
    train: Texts
    context: int
    """Maximum number of tokens of a text; longer ones are cut."""


@audit("data")
def labels(given: LabelledBatches) -> Outcome:
    """Every text in a batch has a label that it has in the train split.

    The tokens of each row are looked up among the train texts, cut as training cuts them, and the row's target must be
    among the labels found there. A single row that differs is a failure. If labels are shifted by a row, sorted
    separately from their texts, or read from another column, training raises no error: the model learns class
    frequencies, and memorises the texts. If it fails, look at the code that orders the rows
    (headway/data/labelled/batches.py) and at data.label.
    """
    table, lengths = given.train.padded(given.context)
    known: dict[tuple[int, ...], set[int]] = {}
    for row, length, label in zip(table.tolist(), lengths.tolist(), given.train.labels.tolist(), strict=True):
        known.setdefault(tuple(row[:length]), set()).add(label)
    found = [known.get(row, set()) for batch in given.batches for row in _rows(batch)]
    targets = [target for batch in given.batches for target in batch.targets[0].tolist()]
    strange = sum(not labels for labels in found)
    wrong = sum(bool(labels) and target not in labels for labels, target in zip(found, targets, strict=True))
    rows = len(targets)
    if wrong or strange:
        share = (wrong + strange) / rows
        what = f"{wrong} of {rows} rows of batches have another label than in train"
        return failed(share, what + (f", and {strange} are no text of train" if strange else ""))
    return passed(0, f"all {rows} rows looked up in batches have a label that they have in train")


def _rows(batch: Any) -> list[tuple[int, ...]]:
    """The tokens of each row, without padding."""
    both = zip(batch.inputs[0], batch.padding_mask[0], strict=True)
    return [tuple(ids[padding_mask].tolist()) for ids, padding_mask in both]


READ_AUDITS: list[Audit] = [batches]
LABEL_AUDITS: list[Audit] = [labels]
