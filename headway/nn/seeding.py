"""What belongs to a seed: the value every parameter starts with, and the stream of every source of noise.

Each follows from (the replica's seed, the name of the place) alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from headway.core import random
from headway.nn.replicated import Clock, Noisy, has_no_numbers
from headway.nn.trainable import Trainable


@torch.no_grad()
def seed(model: Trainable, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
    """Give replica r the start and the noise that belong to `seeds[r]`, and move the model to its device.

    Values are drawn on the CPU, one generator per (seed, name), so they do not depend on the device, on the other
    replicas, or on which other parameters the model has.
    """
    model.clock = Clock(torch.device(device))
    seed_part(model, model, "", seeds)
    if not has_no_numbers.get():
        model.to(device)


@torch.no_grad()
def seed_part(model: Trainable, part: nn.Module, name: str, seeds: Sequence[int]) -> None:
    """The same for a part of the model that goes by this name, such as one that was added to it later."""
    prefix = f"{name}." if name else ""
    for key, p in part.named_parameters():
        if p.is_meta:
            continue
        value, std = p.start  # pyright: ignore[reportAttributeAccessIssue]
        if std == 0:
            p[:] = value
            continue
        for r, replica_seed in enumerate(seeds):
            _draw(p[r], value, std, replica_seed, prefix + key)
    for key, module in part.named_modules(prefix=name):
        if isinstance(module, Noisy):
            module.keys.copy_(random.stream_keys(seeds, key))
            module.clock = model.clock


def _draw(p: Tensor, value: float, std: float, replica_seed: int, name: str) -> None:
    kept, what = _kept.get(), (replica_seed, name, tuple(p.shape), value, std)
    if kept is not None and what in kept:
        p.copy_(kept[what])
        return
    p.normal_(value, std, generator=random.generator(replica_seed, "start", name))
    if kept is not None:
        kept[what] = p.clone()


_kept: ContextVar[dict[tuple[Any, ...], Tensor] | None] = ContextVar("kept", default=None)


def drawn_once() -> AbstractContextManager[None]:
    """While this lasts, what belongs to a seed is drawn once, however many models are built of it: audits build a
    dozen of each, and to draw twenty million numbers takes longer than to ask a model something."""
    return _drawing({})


def drawn_anew() -> AbstractContextManager[None]:
    """Not, inside of that: where it is asked whether the same is drawn every time."""
    return _drawing(None)


@contextmanager
def _drawing(kept: dict[tuple[Any, ...], Tensor] | None) -> Iterator[None]:
    before = _kept.set(kept)
    try:
        yield
    finally:
        _kept.reset(before)
