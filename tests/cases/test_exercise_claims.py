"""The exercises of the library: the ruling of each claim, and that a wrong answer planted in its place is caught."""

import math

import numpy as np
import pytest
import torch

from headway.cases.catalogue import load_case
from headway.cases.exercise import Exercise, WorkedExercise, work_out
from headway.cases.library import B1, B2, D1, D2, D3, E1
from headway.solve import max_pool
from headway.solve.kronecker import stacked
from headway.solve.relative import max_pool_as_reported

FEW = 12


@pytest.fixture(scope="module")
def worked() -> dict[str, WorkedExercise]:
    found = {}
    for name in ("B1", "B2", "D1", "D2", "D3", "E1"):
        exercise = load_case(name, True)
        assert isinstance(exercise, Exercise)
        found[name] = work_out(exercise, FEW)
    return found


@pytest.mark.parametrize(
    "name, standings",
    [
        ("B1", ["holds", "does not hold", "does not hold", "does not hold", "holds"]),
        ("B2", ["holds"]),
        ("D1", ["holds", "holds"]),
        ("D2", ["holds"]),
        ("D3", ["does not hold"]),
        ("E1", ["does not hold", "does not hold"]),
    ],
)
def test_the_rulings_of_the_claims(worked, name, standings):
    found = worked[name]
    assert [ruling.status for ruling in found.rulings] == standings
    for finding in (*found.rulings, *found.answers):
        assert finding.why and finding.reached and "nan" not in finding.why
        assert all("<img" in figure.picture or "<svg" in figure.picture for figure in finding.figures)
    assert any(ruling.derivation for ruling in (*found.rulings, *found.answers))


# --- B1 --------------------------------------------------------------------------------------------------------------


def reaches(of: str, outcome: WorkedExercise) -> dict[str, str]:
    return next(vars(row) for found in (*outcome.rulings, *outcome.answers) for row in found.reached if row.of == of)


def test_a_query_reaches_what_least_squares_misses(worked):
    assert reaches("average 2 of 64, width 16", worked["B1"])["reported"].startswith("0 %")
    assert reaches("select 1 of 64, width 16", worked["B1"])["headway"].startswith("100 %")
    assert "undecided" not in str([row for ruling in worked["B1"].rulings for row in ruling.reached])


def test_a_planted_query_is_caught():
    def nearly(keys, wanted):
        return B1.least_squares(keys, wanted, factor=5.0)

    assert B1.where_independent(FEW, nearly).status == "does not hold"
    assert B1.three_is_enough(FEW, factor=15.8).status == "holds"
    assert B1.zeros_average(FEW, lambda keys, wanted: np.full(keys.shape[1], 1e-6)).status == "does not hold"


def test_headways_own_queries_hold_where_the_reports_do_not():
    def ours(keys, wanted):
        return B1.find_query(keys, wanted, B1.WITHIN / 2).query

    assert B1.for_any_keys(FEW, ours).status == "holds"
    assert B1.makes_the_identity(FEW, ours).status == "holds"


def test_a_certificate_is_verified():
    """A key between two others cannot be selected; a wrong mixture, or a corner, proves nothing."""
    keys, wanted = np.array([[0.0], [1.0], [-1.0]]), np.array([1.0, 0.0, 0.0])

    assert B1.refutes(keys, wanted, np.array([1 / 3, 1 / 3, 1 / 3]))
    assert not B1.refutes(keys, wanted, np.array([0.2, 0.6, 0.2]))  # has another mean
    assert not B1.refutes(keys, wanted, np.array([1.0, 0.0, 0.0]))  # no more uniform than what is wanted
    assert not B1.refutes(keys, wanted, np.array([2.0, -0.5, -0.5]))  # not a mixture
    assert B1.refuted(B1.find_query(keys, wanted)) and not B1.refuted(B1.find_query(keys, wanted[[1, 0, 2]]))


# --- B2 --------------------------------------------------------------------------------------------------------------


def test_a_key_other_than_a_copy_is_caught():
    assert B2.copy_averages_three(FEW, lambda keys, query: keys[1]).status == "holds"  # the other key works as well
    assert B2.copy_averages_three(FEW, lambda keys, query: (keys[0] + keys[1]) / 2).status == "holds"
    assert B2.copy_averages_three(FEW, lambda keys, query: 1.01 * keys[0]).status == "does not hold"


def test_the_best_weight_of_a_unit_key_equals_that_of_a_search():
    keys = np.eye(4, 8)
    query = B2.least_squares(keys, B2.average([0, 1], 4), 3.0)
    rng = np.random.default_rng(0)
    tried = rng.normal(size=(20_000, 8)) * [1, 1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    tried /= np.linalg.norm(tried, axis=1, keepdims=True)
    scores = np.concatenate([np.tile(np.delete(keys @ query, 2), (len(tried), 1)), (tried @ query)[:, None]], axis=1)
    best = float((np.exp(scores[:, 3]) / np.exp(scores).sum(1)).max())
    bound = 1 / (1 + (2 * math.exp(3) + 1) / math.exp(3 * math.sqrt(2)))
    assert best <= bound and bound - best < 0.01
    assert float(B2._orthogonal("length 1", 1.0, 3.0, 5).headway) == pytest.approx(bound, abs=1e-4)


def test_the_smallest_factor_that_selects_it():
    at = B2._smallest_factor(90)
    assert 1 - B2._weight(at, 90) == pytest.approx(B2.WITHIN, rel=1e-6)
    assert B2._weight(50, 0) == pytest.approx(1 / 3)


# --- D1 --------------------------------------------------------------------------------------------------------------


def test_bounds_that_are_too_low_are_caught():
    assert D1.rnn_keeps_to(FEW, D1.NORM / 5).status == "does not hold"  # as if the sigmoid's steepest slope were 1/5
    assert D1.rnn_keeps_to(FEW, D1.NORM).status == "holds"  # true, but not the best bound

    def of_means(weights):
        return [bound / 2 for bound in D1.product_of_norms(weights)]

    assert D1.chain_keeps_to(FEW, of_means).status == "does not hold"


def test_both_bounds_are_met(worked):
    shares = {row.of: row.headway for row in worked["D1"].answers[0].reached}
    assert shares["sigmoid, 2 units at rest, n = 8"] == shares["sigmoid, 1 unit, bias −1/8, n = 8"] == "1"
    assert shares["ReLU, W = 3·I, x > 0, n = 8"] == "1" and shares["ReLU, W = 3·I, x < 0, n = 8"] == "0"


# --- D2 and D3 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "biases, value",
    [((2.0, -math.inf, 1.0), 3.0), ((math.log(2), -math.inf, 0.0), 1.0), ((0.0, -math.inf, math.log(2)), 3.0)],
    ids=["the taps themselves as biases", "W_V = I", "the kernel turned round"],
)
def test_a_wrong_convolution_is_caught(biases, value):
    assert D2.computes_the_convolution(5, lambda c: D2.as_reported(c, biases, value)).status == "does not hold"


def test_the_direct_convolution_on_an_example():
    x = torch.tensor([[1.0], [10.0], [100.0], [1000.0]], dtype=torch.float64)
    assert D2.direct(x)[:, 0].tolist() == [10.0, 102.0, 1020.0, 200.0]


def test_a_layer_that_computes_the_maximum_holds():
    assert D3.is_the_maximum(FEW, lambda window: max_pool(window, within=1e-3)).status == "holds"
    assert D3.is_the_maximum(FEW, lambda window: max_pool_as_reported(window, scale=1e4)).status == "does not hold"


def test_the_bound_is_met_by_the_worst_input(worked):
    rows = [
        row for found in worked["D3"].answers for row in found.reached if row.quantity == "error on the worst input"
    ]
    assert len(rows) == 2 and all(float(row.headway) == pytest.approx(D3.BOUND, rel=1e-2) for row in rows)


# --- E1 --------------------------------------------------------------------------------------------------------------


def test_the_kronecker_product_holds_in_the_right_order_only():
    assert E1.is_the_matrix(FEW, lambda A, width: stacked(A, width, "columns")).status == "holds"
    swapped = E1.is_the_matrix(FEW, lambda A, width: stacked(A, width, "rows"))
    assert swapped.status == "does not hold"
    assert all(float(row.reported) > 0.1 for row in swapped.reached if "width 1" not in row.of)


def test_the_misfit_of_a_matrix():
    A, x = E1.instance(3, 2, 0)
    assert E1.misfit(lambda A, width: torch.block_diag(A, A), A, x) < 1e-14
    assert E1.misfit(lambda A, width: torch.block_diag(A, A), A, x, "rows") > 0.01
    assert E1.misfit(E1.as_reported, A, x) == math.inf


def test_layers_that_ignore_their_input_can_be_replaced():
    assert E1.can_be_replaced(FEW, blind=True).status == "holds"
