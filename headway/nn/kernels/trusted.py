"""Whether a kernel can be trusted: its results are compared with those of its plain definition.

Kernels will run on machines and versions that they were never tested on, and a wrong kernel is silent. So each is
compared with plain torch code on the machine at hand before its first use. If it cannot be built, or deviates by more
than rounding explains, a warning says so once and the plain code is used. A GPU kernel that was right is not compared
again by other processes of the same machine (`comparison_cache.py`).

Building a GPU kernel takes a quarter of a second, mostly outside Python. So a training first asks for all its kernels,
and then has them built and compared at the same time (`compared_together`).
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.core.files import side_by_side
from headway.nn.kernels.comparison_cache import KernelCase

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""The largest allowed difference from the plain code, relative to the largest value of its result."""
_LOG = logging.getLogger("headway")
_verdicts: dict[tuple[Any, ...], bool] = {}
_postponed: dict[tuple[Any, ...], KernelCase] | None = None
"""GPU kernels that were asked for and not compared, inside `using_known_kernels`."""


def trusted(operation: str, device: torch.device, check: Callable[..., float], *case: Any) -> bool:
    """Whether a kernel agrees with the plain code in this case (sizes and dtypes); `check` returns its deviation. This
    is checked at first use, but not while a CUDA graph is being recorded. Checks run in several threads, so they must
    not change what is shared."""
    key = operation, str(device), *case
    if key not in _verdicts:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False
        if _postponed is not None and key in _postponed:
            return False
        kernel = KernelCase(operation, device, check, case)
        if not (known := _is_known(kernel)) and _postponed is not None and device.type == "cuda":
            _postponed[key] = kernel
            return False
        _verdicts[key] = known or _is_right(kernel)
    return _verdicts[key]


@contextmanager
def using_known_kernels() -> Iterator[dict[tuple[Any, ...], KernelCase]]:
    """Inside this block, only GPU kernels that were compared before are used, and no new one is built. Yields those
    that were asked for in vain."""
    global _postponed
    before, _postponed = _postponed, {}
    try:
        yield _postponed
    finally:
        _postponed = before


@contextmanager
def compared_together() -> Iterator[None]:
    """Inside this block, no new GPU kernel is used; those that were asked for are compared at its end, in threads."""
    with using_known_kernels() as asked:
        yield

    def compare(key: tuple[Any, ...], kernel: KernelCase) -> None:
        _verdicts[key] = _is_right(kernel)

    side_by_side([partial(compare, *both) for both in asked.items()])


def by_kernel(
    operation: str, device: torch.device, check: Callable[..., float], case: tuple[Any, ...], run: Callable[[], Any]
) -> Any:
    """The result of `run`; None if the kernel is not trusted, or if it fails at just these sizes after all."""
    if not trusted(operation, device, check, *case):
        return None
    try:
        return run()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _verdicts[operation, str(device), *case] = False
        KernelCase(operation, device, check, case).forget()
        _refuse(operation, error)
        return None


def _refuse(operation: str, error: Exception) -> None:
    told = " ".join(f"{type(error).__name__}: {error}".split())
    _LOG.warning(f"the kernel '{operation}' cannot be used ({told[:200]}); plain torch is used instead")


def _is_known(kernel: KernelCase) -> bool:
    """Whether it agreed in an earlier comparison on this machine."""
    known = kernel.cached_deviation()
    return known is not None and known <= _tolerated(kernel)


def _is_right(kernel: KernelCase) -> bool:
    operation, device, check, case = kernel
    try:
        with torch.inference_mode(False), torch.autocast(device.type, enabled=False), _in_this_thread(device):
            off = check(device, *case)
    except Exception as error:  # a kernel compiler can raise anything; the plain code still works
        _refuse(operation, error)
        return False
    if off <= (within := _tolerated(kernel)):
        kernel.keep(off)
        return True
    told = f"its relative error is {off:.2g}, and rounding explains only {within:g}"
    _LOG.warning(f"the kernel '{operation}' is not used: {told}; plain torch is used instead")
    return False


@contextmanager
def _in_this_thread(device: torch.device) -> Iterator[None]:
    """A new thread would use the first GPU, and all threads would share one for the backward pass."""
    on_device: AbstractContextManager[Any] = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with on_device, torch.autograd.set_multithreading_enabled(False):
        yield


def _tolerated(kernel: KernelCase) -> float:
    return max(TOLERANCE[dtype] for dtype in (*_precisions(kernel.case), torch.float32))


def _precisions(case: tuple[Any, ...]) -> Iterator[torch.dtype]:
    for one in case:
        if isinstance(one, torch.dtype):
            yield one
        elif isinstance(one, tuple):
            yield from _precisions(one)


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference, relative to the largest expected absolute value; infinite if there is a NaN."""
    shares = [
        ((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-6)).item()
        for a, b in zip(found, expected, strict=True)
    ]
    return max((share if math.isfinite(share) else math.inf for share in shares), default=0.0)


def difference_with_gradients(
    fused: Callable[..., Any], plain: Callable[..., Any], given: Sequence[Tensor | None]
) -> float:
    """The largest difference of outputs and gradients between two functions that return one tensor or several."""
    results = []
    for compute in (fused, plain):
        mine = [None if t is None else t.clone().requires_grad_() for t in given]
        with torch.enable_grad():
            found = compute(*mine)
            found = (found,) if isinstance(found, Tensor) else found
            # A sum, because torch imports sympy, which takes seconds, for gradients that are given.
            slopes = [sample_values(y.shape, y.device, 7 + k, y.dtype) for k, y in enumerate(found)]
            torch.stack([(y * d).float().sum() for y, d in zip(found, slopes, strict=True)]).sum().backward()
        results.append([*(y.detach() for y in found), *(t.grad for t in mine if t is not None)])
    return difference(*results)


def sample_values(shape: Sequence[int], device: torch.device, seed: int, like: torch.dtype = torch.float32) -> Tensor:
    """Deterministic test values between -2 and 2."""
    return (torch.arange(math.prod(shape), device=device, dtype=torch.float32) * (seed + 0.618)).sin().mul_(2).view(
        tuple(shape)
    ).to(like)  # fmt: skip
