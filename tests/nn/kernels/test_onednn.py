"""oneDNN's products equal the plain ones, forward and backward; if they do not, the plain ones are used."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headway.nn.block import Gelu, GeluTanh, Relu, Silu, SwiGlu
from headway.nn.kernels import onednn, trusted
from headway.nn.kernels.onednn import MANY_ROWS, by_onednn, packed_weights
from headway.nn.replicated import Embedding, Linear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
D, OUT, V = 6, 5, 11
MODULES = {
    "linear": (lambda R: Linear(R, D, OUT), lambda one: one),
    "linear without bias": (lambda R: Linear(R, D, OUT, bias=False), lambda one: one),
    "logits": (lambda R: Embedding(R, V, D), lambda one: one.logits),
    **{
        spec.kind: (lambda R, spec=spec: spec.build(R, D, 1.0), lambda one: one)
        for spec in (Relu(), Gelu(), GeluTanh(), Silu(), Silu(bias=False), SwiGlu())
    },
}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.setattr(trusted, "_verdicts", {})


@pytest.fixture
def asked(monkeypatch) -> list[str | None]:
    """The nonlinearity of every product that oneDNN computed, apart from checks."""
    heard, product = [], onednn._product

    def listening(x, weight, bias, nonlinearity=None):
        heard.append(nonlinearity)
        return product(x, weight, bias, nonlinearity)

    monkeypatch.setattr(trusted, "trusted", lambda *case: True)
    monkeypatch.setattr(onednn, "trusted", lambda *case: True)
    monkeypatch.setattr(onednn, "_product", listening)
    return heard


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("name", MODULES)
@torch.no_grad()
def test_packed_products_equal_the_plain_ones(name: str, replicas: int, randomised, asked):
    build, call = MODULES[name]
    module = randomised(build(replicas))
    for rows in (1, 4):
        x = drawn(replicas, rows, 2, D)
        plain = call(module)(x)
        assert not asked
        with packed_weights(module):
            torch.testing.assert_close(call(module)(x), plain)
            torch.testing.assert_close(call(module)(x[:, :1]), plain[:, :1])  # finished rows leave the batch
        assert asked
        asked.clear()


@torch.no_grad()
def test_a_nonlinearity_is_computed_with_the_product(randomised, asked):
    for name in ("gelu", "gelu-tanh", "silu"):
        module = randomised(MODULES[name][0](1))
        with packed_weights(module):
            module(drawn(1, 2, 3, D))
    assert asked == ["gelu", None, "gelu-tanh", None, "silu", None]


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu-tanh", "silu"])
@torch.no_grad()
def test_nan_stays_nan(name: str, randomised, asked):
    """oneDNN's relu makes NaN zero."""
    module = randomised(MODULES[name][0](1))
    module.into.weight[0, 0, 0] = torch.nan
    with packed_weights(module):
        assert module(drawn(1, 2, 3, D)).isnan().all()
    assert asked


@torch.no_grad()
def test_an_attribute_of_a_user_called_packed_is_left_alone():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.packed, self.map = 7, Linear(1, D, OUT)

    module = Mixed()
    with packed_weights(module):
        assert module.packed == 7 and module.map.packed is not None
    assert module.packed == 7 and module.map.packed is None


@torch.no_grad()
def test_a_users_layer_is_called_and_not_replaced(randomised, asked):
    class Doubled(Linear):
        def forward(self, x, more=None):
            return 2 * super().forward(x, more)

    net: nn.Module = Gelu().build(1, D, 1.0)
    net.into = Doubled(1, D, 4 * D)
    randomised(net)
    x = drawn(1, 2, 3, D)
    plain = net(x)
    with packed_weights(net):
        torch.testing.assert_close(net(x), plain)


def test_a_weight_is_packed_only_within_the_context(randomised, asked):
    """Outside the context, and if gradients or another precision are needed, products are plain."""
    module, x = randomised(Linear(1, D, OUT)), drawn(1, 2, 3, D)
    with packed_weights(module):
        module(x).sum().backward()
        assert module.weight.grad is not None
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert module(x).dtype == torch.bfloat16
    with torch.no_grad():
        before = module(x)
        module.weight.mul_(2)
        assert not torch.equal(module(x), before)
        assert not asked
        with packed_weights(module):
            torch.testing.assert_close(module(x), F.linear(x, module.weight[0], module.bias[0]))
    assert asked


@pytest.mark.parametrize("bias", [True, False])
def test_products_and_gradients_equal_the_plain_ones(bias: bool, asked):
    given = [drawn(2, MANY_ROWS, D), drawn(OUT, D), drawn(OUT) if bias else None]
    off = trusted.difference_with_gradients(by_onednn, F.linear, given)
    assert off < 1e-5 and len(asked) == 2  # the product, and the gradient of x


@pytest.mark.parametrize("sizes", [(D, OUT), (OUT, D)], ids=["fewer outputs", "more outputs"])
def test_gradients_of_large_weights_use_onednn_too(sizes: tuple[int, int], monkeypatch, asked):
    monkeypatch.setattr(onednn, "MANY_PRODUCTS", 0)
    inputs, outputs = sizes
    given = [drawn(2, MANY_ROWS, inputs), drawn(outputs, inputs), drawn(outputs)]
    assert trusted.difference_with_gradients(by_onednn, F.linear, given) < 1e-5 and len(asked) == 3


@pytest.mark.parametrize("name", ["linear", "linear without bias", "logits"])
def test_replicas_are_multiplied_one_by_one(name: str, randomised, asked, monkeypatch):
    build, call = MODULES[name]
    module, x = randomised(build(3)), drawn(3, 2, MANY_ROWS, D)
    y = call(module)(x)
    assert len(asked) == 3
    ours = torch.autograd.grad(y.square().sum(), [*module.parameters()])
    monkeypatch.setattr("headway.nn.replicated.by_onednn", lambda *given: None)
    plain = call(module)(x)
    torch.testing.assert_close(y, plain)
    theirs = torch.autograd.grad(plain.square().sum(), [*module.parameters()])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 8191, 8192, 33_278, 50_304, 10**6])
def test_a_large_size_is_compared_using_a_smaller_one_with_the_same_remainders(size: int):
    stands_for = onednn._stands_for(size)
    assert stands_for == size if size < 2 * onednn.LARGE else onednn.LARGE <= stands_for < 2 * onednn.LARGE
    assert all(stands_for % block == size % block for block in (16, 48 if size < 8192 else 64, 1024, onednn.LARGE))


def test_only_needed_gradients_are_computed(asked):
    x, weight = drawn(MANY_ROWS, D), drawn(OUT, D).requires_grad_()
    by_onednn(x, weight, None).sum().backward()
    assert len(asked) == 1 and x.grad is None
    torch.testing.assert_close(weight.grad, x.sum(0).expand(OUT, D))


def test_inputs_that_are_not_needed_are_not_saved(asked):
    """If the weight needs no gradient, the input is not saved, and may be freed or overwritten."""
    x, weight = drawn(MANY_ROWS, D).requires_grad_(), drawn(OUT, D)
    given = x * 1
    y = by_onednn(given, weight, None)
    given.detach().zero_()
    y.sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(MANY_ROWS, D))


def test_operations_can_be_counted():
    layer, counted = Linear(1, D, OUT), []
    for rows in (MANY_ROWS, MANY_ROWS - 1):
        with FlopCounterMode(display=False) as counter:
            layer(drawn(1, 1, rows, D))
        counted.append(counter.get_total_flops() / rows)
    assert counted == [2 * D * OUT] * 2


def test_few_rows_and_other_precisions_are_left_to_torch():
    weight = drawn(OUT, D)
    assert by_onednn(drawn(MANY_ROWS - 1, D), weight, None) is None
    assert by_onednn(drawn(MANY_ROWS, D).double(), weight.double(), None) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert by_onednn(drawn(MANY_ROWS, D), weight, None) is None


def test_without_onednn_products_are_plain(randomised, monkeypatch):
    module, x = randomised(Linear(1, D, OUT)), drawn(1, 2, 3, D)
    monkeypatch.setattr(onednn.torch.backends.mkldnn, "is_available", lambda: False)
    with torch.no_grad():
        plain = F.linear(x, module.weight[0], module.bias[0])
        with packed_weights(module):
            assert torch.equal(module(x), plain)
        assert by_onednn(drawn(MANY_ROWS, D), drawn(OUT, D), None) is None


@pytest.mark.parametrize("wrong", ["product", "bias", "nonlinearity", "gradient"])
def test_products_that_are_wrong_are_not_used(wrong: str, monkeypatch, caplog, randomised):
    product = onednn._product

    def planted(x, weight, bias, nonlinearity=None):
        if wrong == "gradient" and weight.is_contiguous():  # the gradient of x is a product with the transposed weight
            return product(x, weight, bias, nonlinearity)
        if wrong == "bias":
            return product(x, weight, None, nonlinearity)
        if wrong == "nonlinearity":
            return product(x, weight, bias, nonlinearity and "relu")
        return product(x, weight, bias, nonlinearity) * 1.01

    monkeypatch.setattr(onednn, "_product", planted)
    if wrong != "gradient":
        module: nn.Module = randomised(Silu().build(1, D, 1.0))
        x = drawn(1, 2, 3, D)
        with torch.no_grad():
            plain = module(x)
            with packed_weights(module):
                assert torch.equal(module(x), plain)
    if wrong != "nonlinearity":
        assert by_onednn(drawn(MANY_ROWS, D), drawn(OUT, D), drawn(OUT)) is None
    assert "plain torch is used instead" in caplog.text


def test_a_bias_with_odd_strides_is_read_correctly():
    x, weight = torch.randn(200, 16), torch.randn(16, 16)
    for bias in (torch.randn(1).expand(16), torch.randn(32)[::2]):
        found = onednn.by_onednn(x, weight, bias)
        assert found is None or torch.allclose(found, F.linear(x, weight, bias), atol=1e-4)


@pytest.mark.parametrize("outputs", [5, 7])
@pytest.mark.parametrize("many", [0, onednn.MANY_PRODUCTS])
def test_products_of_many_rows_have_the_same_derivatives_as_plain_ones(many: int, outputs: int, monkeypatch):
    """Twice, and by torch.func: every way in which torch differentiates."""
    monkeypatch.setattr(onednn, "MANY_PRODUCTS", many)
    torch.manual_seed(0)
    x, weight = torch.randn(160, 6), torch.randn(outputs, 6)

    def of(way):
        given = x.clone().requires_grad_(), weight.clone().requires_grad_()
        slopes = torch.autograd.grad(way(*given).square().sum(), given, create_graph=True)
        twice = torch.autograd.grad(sum(s.square().sum() for s in slopes), given)
        function = torch.func.grad(lambda x: way(x, weight).square().sum())(x)
        return (*slopes, *twice, function)

    ours = of(lambda x, w: F.linear(x, w) if (y := onednn.by_onednn(x, w, None)) is None else y)
    for found, expected in zip(ours, of(F.linear), strict=True):
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-2)


def test_training_works_after_a_first_use_in_inference_mode(monkeypatch):
    monkeypatch.setattr(trusted, "_verdicts", {})
    x, weight = torch.randn(200, 20), torch.randn(24, 20)
    with torch.inference_mode():
        scored = onednn.by_onednn(x, weight, None)
    assert (scored is None) == (onednn.by_onednn(x, weight, None) is None)


def test_a_model_can_be_copied_while_its_weights_are_packed():
    layer = Linear(1, 6, 5)
    x = torch.randn(1, 1, 3, 6)
    with torch.no_grad(), onednn.packed_weights(layer):
        assert torch.allclose(copy.deepcopy(layer)(x), layer(x), atol=1e-6)
