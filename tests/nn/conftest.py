"""Shared by the tests of the modules: small modules with seeds, larger weights, and their gradients."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hosting import Host
from torch import Tensor, nn

from headway.nn.attention import AttentionSpec
from headway.nn.backends import Needs
from headway.nn.context import Context
from headway.nn.heads import Concat
from headway.nn.kv_cache import Cache
from headway.nn.masks import Causal, Mask
from headway.nn.positions import NoPositions
from headway.nn.seeding import seed
from headway.nn.trainable import Trainable

PLAIN = NoPositions(), Concat(), Causal()


class Layer(Trainable):
    """One attention layer with its position scheme."""

    def __init__(self, spec: AttentionSpec, positions, mask: Mask, replicas: int, width: int, context: int):
        super().__init__()
        self.replicas, self.mask = replicas, mask
        self.positions = positions.build(replicas, width, spec.heads, context)
        self.attention = spec.build(replicas, width, 1.0, Needs(positions=positions.kind))

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, state: Cache | None = None) -> Tensor:
        slots = torch.arange(x.shape[2] + (state.keys.shape[3] if state else 0))
        new = slots[-x.shape[2] :]
        context = Context((self.replicas, x.shape[1]), self.positions, self.mask, new, slots, padding_mask)
        y, self.state = self.attention(self.positions.embed(x, new), context, state)
        return y


@pytest.fixture
def layer(seeded, randomised) -> Callable[..., Layer]:
    """A layer of two heads, with weights large enough to matter; replica r has seed r."""

    def layer(
        positions=PLAIN[0],
        fusion=PLAIN[1],
        mask: Mask = PLAIN[2],
        backend: str = "plain",
        replicas: int = 1,
        spec: AttentionSpec | None = None,
    ) -> Layer:
        spec = spec or AttentionSpec(heads=2, fusion=fusion, backend=backend)
        return randomised(seeded(Layer(spec, positions, mask, replicas, width=8, context=8), list(range(replicas))))

    return layer


@pytest.fixture
def seeded() -> Callable[..., nn.Module]:
    """Initialises a module with these seeds, and seeds its noise; in its model the module is called `module`."""

    def seeded(module: nn.Module, seeds: Sequence[int]) -> nn.Module:
        seed(Host(module, len(seeds)), seeds)
        return module

    return seeded


@pytest.fixture
def randomised() -> Callable[..., nn.Module]:
    """Makes every parameter of every replica random and large enough to matter, including biases and norms."""

    @torch.no_grad()
    def randomised(module: nn.Module, number: int = 0, std: float = 0.3) -> nn.Module:
        generator = torch.Generator().manual_seed(number)
        for p in module.parameters():
            p.normal_(0, std, generator=generator)
        return module

    return randomised


@pytest.fixture
def copied() -> Callable[..., nn.Module]:
    """Copies the parameters of one module into another with the same structure: of all replicas, or of one."""

    @torch.no_grad()
    def copied(to: nn.Module, source: nn.Module, replica: int | None = None) -> nn.Module:
        theirs = dict(source.named_parameters())
        for name, p in to.named_parameters():
            p.copy_(theirs[name] if replica is None else theirs[name][replica : replica + 1])
        return to

    return copied


@pytest.fixture
def results() -> Callable[..., dict[str, Tensor]]:
    """The output of a call, and the gradients of a fixed weighted sum of it for every parameter and float input."""

    def results(module: nn.Module, call: Callable[..., Tensor], *inputs: Tensor) -> dict[str, Tensor]:
        module.zero_grad()
        inputs = tuple(x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs)
        out = call(*inputs)
        numbers = torch.arange(out[0].numel(), dtype=torch.float64)  # the same for every replica
        (out * (numbers * 1.7).sin().to(out.dtype).view(out.shape[1:])).sum().backward()
        found = {"output": out.detach()}
        found |= {f"input {k}": x.grad for k, x in enumerate(inputs) if x.grad is not None}
        return found | {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}

    return results


@pytest.fixture
def agree() -> Callable[..., None]:
    """Checks that two such results are equal, or that a replica's slice of the second equals the first."""

    def agree(
        ours: dict[str, Tensor], theirs: dict[str, Tensor], replica: int | None = None, within: float = 1e-5
    ) -> None:
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            expected = theirs[name] if replica is None else theirs[name][replica : replica + 1]
            size = max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(value, expected, rtol=0, atol=within * size, msg=lambda m, n=name: f"{n}: {m}")

    return agree
