"""Each position scheme, compared with its paper, and its properties."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.t5.modeling_t5 import T5Attention

from headway.nn.kernels import fused
from headway.nn.positions import (
    T5,
    Alibi,
    Learned,
    NoPositions,
    Positions,
    Rotary,
    Sinusoidal,
    SymmetricAlibi,
    SymmetricT5,
    alibi_slopes,
)

R, B, H, T, D = 2, 3, 4, 6, 16
SLOTS = torch.arange(T)


def built(spec, replicas: int = R, context: int = T, width: int = D) -> Positions:
    return spec.build(replicas, width, H, context)


def stream(replicas: int = R, width: int = D) -> Tensor:
    return torch.randn(replicas, B, T, width, generator=torch.Generator().manual_seed(0))


def heads(length: int = T) -> Tensor:
    return torch.randn(R, B, H, length, D // H, generator=torch.Generator().manual_seed(0))


def bias_of(positions: Positions, replicas: int = R) -> Tensor:
    """[R, H, i, j]"""
    replica, head = torch.arange(replicas).view(-1, 1, 1, 1), torch.arange(H).view(-1, 1, 1)
    return positions.bias(replica, head, SLOTS[:, None], SLOTS[None, :]).expand(replicas, H, T, T)


@pytest.mark.parametrize("spec", [NoPositions(), Alibi(), SymmetricAlibi(), Rotary(), T5()], ids=lambda s: s.kind)
def test_schemes_without_embeddings_do_not_change_the_stream(spec):
    x = stream()
    assert built(spec).embed(x, SLOTS) is x


@pytest.mark.parametrize(
    "spec", [NoPositions(), Learned(), Sinusoidal(), Alibi(), SymmetricAlibi(), T5()], ids=lambda s: s.kind
)
def test_schemes_without_rotation_do_not_change_queries(spec):
    q = heads()
    assert built(spec).rotate(q, SLOTS) is q


def test_which_schemes_have_a_bias_a_learned_one_and_a_limit():
    facts = {
        s.kind: built(s) for s in (NoPositions(), Learned(), Sinusoidal(), Alibi(), SymmetricAlibi(), Rotary(), T5())
    }
    assert {kind for kind, p in facts.items() if p.has_bias} == {"alibi", "alibi-symmetric", "t5"}
    assert {kind: p.limit for kind, p in facts.items() if p.limit is not None} == {"learned": T}
    assert {kind for kind, p in facts.items() if list(p.parameters())} == {"learned", "t5"}


# Learned


def test_learned_positions_add_each_replicas_own_vector(randomised):
    positions, x = randomised(built(Learned())), stream()
    added = positions.embed(x, SLOTS) - x
    for r in range(R):
        torch.testing.assert_close(added[r], positions.table.weight[r].expand(B, -1, -1))


def test_learned_positions_may_differ_from_row_to_row(randomised):
    positions, x = randomised(built(Learned())), stream()
    at = torch.randint(T, (R, B, T), generator=torch.Generator().manual_seed(3))
    added = positions.embed(x, at) - x
    for r in range(R):
        torch.testing.assert_close(added[r], positions.table.weight[r][at[r]])


def test_there_are_as_many_learned_positions_as_the_context(randomised):
    positions = built(Learned(), context=3)
    assert positions.limit == 3
    with pytest.raises(IndexError):
        positions.embed(stream(), SLOTS)


# Sinusoidal


@pytest.mark.parametrize("width", [16, 7, 1])
@pytest.mark.parametrize("size", [1.0, 0.02])
def test_sinusoidal_is_the_papers_formula(width: int, size: float):
    x = stream(width=width)
    added = built(Sinusoidal(size=size), width=width).embed(x, SLOTS + 50) - x
    for t in range(T):
        for k in range(width):
            angle = (t + 50) / 10000 ** (2 * (k // 2) / width)
            expected = size * (math.cos(angle) if k % 2 else math.sin(angle))
            assert added[1, 2, t, k].item() == pytest.approx(expected, abs=2e-5)


def test_sinusoidal_positions_may_differ_from_row_to_row():
    x, positions = stream(), built(Sinusoidal())
    at = torch.stack([SLOTS, SLOTS + 3, SLOTS.flip(0)]).expand(R, -1, -1)
    out = positions.embed(x, at)
    torch.testing.assert_close(out[:, 0], positions.embed(x, SLOTS)[:, 0])
    torch.testing.assert_close(out[:, 2], positions.embed(x, SLOTS.flip(0))[:, 2])


# ALiBi


def test_alibi_slopes_of_eight_heads_are_the_papers():
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_alibi_slopes_of_sixteen_heads_interpolate():
    assert alibi_slopes(16) == pytest.approx([2 ** (-(h + 1) / 2) for h in range(16)])


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 7, 12, 20])
def test_alibi_slopes_of_other_numbers_fill_up_from_the_next_power(heads: int):
    """As in the authors' code: the slopes of the power of two below, then every second one of twice that power."""
    below = 2 ** int(math.log2(heads))
    expected = alibi_slopes(below) + alibi_slopes(2 * below)[0::2][: heads - below]
    assert alibi_slopes(heads) == pytest.approx(expected)
    assert len(set(alibi_slopes(heads))) == heads and all(0 < s < 1 for s in alibi_slopes(heads))


def test_the_slopes_of_alibi_with_three_heads():
    assert alibi_slopes(3) == pytest.approx([1 / 16, 1 / 256, 1 / 4])


def test_alibi_penalises_by_distance_and_head():
    bias, slopes = bias_of(built(Alibi())), alibi_slopes(H)
    for h in range(H):
        for i in range(T):
            for j in range(i + 1):
                assert bias[0, h, i, j].item() == pytest.approx(-slopes[h] * (i - j))


def test_symmetric_alibi_agrees_with_alibi_on_the_past_and_mirrors_it():
    symmetric, causal = bias_of(built(SymmetricAlibi())), bias_of(built(Alibi()))
    past = torch.ones(T, T).tril().bool()
    assert torch.equal(symmetric[..., past], causal[..., past])
    assert torch.equal(symmetric, symmetric.mT)
    assert (symmetric <= 0).all()


# Rotary


@given(shift=st.integers(0, 500))
@settings(max_examples=25, deadline=None)
def test_rotary_scores_depend_only_on_distance(shift: int):
    positions, q, k = built(Rotary()), heads(), heads().flip(3)
    here = positions.rotate(q, SLOTS) @ positions.rotate(k, SLOTS).mT
    there = positions.rotate(q, SLOTS + shift) @ positions.rotate(k, SLOTS + shift).mT
    torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-3)


def test_rotary_scores_do_depend_on_distance():
    positions, q = built(Rotary()), heads()[..., :1, :].expand(-1, -1, -1, T, -1)
    scores = positions.rotate(q, SLOTS) @ positions.rotate(q, SLOTS).mT
    assert (scores[..., 0, 0] - scores[..., 0, 1]).abs().min() > 1e-4


def test_rotary_keeps_norms_and_does_not_change_position_zero():
    positions, q = built(Rotary()), heads()
    turned = positions.rotate(q, SLOTS + 100)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    assert not torch.allclose(turned, q, atol=0.1)
    assert torch.equal(positions.rotate(q, torch.zeros_like(SLOTS)), q)


@pytest.mark.parametrize("at", [SLOTS, SLOTS.expand(R, B, T) * 2], ids=["rows-alike", "rows-differ"])
def test_rotary_equals_its_plain_definition_compiled_or_not_forward_and_backward(at: Tensor):
    positions, slopes = built(Rotary(base=100.0)), heads().flip(1)
    q = heads().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()  # the layout in which layers split heads
    plain = partial(fused.plain_rotated, frequencies=positions.frequencies)
    for turn in (positions.rotate, torch.compile(positions.rotate, backend="eager")):
        for turned, expected in zip(*(there_and_back(how, q, at, slopes) for how in (turn, plain)), strict=True):
            torch.testing.assert_close(turned, expected)


def there_and_back(turn: Callable[[Tensor, Tensor], Tensor], q: Tensor, at: Tensor, slopes: Tensor) -> list[Tensor]:
    turned = turn(q, at)
    return [turned, *torch.autograd.grad(turned, q, slopes)]


def test_rotary_positions_may_differ_from_row_to_row():
    positions, q = built(Rotary()), heads()
    at = torch.stack([SLOTS, SLOTS + 3, SLOTS * 2]).expand(R, -1, -1)
    turned = positions.rotate(q, at)
    for b in range(B):
        torch.testing.assert_close(turned[:, b], positions.rotate(q, at[0, b])[:, b])


# T5


@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20), (64, 1000), (16, 9)])
@pytest.mark.parametrize("spec", [T5, SymmetricT5])
def test_t5_buckets_are_those_of_transformers(spec, buckets: int, furthest: int):
    distance = torch.arange(-furthest - 50, furthest + 51)
    ours = built(spec(buckets=buckets, furthest=furthest)).bucket(distance)
    both_ways = spec is SymmetricT5
    assert torch.equal(ours, T5Attention._relative_position_bucket(distance, both_ways, buckets, furthest))


@given(buckets=st.integers(1, 20).map(lambda n: 4 * n), furthest=st.integers(4, 300))
@settings(max_examples=30, deadline=None)
def test_t5_buckets_rise_with_distance_and_keep_directions_apart(buckets: int, furthest: int):
    assume(furthest > buckets // 2)
    far = torch.arange(1, furthest + 100)
    decoder, encoder = (built(spec(buckets=buckets, furthest=furthest)) for spec in (T5, SymmetricT5))
    behind, ahead = encoder.bucket(-far), encoder.bucket(far)
    assert torch.equal(ahead, behind + buckets // 2)
    assert behind.min() >= 0 and behind.max() < buckets // 2 and ahead.max() < buckets
    assert (encoder.bucket(-far[furthest - 1 :]) == behind.max()).all()
    back = decoder.bucket(-far)
    assert (back.diff() >= 0).all() and back.max() == buckets - 1 and (decoder.bucket(far) == 0).all()
    near = torch.arange(buckets // 2)
    assert torch.equal(decoder.bucket(-near), near)


def test_t5_without_far_buckets_is_refused_with_a_message():
    (problem,) = T5(buckets=16, furthest=8).problems()
    assert problem.keys == ("buckets", "furthest") and "9 or more" in problem.reason
    assert not list(T5(buckets=16, furthest=9).problems()) and not list(SymmetricT5(buckets=16, furthest=5).problems())


def test_t5_tables_have_no_weight_decay():
    assert not built(T5()).weight.decays


def test_t5_bias_is_looked_up_by_replica_head_and_bucket(randomised):
    positions = randomised(built(T5(buckets=8, furthest=16)))
    bias = bias_of(positions)
    for r, h, i, j in [(0, 0, 0, 0), (1, 3, 5, 0), (1, 0, 2, 5), (0, 2, 4, 3)]:
        bucket = positions.bucket(torch.tensor(j - i))
        assert bias[r, h, i, j] == positions.weight[r, h, bucket]


def test_t5_gradients_reach_only_the_buckets_that_were_used():
    positions = built(T5(buckets=32, furthest=128))
    bias_of(positions).sum().backward()
    used = positions.bucket((SLOTS[None] - SLOTS[:, None]).flatten()).unique()
    counted = positions.weight.grad.ne(0).any(0).any(0).nonzero().flatten()
    assert torch.equal(counted, used)
