"""A layer of the stack, compared with its formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn.attention import AttentionSpec
from headway.nn.backends import Needs
from headway.nn.block import Block, FeedForwardSpec, Layer, NormSpec, SwiGlu
from headway.nn.context import Context
from headway.nn.masks import Causal
from headway.nn.positions import NoPositions
from headway.nn.replicated import LayerNorm, RMSNorm
from headway.nn.taps import watch

R, B, H, T, D = 2, 2, 2, 4, 8
PRE = Layer()


def norm_of(**keys) -> NormSpec:
    return NormSpec.variants[keys.get("kind", "layer")](**keys)


def feedforward_of(**keys) -> FeedForwardSpec:
    return FeedForwardSpec.variants[keys.get("kind", "gelu")](**keys)


def block(randomised, norm: NormSpec = PRE, dropout: float = 0.0, replicas: int = R, **feedforward) -> Block:
    made = Block(AttentionSpec(heads=H), feedforward_of(**feedforward), norm, replicas, D, dropout, 1.0, Needs())
    return randomised(made)


def stream(replicas: int = R) -> Tensor:
    return torch.randn(replicas, B, T, D, generator=torch.Generator().manual_seed(0))


def context(replicas: int = R) -> Context:
    positions = NoPositions().build(replicas, D, H, T)
    return Context((replicas, B), positions, Causal(), torch.arange(T), torch.arange(T))


# Placement of the norm


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_pre_norm_does_not_normalise_the_stream(kind: str, randomised):
    made, x = block(randomised, norm_of(kind=kind)), stream()
    attended = x + made.mixer(made.around_mixer.norm(x), context())[0]
    expected = attended + made.feedforward(made.around_feedforward.norm(attended))
    torch.testing.assert_close(made(x, context())[0], expected)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_post_norm_normalises_the_stream(kind: str, randomised):
    made, x = block(randomised, norm_of(kind=kind, placement="post")), stream()
    attended = made.around_mixer.norm(x + made.mixer(x, context())[0])
    expected = made.around_feedforward.norm(attended + made.feedforward(attended))
    torch.testing.assert_close(made(x, context())[0], expected)


def test_norms_are_of_the_given_kind():
    assert isinstance(norm_of(kind="layer").build(1, D), LayerNorm)
    assert isinstance(norm_of(kind="rms").build(1, D), RMSNorm)
    assert isinstance(norm_of().build_final(1, D), LayerNorm)
    assert not list(norm_of(placement="post").build_final(1, D).parameters())


def test_a_pre_norm_block_whose_outputs_are_zero_is_the_identity(randomised):
    made, x = block(randomised), stream()
    with torch.no_grad():
        for linear in (made.mixer.output, made.feedforward.output):
            linear.weight.zero_(), linear.bias.zero_()
    assert torch.equal(made(x, context())[0], x)


# Feed-forward


@pytest.mark.parametrize(
    ("kind", "nonlinearity"),
    [("relu", F.relu), ("gelu", F.gelu), ("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"))],
)
def test_feedforward_is_two_linear_maps_with_a_nonlinearity_between(kind: str, nonlinearity, randomised):
    made, x = randomised(feedforward_of(kind=kind).build(R, D, 1.0)), stream()
    assert made.into.weight.shape == (R, 4 * D, D)
    for r in range(R):
        hidden = nonlinearity(x[r] @ made.into.weight[r].T + made.into.bias[r])
        torch.testing.assert_close(made(x)[r], hidden @ made.output.weight[r].T + made.output.bias[r])


def test_swiglu_gates_one_half_with_the_other(randomised):
    made, x = randomised(SwiGlu(hidden=5, bias=False).build(R, D, 1.0)), stream()
    for r in range(R):
        gate, value = x[r] @ made.into.weight[r, :5].T, x[r] @ made.into.weight[r, 5:].T
        expected = (gate * torch.sigmoid(gate) * value) @ made.output.weight[r].T
        torch.testing.assert_close(made(x)[r], expected)


@pytest.mark.parametrize("width", [48, 96, 384])
def test_swiglu_costs_what_the_others_cost(width: int):
    plain, gated = (
        sum(p.numel() for p in feedforward_of(kind=kind, bias=False).build(1, width, 1.0).parameters())
        for kind in ("gelu", "swiglu")
    )
    assert gated == pytest.approx(plain, rel=0.02)


def test_hidden_size_and_bias_are_as_given():
    made = feedforward_of(hidden=3, bias=False).build(R, D, 1.0)
    assert made.into.weight.shape == (R, 3, D) and made.into.bias is None and made.output.bias is None


# The whole block


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_three_replicas_equal_three_blocks(placement, randomised, copied, results, agree):
    norm = norm_of(placement=placement)
    together, x = block(randomised, norm, replicas=3), stream(3)
    whole = results(together, lambda x: together(x, context(3))[0], x)
    for r in range(3):
        alone = copied(block(randomised, norm, replicas=1), together, replica=r)
        agree(results(alone, lambda x, alone=alone: alone(x, context(1))[0], x[r : r + 1]), whole, replica=r)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_dropout_is_applied_to_what_each_sublayer_adds(placement, randomised, seeded):
    made = seeded(block(randomised, norm_of(placement=placement), dropout=0.5), [0, 1])
    randomised(made)
    x = stream()
    dropped = made(x, context())[0]
    kept = made.eval()(x, context())[0]
    assert not torch.allclose(dropped, kept)
    drop_mixer, drop_feedforward = made.train().around_mixer.drop, made.around_feedforward.drop
    if placement == "pre":
        attended = x + drop_mixer(made.mixer(made.around_mixer.norm(x), context())[0])
        expected = attended + drop_feedforward(made.feedforward(made.around_feedforward.norm(attended)))
        torch.testing.assert_close(dropped, expected)


def test_the_stream_can_be_watched_and_the_state_is_returned(randomised):
    made, x = block(randomised), stream()
    with watch(made, "stream") as seen:
        out, state = made(x, context())
    assert torch.equal(seen["stream"], out) and state.keys.shape[3] == T
