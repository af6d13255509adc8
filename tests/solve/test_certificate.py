"""What a change of the weights proves, and what is no proof."""

import numpy as np
import pytest

from headway.solve.certificate import certify
from headway.solve.exact import ExactKeys

LINE = np.array([[0.0, 0], [1, 1], [2, 2], [5, 0]])
MIDDLE = np.array([0.0, 1, 0, 0])


def change(*parts: float) -> np.ndarray:
    return np.array(parts, dtype=np.float64)


def test_a_key_between_two_others():
    found = certify(ExactKeys(LINE, 1, 1.0), MIDDLE, change(1, -2, 1, 0) / 3, 1e-6)
    assert found and found.floor == pytest.approx(2 / 3) and found.gap == pytest.approx(np.log(3))
    assert found.distance <= 1e-16 and found.rounding <= 1e-16 and found.strict
    part = certify(ExactKeys(LINE, 1, 1.0), MIDDLE, change(1, -2, 1, 0) / 4, 1e-6)
    assert part and part.distance == 0 and part.up_to_norm == np.inf
    assert part.gap < found.gap and part.floor == pytest.approx(2 / 3)  # less even, but in the same direction


@pytest.mark.parametrize("small", [1e-3, 1e-7, 1e-12])
def test_the_floor_of_two_equal_keys_is_the_difference_of_their_weights(small):
    wanted = np.array([0.5 + small, 0.5 - small])
    found = certify(ExactKeys(np.ones((2, 3)), 0, 1.0), wanted, change(-small, small), 1e-6)
    assert found and found.floor == pytest.approx(small, rel=1e-3)


@pytest.mark.parametrize(
    "nothing",
    [
        change(0, 0, 0, 0),
        change(1, -2, 1, 0.1) / 4,  # the mean key changes
        change(1, -2, 1 + 1e-13, 0) / 4,  # by more than rounding
        change(1, -2, 1, 0),  # takes more weight than there is
        change(-1, 2, -1, 0) / 4,  # gives the wanted key weight that the others do not have
    ],
)
def test_changes_that_prove_nothing(nothing):
    assert certify(ExactKeys(LINE, 1, 1.0), MIDDLE, nothing, 1e-6) is None


def test_rounding_is_relative_to_the_numbers_of_the_keys():
    """A middle that is off by one unit in the last place of a key's largest number still counts, but not as strict."""
    keys = np.array([[0.0, 0], [1, 2.0**-52], [2, 0]])
    found = certify(ExactKeys(keys, 1, 1.0), np.array([0.0, 1, 0]), change(1, -2, 1) / 4, 1e-6)
    assert found and 0 < found.rounding <= 2.0**-52 and not found.strict
    assert found.up_to_norm < 1e17
    keys[1, 1] = 1e-14
    assert certify(ExactKeys(keys, 1, 1.0), np.array([0.0, 1, 0]), change(1, -2, 1) / 4, 1e-6) is None
