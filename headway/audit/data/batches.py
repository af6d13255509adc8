"""Audits of what training reads, batch by batch: is it the train split, all of it, and does each text come with its own
label?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from headway.audit.audit import Audit, Outcome, audit, failed, passed
from headway.data.labelled.dataset import Texts

ROWS, FEW_ROWS = 96, 12
"""That are looked up in train, in all and of one step; fewer in a text so long that each takes a tenth of a second."""
LONG = 20_000_000
"""Tokens."""
COUNTED = 1_000_000
"""So many tokens tell which are rare."""
BORDERS = 4000
"""Between steps, that are looked at where rows go on: all of a pass over most texts, in less than a second."""
CHANCE = 1e-6
"""So rarely may rows that are drawn from everywhere seem not to be."""


class Place(NamedTuple):
    """Where in train a row is: the first such place and the last."""

    first: int
    last: int


@dataclass(frozen=True, eq=False)
class ReadInTraining:
    """What training reads at each step, and where in train to find it."""

    sampler: Any
    """Of one replica."""
    find: Callable[[Any], list[Place | None]]
    """The rows of a batch; None = nowhere."""
    everywhere: Sequence[Place]
    """Rows from all over train, evenly spread; none, where steps do not draw from all of it alike."""
    size: str
    """Of train, in words."""
    drawn: bool
    """Whether rows are drawn anew, so that no two steps have the same."""
    goes_on: bool
    """Whether each row continues the same row of the step before."""

    @property
    def epoch(self) -> int:
        return self.sampler.steps_per_epoch

    @property
    def steps(self) -> list[int]:
        """The first ones, the last and the first of the next pass; and some between them."""
        enough = max(2, ROWS // self.sampler.at(0).inputs.shape[1])
        between = np.linspace(0, max(self.epoch, enough) - 1, enough).astype(int).tolist()
        return sorted({0, 1, 2, self.epoch - 1, self.epoch, *between})


@audit("data")
def batches(reading: ReadInTraining) -> Outcome:
    """Training reads its split: rows of train, from all of it, at every step others, which go on where they should.

    Some steps are looked at: the first, the last of a pass over the text, the first of the next, and some between. Each
    row, with the target of its last token, must stand in train; one that does not is a failure. Rows that are drawn
    must come from all of train (that they all come from so small a part of it may happen by chance once in a million
    runs), and no two steps may have the same. Of rows that carry a state, each must begin with the token that the row
    before ended with, and no row's state may be thrown away, but where a pass over the text begins anew: this is asked
    of every step of a pass, or of thousands. When it fails, look at which split the sampler is given, at what it does
    with the step and the epoch, and at how a text is cut into streams: a model that was trained on what it is scored
    on, or on one batch, has a loss that looks fine.
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
            return failed(share, f"{sentence}: none of {len(known)} rows that were looked up is from there")
    whence = ", from all of it," if reading.everywhere else ""
    return passed(0, f"{len(known)} rows of {len(steps)} steps are of train{whence} and others at every step")


def _unread(everywhere: Sequence[Place], known: Sequence[Place]) -> dict[str, float]:
    """The share of train behind all that was read, and before it. Where train says the same at several places, it may
    have been read as early or as late as that."""
    if not everywhere:
        return {}
    reached, left = max(place.first for place in known), min(place.last for place in known)
    behind = float(np.mean([place.first > reached for place in everywhere]))
    return {"end": behind, "beginning": float(np.mean([place.last < left for place in everywhere]))}


def _again(reading: ReadInTraining, taken: dict[int, Any], found: dict[int, list[Place | None]]) -> str | None:
    """The same batch at two steps; not where rows are the same because train says the same at several places."""
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
    """Rows that should go on from those of the step before, and do not."""
    if not reading.goes_on:
        return None
    every, before = -(-reading.epoch // BORDERS), (-1, None)
    for step in range(1, reading.epoch):
        if step % every and step > BORDERS // 2:
            continue
        last = before[1] if before[0] == step - 1 else reading.sampler.at(step - 1)
        before = step, (here := reading.sampler.at(step))
        if not _go_on(last, here):
            return f"the rows of step {step + 1:,} do not begin where those of step {step:,} end: a state would be lost"
        if bool(here.begins.any()):
            which = "" if bool(here.begins.all()) else "some of "
            return f"{which}the rows of step {step + 1:,} go on, but begin with no state: it is not carried to the end"
    for step in (step for step in taken if step and step % reading.epoch == 0):
        goes_on = step - 1 not in taken or _go_on(taken[step - 1], taken[step])  # who did not look says so
        if not bool(taken[step].begins.all()) and not goes_on:
            return f"step {step + 1:,} begins to read anew, but its rows go on from a state that is not theirs"
    return None


def _go_on(last: Any, here: Any) -> bool:
    """Whether the rows of a step begin where those of the step before end."""
    return torch.equal(here.inputs[..., 0], last.targets[..., -1])


class TextPlaces:
    """Rows of a batch, each with the target of its last token, in running text."""

    def __init__(self, ids: np.ndarray):
        self.ids, self.few = ids, FEW_ROWS if len(ids) <= LONG else 2
        self.kinds, self.counts = np.unique(ids[:COUNTED], return_counts=True)

    def __call__(self, batch: Any) -> list[Place | None]:
        """Some of them, from the first row to the last: where rows are streams, the end of the text is in the last."""
        rows = torch.cat((batch.inputs[0], batch.targets[0, :, -1:]), 1).cpu().numpy().astype(self.ids.dtype)
        some = np.linspace(0, len(rows) - 1, min(self.few, len(rows))).round().astype(int)
        return [self._find(rows[k]) for k in some]

    def everywhere(self, length: int) -> list[Place]:
        """Rows of so many tokens, from all over the text."""
        begins = np.linspace(0, len(self.ids) - length, min(ROWS, 8 * self.few)).astype(int)
        return [place for at in begins if (place := self._find(self.ids[at : at + length])) is not None]

    def _find(self, row: np.ndarray) -> Place | None:
        """Looked for where its rarest tokens stand; there the text is compared, from its beginning and from its end."""
        last = len(self.ids) - len(row)
        if last < 0:
            return None
        rarest, *rare = self._rarest_first(row)[:8].tolist()
        begins = np.flatnonzero(self.ids[rarest : rarest + last + 1] == row[rarest])
        for k in rare:
            if len(begins) == 0 or all(self._stands(row, int(begins[end])) for end in (0, -1)):
                break  # (text that says the same all over would be compared all over)
            begins = begins[self.ids[begins + k] == row[k]]
        standing = (at for at in begins.tolist() if self._stands(row, at))
        if (first := next(standing, None)) is None:
            return None
        return Place(first, next(at for at in begins[::-1].tolist() if self._stands(row, at)))

    def _rarest_first(self, row: np.ndarray) -> np.ndarray:
        """The places of its tokens, by how often each was counted; of those that are alike, the first is first."""
        kind = np.searchsorted(self.kinds, row).clip(max=len(self.kinds) - 1)
        return np.argsort(np.where(self.kinds[kind] == row, self.counts[kind], 0), kind="stable")

    def _stands(self, row: np.ndarray, at: int) -> bool:
        return bool((self.ids[at : at + len(row)] == row).all())


class RowPlaces:
    """Rows of a batch, among texts that are cut as training cuts them."""

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
    """Some batches of a training, and the texts they were made from."""

    batches: Sequence[Any]
    """`RowBatch`es: inputs [R, B, T], real, targets [R, B]."""
    train: Texts
    context: int
    """Texts are cut after so many tokens."""


@audit("data")
def labels(given: LabelledBatches) -> Outcome:
    """Every text of a batch comes with a label that it has in the train split.

    The tokens of each row are looked up among the train texts, cut as training cuts them, and the row's target must be
    among the labels found there. A single row that differs is a failure. Labels that are shifted by a row, sorted apart
    from their texts or read from another column train quietly: the model learns how frequent the classes are, and the
    texts by heart. When it fails, look at what orders the rows
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
