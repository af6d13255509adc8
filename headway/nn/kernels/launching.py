"""Whether our Triton kernels (`fused_kernels.py`) are used, and with which block sizes: shared by everything that
launches one.

They are for training on CUDA without torch.compile.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headway.nn.kernels.trusted import TOLERANCE

PROGRAMS = 1056
"""Of a kernel that sums over rows: eight for each multiprocessor of an H200."""
_in_use = _switched_off = False


@contextmanager
def in_use() -> Iterator[None]:
    """Use kernels inside this block: for training steps. (Those of audits use only kernels that are known, because
    building more would take longer than the steps: `trusted.using_known_kernels`.)"""
    global _in_use
    before, _in_use = _in_use, not _switched_off
    try:
        yield
    finally:
        _in_use = before


@contextmanager
def plainly() -> Iterator[None]:
    """Use no kernels inside this block, for comparisons."""
    global _switched_off
    before, _switched_off = _switched_off, True
    try:
        yield
    finally:
        _switched_off = before


def available(x: Tensor) -> bool:
    """Whether kernels are used for tensors on x's device: CUDA, without torch.compile."""
    if torch.compiler.is_compiling() or not x.is_cuda:
        return False
    return _in_use and kernels() is not None


def wanted(x: Tensor) -> bool:
    """Whether kernels are used for x: on CUDA, with gradients, in a supported dtype, without torch.compile."""
    return available(x) and torch.is_grad_enabled() and x.dtype in TOLERANCE


@cache
def kernels() -> Any:
    """The module of the kernels; None if Triton is not installed."""
    with suppress(ImportError):
        from headway.nn.kernels import fused_kernels

        return fused_kernels
    return None


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n, and at least 16."""
    return max(16, 1 << (n - 1).bit_length())


def tile(D: int) -> tuple[int, int, int]:
    """For a kernel that processes whole rows: rows and columns of the tile of one program, and its warps. The best of
    those tried on an H200 (docs/log.md)."""
    BLOCK = next_power_of_two(D)
    if BLOCK <= 512:
        return max(4, 512 // BLOCK), BLOCK, 2
    return max(1, 2048 // BLOCK), BLOCK, max(4, BLOCK // 512)


def ceil_div(count: int, size: int) -> int:
    return -(-count // size)


def programs_and_rows(N: int, ROWS: int, others: int) -> tuple[int, int]:
    """The number of programs that share the rows of a replica, and the rows of each, given `others`: the number of
    replicas (and column blocks) that run in parallel."""
    most = max(1, PROGRAMS // others)
    per = ceil_div(ceil_div(N, min(most, ceil_div(N, ROWS))), ROWS) * ROWS
    return ceil_div(N, per), per
