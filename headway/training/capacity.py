"""How many replicas fit into the memory of a device: measured on a step, unless all of them clearly fit."""

import gc
from collections.abc import Callable
from typing import NamedTuple

import torch

from headway.core.errors import NoRoomError
from headway.core.processors import share_of_gpu

USABLE_FRACTION = 0.92
"""The usable fraction of the free memory: the rest is for evaluation, checkpoints and fragmentation."""

MEASURE_ABOVE = 0.5
"""If a generous estimate stays within this fraction of the free memory, nothing is measured."""


class Capacity(NamedTuple):
    replicas: int
    reason: str


def largest_population(
    device: torch.device,
    wanted: int,
    step_with: Callable[[int], None],
    each_at_most: int | None = None,
    share: float | None = None,
) -> Capacity:
    """The largest population that fits, at most `wanted`. `step_with(R)` builds R replicas, takes a step, frees them.
    It is not called if all replicas of `each_at_most` bytes fit into this much (MEASURE_ABOVE) of the free memory.
    `share`: the part of the free memory that the population may use; None = this process's own share.

    The memory per replica is the difference between populations of two and one, so that shared memory counts once.
    """
    if device.type != "cuda" or wanted <= 2:
        return Capacity(wanted, "all at once")
    free = torch.cuda.mem_get_info(device)[0] * (share_of_gpu() if share is None else share)
    if each_at_most is not None and wanted * each_at_most < free * MEASURE_ABOVE:
        told = f"a replica takes at most {_gib(each_at_most)}; {_gib(free)} are free"
        return Capacity(wanted, f"all at once: {told}")
    try:
        one, two = (_peak(device, step_with, R) for R in (1, 2))
    except (torch.cuda.OutOfMemoryError, NoRoomError):
        return Capacity(1, f"one at a time: two replicas do not fit into {_gib(free)}")
    each, shared = max(two - one, 1), max(2 * one - two, 0)
    fits = max(1, min(wanted, int((free * USABLE_FRACTION - shared) // each)))
    reason = f"a step takes {_gib(each)} per replica and {_gib(shared)} for all; {_gib(free)} are free"
    return Capacity(fits, f"{fits} of {wanted} replicas at a time: {reason}" if fits < wanted else reason)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory ran out; not every library has a class of its own for that."""
    said = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in said or "can't allocate memory" in said)
    )


def free_memory() -> None:
    """Release the memory of objects that are no longer referenced."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _peak(device: torch.device, step_with: Callable[[int], None], replicas: int) -> int:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step_with(replicas)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
