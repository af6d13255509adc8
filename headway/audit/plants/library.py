"""The list of all planted faults, grouped by what they break, with those from the user's own files."""

from collections import Counter

from headway.audit.plants import masking, pictures, populations, translators  # noqa: F401 (to be read is to be known)
from headway.audit.plants.data import pairs, reading, rows, text, tokens  # noqa: F401
from headway.audit.plants.models import (  # noqa: F401
    carrying,
    cells,
    definitions,
    kernels,
    leaks,
    masks,
    noise,
    positions,
    recurrence,
)
from headway.audit.plants.planting import FAULTS, Fault
from headway.audit.plants.scores import accuracies, bleu, likelihoods, scored, searches  # noqa: F401
from headway.audit.plants.training import learning, steps, training, tuning  # noqa: F401


def faults() -> list[Fault]:
    return list(FAULTS.values())


def by_kind() -> dict[str, int]:
    """How many there are of each."""
    return dict(Counter(fault.kind for fault in faults()))
