"""Attention, compared with torch's own, with and without a cache; and which inputs an output depends on."""

import pytest
import torch
from pairwise import pairwise
from torch import Tensor, nn

from headway.nn.attention import Attention, AttentionSpec
from headway.nn.backends import BACKENDS, Needs, weights
from headway.nn.context import AttentionContext, Context
from headway.nn.heads import Concat, Reweight, ReweightCausal, Shift, Shuffle
from headway.nn.masks import Causal, Everything, Padding, Window
from headway.nn.positions import T5, Alibi, Learned, NoPositions, Rotary, Sinusoidal, SymmetricAlibi
from headway.nn.replicated import set_dropout
from headway.nn.taps import tap_names, watch

B, H, T, S, D = 2, 2, 6, 4, 8
POSITIONS = [NoPositions(), Learned(), Sinusoidal(size=1.0), Alibi(), SymmetricAlibi(), Rotary(), T5()]
HONEST = {
    "concat": Concat(),
    "shuffle-once": Shuffle(),
    "shuffle-every-step": Shuffle(drawn="every-step"),
    "shift": Shift(),
    "reweight-causal": ReweightCausal(),
    "reweight-causal-raw": ReweightCausal(scale="raw"),
}


def named(value) -> str:
    """The name of a test case."""
    return getattr(value, "kind", str(value))


def stream(length: int = T, replicas: int = 1, number: int = 3) -> Tensor:
    return torch.randn(replicas, B, length, D, generator=torch.Generator().manual_seed(number))


def plain_context(
    mask=None, queries: int = T, keys: int = T, replicas: int = 1, memory: Tensor | None = None
) -> Context:
    shape, positions = (replicas, B), NoPositions().build(replicas, D, H, T)
    return Context(shape, positions, mask or Everything(), torch.arange(queries), torch.arange(keys), memory=memory)


def torchs(bias: bool = True) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(D, H, bias=bias, batch_first=True)


@torch.no_grad()
def copy_to_torch(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    """Torch stacks the matrices of queries, keys and values, also in cross-attention."""
    own = dict(ours.named_parameters())
    inner = [name for name in own if name.startswith("project.") and name.endswith(".weight")]
    theirs.in_proj_weight.copy_(torch.cat([own[name][0] for name in inner]))
    theirs.out_proj.weight.copy_(own["output.weight"][0])
    if theirs.in_proj_bias is not None:
        theirs.in_proj_bias.copy_(torch.cat([own[name.replace("weight", "bias")][0] for name in inner]))
        theirs.out_proj.bias.copy_(own["output.bias"][0])


# Comparison with torch


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("backend", ["plain", "sdpa"])
@pytest.mark.parametrize("causal", [True, False])
def test_self_attention_equals_torchs(bias: bool, backend: str, causal: bool, randomised):
    ours = randomised(AttentionSpec(heads=H, bias=bias, backend=backend).build(1, D, 1.0, Needs()))
    theirs, x = torchs(bias), stream()
    copy_to_torch(ours, theirs)
    found, _ = ours(x, plain_context(Causal() if causal else None))
    forbidden = ~torch.ones(T, T).tril().bool() if causal else None
    expected, _ = theirs(x[0], x[0], x[0], attn_mask=forbidden, need_weights=False)
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["plain", "sdpa"])
def test_cross_attention_to_a_memory_of_another_length_equals_torchs(backend: str, randomised):
    ours = randomised(AttentionSpec(heads=H, backend=backend).build_cross(1, D, 1.0, Needs()))
    theirs, x, memory = torchs(), stream(), stream(S, number=4)
    copy_to_torch(ours, theirs)
    padding_mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    found, _ = ours(x, plain_context(Padding(padding_mask), keys=S, memory=memory))
    expected, _ = theirs(x[0], memory[0], memory[0], key_padding_mask=~padding_mask, need_weights=False)
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_three_replicas_equal_three_attentions(cross: bool, randomised, copied, results, agree):
    spec = AttentionSpec(heads=H, backend="sdpa")
    build = spec.build_cross if cross else spec.build
    together, x, memory = randomised(build(3, D, 1.0, Needs())), stream(replicas=3), stream(S, 3)

    def call(module, replicas):
        def forward(x: Tensor, memory: Tensor) -> Tensor:
            keys = S if cross else T
            return module(x, plain_context(None, T, keys, replicas, memory if cross else None))[0]

        return forward

    whole = results(together, call(together, 3), x, memory)
    for r in range(3):
        alone = copied(build(1, D, 1.0, Needs()), together, replica=r)
        agree(results(alone, call(alone, 1), x[r : r + 1], memory[r : r + 1]), whole, replica=r)


# The cache


@pytest.mark.parametrize(
    ("positions", "mask", "backend", "chunks"),
    pairwise(POSITIONS, ("causal", "window"), ("plain", "sdpa"), ((1,) * T, (3, 1, 2), (5, 1))),
    ids=named,
)
def test_pieces_with_a_cache_equal_a_single_pass(positions, mask: str, backend: str, chunks: tuple[int, ...], layer):
    allowed = Causal() & Window(3) if mask == "window" else Causal()
    made, x = layer(positions, mask=allowed, backend=backend, replicas=2).eval(), stream(replicas=2)
    whole, whole_state = made(x), made.state
    state, pieces = None, []
    for piece in x.split(chunks, dim=2):
        pieces.append(made(piece, state=state))
        state = made.state
    torch.testing.assert_close(torch.cat(pieces, 2), whole, rtol=1e-5, atol=1e-5)
    assert state.keys.shape[3] == T
    torch.testing.assert_close(state.keys, whole_state.keys)
    torch.testing.assert_close(state.values, whole_state.values)


# Which inputs an output depends on, by gradients


def sensitivity(made, x: Tensor) -> Tensor:
    """[t, s]: how much the output at t depends on the input at s."""
    found = torch.zeros(T, T)
    for t in range(T):
        x = x.detach().requires_grad_()
        made(x)[:, :, t].square().sum().backward()
        found[t] = x.grad.abs().sum((0, 1, 3))
    return found


@pytest.mark.parametrize(
    ("positions", "fusion", "backend"), pairwise(POSITIONS, list(HONEST), ("plain", "sdpa")), ids=named
)
def test_no_output_depends_on_a_later_input(positions, fusion: str, backend: str, layer):
    found = sensitivity(layer(positions, HONEST[fusion], backend=backend), stream())
    assert found.triu(1).eq(0).all()
    assert found[torch.ones(T, T).tril().bool()].ne(0).all()


@pytest.mark.parametrize("backend", ["plain", "sdpa"])
@pytest.mark.parametrize("scale", ["share", "raw"])
def test_reweighted_heads_do_depend_on_later_inputs(scale: str, backend: str, layer):
    found = sensitivity(layer(fusion=Reweight(scale=scale), backend=backend), stream())
    assert found[torch.ones(T, T).triu(1).bool()].ne(0).all()


@pytest.mark.parametrize("backend", ["plain", "sdpa"])
def test_an_output_depends_only_on_its_window(backend: str, layer):
    found = sensitivity(layer(mask=Causal() & Window(2), backend=backend), stream())
    assert torch.equal(found.ne(0), torch.ones(T, T).tril().triu(-1).bool())


# Internals


def test_watched_weights_are_those_of_queries_and_keys_under_every_backend(layer):
    for backend in ("plain", "sdpa"):
        made, x = layer(Alibi(), mask=Causal() & Window(4), backend=backend), stream()
        with watch(made) as seen:
            made(x)
        at = lambda name, seen=seen: seen[f"attention.{name}"]  # noqa: E731
        context = AttentionContext((1, B, H), made.positions, made.mask, torch.arange(T), torch.arange(T))
        expected = weights(at("queries"), at("keys"), context.allowed, context.bias)
        torch.testing.assert_close(at("weights"), expected)
        torch.testing.assert_close(at("mixed"), expected @ at("values"), rtol=1e-5, atol=1e-5)


def test_weights_are_computed_only_if_watched(layer, monkeypatch):
    made = layer(backend="sdpa")
    monkeypatch.setattr("headway.nn.attention.weights", lambda *_: pytest.fail("nobody asked"))
    monkeypatch.setattr("headway.nn.attention.scores", lambda *_: pytest.fail("nobody asked"))
    made(stream())
    inside = ("queries", "keys", "values", "scores", "weights", "mixed", "output")
    assert tap_names(made) == [f"attention.{name}" for name in inside]


def test_watched_scores_precede_the_mask_and_the_watched_output_is_the_result(layer):
    made, x = layer(Alibi(), mask=Causal() & Window(4), backend="sdpa"), stream()
    with watch(made) as seen:
        y = made(x)
    at = lambda name: seen[f"attention.{name}"]  # noqa: E731
    context = AttentionContext((1, B, H), made.positions, made.mask, torch.arange(T), torch.arange(T))
    assert at("scores").isfinite().all()
    torch.testing.assert_close(at("scores").masked_fill(~context.allowed, -torch.inf).softmax(-1), at("weights"))
    assert torch.equal(at("output"), y)


def test_cross_attention_has_another_name():
    made = nn.ModuleDict({"mixer": AttentionSpec(heads=H).build_cross(1, D, 1.0, Needs())})
    assert "cross_attention.weights" in tap_names(made)


# Dropout of the weights


def test_the_dropout_of_weights_is_part_of_the_architecture(seeded):
    """Only the model's dropout may vary between replicas; mixer.dropout is part of the architecture."""
    made = seeded(AttentionSpec(heads=H, dropout=0.5).build(2, D, 1.0, Needs()), [0, 1])
    set_dropout(made, [0.1, 0.2])
    assert made.drop.rates.tolist() == [0.5, 0.5] and made.drop.active
    made = AttentionSpec(heads=H, backend="plain").build(2, D, 1.0, Needs())
    set_dropout(made, [0.1, 0.2])
    assert not made.drop.active


def test_weights_are_dropped_in_training_only(seeded, randomised):
    made = randomised(seeded(AttentionSpec(heads=H, dropout=0.5).build(1, D, 1.0, Needs()), [0]))
    assert made.backend is BACKENDS["plain"]
    x, context = stream(), plain_context()
    trained = made(x, context)[0]
    evaluated = made.eval()(x, context)[0]
    made.drop.set_rates([0.0])
    assert not torch.allclose(trained, evaluated)
    assert torch.equal(evaluated, made.train()(x, context)[0])


# Specs


def test_heads_that_do_not_divide_the_width_are_reported():
    (problem,) = AttentionSpec(heads=3).problems_with(8)
    assert problem.keys == ("heads",)
    assert problem.reason == "width 8 is not divisible by 3 heads; heads that fit: 1, 2, 4, 8"
    assert list(AttentionSpec(heads=4).problems_with(8)) == []
