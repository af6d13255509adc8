"""Optimizers: R = 1 equals torch.optim, R > 1 equals separate replicas, and ended replicas stay unchanged."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from headway.training.adam import Adam, AdamW
from headway.training.optimizers import Adagrad, Optimizer, Sgd


class AsTables(AdamW):
    """AdamW as written for the compiler, without compiling it."""

    def build(self, parameters, rates, decays):
        made = super().build(parameters, rates, decays)
        made.compiled = True
        return made


class AdamAsTables(Adam):
    def build(self, parameters, rates, decays):
        made = super().build(parameters, rates, decays)
        made.compiled = True
        return made


SHAPES = {"table": (7, 4), "matrix": (5, 4), "bias": (5,), "norm": (4,)}
STEPS = 20
SPECS = {
    "adamw": AdamW(weight_decay=0.2),
    "adamw without decay": AdamW(weight_decay=0.0, beta1=0.8, beta2=0.95, epsilon=1e-6),
    "adamw as tables": AsTables(weight_decay=0.2),
    "adam": Adam(),
    "adam with decay": Adam(weight_decay=0.2, beta1=0.7),
    "adam as tables": AdamAsTables(weight_decay=0.2),
    "sgd": Sgd(momentum=0.0),
    "sgd with momentum": Sgd(momentum=0.9),
    "sgd with all": Sgd(momentum=0.8, nesterov=True, weight_decay=0.05),
    "adagrad": Adagrad(),
    "adagrad with decay": Adagrad(weight_decay=0.05),
}


def parameters(replicas: int) -> dict[str, nn.Parameter]:
    """Replica r has the same values for any number of replicas."""
    made = {}
    for k, (name, shape) in enumerate(SHAPES.items()):
        rows = [torch.randn(shape, generator=torch.Generator().manual_seed(10 * k + r)) for r in range(replicas)]
        made[name] = nn.Parameter(torch.stack(rows))
    return made


def gradient(p: Tensor, step: int) -> Tensor:
    """A gradient that depends on the weights, so that errors would accumulate."""
    return torch.sin(p.detach() + step) * (0.5 + step % 3)


def built(spec, own: dict[str, nn.Parameter], rates: Sequence[float], decays: Sequence[float]) -> Optimizer:
    return spec.build(own, rates, decays)


def walk(optimizer: Optimizer, alive: Sequence[bool], steps: range = range(STEPS)) -> None:
    for step in steps:
        for p in optimizer.parameters:
            p.grad = gradient(p, step)
        optimizer.step(torch.tensor(1 / (1 + step % 4)), torch.tensor(alive))


def reference(spec, own: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    """Torch's optimizer, with weight decay on matrices only."""
    groups = [
        {"params": [p for p in own.values() if p.ndim >= 3], "weight_decay": spec.weight_decay},
        {"params": [p for p in own.values() if p.ndim < 3], "weight_decay": 0.0},
    ]
    if isinstance(spec, Adam | AdamW):
        theirs = torch.optim.Adam if isinstance(spec, Adam) else torch.optim.AdamW
        return theirs(groups, spec.learning_rate, betas=(spec.beta1, spec.beta2), eps=spec.epsilon)
    if isinstance(spec, Sgd):
        return torch.optim.SGD(groups, spec.learning_rate, momentum=spec.momentum, nesterov=spec.nesterov)
    return torch.optim.Adagrad(groups, spec.learning_rate, eps=spec.epsilon)


@pytest.mark.parametrize("name", SPECS)
def test_steps_of_one_replica_equal_torchs(name: str):
    spec, ours, theirs = SPECS[name], parameters(1), parameters(1)
    walk(built(spec, ours, [spec.learning_rate], [spec.weight_decay]), [True])
    optimizer = reference(spec, theirs)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate / (1 + step % 4)
        for p in theirs.values():
            p.grad = gradient(p, step)
        optimizer.step()
    for key, p in ours.items():
        torch.testing.assert_close(p, theirs[key], rtol=1e-6, atol=1e-6)
        assert (p - parameters(1)[key]).abs().max() > 1e-3


@pytest.mark.parametrize("name", SPECS)
def test_replicas_with_their_own_rates_and_decays_equal_separate_replicas(name: str):
    spec, rates, decays = SPECS[name], [0.01, 0.03, 0.0], [0.1, 0.0, 0.3]
    together = parameters(3)
    walk(built(spec, together, rates, decays), [True] * 3)
    for r in range(3):
        alone = {key: nn.Parameter(p[r : r + 1].detach().clone()) for key, p in parameters(3).items()}
        walk(built(spec, alone, rates[r : r + 1], decays[r : r + 1]), [True])
        for key, p in alone.items():
            torch.testing.assert_close(together[key][r], p[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1.0])
@pytest.mark.parametrize("name", SPECS)
def test_an_ended_replica_stays_bit_identical(name: str, poison: float):
    spec, own, calm = SPECS[name], parameters(3), parameters(3)
    decays = [spec.weight_decay] * 3
    disturbed, undisturbed = (built(spec, p, [0.01] * 3, decays) for p in (own, calm))
    for optimizer in (disturbed, undisturbed):
        walk(optimizer, [True] * 3, range(5))
    before = {key: p.detach().clone() for key, p in own.items()}
    for step in range(5, 10):
        for optimizer, value in ((disturbed, poison), (undisturbed, 0.5)):
            for p in optimizer.parameters:
                p.grad = gradient(p, step)
                p.grad[1] = value
            optimizer.step(torch.ones(()), torch.tensor([True, optimizer is undisturbed, True]))
    for key, p in own.items():
        assert torch.equal(p[1].view(torch.int32), before[key][1].view(torch.int32))
        assert not torch.equal(p[0], before[key][0])
        for r in (0, 2):
            assert torch.equal(p[r], calm[key][r])
    for key, memory in disturbed.state().items():
        assert memory.isfinite().all(), key
        assert torch.equal(memory[0], undisturbed.state()[key][0])


@pytest.mark.parametrize("name", SPECS)
def test_a_single_ended_replica_stays_unchanged(name: str):
    own = parameters(1)
    optimizer = built(SPECS[name], own, [0.01], [0.1])
    walk(optimizer, [True], range(3))
    before = {key: p.detach().clone() for key, p in own.items()}
    for p in optimizer.parameters:
        p.grad = torch.full_like(p, torch.nan)
    optimizer.step(torch.ones(()), torch.tensor([False]))
    assert all(torch.equal(p, before[key]) for key, p in own.items())
    assert all(memory.isfinite().all() for memory in optimizer.state().values())


@pytest.mark.parametrize("replicas", [1, 2])
def test_only_matrices_are_decayed(replicas: int):
    own = parameters(replicas)
    before = copy.deepcopy(own)
    optimizer = built(AdamW(), own, [0.1] * replicas, [0.5] * replicas)
    for p in optimizer.parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step(torch.ones(()), torch.ones(replicas, dtype=torch.bool))
    for key in ("table", "matrix"):
        torch.testing.assert_close(own[key], before[key] * (1 - 0.1 * 0.5))
    for key in ("bias", "norm"):
        assert torch.equal(own[key], before[key])


@pytest.mark.parametrize("name", SPECS)
def test_state_and_steps_suffice_to_resume(name: str):
    spec, own = SPECS[name], parameters(2)
    first = built(spec, own, [0.01, 0.02], [0.1, 0.0])
    walk(first, [True, True], range(7))
    later = {key: nn.Parameter(p.detach().clone()) for key, p in own.items()}
    second = built(spec, later, [0.01, 0.02], [0.1, 0.0])
    for key, tensor in second.state().items():
        tensor.copy_(first.state()[key])
    second.steps.copy_(first.steps)
    assert all("/" in key for key in first.state())
    for optimizer in (first, second):
        walk(optimizer, [True, True], range(7, 15))
    assert all(torch.equal(p, later[key]) for key, p in own.items())


# Clipping: a step of plain SGD with rate 1 equals the clipped gradient.


@pytest.mark.parametrize("spec", [Sgd(momentum=0.0), AdamW(weight_decay=0.0), AsTables(weight_decay=0.0), Adam()])
@pytest.mark.parametrize("limit", [0.5, 3.0, 1e6])
@pytest.mark.parametrize("sizes", [[0.01, 1.0, 100.0], [100.0]])
def test_clipping_equals_torchs_for_each_replica(spec, limit: float, sizes: list[float]):
    own, expected = parameters(len(sizes)), parameters(len(sizes))
    optimizer = built(spec, own, [1.0] * len(sizes), [0.0] * len(sizes))
    unclipped = built(spec, expected, [1.0] * len(sizes), [0.0] * len(sizes))
    for k, (mine, theirs) in enumerate(zip(own.values(), expected.values(), strict=True)):
        mine.grad = gradient(mine, k) * torch.tensor(sizes).view(-1, *[1] * (mine.ndim - 1))
        theirs.grad = mine.grad.clone()
    by_torch = []
    for r in range(len(sizes)):
        rows = [nn.Parameter(p[r].detach().clone()) for p in expected.values()]
        for row, p in zip(rows, expected.values(), strict=True):
            row.grad = p.grad[r].clone()
        by_torch.append(nn.utils.clip_grad_norm_(rows, limit))
        for row, p in zip(rows, expected.values(), strict=True):
            p.grad[r] = row.grad
    alive = torch.ones(len(sizes), dtype=torch.bool)
    norms = optimizer.step(torch.ones(()), alive, limit)
    unclipped.step(torch.ones(()), alive)
    torch.testing.assert_close(norms, torch.stack(by_torch))
    for key, p in own.items():
        torch.testing.assert_close(p, expected[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
def test_norms_are_those_of_the_whole_gradient(replicas: int):
    own = parameters(replicas)
    optimizer = built(AdamW(), own, [0.1] * replicas, [0.0] * replicas)
    for p in own.values():
        p.grad = torch.ones_like(p)
    norms = optimizer.step(torch.ones(()), torch.ones(replicas, dtype=torch.bool))
    assert norms.tolist() == pytest.approx([(7 * 4 + 5 * 4 + 5 + 4) ** 0.5] * replicas)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_gradient_that_is_not_finite_ends_only_its_replica(replicas: int):
    own = parameters(replicas)
    before = {key: p.detach().clone() for key, p in own.items()}
    optimizer = built(AdamW(), own, [0.1] * replicas, [0.1] * replicas)
    for p in own.values():
        p.grad = torch.ones_like(p)
        p.grad[-1] = torch.nan
    alive = torch.ones(replicas, dtype=torch.bool)
    optimizer.step(torch.ones(()), alive, 1.0)
    assert alive.tolist() == [True] * (replicas - 1) + [False]
    for key, p in own.items():
        assert torch.equal(p[-1], before[key][-1])
        assert all(p[r].isfinite().all() and not torch.equal(p[r], before[key][r]) for r in range(replicas - 1))


@pytest.mark.parametrize("name", SPECS)
def test_an_empty_shard_of_a_parameter_changes_nothing(name: str):
    whole, sharded = ({n: parameters(1)[n] for n in SHAPES} for _ in range(2))
    sharded["elsewhere"] = nn.Parameter(torch.zeros(1, 0))
    for own in (whole, sharded):
        walk(built(SPECS[name], own, [0.1], [0.2]), [True])
    assert all(torch.equal(whole[n], sharded[n]) for n in SHAPES)
