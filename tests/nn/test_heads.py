"""Each head fusion, compared with a written-out loop, and its properties."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headway.nn.heads import Concat, Reweight, ReweightCausal, Shift, Shuffle

R, B, H, T, d = 2, 3, 5, 4, 3


def heads(number: int = 0, size: float = 1.0) -> Tensor:
    return size * torch.randn(R, B, H, T, d, generator=torch.Generator().manual_seed(number))


def built(seeded, spec, seeds=(7, 8)) -> nn.Module:
    return seeded(spec.build(len(seeds), H), list(seeds))


def laid_out(x: Tensor, order: list[int], weight) -> Tensor:
    """One vector per position: head `order[h]` in slot h, times weight(r, b, head, t)."""
    out = torch.empty(R, B, T, H * d)
    for r in range(R):
        for b in range(B):
            for t in range(T):
                parts = [weight(r, b, h, t) * x[r, b, h, t] for h in order]
                out[r, b, t] = torch.cat(parts)
    return out


def once(*_) -> float:
    return 1.0


def order_of(fusion: nn.Module, replica: int = 0) -> list[int]:
    """Which head is in which slot."""
    marked = torch.arange(H, dtype=torch.float32).view(H, 1, 1).expand(R, B, H, T, d)
    return fusion(marked)[replica, 0, 0, ::d].int().tolist()


def test_concat(seeded):
    x = heads()
    assert torch.equal(built(seeded, Concat())(x), laid_out(x, list(range(H)), once))


@given(by=st.integers(-12, 12))
@settings(max_examples=20, deadline=None)
def test_shift(by: int):
    x = heads()
    order = [(place - by) % H for place in range(H)]
    assert torch.equal(Shift(by=by).build(R, H)(x), laid_out(x, order, once))


def test_shift_by_one_puts_the_last_head_first(seeded):
    assert order_of(built(seeded, Shift())) == [4, 0, 1, 2, 3]


@pytest.mark.parametrize("scale", ["share", "raw"])
def test_reweight(seeded, scale: str):
    x = heads()

    def norm(r, b, h, t):
        return x[r, b, h].square().sum().sqrt()

    def share(r, b, h, t):
        return norm(r, b, h, t) / torch.stack([norm(r, b, k, t) for k in range(H)]).mean()

    expected = laid_out(x, list(range(H)), share if scale == "share" else norm)
    torch.testing.assert_close(built(seeded, Reweight(scale=scale))(x), expected)


@pytest.mark.parametrize("scale", ["share", "raw"])
def test_reweight_causal(seeded, scale: str):
    x = heads()

    def norm(r, b, h, t):
        return x[r, b, h, t].square().sum().sqrt()

    def share(r, b, h, t):
        return norm(r, b, h, t) / torch.stack([norm(r, b, k, t) for k in range(H)]).mean()

    expected = laid_out(x, list(range(H)), share if scale == "share" else norm)
    torch.testing.assert_close(built(seeded, ReweightCausal(scale=scale))(x), expected)


@pytest.mark.parametrize("spec", [Reweight(), ReweightCausal()], ids=lambda s: s.kind)
def test_shares_average_one_whatever_the_size_of_the_heads(seeded, spec):
    for size in (1e-3, 1.0, 1e3):
        x = heads(size=size)
        found = built(seeded, spec)(x).unflatten(-1, (H, d)).transpose(2, 3) / x
        torch.testing.assert_close(found.mean(2), torch.ones(R, B, T, d), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "spec", [Concat(), Shuffle(), Shift(), ReweightCausal(), ReweightCausal(scale="raw")], ids=repr
)
def test_causal_fusions_treat_every_position_separately(seeded, spec):
    x, fusion = heads(), built(seeded, spec)
    parts = [fusion(x[..., t : t + 1, :]) for t in range(T)]
    torch.testing.assert_close(torch.cat(parts, 2), fusion(x))
    assert fusion.why_no_cache is None


def test_reweight_depends_on_the_whole_sequence_and_declares_it(seeded):
    x, fusion = heads(), built(seeded, Reweight())
    assert not torch.allclose(fusion(x[..., :2, :]), fusion(x)[:, :, :2])
    assert "every new token" in fusion.why_no_cache


def test_padding_does_not_affect_the_norm(seeded):
    x, fusion = heads(), built(seeded, Reweight())
    padding_mask = torch.ones(R, B, T, dtype=torch.bool)
    padding_mask[:, 1, 2:] = False
    changed = x.clone()
    changed[:, 1, :, 2:] = 100.0
    assert torch.equal(fusion(x, padding_mask)[:, :, :2], fusion(changed, padding_mask)[:, :, :2])
    torch.testing.assert_close(fusion(x, padding_mask)[:, 1, :2], fusion(x[..., :2, :])[:, 1])


SPECS = [Concat(), Shuffle(), Shuffle(drawn="every-step"), Shift(), Reweight(), Reweight(scale="raw"), ReweightCausal()]


@pytest.mark.parametrize("spec", [*SPECS, ReweightCausal(scale="raw")], ids=repr)
@pytest.mark.parametrize("silent", ["all", "one head", "one position"])
def test_heads_of_zeros_give_finite_gradients(seeded, spec, silent: str):
    where = {"all": (), "one head": (..., 2, slice(None), slice(None)), "one position": (..., 1, slice(None))}[silent]
    x = heads()
    x[where] = 0
    x.requires_grad_()
    out = built(seeded, spec)(x)
    (out * torch.arange(out.numel()).view(out.shape).sin()).sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_replicas_fuse_heads_together_as_alone(seeded, spec):
    x = heads()
    together = built(seeded, spec)(x)
    for r, number in enumerate((7, 8)):
        assert torch.equal(built(seeded, spec, [number])(x[r : r + 1]), together[r : r + 1])


# Shuffles


def orders(seeded, spec, seeds: range, steps=(0,), training: bool = True) -> list[tuple[int, ...]]:
    found = []
    for number in seeds:
        fusion = built(seeded, spec, (number, number)).train(training)
        for step in steps:
            fusion.clock.set(step)
            found.append(tuple(order_of(fusion)))
    return found


def test_a_shuffle_keeps_every_head_once(seeded):
    assert all(sorted(o) == list(range(H)) for o in orders(seeded, Shuffle(), range(20)))


def test_shuffled_once_is_one_order_for_the_whole_run_also_in_evaluation(seeded):
    for number in range(5):
        seeds = range(number, number + 1)
        trained = orders(seeded, Shuffle(), seeds, steps=range(10))
        assert len(set(trained)) == 1
        assert orders(seeded, Shuffle(), seeds, steps=(0, 5), training=False) == trained[:2]


def test_shuffled_once_differs_between_replicas_and_layers(seeded):
    assert len(set(orders(seeded, Shuffle(), range(40)))) > 20  # of 120
    layers = seeded(nn.ModuleList([Shuffle().build(1, H) for _ in range(40)]), [0])
    marked = torch.arange(H, dtype=torch.float32).view(1, 1, H, 1, 1)
    assert len({tuple(layer(marked).flatten().tolist()) for layer in layers}) > 20


def test_shuffled_every_step_differs_between_steps_and_is_fixed_in_evaluation(seeded):
    spec = Shuffle(drawn="every-step")
    assert len(set(orders(seeded, spec, range(1), steps=range(40)))) > 20
    assert set(orders(seeded, spec, range(3), steps=range(5), training=False)) == {tuple(range(H))}
    assert orders(seeded, spec, range(1), steps=(4, 4))[0] == orders(seeded, spec, range(1), steps=(4,))[0]


def test_every_order_is_equally_likely(seeded):
    marked = torch.arange(3, dtype=torch.float32).view(1, 1, 3, 1, 1)
    fusion = seeded(Shuffle(drawn="every-step").build(1, 3), [5])
    counts: dict[tuple, int] = {}
    for step in range(1200):
        fusion.clock.set(step)
        order = tuple(fusion(marked).flatten().tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert sum((n - 200) ** 2 / 200 for n in counts.values()) < 20.5  # chi², 5 degrees of freedom, p = 0.001
