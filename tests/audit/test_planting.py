"""Faults are patched into the code, and removed again."""

import pytest

from headway.audit.plants.library import faults
from headway.audit.plants.planting import Patches, planted


def test_the_target_of_every_fault_exists():
    """A fault whose target was moved or renamed would never be planted, and no audit tested with it."""
    for fault in faults():
        with planted(fault):
            pass


class Place:
    here = 1


class Inherited(Place):
    pass


def test_undoing_restores_the_original():
    patches = Patches()
    patches.setattr(Place, "here", 2)
    patches.setattr(Inherited, "here", 3)
    assert (Place.here, Inherited.here) == (2, 3)
    patches.undo()
    assert (Place.here, "here" in vars(Inherited)) == (1, False)


def test_an_attribute_that_does_not_exist_cannot_be_patched():
    with pytest.raises(AttributeError):
        Patches().setattr(Place, "there", 2)
