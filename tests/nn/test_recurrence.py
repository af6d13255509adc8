"""Recurrences, compared with torch's own modules: alone and in a population, in pieces, with padding."""

from collections.abc import Callable

import pytest
import torch
from hosting import Host
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.nn.backends import Needs
from headway.nn.context import Context
from headway.nn.masks import Everything
from headway.nn.mingru import MinGruSpec, linear_scan
from headway.nn.positions import Positions
from headway.nn.recurrence import GruSpec, LstmSpec, Recurrence, RecurrenceSpec, RnnSpec
from headway.nn.seeding import seed
from headway.nn.taps import watch

D, H, B, T, R = 5, 4, 3, 7, 3
RNNS = {kind: RnnSpec(nonlinearity=kind, hidden=H) for kind in ("tanh", "relu", "sigmoid")}
GATED = {"gru": GruSpec(hidden=H), "lstm": LstmSpec(hidden=H)}
ALL: dict[str, RecurrenceSpec] = {**RNNS, **GATED, "mingru": MinGruSpec(hidden=H)}
THEIRS: dict[str, Callable[[], nn.RNNBase]] = {
    "tanh": lambda: nn.RNN(D, H, batch_first=True),
    "relu": lambda: nn.RNN(D, H, nonlinearity="relu", batch_first=True),
    "gru": lambda: nn.GRU(D, H, batch_first=True),
    "lstm": lambda: nn.LSTM(D, H, batch_first=True),
}


def context(x: Tensor, real: Tensor | None = None) -> Context:
    slots = torch.arange(x.shape[2])
    return Context(x.shape[:2], Positions(), Everything(), slots, slots, real)


def built(kind: str, randomised, replicas: int = R, **keys) -> Recurrence:
    spec = ALL[kind].model_copy(update=keys)
    made = spec.build(replicas, D, 1.0, Needs())
    host = Host(made, replicas)
    seed(host, list(range(replicas)))
    return randomised(made, std=0.5)


def stream(rows: int = B, length: int = T, replicas: int = R, number: int = 1) -> Tensor:
    return torch.randn(1, rows, length, D, generator=torch.Generator().manual_seed(number)).expand(replicas, -1, -1, -1)


def states(made: Recurrence, rows: int = B) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(5)
    replicas = len(made.along.input.weight)
    return {p: torch.rand(1, rows, H, generator=drawn).expand(replicas, -1, -1) for p in made.along.parts}


def all_real(x: Tensor) -> Tensor:
    """A mask without padding, with which the library kernel is not used."""
    return torch.ones(x.shape[:3], dtype=torch.bool)


def alone(made: Recurrence, r: int, randomised, kind: str, copied, **keys) -> Recurrence:
    return copied(built(kind, randomised, replicas=1, **keys), made, r)


# --- what they compute -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["library", "scan", "replicas"])
@pytest.mark.parametrize("kind", THEIRS)
def test_torchs_own_modules_give_the_same_outputs_states_and_gradients(kind: str, path: str, randomised):
    made, theirs = built(kind, randomised, replicas=1 if path != "replicas" else R), THEIRS[kind]()
    cells, r = made.along, len(made.along.recurrent) - 1
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(cells.input.weight[r])
        theirs.weight_hh_l0.copy_(cells.recurrent[r])
        theirs.bias_ih_l0.copy_(cells.input.bias[r])
        theirs.bias_hh_l0.zero_()
        if cells.reset_bias is not None:
            theirs.bias_hh_l0[-H:] = cells.reset_bias[r]
    x, first = stream(replicas=r + 1).clone().requires_grad_(), states(made)
    first = {name: tensor.clone().requires_grad_() for name, tensor in first.items()}
    with watch(made, "hidden") as seen:
        _, last = made(x, context(x, None if path == "library" else all_real(x)), first)
    hidden = seen["hidden"]
    given = tuple(first[name][r : r + 1].detach().clone().requires_grad_() for name in cells.parts)
    z = x[r].detach().clone().requires_grad_()
    expected, after = theirs(z, given if len(given) > 1 else given[0])
    torch.testing.assert_close(hidden[r], expected)
    for name, tensor in zip(cells.parts, after if len(given) > 1 else (after,), strict=True):
        torch.testing.assert_close(last[name][r], tensor[0])

    mix = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    (hidden[r] * mix).sum().backward()
    (expected * mix).sum().backward()
    torch.testing.assert_close(x.grad[r], z.grad)
    torch.testing.assert_close(cells.input.weight.grad[r], theirs.weight_ih_l0.grad)
    torch.testing.assert_close(cells.recurrent.grad[r], theirs.weight_hh_l0.grad)
    torch.testing.assert_close(cells.input.bias.grad[r], theirs.bias_ih_l0.grad)
    if cells.reset_bias is not None:
        torch.testing.assert_close(cells.reset_bias.grad[r], theirs.bias_hh_l0.grad[-H:])
    for name, tensor in zip(cells.parts, given, strict=True):
        torch.testing.assert_close(first[name].grad[r], tensor.grad[0])


@pytest.mark.parametrize("kind", ALL)
def test_gradients_equal_finite_differences(kind: str, randomised):
    made = built(kind, randomised, replicas=2).double()
    x, real = stream(rows=2, length=3, replicas=2).double(), torch.ones(2, 2, 3, dtype=torch.bool)
    real[:, 0, 0] = real[:, 1, 2] = False
    first = [tensor.double().clone().requires_grad_() for tensor in states(made, 2).values()]
    weights = {name: p.detach().clone().requires_grad_() for name, p in made.named_parameters()}

    def call(x, *given):
        state, own = dict(zip(made.along.parts, given, strict=False)), given[len(first) :]
        told = (x, context(x, real), state)
        y, last = torch.func.functional_call(made, dict(zip(weights, own, strict=True)), told)
        return y, *last.values()

    assert torch.autograd.gradcheck(call, (x.clone().requires_grad_(), *first, *weights.values()), fast_mode=True)


def test_a_linear_scan_equals_the_loop(randomised):
    keep, add = torch.rand(2, 3, 19, 4), torch.randn(2, 3, 19, 4)
    first = torch.randn(2, 3, 4)
    given = [tensor.double().requires_grad_() for tensor in (keep, add, first)]
    loop, hidden = [], given[2]
    for t in range(19):
        hidden = given[0][:, :, t] * hidden + given[1][:, :, t]
        loop.append(hidden)
    torch.testing.assert_close(linear_scan(*given), torch.stack(loop, 2))
    few = [tensor[:1, :1, :5] for tensor in given[:2]]
    assert torch.autograd.gradcheck(linear_scan, (*few, given[2][:1, :1]))


def test_a_mingru_keeps_its_precision_over_thousands_of_tokens():
    keep = torch.full((1, 1, 4096, 1), 0.01)
    hidden = linear_scan(keep, torch.ones_like(keep), torch.zeros(1, 1, 1))
    torch.testing.assert_close(hidden[0, 0, 10:, 0], torch.full((4086,), 1 / 0.99))
    forever = linear_scan(torch.ones_like(keep), torch.ones_like(keep), torch.zeros(1, 1, 1))
    assert forever[0, 0, -1, 0] == 4096


# --- replicas, pieces, padding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_each_of_three_replicas_is_the_same_as_alone(kind: str, randomised, copied, results, agree):
    made, x = built(kind, randomised), stream()
    together = results(made, lambda x: made(x, context(x), states(made))[0], x)
    for r in range(R):
        one = alone(made, r, randomised, kind, copied)
        agree(results(one, lambda x, one=one: one(x, context(x), states(one))[0], x[:1]), together, r)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", ALL)
def test_pieces_equal_a_single_pass(kind: str, replicas: int, randomised):
    made, x = built(kind, randomised, replicas), stream(replicas=replicas)
    whole, last = made(x, context(x))
    pieces, state = [], None
    for piece in x.split([1, 1, 3, 2], 2):
        y, state = made(piece, context(piece), state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 2), whole)
    for name, tensor in last.items():
        torch.testing.assert_close(state[name], tensor)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", ALL)
def test_padding_changes_nothing_wherever_it_is(kind: str, replicas: int, bidirectional: bool, randomised):
    made = built(kind, randomised, replicas, bidirectional=bidirectional)
    x, first = stream(rows=1, replicas=replicas), None if bidirectional else states(made, 1)
    plain, last = made(x, context(x), first)
    for before in range(4):
        filled = torch.full((replicas, 1, T + 3, D), 9.0)
        filled[:, :, before : before + T] = x
        real = torch.zeros(replicas, 1, T + 3, dtype=torch.bool)
        real[:, :, before : before + T] = True
        y, state = made(filled, context(filled, real), first)
        torch.testing.assert_close(y[:, :, before : before + T], plain)
        for name, tensor in (last or {}).items():
            torch.testing.assert_close(state[name], tensor)


def test_a_row_of_only_padding_keeps_the_state_and_has_finite_gradients(randomised):
    for kind in ALL:
        made, x = built(kind, randomised), stream().clone().requires_grad_()
        real = torch.ones(R, B, T, dtype=torch.bool)
        real[:, 1] = False
        y, last = made(x, context(x, real), states(made))
        y.sum().backward()
        assert torch.equal(last["hidden"][:, 1], states(made)["hidden"][:, 1])
        assert x.grad.isfinite().all() and not x.grad[:, 1].any()


@pytest.mark.parametrize("kind", ALL)
def test_under_autocast_the_state_stays_float32(kind: str, randomised):
    for replicas in (1, 2):
        made, x = built(kind, randomised, replicas), stream(replicas=replicas).clone().requires_grad_()
        plain, _ = made(x, context(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, last = made(x, context(x))
        y.float().sum().backward()
        assert {tensor.dtype for tensor in last.values()} == {torch.float32} and x.grad.isfinite().all()
        torch.testing.assert_close(y.float(), plain, atol=0.05, rtol=0.05)


# --- directions, sizes, initial values
# ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_two_directions_equal_two_recurrences_one_of_them_reversed(kind: str, randomised):
    made, x = built(kind, randomised, bidirectional=True), stream()
    with watch(made, "hidden") as seen:
        _, state = made(x, context(x))
    assert seen["hidden"].shape == (R, B, T, 2 * H)
    assert list(state) == list(made.spec.state_sizes(2 * H)) and made.carried(state) == {}
    torch.testing.assert_close(state["hidden"], seen["hidden"][:, :, -1, :H])
    torch.testing.assert_close(state["hidden_against"], seen["hidden"][:, :, 0, H:])
    first = torch.zeros(len(made.along.parts), R, B, H)
    torch.testing.assert_close(seen["hidden"][..., :H], made.along(x, first, None)[0])
    torch.testing.assert_close(seen["hidden"][..., H:], made.against(x.flip(2), first, None)[0].flip(2))


def test_hidden_sizes_and_the_output_map():
    def output(**keys):
        return LstmSpec(**keys).build(1, 6, 0.5, Needs()).output

    assert output() is None and output(hidden=6) is None and output(bidirectional=True) is None
    assert output(hidden=4).weight.shape == (1, 6, 4)
    assert output(hidden=6, bidirectional=True).weight.shape == (1, 6, 12)


def test_only_the_forget_gate_starts_with_a_bias():
    made = LstmSpec(forget_bias=2.0).build(2, 6, 1.0, Needs())
    seed(Host(made, 2), [0, 1])
    assert made.along.input.bias.view(2, 4, 6)[:, 1].eq(2).all()
    assert made.along.input.bias.view(2, 4, 6)[:, [0, 2, 3]].eq(0).all()
    wide = LstmSpec().build(1, 300, 1.0, Needs())
    seed(Host(wide, 1), [0])
    assert wide.along.recurrent.std().item() == pytest.approx(1 / 900**0.5, rel=0.02)


def test_gates_and_cells_can_be_watched_which_turns_the_library_kernel_off(randomised):
    made, x = built("lstm", randomised, replicas=1), stream(replicas=1)
    plain, last = made(x, context(x))
    with watch(made) as seen:
        y, _ = made(x, context(x))
    assert seen["along.gates"].shape == (1, B, T, 4 * H) and seen["along.cells"].shape == (1, B, T, H)
    torch.testing.assert_close(seen["along.cells"][:, :, -1], last["cell"])
    torch.testing.assert_close(y, plain)


def test_a_state_of_another_batch_is_refused_with_a_message(randomised):
    made, x = built("lstm", randomised), stream()
    with pytest.raises(UserError, match=r"for 3 replicas and 2 rows; .* 3 replicas and 3 rows"):
        made(x, context(x), states(made, rows=2))


def test_weight_dropout_is_constant_within_a_step_and_off_in_evaluation(randomised):
    made, x = built("lstm", randomised, weight_dropout=0.5), stream()
    cells = made.train().along
    dropped = cells.drop(cells.recurrent)
    share = (dropped == 0).float().mean((1, 2))
    assert ((share > 0.25) & (share < 0.75)).all() and torch.equal(dropped, cells.drop(cells.recurrent))
    assert not torch.equal(dropped[0] == 0, dropped[1] == 0)
    y, _ = made(x, context(x))
    with torch.no_grad():
        kept = cells.recurrent.clone()
        cells.recurrent.copy_(dropped)
        made.eval()
        torch.testing.assert_close(made(x, context(x))[0], y)
        cells.recurrent.copy_(kept)
    cells.drop.clock.set(1)
    assert not torch.equal(made.train().along.drop(cells.recurrent), dropped)
