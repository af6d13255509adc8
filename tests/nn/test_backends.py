"""Every backend equals the plain one, or says beforehand why it cannot."""

import pytest
import torch
import torch.nn.functional as F
from pairwise import pairwise
from torch import Tensor

from headway.core.errors import UserError
from headway.nn.backends import BACKENDS, Needs, choose_backend, is_few, weights
from headway.nn.context import AttentionContext
from headway.nn.heads import Concat, Reweight, ReweightCausal, Shift, Shuffle
from headway.nn.masks import BranchMask, Causal, Everything, Padding, Prefix, Window
from headway.nn.positions import T5, Alibi, Learned, NoPositions, Positions, Rotary, Sinusoidal, SymmetricAlibi
from headway.nn.replicated import Dropout

B, H, T, D = 2, 2, 5, 8
# One row ends with padding; the other starts with it, so that its first query sees nothing under a causal mask.
REAL = torch.tensor([[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]).bool()
PADDING = lambda R: Padding(REAL.repeat(R, 1))  # noqa: E731

POSITIONS = [NoPositions(), Learned(), Sinusoidal(size=1.0), Alibi(), SymmetricAlibi(), Rotary(), T5()]
FUSIONS = {
    "concat": Concat(),
    "shuffle-once": Shuffle(),
    "shuffle-every-step": Shuffle(drawn="every-step"),
    "shift": Shift(),
    "reweight": Reweight(),
    "reweight-raw": Reweight(scale="raw"),
    "reweight-causal": ReweightCausal(),
}
MASKS = {
    "causal": lambda R: Causal(),
    "causal-window": lambda R: Causal() & Window(2),
    "padding-causal": lambda R: PADDING(R) & Causal(),
    "padding": PADDING,
    "prefix": lambda R: Prefix(3),
    "everything": lambda R: Everything(),
}


def stream(replicas: int) -> Tensor:
    return torch.randn(replicas, B, T, D, generator=torch.Generator().manual_seed(2))


# The first cases in which kernels differ: rows that see nothing with a learned bias, and norms over a padded row.
HARD = [
    (T5(), "padding-causal", "reweight", 2),
    (Alibi(), "padding-causal", "reweight-raw", 1),
    (T5(), "prefix", "shuffle-every-step", 2),
    (SymmetricAlibi(), "padding", "reweight", 2),
    (Rotary(), "causal-window", "shuffle-once", 2),
]


@pytest.mark.parametrize(
    ("positions", "mask", "fusion", "replicas"),
    pairwise(POSITIONS, list(MASKS), list(FUSIONS), (1, 2), hard=HARD),
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_sdpa_equals_plain(positions, mask: str, fusion: str, replicas: int, layer, results, agree):
    padding_mask = REAL.expand(replicas, -1, -1) if "padding" in mask else None
    found = {}
    for backend in ("plain", "sdpa"):
        made = layer(positions, FUSIONS[fusion], MASKS[mask](replicas), backend, replicas)
        found[backend] = results(made, lambda x, made=made: made(x, padding_mask), stream(replicas))
    assert all(value.isfinite().all() for value in found["plain"].values())
    agree(found["sdpa"], found["plain"])


@pytest.mark.parametrize("backend", ["plain", "sdpa"])
@pytest.mark.parametrize("positions", [NoPositions(), Alibi(), T5()], ids=lambda p: p.kind)
def test_a_query_without_visible_keys_gets_exactly_zero(backend: str, positions, randomised):
    context = AttentionContext(
        (1, B, H),
        randomised(positions.build(1, D, H, T)),
        Padding(REAL) & Causal(),
        torch.arange(T),
        torch.arange(T),
    )
    q, k, v = (torch.randn(1, B, H, T, D // H, requires_grad=True) for _ in range(3))
    out = BACKENDS[backend].attend(q, k, v, context, Dropout(1, 0.0))
    assert out[:, 1, :, :2].eq(0).all() and out[:, 1, :, 2:].ne(0).all()
    out.square().sum().backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all()
        assert x.grad[:, 1, :, :2].eq(0).all()
        assert x.grad[:, 1, :, 2:].ne(0).any()


# The weights


def queries_and_keys() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(2, B, H, T, 4, generator=generator), torch.randn(2, B, H, T, 4, generator=generator)


def test_weights_are_the_softmax_of_scaled_products():
    q, k = queries_and_keys()
    found = weights(q, k)
    scores = [torch.dot(q[1, 0, 1, 2], k[1, 0, 1, j]) / 4**0.5 for j in range(T)]
    total = sum(s.exp() for s in scores)
    torch.testing.assert_close(found[1, 0, 1, 2], torch.stack([s.exp() / total for s in scores]))


def test_rows_of_weights_sum_to_one_or_zero():
    q, k = queries_and_keys()
    allowed = (torch.rand(2, B, 1, T, T, generator=torch.Generator().manual_seed(5)) < 0.4).contiguous()
    allowed[0, 0, 0, 1] = False
    bias = torch.randn(1, 1, H, T, T, generator=torch.Generator().manual_seed(6)) * 3
    found = weights(q * 10, k, allowed, bias)
    assert found.masked_select(~allowed.expand_as(found)).eq(0).all()
    sums = found.sum(-1)
    sees = allowed.any(-1).expand_as(sums)
    torch.testing.assert_close(sums, sees.float())
    assert not sees.all() and sees.any()


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e4, 1e18])
def test_weights_stay_finite_for_scores_of_any_size(size: float):
    q, k = queries_and_keys()
    q = (q * size).requires_grad_()
    found = weights(q, k, torch.ones(T, T).tril().bool().view(1, 1, 1, T, T))
    found.square().sum().backward()
    assert found.isfinite().all() and q.grad.isfinite().all()


# Unsupported cases are refused with a message


def test_the_fastest_possible_backend_is_chosen():
    assert choose_backend("auto", Needs()).name == "sdpa"
    assert choose_backend("auto", Needs(weight_dropout=True)).name == "plain"
    assert choose_backend("plain", Needs(weight_dropout=True)).name == "plain"
    assert choose_backend("flex", Needs(device="cuda:1")).name == "flex"


@pytest.mark.parametrize(
    ("name", "needs", "words"),
    [
        ("flex", Needs(positions="alibi"), "alibi positions with the flex backend on cpu: .*use sdpa or plain"),
        ("flex", Needs("cuda", weight_dropout=True), "flex backend on cuda: .*use plain, or mixer.dropout = 0"),
        ("sdpa", Needs(weight_dropout=True), "sdpa backend on cpu: .*use plain, or mixer.dropout = 0"),
    ],
)
def test_an_impossible_backend_is_refused_with_the_reason(name, needs: Needs, words: str):
    with pytest.raises(UserError, match=words):
        choose_backend(name, needs)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("replicas", [1, 2])
def test_few_queries_get_the_same_result_as_by_torchs_kernel(queries: int, replicas: int):
    """With few queries on a CPU, plain code replaces torch's kernel: with a mask, also for queries without visible
    keys."""
    drawn = torch.Generator().manual_seed(0)
    q = torch.randn(replicas, B, H, queries, D, generator=drawn)
    k, v = (torch.randn(replicas, B, H, 7, D, generator=drawn) for _ in "kv")
    sees = torch.rand(replicas, B, queries, 7, generator=drawn) < 0.6
    # the first query of the second row sees nothing
    sees[:, :, 0, :] = sees[:, :, 0, :] & torch.tensor([[True], [False]])
    context = AttentionContext((replicas, B, H), Positions(), BranchMask(sees), torch.arange(queries), torch.arange(7))
    assert is_few(q, k) and not is_few(k, k)
    found = BACKENDS["sdpa"].attend(q, k, v, context, Dropout(replicas, 0.0))
    folded = (x.flatten(0, 1) for x in (q, k, v))
    expected = F.scaled_dot_product_attention(*folded, attn_mask=sees.flatten(0, 1)[:, None]).unflatten(
        0, (replicas, B)
    )
    torch.testing.assert_close(found, expected)
    assert not found[:, 1, :, 0].any()
    sees[:, 0, 0] = ~sees[:, 0, 0]  # a wrong mask changes the result
    wrong = AttentionContext((replicas, B, H), Positions(), BranchMask(sees), torch.arange(queries), torch.arange(7))
    assert not torch.allclose(BACKENDS["sdpa"].attend(q, k, v, wrong, Dropout(replicas, 0.0)), expected)
