"""Random numbers as functions of (seed, purpose, step, index): uniform, and independent across all four."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.core import random

SEEDS = [0, 1, 2, 3, 1000, 2**40]


def keys(*seeds: int, purpose: str = "layers.0.drop") -> Tensor:
    return random.stream_keys(seeds, purpose)


def uniform(bits: Tensor) -> Tensor:
    """16-bit numbers as numbers between -1/2 and 1/2."""
    return bits.double() / 65536


def chi_squared(counts: Tensor) -> float:
    """The chi-squared statistic of equal probabilities, in standard deviations."""
    expected = counts.sum() / len(counts)
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    return float((statistic - freedom) / (2 * freedom) ** 0.5)


def streams() -> dict[tuple, Tensor]:
    """Streams that differ in one or more of seed, purpose and step."""
    return {
        (seed, purpose, step): random.bits(keys(seed, purpose=purpose), step, 4096)[0]
        for seed, purpose, step in itertools.product(SEEDS, ("drop", "layers.1.drop", "crops"), (0, 1, 2, 700, 2**30))
    }


# The numbers of one stream


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("step", [0, 1, 12345])
def test_bits_are_uniform(seed: int, step: int):
    drawn = random.bits(keys(seed), step, 2**16)[0]
    n = len(drawn)
    assert abs(uniform(drawn).mean() + 1 / 131072) < 4.5 / (12 * n) ** 0.5
    assert abs(uniform(drawn).var() - 1 / 12) < 4.5 * (1 / 180 / n) ** 0.5
    assert abs(chi_squared((drawn.int() + 32768).div(64, rounding_mode="floor").bincount(minlength=1024))) < 4.5
    for bit in range(16):
        ones = (drawn.int() >> bit) & 1
        assert abs(ones.double().mean() - 0.5) < 4.5 * 0.5 / n**0.5, f"bit {bit}"


def test_neighbours_in_a_stream_are_uncorrelated():
    drawn = random.bits(keys(3), 5, 2**16)[0]
    for gap in (1, 2, 3, 4, 64, 128, 4096):
        assert abs(correlation(drawn[:-gap], drawn[gap:])) < 4.5 / (len(drawn) - gap) ** 0.5, gap


def test_pairs_of_neighbours_fill_the_square():
    drawn = random.bits(keys(8), 1, 2**16)[0].int() + 32768
    cells = (drawn[0::2] >> 11) * 32 + (drawn[1::2] >> 11)
    assert abs(chi_squared(cells.bincount(minlength=1024))) < 4.5


@pytest.mark.parametrize("high", [2, 3, 10, 1000])
def test_integers_are_uniform_below_their_bound(high: int):
    drawn = random.integers(keys(1, 2), 9, high, 100_000)
    assert drawn.min() == 0 and drawn.max() == high - 1
    for row in drawn:
        assert abs(chi_squared(row.bincount(minlength=high))) < 4.5


def test_integers_reach_all_of_a_wide_range():
    drawn = random.integers(keys(1), 0, 2**31, 10_000)[0].double() / 2**31
    assert drawn.min() >= 0 and drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 4.5 / (12 * 10_000) ** 0.5


# Different streams are independent


def correlation(a: Tensor, b: Tensor) -> float:
    return float(np.corrcoef(uniform(a).numpy(), uniform(b).numpy())[0, 1])


def test_streams_of_other_seeds_steps_and_purposes_are_uncorrelated():
    together = torch.stack([uniform(s) for s in streams().values()])
    found = torch.corrcoef(together).fill_diagonal_(0)
    assert found.abs().max() < 5.5 / together.shape[1] ** 0.5  # about 4000 pairs


def test_no_stream_is_a_shifted_copy_of_another():
    """No sequence of four numbers (64 bits) occurs twice in any of the streams."""
    runs = torch.cat([s.unfold(0, 4, 1).contiguous().view(torch.int64).flatten() for s in streams().values()])
    assert len(runs.unique()) == len(runs)


def test_the_two_halves_of_a_key_are_uncorrelated():
    pairs = random.stream_keys(range(2000), "drop")
    signs = (pairs < 0).double()
    assert abs(torch.corrcoef(signs.T)[0, 1]) < 4.5 / 2000**0.5
    assert len(pairs.unique(dim=0)) == 2000


def test_keys_do_not_confuse_their_parts():
    assert random.key(1, 23) != random.key(12, 3)
    assert random.key("a", "b") != random.key("ab")
    assert 0 <= random.key(5) < 2**63


# The numbers do not depend on how they are requested


@given(first=st.integers(0, 300), count=st.integers(1, 50), step=st.integers(0, 2**31 - 1))
@settings(max_examples=40, deadline=None)
def test_an_offset_gives_the_tail(first: int, count: int, step: int):
    for draw in (random.bits, lambda *a, **k: random.integers(*a[:2], 97, *a[2:], **k)):
        whole = draw(keys(4, 5), step, first + count)
        assert torch.equal(draw(keys(4, 5), step, count, first=first), whole[:, first:])


def test_replicas_draw_the_same_numbers_together_as_alone():
    together = random.bits(keys(*SEEDS), 17, 101)
    for row, seed in zip(together, SEEDS, strict=True):
        assert torch.equal(row, random.bits(keys(seed), 17, 101)[0])


@pytest.mark.parametrize("step", [0, 1, 2**31 - 1])
def test_a_step_may_be_a_number_or_a_tensor(step: int):
    as_tensor = torch.tensor(step, dtype=torch.int32)
    assert torch.equal(random.bits(keys(1), step, 20), random.bits(keys(1), as_tensor, 20))
    assert torch.equal(random.integers(keys(1), step, 7, 20), random.integers(keys(1), as_tensor, 7, 20))


def test_the_numbers_never_change():
    """Stored runs depend on them: a change here is a change of format."""
    assert random.key(0, "start", "embedding.weight") == 1325244070714662458
    assert random.bits(keys(0, 1), 3, 4).tolist() == [[10836, 27798, 23422, -2396], [23598, 13945, 27818, -12771]]


def test_generators_are_reproducible():
    drawn = torch.randn(5, generator=random.generator(7, "start", "x"))
    assert torch.equal(drawn, torch.randn(5, generator=random.generator(7, "start", "x")))
    assert not torch.equal(drawn, torch.randn(5, generator=random.generator(8, "start", "x")))
    assert not torch.equal(drawn, torch.randn(5, generator=random.generator(7, "start", "y")))
