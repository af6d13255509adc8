"""What a seed determines: the initial value of every parameter, and the random stream of every source of noise.

Each depends only on the replica's seed and the name of the parameter or module.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headway.core import random
from headway.core.files import side_by_side
from headway.nn.replicated import Clock, Noisy, has_no_numbers
from headway.nn.trainable import Trainable

MANY = 2**22
"""Numbers from which on they are drawn in several threads: ten milliseconds of work."""
MAX_THREADS = 8


@torch.no_grad()
def seed(model: Trainable, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
    """Give replica r the initial values and the noise of `seeds[r]`, and move the model to its device.

    Values are drawn on the CPU, one generator per (seed, name), so they do not depend on the device, on the other
    replicas, or on which other parameters the model has.
    """
    model.clock = Clock(torch.device(device))
    seed_part(model, model, "", seeds)
    if not has_no_numbers.get():
        model.to(device)


@torch.no_grad()
def seed_part(model: Trainable, part: nn.Module, name: str, seeds: Sequence[int]) -> None:
    """The same for the part of the model with this name, such as an adapter that was added later."""
    prefix = f"{name}." if name else ""
    draws, numbers = list[Callable[[], None]](), 0
    for key, p in part.named_parameters():
        if p.is_meta:
            continue
        value, std = p.start  # pyright: ignore[reportAttributeAccessIssue]
        if std == 0:
            p[:] = value
            continue
        draws += [partial(_draw, p[r], value, std, own, prefix + key) for r, own in enumerate(seeds)]
        numbers += p.numel()
    threads = min(MAX_THREADS, torch.get_num_threads()) if numbers >= MANY else 1
    inference = torch.is_inference_mode_enabled()
    side_by_side([partial(_draw_all, draws[k::threads], inference) for k in range(threads)])
    seed_noise(part, seeds, name)
    for module in part.modules():
        if isinstance(module, Noisy):
            module.clock = model.clock


def seed_noise(part: nn.Module, seeds: Sequence[int], name: str = "") -> None:
    """Only the noise of these seeds, as for a model whose weights are loaded from other replicas. (Some modules use it
    in evaluation too: a random order of heads that is drawn once.)"""
    for key, module in part.named_modules(prefix=name):
        if isinstance(module, Noisy):
            module.keys.copy_(random.stream_keys(seeds, key))


def _draw_all(draws: Sequence[Callable[[], None]], inference: bool) -> None:
    """In any order, since each has a generator of its own. Both modes of torch are set for each thread."""
    with torch.inference_mode(inference), torch.no_grad():
        for draw in draws:
            draw()


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
    """Inside this block, initial values are drawn once per seed and reused for further models. Audits build a dozen
    models per seed, and drawing twenty million numbers takes longer than running the model."""
    return _drawing({})


def drawn_anew() -> AbstractContextManager[None]:
    """Inside `drawn_once`, draw again after all: for audits of whether the same values are drawn every time."""
    return _drawing(None)


@contextmanager
def _drawing(kept: dict[tuple[Any, ...], Tensor] | None) -> Iterator[None]:
    before = _kept.set(kept)
    try:
        yield
    finally:
        _kept.reset(before)
