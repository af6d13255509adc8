"""Attention as a matrix, compared with the layer itself."""

import json

import pytest
import torch

from headway.core.errors import UserError
from headway.nn.attention import AttentionSpec
from headway.nn.backends import Needs
from headway.nn.heads import Shift
from headway.nn.masks import Causal, Everything, Window
from headway.nn.positions import Positions, Rotary
from headway.solve import as_matrix, convolution, fixed_layer, max_pool
from headway.solve.kronecker import context_of, run_layer, stacked
from headway.solve.replacement import layer_of, random_layer

ROTARY = Rotary().build(1, 4, 2, 16)
PLAIN = Positions()


def tokens(length: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(length, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_both_stackings_of_a_simple_mixture():
    A = torch.tensor([[0.5, 0.5, 0], [0.1, 0.2, 0.7], [0, 0, 1]], dtype=torch.float64)
    X = tokens(3, 4)
    rows, columns = stacked(A, 4, "rows"), stacked(A, 4, "columns")
    torch.testing.assert_close(rows @ X.flatten(), (A @ X).flatten())
    torch.testing.assert_close(columns @ X.T.flatten(), (A @ X).T.flatten())
    torch.testing.assert_close(rows, torch.kron(A, torch.eye(4, dtype=A.dtype)))
    torch.testing.assert_close(columns, torch.kron(torch.eye(4, dtype=A.dtype), A))
    assert rows.shape == (12, 12) != A.shape


@pytest.mark.parametrize("stacking", ["rows", "columns"])
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize(("positions", "mask"), [(None, None), (None, Causal()), (ROTARY, Window(2))])
def test_the_matrix_of_a_real_layer(stacking, heads, positions, mask):
    layer, x = random_layer(4, heads), tokens(5, 4)
    positions = positions and Rotary().build(1, 4, heads, 16) if heads < 4 else None
    found = as_matrix(layer, x, positions, mask, stacking)
    assert found.misfit < 1e-13
    assert found.weights.shape == (heads, 5, 5)
    assert found.moved > 0.01  # M is not the derivative
    if positions is not None:
        return  # rotary positions compute in float32, which is too coarse for the following
    # The Jacobian is the derivative: it predicts the change of Y after a small step.
    step = 1e-6 * tokens(5, 4, 1)
    context = context_of(x, positions or PLAIN, mask or Everything())
    moved = run_layer(layer, x + step, context) - run_layer(layer, x - step, context)
    flat = (lambda t: t.flatten()) if stacking == "rows" else (lambda t: t.T.flatten())
    torch.testing.assert_close(found.jacobian @ flat(step), flat(moved).detach() / 2, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("length", [2, 6])
@pytest.mark.parametrize("positions", [PLAIN, ROTARY])
def test_attention_that_depends_on_its_input_cannot_be_replaced(length, positions):
    layer = random_layer(4, 2)
    answer = fixed_layer(layer, length, positions)
    assert answer.verdict == "irreplaceable" and answer.matrix_change > 0.01
    one, two = answer.inputs
    context = context_of(one, positions, Everything())

    def f(x):
        return run_layer(layer, x, context).detach()

    # On one of the three points, the best fixed layer, like any other, is wrong by at least the gap.
    bend = (f((one + two) / 2) - (f(one) + f(two)) / 2).abs().max()
    assert float(bend) == pytest.approx(2 * answer.gap)
    points = torch.stack([one.flatten(), two.flatten(), (one + two).flatten() / 2])
    values = torch.stack([f(p.view(length, 4)).flatten() for p in points])
    design = torch.cat([points, torch.ones(3, 1, dtype=points.dtype)], 1)
    best = torch.linalg.lstsq(design, values, driver="gelsd").solution
    for fixed in (best, torch.zeros_like(best), best + 0.1 * tokens(*best.shape)):
        assert float((design @ fixed - values).abs().max()) >= answer.gap - 1e-12


def test_attention_that_ignores_its_input_can_be_replaced():
    layer = random_layer(4, 2, blind=True)
    answer = fixed_layer(layer, 5)
    assert answer.verdict == "replaceable" and answer.gap == 0 and answer.matrix_change < 1e-12
    context = context_of(tokens(5, 4), PLAIN, Everything())
    for seed in range(5):
        x = 10 * tokens(5, 4, seed)
        y = answer.here.matrix @ x.flatten() + answer.here.constant
        torch.testing.assert_close(y.view(5, 4), run_layer(layer, x, context).detach())


@torch.no_grad()
def test_when_a_layer_is_fixed():
    def verdict(change, **settings):
        layer = random_layer(4, 2)
        change(dict(layer.named_parameters()))
        return fixed_layer(layer, 4, **settings).verdict

    def zero(rows, biases=True):
        def change(weights):
            weights["project.together.weight"][0, rows] = 0
            if biases:
                weights["project.together.bias"][0, rows] = 0

        return change

    queries, keys, values = slice(0, 4), slice(4, 8), slice(8, 12)
    assert verdict(zero(queries)) == "replaceable"
    assert verdict(zero(queries, biases=False)) == "irreplaceable"  # a constant query still depends on the keys
    assert verdict(zero(keys, biases=False)) == "replaceable"  # the same score for all keys
    assert verdict(zero(values)) == "replaceable"
    assert verdict(zero(slice(0, 2))) == "irreplaceable"  # one head of two
    assert verdict(zero(queries), positions=ROTARY) == "replaceable"
    assert verdict(lambda weights: None, mask=Window(1)) == "replaceable"  # each token sees only itself
    assert verdict(lambda weights: None, mask=Causal()) == "irreplaceable"


def test_a_single_token_is_only_projected():
    assert fixed_layer(random_layer(4, 2), 1).verdict == "replaceable"


def test_a_convolution_is_a_fixed_layer_and_a_maximum_is_not():
    linear, largest = convolution([1, -2, 1], channels=2), max_pool(3, channels=2)
    assert fixed_layer(linear.layer, 5, linear.positions).verdict == "replaceable"
    assert fixed_layer(largest.layer, 5, largest.positions).verdict == "irreplaceable"


def test_heads_that_cancel_are_left_undecided():
    layer = random_layer(2, 2)
    with torch.no_grad():
        weights = dict(layer.named_parameters())
        for k in range(3):  # two equal heads
            weights["project.together.weight"][0, 2 * k + 1] = weights["project.together.weight"][0, 2 * k]
            weights["project.together.bias"][0, 2 * k + 1] = weights["project.together.bias"][0, 2 * k]
        weights["output.weight"][0, :, 1] = -weights["output.weight"][0, :, 0]  # with opposite signs
    assert fixed_layer(layer, 4).verdict == "undecided"


def test_parameters_are_counted():
    answer = fixed_layer(random_layer(4, 2), 3)
    assert answer.parameters == {"attention": 4 * 16 + 4 * 4, "fully_connected": 12 * 12 + 12}
    found = json.loads(json.dumps(answer.as_json(), allow_nan=False))
    assert found["verdict"] == "irreplaceable" and len(found["matrix"]) == 12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: stacked([[0.5, 0.5]], 2, "rows"),
            "attention weights must be square, one row per query, not 1 × 2",
        ),
        (lambda: stacked([[0.5, 0.4], [0, 1]], 2, "rows"), "the weights of query 0 sum to 0.9, not to 1"),
        (lambda: stacked([[0.5, 0.5], [0, 1]], 0, "rows"), "width = 0; it must be 1 or more"),
        (lambda: stacked([[0.5, 0.5], [0, float("nan")]], 2, "rows"), "the weights of query 1 have nan for key 1"),
        (lambda: random_layer(4, 0), "a width of 4 cannot be divided among 0 heads"),
        (lambda: random_layer(5, 2), "a width of 5 cannot be divided among 2 heads"),
        (lambda: fixed_layer(random_layer(4, 2), 0), "tokens = 0; it must be 1 or more"),
        (
            lambda: fixed_layer(AttentionSpec(heads=2, fusion=Shift()).build(1, 4, 1.0, Needs()), 3),
            "concatenate its heads",
        ),
        (lambda: fixed_layer(AttentionSpec(heads=2).build(2, 4, 1.0, Needs()), 3), "with one replica"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(UserError) as error:
        make()
    assert message in str(error.value)


def test_a_layer_of_given_matrices():
    """One head scores x_i0·x_j0, so the weights depend on the input; with W_Q on other channels than W_K they do
    not."""
    zero, first, second = [[0, 0], [0, 0]], [[1, 0], [0, 0]], [[0, 0], [0, 1]]
    assert fixed_layer(layer_of({"queries": first, "keys": first}, heads=1), 3).verdict == "irreplaceable"
    assert fixed_layer(layer_of({"queries": first, "keys": second}, heads=1), 3).verdict == "replaceable"
    assert fixed_layer(layer_of({"values": zero}, heads=2), 3).verdict == "replaceable"
    layer, x = layer_of({"values": [[1, 2], [3, 4]]}, heads=1), tokens(3, 2)
    scores = x @ x.T / 2**0.5
    torch.testing.assert_close(
        run_layer(layer, x, context_of(x, PLAIN, Everything())),
        torch.softmax(scores, -1) @ x @ torch.tensor([[1.0, 2], [3, 4]], dtype=torch.float64).T,
    )


@pytest.mark.parametrize(
    "queries",
    [[[1e6, 0], [0, 1e-7]], [[0, 0], [0, 1e-200]]],
)
def test_a_small_score_is_not_taken_for_a_rounding_error_of_another_head(queries):
    """Head 0 has large scores but zero values; head 1 depends on its input, if only slightly."""
    layer = layer_of({"queries": queries, "keys": [[1e6, 0], [0, 1]], "values": [[0, 0], [0, 1]]}, heads=2)
    assert fixed_layer(layer, 3).verdict != "replaceable"
