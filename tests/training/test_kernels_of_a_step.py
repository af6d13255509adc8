"""Before the first step on a GPU its kernels are built at the same time; here it is done on a CPU, which has none."""

import pytest
import torch

from headway.nn.kernels import trusted

NOTHING_MORE = "CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.fixture
def prepared(made_loop):
    """A loop after some steps, and what must not change: its weights, its optimizer's state, and its next step."""
    loop = made_loop([1, 2], dropouts=[0.1, 0.3])
    for _ in range(3):
        loop.take_step()
    kept = [*loop.model.parameters(), *loop.optimizer.state().values(), loop.optimizer.steps, loop.alive]
    return loop, kept, [one.detach().clone() for one in kept]


def test_nothing_changes_when_kernels_are_built(prepared, made_loop):
    loop, kept, before = prepared
    loop.update.build_kernels(loop.sampler)
    assert all(map(torch.equal, kept, before))
    assert all(p.grad is None for p in loop.model.parameters())
    other = made_loop([1, 2], dropouts=[0.1, 0.3])
    for each in (other, other, other, other, loop):
        each.take_step()
    assert all(map(torch.equal, loop.model.parameters(), other.model.parameters()))


def test_kernels_of_both_passes_and_of_the_optimizer_are_asked_for(prepared, monkeypatch):
    loop, *_ = prepared
    original, asked = type(loop.model).loss, []

    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, dx):  # pyright: ignore[reportIncompatibleMethodOverride]
            ask("backward")
            return dx

    def ask(name):
        return trusted.trusted(name, torch.device("cuda:0"), lambda device: asked.append(name) or 0.0)

    def loss(self, part, state=None):
        ask("forward")
        losses, after = original(self, part, state)
        return Asking.apply(losses), after

    monkeypatch.setattr(trusted, "_verdicts", {})
    monkeypatch.setattr("headway.nn.kernels.comparison_cache.machine", lambda device: None)
    monkeypatch.setattr(trusted, "_in_this_thread", lambda device: torch.no_grad())
    monkeypatch.setattr(type(loop.model), "loss", loss)
    monkeypatch.setattr("headway.training.adam.fused_adamw.can_step", lambda weights: ask("optimizer"))
    loop.update.build_kernels(loop.sampler)
    assert sorted(asked) == ["backward", "forward", "optimizer"]


def test_without_kernels_the_memory_may_be_too_small(prepared, monkeypatch):
    loop, *_ = prepared

    def full(self, part, state=None):
        raise torch.OutOfMemoryError(NOTHING_MORE)

    monkeypatch.setattr(type(loop.model), "loss", full)
    loop.update.build_kernels(loop.sampler)

    def broken(self, part, state=None):
        raise ValueError("a layer of the user's own")

    monkeypatch.setattr(type(loop.model), "loss", broken)
    with pytest.raises(ValueError, match="own"):
        loop.update.build_kernels(loop.sampler)
