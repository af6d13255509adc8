"""An audit of the batches of a classifier: does each text come with its own label?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.audit.audit import Audit, Outcome, audit, failed, passed
from headway.data.labelled.dataset import Texts


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
    texts by heart. When it fails, look at what orders the rows (data/rows.py) and at data.label.
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


LABEL_AUDITS: list[Audit] = [labels]
