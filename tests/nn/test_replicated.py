"""R replicas at once equal R modules, and one equals torch's module; noise and initial values depend only on seed and
name."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headway.nn import seeding
from headway.nn.replicated import Clock, Dropout, Embedding, LayerNorm, Linear, RMSNorm, parameter, set_dropout
from headway.nn.seeding import seed
from headway.nn.trainable import Trainable

B, T, D, OUT, V = 2, 3, 6, 5, 11


def vectors(replicas: int) -> Tensor:
    return torch.randn(replicas, B, T, D, generator=torch.Generator().manual_seed(1))


def tokens(replicas: int) -> Tensor:
    return torch.randint(V, (replicas, B, T), generator=torch.Generator().manual_seed(1))


def forward(module: nn.Module) -> Callable:
    return module


CASES = {
    "linear": (lambda R: Linear(R, D, OUT), forward, vectors),
    "linear without bias": (lambda R: Linear(R, D, OUT, bias=False), forward, vectors),
    "embedding": (lambda R: Embedding(R, V, D), forward, tokens),
    "logits": (lambda R: Embedding(R, V, D), lambda table: table.logits, vectors),
    "layer norm": (lambda R: LayerNorm(R, D), forward, vectors),
    "layer norm without bias": (lambda R: LayerNorm(R, D, bias=False), forward, vectors),
    "rms norm": (lambda R: RMSNorm(R, D), forward, vectors),
}


@pytest.mark.parametrize("case", CASES)
def test_three_replicas_equal_three_modules(case: str, randomised, copied, results, agree):
    build, call, inputs = CASES[case]
    together, x = randomised(build(3)), inputs(3)
    whole = results(together, call(together), x)
    for r in range(3):
        alone = copied(build(1), together, replica=r)
        agree(results(alone, call(alone), x[r : r + 1]), whole, replica=r)


@pytest.mark.parametrize("case", CASES)
def test_replicas_are_independent(case: str, randomised):
    build, call, inputs = CASES[case]
    module, x = randomised(build(3)), inputs(3)
    before = call(module)(x)
    with torch.no_grad():
        for p in module.parameters():
            p[1] = torch.nan
    after = call(module)(x)
    assert torch.equal(after[0], before[0]) and torch.equal(after[2], before[2])
    assert after[1].isnan().any()


REFERENCES = {
    "linear": lambda: nn.Linear(D, OUT),
    "linear without bias": lambda: nn.Linear(D, OUT, bias=False),
    "embedding": lambda: nn.Embedding(V, D),
    "layer norm": lambda: nn.LayerNorm(D),
    "layer norm without bias": lambda: nn.LayerNorm(D, bias=False),
    "rms norm": lambda: nn.RMSNorm(D),
}


@pytest.mark.parametrize("case", REFERENCES)
def test_one_replica_equals_torchs_module(case: str, randomised, results):
    build, call, inputs = CASES[case]
    ours, theirs, x = randomised(build(1)), REFERENCES[case](), inputs(1)
    theirs.load_state_dict({name: p[0] for name, p in ours.state_dict().items()})
    found, expected = results(ours, call(ours), x), results(theirs, theirs, x)
    for name in expected:
        theirs_too = expected[name] if found[name].shape == expected[name].shape else expected[name][None]
        torch.testing.assert_close(found[name], theirs_too, rtol=1e-6, atol=1e-6)


# Initial values


def test_values_drawn_in_several_threads_equal_those_drawn_in_one(seeded, monkeypatch):
    def values() -> list[Tensor]:
        model = seeded(nn.ModuleList([Linear(6, D, OUT), LayerNorm(6, D), Embedding(6, V, D)]), [3, 1, 4, 1, 5, 9])
        return [p.detach() for p in model.parameters()]

    used, honest = set(), seeding._draw

    def draw(*given):
        used.add(threading.get_ident())
        barrier.wait(timeout=60)
        honest(*given)

    in_one = values()
    monkeypatch.setattr(seeding, "MANY", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    barrier = threading.Barrier(3)  # each of the 12 draws waits for two others
    monkeypatch.setattr(seeding, "_draw", draw)
    with seeding.drawn_once():
        in_several = values()
        assert len(used) == 3 and threading.get_ident() not in used
        kept = list(seeding._kept.get().values())
        assert len(kept) == 2 * 5 and all(any(torch.equal(own, one) for one in kept) for own in in_several[0])
    for one, several in zip(in_one, in_several, strict=True):
        assert torch.equal(one, several)


def test_models_can_be_built_for_inference_in_several_threads(seeded, monkeypatch):
    """Each thread has modes of its own."""
    monkeypatch.setattr(seeding, "MANY", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with torch.inference_mode():
        built = seeded(Linear(2, D, OUT), [1, 2])
    expected = seeded(Linear(2, D, OUT), [1, 2])
    assert all(torch.equal(p, q) for p, q in zip(built.parameters(), expected.parameters(), strict=True))


def test_an_error_while_drawing_in_several_threads_is_raised(seeded, monkeypatch):
    def draw(p, value, std, replica_seed, name):
        raise MemoryError(name)

    monkeypatch.setattr(seeding, "MANY", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(seeding, "_draw", draw)
    with pytest.raises(MemoryError, match="weight"):
        seeded(Linear(2, D, OUT), [1, 2])


# Dropout


def dropout(seeded, rates: list[float], seeds: list[int] | None = None) -> Dropout:
    drop = seeded(Dropout(len(rates), 0.0), seeds or list(range(len(rates))))
    drop.set_rates(rates)
    drop.clock.set(step=3)
    return drop


def test_dropout_drops_at_its_rate_and_keeps_the_mean(seeded):
    rates = [0.1, 0.5, 0.9]
    out = dropout(seeded, rates)(torch.ones(3, 8, 100, 50))
    for kept, rate in zip(out, rates, strict=True):
        dropped = (kept == 0).double().mean()
        assert abs(dropped - rate) < 4.5 * (rate * (1 - rate) / kept.numel()) ** 0.5
        assert kept[kept != 0].unique().tolist() == pytest.approx([1 / (1 - rate)], rel=1e-4)


def test_a_replica_with_rate_zero_is_unchanged_among_others(seeded):
    x = torch.randn(2, 4, 5, 6)
    out = dropout(seeded, [0.0, 0.5])(x)
    assert torch.equal(out[0], x[0])
    assert not torch.equal(out[1], x[1])


def test_dropout_of_rate_zero_is_the_identity(seeded):
    drop, x = dropout(seeded, [0.0, 0.0]), torch.randn(2, 4, 5, 6)
    assert drop(x) is x


def test_dropout_in_evaluation_is_the_identity(seeded):
    drop, x = dropout(seeded, [0.5]).eval(), torch.randn(1, 4, 5, 6)
    assert drop(x) is x


@pytest.mark.parametrize("rate", [0.999995, 1 - 1e-12])
def test_a_rate_just_below_one_stays_finite(seeded, rate: float):
    assert dropout(seeded, [rate])(torch.ones(1, 2, 50, 50)).isfinite().all()


def test_replicas_drop_the_same_together_as_alone(seeded):
    seeds, rates, x = [5, 9, 2], [0.1, 0.3, 0.5], torch.randn(3, 4, 5, 6)
    together = dropout(seeded, rates, seeds)(x)
    for r in range(3):
        alone = dropout(seeded, rates[r : r + 1], seeds[r : r + 1])(x[r : r + 1])
        assert torch.equal(alone, together[r : r + 1])


@pytest.mark.parametrize("shape", [(8, 3, 5), (8, 2, 3, 3)], ids=["odd rows", "attention weights"])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_accumulated_parts_drop_the_same_as_the_whole_batch(seeded, shape: tuple[int, ...], parts: int):
    drop, x = dropout(seeded, [0.3, 0.6]), torch.randn(2, *shape)
    whole, rows, found = drop(x), shape[0] // parts, []
    for k in range(parts):
        drop.clock.set(3, first_row=k * rows)
        found.append(drop(x[:, k * rows : (k + 1) * rows]))
    assert torch.equal(torch.cat(found, 1), whole)


def test_steps_and_places_and_seeds_drop_differently(seeded):
    x = torch.ones(2, 4, 50, 6)
    drop = dropout(seeded, [0.5, 0.5], seeds=[1, 2])
    first = drop(x)
    drop.clock.set(4)
    second = drop(x)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, second)
    pair = seeded(nn.ModuleList([Dropout(2, 0.5), Dropout(2, 0.5)]), [1, 2])
    assert not torch.equal(pair[0](x), pair[1](x))
    drop.clock.set(3)
    assert torch.equal(drop(x), first)


def test_dropout_gradients_are_the_mask(seeded):
    x = torch.ones(1, 4, 5, 6, requires_grad=True)
    out = dropout(seeded, [0.5])(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_set_dropout_sets_every_rate_that_is_not_fixed(seeded):
    model = seeded(
        nn.ModuleList([Dropout(2, 0.0), nn.Sequential(Dropout(2, 0.1)), Dropout(2, 0.5, fixed=True)]), [1, 2]
    )
    set_dropout(model, [0.25, 0.75])
    assert model[2].rates.tolist() == [0.5, 0.5]
    for module in (model[0], model[1][0]):
        assert module.rates.tolist() == [0.25, 0.75] and module.active


# Initial values


class Model(Trainable):
    """Parameters of several kinds; `more` adds one in front of the others."""

    def __init__(self, replicas: int, more: bool = False):
        super().__init__()
        self.replicas = replicas
        if more:
            self.extra = Linear(replicas, 3, 3)
        self.first, self.second = Linear(replicas, D, OUT), Linear(replicas, D, OUT)
        self.norm = LayerNorm(replicas, D)
        self.shifted = parameter(replicas, 4, value=2.0, std=0.5)
        self.drop = Dropout(replicas, 0.5)


def started(seeds: list[int], **settings) -> Model:
    model = Model(len(seeds), **settings)
    seed(model, seeds)
    return model


def test_initial_values_depend_only_on_seed_and_name():
    together, larger = started([7, 3, 7]), started([3], more=True)
    for name, p in together.named_parameters():
        assert torch.equal(p[0], p[2])
        assert torch.equal(p[1], dict(larger.named_parameters())[name][0])
    assert torch.equal(together.drop.keys[1], larger.drop.keys[0])


def test_initial_values_differ_between_seeds_and_names():
    model = started([7, 3])
    assert not torch.equal(model.first.weight[0], model.first.weight[1])
    assert not torch.equal(model.first.weight, model.second.weight)


def test_initial_values_have_the_declared_mean_and_deviation():
    wide = Linear(2, 400, 300, gain=3.0)
    seed(_only(wide), [1, 2])
    assert wide.weight.std((1, 2)).tolist() == pytest.approx([3 / (2 * 20)] * 2, rel=0.02)
    assert wide.weight.mean().abs() < 0.002 and wide.bias.eq(0).all()
    model = started([1])
    assert model.norm.weight.eq(1).all() and model.norm.bias.eq(0).all()
    assert model.shifted.min() > 0


def test_seeding_again_gives_the_same_initial_values(randomised):
    model = started([4, 5])
    before = {name: p.clone() for name, p in model.named_parameters()}
    seed(randomised(model), [4, 5])
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_one_clock_serves_the_whole_model():
    model = started([1])
    assert isinstance(model.clock, Clock) and model.drop.clock is model.clock
    model.clock.set(9, first_row=2)
    assert (int(model.clock.step), model.clock.first_row) == (9, 2)
    model.clock.set(10)
    assert (int(model.clock.step), model.clock.first_row) == (10, 0)


def _only(module: nn.Module) -> Trainable:
    model = Trainable()
    model.replicas = len(next(module.parameters()))
    model.module = module
    return model
