"""Constructions are real layers, compared with torch's own convolutions and poolings."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headway.core.errors import UserError
from headway.nn.attention import Attention
from headway.solve import convolution, max_pool, mean_pool, shift
from headway.solve.relative import max_pool_as_reported, max_pool_bound


def sequence(length: int, channels: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(length, channels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(ours: torch.Tensor, theirs: torch.Tensor, within: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=within)


# --- convolutions ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    taps=st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.0, 1.0, 3.0]), min_size=1, max_size=6),
    centre=st.integers(0, 5),
    channels=st.integers(1, 3),
    length=st.integers(1, 9),
)
def test_a_convolution_equals_torchs(taps, centre, channels, length):
    assume(any(taps))
    centre %= len(taps)
    x = sequence(length, channels)
    padded = F.pad(x.T[:, None], (centre, len(taps) - 1 - centre))
    kernel = torch.tensor(taps, dtype=torch.float64)[None, None]
    made = convolution(taps, centre, channels)
    close(made(x), F.conv1d(padded, kernel)[:, 0].T)
    close(made.direct(x), F.conv1d(padded, kernel)[:, 0].T)
    assert made.worst_error(trials=4) < 1e-14


def test_the_kernel_2_0_1_of_the_case():
    """W_Q = W_K = 0, W_V = 3, biases ln 2 and 0: y_i = 2 x_{i-1} + x_{i+1}."""
    made = convolution([2, 0, 1])
    assert isinstance(made.layer, Attention)
    weight = made.layer.project.together.weight[0, :, 0].tolist()
    assert weight == [0, 0, 3]
    assert made.positions.table.tolist() == [[math.log(2), -math.inf, 0]]
    close(made(torch.tensor([[1.0], [10], [100]])), torch.tensor([[10.0], [102], [20]]), 1e-5)


def test_without_zero_padding_the_softmax_would_normalise_over_fewer_keys():
    import dataclasses

    made = convolution([2, 0, 1])
    bare = dataclasses.replace(made, zeros=(0, 0))
    x = sequence(5, 1)
    close(bare(x)[1:-1], made(x)[1:-1])
    close(bare(x)[0], 3 * x[1])  # and not 1 · x[1]


def test_taps_of_both_signs_need_two_heads_and_of_one_sign_one():
    assert convolution([-1, 0, 1], channels=2).as_json()["heads"] == 2
    assert convolution([-1, 0, 1], channels=2).as_json()["width"] == 4
    assert convolution([-1, 0, -3], channels=2).as_json()["heads"] == 1


@pytest.mark.parametrize("by", [-7, -1, 0, 1, 2, 7])
def test_a_shift(by):
    x = sequence(5, 2)
    moved = torch.zeros_like(x)
    for i in range(5):
        if 0 <= i - by < 5:
            moved[i] = x[i - by]
    close(shift(by, 2)(x), moved)


# --- pooling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "centre"), [(1, None), (3, None), (4, 0), (4, 3), (5, 1)])
@pytest.mark.parametrize("length", [1, 2, 8])
def test_pooling_at_the_ends_is_over_existing_tokens(window, centre, length):
    x = sequence(length, 2)
    centre_at = window // 2 if centre is None else centre
    parts = [x[max(0, i - centre_at) : i - centre_at + window] for i in range(length)]
    close(mean_pool(window, centre, 2)(x), torch.stack([p.mean(0) for p in parts]))
    made = max_pool(window, centre, 2, within=1e-4)
    close(made(x), torch.stack([p.max(0).values for p in parts]), 1.00001e-4)


def test_pooling_inside_equals_torchs():
    x = sequence(12, 3)
    close(mean_pool(3, channels=3)(x)[1:-1], F.avg_pool1d(x.T, 3, 1).T)
    close(max_pool(3, channels=3, within=1e-6)(x)[1:-1], F.max_pool1d(x.T, 3, 1).T, 1.00001e-6)


@settings(max_examples=50, deadline=None)
@given(
    gaps=st.lists(st.floats(0, 20), min_size=1, max_size=8),
    top=st.floats(-50, 50),
    scale=st.sampled_from([0.5, 1.0, 30.0]),
)
def test_no_input_exceeds_the_bound(gaps, top, scale):
    x = torch.tensor([top, *(top - gap / scale for gap in gaps)], dtype=torch.float64)
    error = float(x.max() - (x * scale).softmax(0) @ x)
    assert error <= max_pool_bound(len(x), scale) + 1e-12


@pytest.mark.parametrize("window", [2, 3, 9])
def test_the_bound_is_reached(window):
    made = max_pool(window, centre=0, within=0.01)
    W = max_pool_bound(window, 1.0)
    scale = W / 0.01
    x = torch.full((window, 1), -(1 + W) / scale, dtype=torch.float64)
    x[0] = 0
    assert float(-made(x)[0, 0]) == pytest.approx(0.01, rel=1e-9)
    assert math.log(window) >= W  # the bound that follows from the entropy alone


def test_the_reported_formula_fails_for_negative_inputs():
    x = torch.tensor([[2.0], [-1.0], [2.0]], dtype=torch.float64)
    reported, right = max_pool_as_reported(3, None, 100.0), max_pool(3)
    close(right(x), torch.full((3, 1), 2.0, dtype=torch.float64), 1e-3)
    # in the middle it gives the minimum
    close(reported(x), torch.tensor([[2.0], [-1.0], [2.0]], dtype=torch.float64), 1e-3)
    close(reported(x.abs()), right(x.abs()), 1e-3)
    assert any("it gives −1 at position 1, where the maximum is 2" in line for line in right.derivation)


def test_large_and_negative_inputs():
    x = 1e4 * sequence(30, 1) - 3e4
    made = max_pool(5, within=1e-3)
    close(made(x), made.direct(x), 1.001e-3)


# --- output and errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [convolution([2, 0, 1]), convolution([1, -1], 0), shift(2), mean_pool(3), max_pool(3)])
def test_as_json(made):
    found = json.loads(json.dumps(made.as_json(), allow_nan=False))
    assert found["worst_error"] <= max(1e-14, found["bound"])
    assert "Checked on 20 random inputs" in found["derivation"][-1]


def test_taps_that_float32_cannot_represent():
    assert convolution([0.1, 0.2, -0.4]).worst_error() < 1e-14
    assert convolution([1e60, 1e60, 1e60])(torch.ones(1, 1, dtype=torch.float64)).item() == pytest.approx(1e60)


def test_a_layer_that_gives_nan_is_not_right():
    made = convolution([1, 2, 1])
    with torch.no_grad():
        made.layer.output.weight.fill_(math.nan)
    assert math.isnan(made.worst_error())


def test_float32_input_gives_float32_output():
    assert mean_pool(3)(torch.randn(4, 1)).dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: convolution([1, 2]),
            "a kernel of 2 taps has no middle one: set centre to the one at the position itself, 0 to 1",
        ),
        (lambda: convolution([1, 2], centre=2), "centre 2 is outside the kernel; its taps are numbered 0 to 1"),
        (lambda: convolution([0, 0, 0]), "all zeros"),
        (lambda: convolution([]), "empty"),
        (lambda: convolution([1, math.nan, 1]), "the kernel contains nan"),
        (lambda: convolution([1], channels=0), "channels = 0; it must be between 1 and 1,024"),
        (lambda: convolution([1e308] * 3), "the taps are too large for float64"),
        (lambda: shift(5000), "Shift by 5000 needs 5,000 zero vectors beyond the ends"),
        (lambda: max_pool(3, within=1e-40), "within = 1e-40 needs queries of"),
        (lambda: mean_pool(4), "a window of 4 slots has no middle one"),
        (lambda: mean_pool(0), "a window of 0; it must be 1 or more"),
        (lambda: max_pool(3, within=0), "within = 0; it must be above 0"),
        (lambda: shift(1)(torch.zeros(3, 2)), "the input has the shape [3, 2]; expected [tokens, 1]"),
        (lambda: shift(1)(torch.zeros(0, 1)), "the input has the shape [0, 1]; expected [tokens, 1]"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(UserError) as error:
        make()
    assert message in str(error.value)
