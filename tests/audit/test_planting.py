"""Faults are put into what is there, and taken out again."""

import pytest

from headway.audit.plants.library import faults
from headway.audit.plants.planting import Patches, planted


def test_every_fault_finds_what_it_is_put_into():
    """What has moved elsewhere would be patched in vain, and a fault that nobody planted found by nobody."""
    for fault in faults():
        with planted(fault):
            pass


class Place:
    here = 1


class Inherited(Place):
    pass


def test_what_was_patched_is_as_before():
    patches = Patches()
    patches.setattr(Place, "here", 2)
    patches.setattr(Inherited, "here", 3)
    assert (Place.here, Inherited.here) == (2, 3)
    patches.undo()
    assert (Place.here, "here" in vars(Inherited)) == (1, False)


def test_what_is_not_there_cannot_be_patched():
    with pytest.raises(AttributeError):
        Patches().setattr(Place, "there", 2)
