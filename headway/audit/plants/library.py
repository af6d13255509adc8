"""The list of all faults for self-tests, grouped by what they break, with those from the user's own files."""

from collections import Counter

from headway.audit.plants import masking, pictures, populations, translators  # noqa: F401 (importing registers them)
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
    """The number of faults of each kind."""
    return dict(Counter(fault.kind for fault in faults()))
