"""All faults that there are: a room for each kind, and those in files of the user's own."""

from collections import Counter

from headway.audit.plants import (  # noqa: F401 (to be read is to be known)
    accuracies,
    bleu,
    carrying,
    definitions,
    kernels,
    leaks,
    learning,
    likelihoods,
    masking,
    masks,
    pictures,
    populations,
    positions,
    reading,
    recurrence,
    rows,
    scored,
    steps,
    text,
    tokens,
    training,
    translators,
    tuning,
)
from headway.audit.plants.planting import FAULTS, Fault


def faults() -> list[Fault]:
    return list(FAULTS.values())


def by_kind() -> dict[str, int]:
    """How many there are of each."""
    return dict(Counter(fault.kind for fault in faults()))
