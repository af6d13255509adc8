"""GPU kernels compared with their plain definitions: here simulated on a CPU, in tests/cuda on a GPU."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.core import random
from headway.nn import cross_entropy
from headway.nn.kernels import fused, fused_adamw, fused_loss, fused_norm, launching, products, trusted

CPU = torch.device("cpu")
FLOAT, BF16 = torch.float32, torch.bfloat16
CHECKS = {name: getattr(fused, f"check_{name}") for name in ("activate", "dropout", "rotate")}
CHECKS |= {"norm": fused_norm.check_norm, "loss": fused_loss.check_loss}
CHECKS |= {"adamw": fused_adamw.check_adamw, "product": products.check_product}
CASES = [
    ("norm", (48, FLOAT, None, BF16, True, True, 1e-5)),
    ("norm", (17, FLOAT, None, FLOAT, True, False, 1e-5)),
    ("norm", (100, FLOAT, None, BF16, False, False, 1e-6)),
    ("norm", (300, BF16, None, BF16, True, True, 1e-5)),
    ("norm", (48, FLOAT, (FLOAT, True, False), FLOAT, True, True, 1e-5)),
    ("norm", (300, FLOAT, (BF16, True, True), BF16, True, False, 1e-5)),
    ("norm", (17, FLOAT, (FLOAT, False, True), FLOAT, False, False, 1e-6)),
    ("norm", (64, BF16, (BF16, False, False), BF16, True, True, 1e-5)),
    *(("activate", (64, FLOAT, kind)) for kind in fused.NONLINEARITIES),
    ("activate", (300, BF16, "gelu")),
    ("dropout", (FLOAT, True)),
    ("dropout", (BF16, False)),
    ("rotate", (3, 16, FLOAT)),
    ("rotate", (2, 8, BF16)),
    ("loss", (FLOAT, 128, False)),
    ("loss", (BF16, 1024, True)),
    ("loss", (BF16, 4096, False)),
    ("loss", (FLOAT, 64, True)),
    *(("adamw", (count,)) for count in fused_adamw.COUNTS),
    *(("product", (BF16, several, biased)) for several, biased in ((False, True), (False, False), (True, False))),
]


@pytest.mark.parametrize(("operation", "case"), CASES, ids=str)
def test_a_kernel_equals_its_plain_definition(kernels, operation, case):
    off = CHECKS[operation](CPU, *case)
    assert off <= (1e-2 if "bfloat16" in str(case) else 1e-5)
    if operation == "dropout":
        assert off == 0


@pytest.mark.parametrize("width", [64, 1024, 10_048, 16_384, 16_448, 50_304])
def test_the_loss_kernel_that_is_checked_is_the_one_that_is_used(kernels, monkeypatch, width):
    """The kernel for large vocabularies processes larger pieces."""
    sizes, run = [], kernels.loss_and_slope.function

    def noted(*given):
        sizes.append(given[-2:])
        run(*given)

    monkeypatch.setattr(kernels.loss_and_slope, "function", noted)
    logits, targets = torch.zeros(1, 1, width), torch.zeros(1, 1, dtype=torch.long)
    fused_loss.loss_and_slope(logits, targets, torch.ones(1, 1), width, 0.0)
    used = {*sizes}
    sizes.clear()
    fused_loss.check_loss(CPU, FLOAT, fused_loss._piece(width), False)
    assert {*sizes} == used


X, BIAS = torch.linspace(-2, 2, 96).view(2, 2, 3, 8), torch.linspace(-1, 1, 16).view(2, 8)
ONCE = {
    "activate": lambda x: fused._Activate.apply(x, BIAS, "gelu"),
    "dropout": lambda x: fused._Dropped.apply(x, *fused.example_mask(CPU)),
    "rotate": lambda x: fused._Rotated.apply(x[:, :, None], torch.arange(3), torch.ones(4)),
    "norm": lambda x: fused_norm._SumAndNorm.apply(x, None, None, None, BIAS, None, 1e-5, True, FLOAT)[1],
    "product": lambda x: products._Product.apply(x, *(torch.eye(8).expand(2, 8, 8), None) * 2),
    "loss": lambda x: cross_entropy._FusedCrossEntropy.apply(
        x.flatten(1, 2), torch.ones(2, 70, 8), torch.arange(12).view(2, 6), None, None, 0.0, FLOAT
    ),
}


@pytest.mark.parametrize("operation", ONCE)
def test_gradients_of_kernels_cannot_be_differentiated_again(kernels, operation):
    """Nor is a gradient without a graph returned, as by torch's `once_differentiable` if the incoming gradient is a
    constant."""
    x = X.clone().requires_grad_()
    total = ONCE[operation](x).sum()
    (gradient,) = torch.autograd.grad(total, x, retain_graph=True)
    assert gradient.isfinite().all() and not gradient.requires_grad
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(total, x, create_graph=True)


def test_nan_stays_nan_within_its_row(kernels):
    """A kernel whose maximum ignores NaN would hide that training has diverged."""
    for lost in (torch.nan, torch.inf, -torch.inf):
        x = X.clone()
        x[1, 0, 1, 2] = lost
        for compute, plain in (
            (lambda x: fused._Activate.apply(x, BIAS, "relu"), lambda x: fused.plain_activate(x, BIAS, "relu")),
            (lambda x: fused._Activate.apply(x, BIAS, "silu"), lambda x: fused.plain_activate(x, BIAS, "silu")),
            (
                ONCE["norm"],
                lambda x: fused_norm.plain_sum_and_norm(x, None, None, None, BIAS, None, 1e-5, True, FLOAT)[1],
            ),
        ):
            torch.testing.assert_close(compute(x), plain(x), equal_nan=True, atol=1e-5, rtol=1e-4)
        logits, targets, shares = torch.cat([x.flatten(1, 2)] * 8, 2), torch.arange(12).view(2, 6), torch.ones(2, 6)
        expected = fused_loss.plain_loss_and_slope(logits, targets, shares, 61, 0.0)
        found = fused_loss.loss_and_slope(logits, targets, shares, 61, 0.0), logits[..., :61]
        torch.testing.assert_close(found[0], expected[0], equal_nan=True)
        torch.testing.assert_close(found[1], expected[1][..., :61], equal_nan=True)


@given(
    R=st.integers(1, 5), N=st.integers(1, 40), D=st.integers(1, 300), kind=st.sampled_from([*fused.NONLINEARITIES]),
    seed=st.integers(0, 99), scattered=st.booleans(),
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_nonlinearities_equal_their_definitions_in_float64(kernels, R, N, D, kind, seed, scattered):
    draw = torch.Generator().manual_seed(seed)
    x, bias = torch.randn(R, D, N, 1, generator=draw) * 3, torch.randn(R, D, generator=draw)
    x = x.transpose(1, 3) if scattered else x.transpose(1, 3).contiguous()
    slope, found = torch.randn(x.shape, generator=draw), []
    for compute, dtype in (
        (fused._Activate.apply, FLOAT),
        (lambda x, b, k: fused.NONLINEARITIES[k](x + b[:, None, None]), torch.float64),
    ):
        mine = [t.to(dtype).detach().requires_grad_() for t in (x, bias)]
        y = compute(*mine, kind)
        y.backward(slope.to(dtype))
        found.append([t.float() for t in (y.detach(), *(t.grad for t in mine))])
    torch.testing.assert_close(found[0], found[1], atol=2e-4, rtol=1e-4)


@given(
    R=st.integers(1, 5), N=st.integers(1, 9), V=st.integers(2, 200), seed=st.integers(0, 99),
    scale=st.sampled_from([1e-3, 1.0, 10.0]), smoothing=st.sampled_from([0.0, 0.1]), some=st.booleans(),
    piece=st.sampled_from([16, 64, 1024]),
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_a_loss_equals_that_in_float64(kernels, monkeypatch, R, N, V, seed, scale, smoothing, some, piece):
    monkeypatch.setattr(fused_loss, "PIECES", (piece, piece))  # whole pieces of a row, and a part of one
    draw = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=draw) * scale for shape in ((R, N, 6), (R, V, 6), (R, V))]
    targets = torch.randint(V, (R, N), generator=draw)
    counted, found = torch.rand(R, N, generator=draw) < 0.7 if some else None, []
    for dtype in (FLOAT, torch.float64):
        x, weight, bias = (t.to(dtype).detach().requires_grad_() for t in tensors)
        if dtype == FLOAT:
            nats = cross_entropy._FusedCrossEntropy.apply(x, weight, targets, bias, counted, smoothing, FLOAT)
        else:
            rows = (x @ weight.mT + bias[:, None]).flatten(0, 1)
            each = torch.nn.functional.cross_entropy(
                rows, targets.flatten(), reduction="none", label_smoothing=smoothing
            )
            share = (
                torch.full((R, N), 1 / N) if counted is None else counted / counted.sum(1, keepdim=True).clamp(min=1)
            )
            nats = (each.view(R, N) * share).sum(1)
        nats.sum().backward()
        found.append([nats.detach(), x.grad, weight.grad, bias.grad])
    assert trusted.difference(*found) < 1e-4


@given(
    R=st.integers(1, 3), B=st.integers(1, 3), T=st.integers(1, 5), D=st.integers(1, 70), seed=st.integers(0, 99),
    centred=st.booleans(), biased=st.booleans(), biased_more=st.booleans(), drops=st.booleans(), goes_on=st.booleans(),
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_sum_and_its_norm_equal_their_plain_definitions(
    kernels, R, B, T, D, seed, centred, biased, biased_more, drops, goes_on
):
    draw = torch.Generator().manual_seed(seed)
    x, more = (torch.randn(R, B, T, D, generator=draw) for _ in range(2))
    more_bias, weight, bias = (torch.randn(R, D, generator=draw) for _ in range(3))
    keys, rates = random.stream_keys(range(seed, seed + R), "here"), torch.rand(R, generator=draw) * 0.9
    mask = fused.DropoutMask(keys, torch.tensor(seed, dtype=torch.int32), rates, 3 * seed) if drops else None
    eps, found = 1e-2, []  # with one unit and a smaller eps, gradients would consist of rounding errors
    given_tensors = x, more, more_bias if biased_more else None, weight, bias if biased else None
    for compute in (fused_norm._SumAndNorm.apply, fused_norm.plain_sum_and_norm):
        mine = [None if t is None else t.clone().requires_grad_() for t in given_tensors]
        total, normed = compute(*mine[:3], mask, *mine[3:], eps, centred, FLOAT)  # pyright: ignore
        ((normed * more).sum() + ((total * x).sum() if goes_on else 0)).backward()
        found.append([total.detach(), normed.detach(), *(t.grad for t in mine if t is not None)])
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0], found[1], atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize(("R", "V", "smoothing"), [(1, 128, 0.0), (2, 70, 0.1)])
@pytest.mark.parametrize("at_once", [1, 700, 10**6])
def test_a_loss_in_chunks_equals_the_plain_one(kernels, monkeypatch, R, V, smoothing, at_once):
    """Chunks of any size, a padded vocabulary, a bias, and rows that do not count."""
    draw = torch.Generator().manual_seed(0)
    shapes = (R, 11, 8), (R, V, 8), (R, V)
    tensors, targets = [torch.randn(s, generator=draw) for s in shapes], torch.arange(R * 11).view(R, 11) * 5 % V
    counted, found = torch.arange(11).expand(R, 11) % 3 > 0, []
    monkeypatch.setattr(cross_entropy, "_can_be_in_place", lambda x: False)
    monkeypatch.setitem(cross_entropy.LOGITS_PER_CHUNK, "cuda", at_once)
    for by_kernels in (True, False):
        monkeypatch.setattr(launching, "wanted", lambda x, use=by_kernels: use)
        x, weight, bias = (t.clone().requires_grad_() for t in tensors)
        nats = cross_entropy.mean_cross_entropy(x, weight, targets, bias, counted, smoothing)
        (nats * torch.tensor([0.5, 2.0])[:R]).sum().backward()
        found.append([nats.detach(), x.grad, weight.grad, bias.grad])
    assert trusted.difference(*found) < 1e-5


PLANTED = [
    ("norm", "norm_forward"),
    ("norm", "norm_backward"),
    ("activate", "activate_backward"),
    ("dropout", "dropped"),
    ("rotate", "rotated"),
]


@pytest.mark.parametrize(("operation", "name"), PLANTED)
def test_a_kernel_that_is_wrong_is_not_trusted(kernels, monkeypatch, caplog, operation, name):
    """The same kernel, but its output is slightly too large."""
    right = getattr(kernels, name).function

    def wrong(*given):
        right(*given)
        written = next(g for g in given if hasattr(g, "memory") and g.memory.dtype == FLOAT and g.memory.max() > 0)
        written.memory.mul_(1.01)

    monkeypatch.setattr(getattr(kernels, name), "function", wrong)
    case = next(case for one, case in CASES if one == operation and BF16 not in case)
    monkeypatch.setattr(trusted, "_verdicts", {})
    assert not trusted.trusted(operation, CPU, CHECKS[operation], *case)
    assert "not used" in caplog.text


def test_a_kernel_that_cannot_be_built_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr(trusted, "_verdicts", {})
    assert not trusted.trusted("adamw", CPU, lambda device: 1 / 0)
    assert "ZeroDivisionError" in caplog.text


def test_a_kernel_that_cannot_be_built_for_other_sizes_is_no_longer_used(monkeypatch, caplog):
    monkeypatch.setattr(trusted, "_verdicts", {})
    wanted = ("norm", CPU, lambda device, width: 0.0, (3,))
    assert trusted.by_kernel(*wanted, lambda: 5) == 5
    assert trusted.by_kernel(*wanted, lambda: 1 / 0) is None
    assert trusted.by_kernel(*wanted, lambda: 5) is None  # nor tried again
    assert caplog.text.count("ZeroDivisionError") == 1
    with pytest.raises(torch.OutOfMemoryError):  # which says nothing about the kernel
        trusted.by_kernel(
            "rotate", CPU, lambda device: 0.0, (), lambda: (_ for _ in ()).throw(torch.OutOfMemoryError())
        )


def test_on_a_cpu_nothing_changes():
    x = torch.ones(1, 2, 3, 4)
    assert not launching.wanted(x)
    assert fused_norm.sum_and_norm(x, None, torch.ones(1, 4), None, 1e-5, True, FLOAT) is None
    assert not fused_adamw.can_step(x)
