"""Whether our Triton kernels (`fused_kernels.py`) are used, and with which block sizes: shared by everything that
launches one.

They are for training on CUDA where nothing is compiled.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headway.nn.kernels.trusted import WITHIN

_in_use = _switched_off = False


@contextmanager
def in_use() -> Iterator[None]:
    """As long as this lasts, kernels are used where there are any: in the steps of a training. Audits, which take a few
    steps in other precisions, would wait longer for kernels to be built than for the steps."""
    global _in_use
    before, _in_use = _in_use, not _switched_off
    try:
        yield
    finally:
        _in_use = before


@contextmanager
def plainly() -> Iterator[None]:
    """As long as this lasts, no kernel is used: to compare with."""
    global _switched_off
    before, _switched_off = _switched_off, True
    try:
        yield
    finally:
        _switched_off = before


def available(x: Tensor) -> bool:
    """Whether kernels are used at all for numbers that lie there: on CUDA, and nothing that compiles."""
    if torch.compiler.is_compiling() or not x.is_cuda:
        return False
    return _in_use and kernels() is not None


def wanted(x: Tensor) -> bool:
    """Whether there is anything to be had here: training on CUDA, and nothing that compiles."""
    return available(x) and torch.is_grad_enabled() and x.dtype in WITHIN


@cache
def kernels() -> Any:
    """None where there is no Triton."""
    with suppress(ImportError):
        from headway.nn.kernels import fused_kernels

        return fused_kernels
    return None


def power(n: int) -> int:
    """The first power of two from n on; 16 at least."""
    return max(16, 1 << (n - 1).bit_length())


def tile(D: int) -> tuple[int, int]:
    """Rows and columns of what one program works on at a time."""
    BLOCK = power(D)
    return max(1, min(32, 2048 // BLOCK)), BLOCK


def parts(count: int, size: int) -> int:
    return -(-count // size)


def shared(N: int, ROWS: int, others: int) -> tuple[int, int]:
    """How many programs share the rows of a replica, and how many rows each has, where so many others run beside."""
    most = max(1, 2048 // others)
    per = parts(parts(N, min(most, parts(N, ROWS))), ROWS) * ROWS
    return parts(N, per), per
