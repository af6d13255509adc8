"""The part of Triton that the kernels of `nn/kernels/fused_kernels.py` need, on a CPU: programs run one after the other
on torch tensors. It shows whether a kernel reads, computes and writes correctly; it says nothing about speed."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import torch

_running: dict[str, tuple[int, ...]] = {}


class Pointer:
    def __init__(self, memory, at):
        self.memory, self.at = memory, at
        self.dtype = SimpleNamespace(element_ty=memory.dtype)

    @classmethod
    def of(cls, tensor):
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        return cls(torch.as_strided(tensor.detach(), (size,), (1,), 0), torch.tensor(tensor.storage_offset()))

    def __add__(self, offset):
        return Pointer(self.memory, self.at + offset)


def jit(function=None, do_not_specialize=()):
    return Kernel if function is None else Kernel(function)


class Kernel:
    def __init__(self, function):
        self.function = function

    def __call__(self, *given):
        return self.function(*given)

    def __getitem__(self, grid):
        def launch(*given, num_warps=4):
            assert all(size <= 65535 for size in grid[1:]), "CUDA's limit for all dimensions but the first"
            for program in itertools.product(*map(range, grid)):
                _running.update(program=program, grid=grid)
                self.function(*(Pointer.of(g) if isinstance(g, torch.Tensor) else g for g in given))

        return launch


def load(pointer, mask=None, other=None, eviction_policy=None):
    at = pointer.at
    if mask is None:
        assert at.min() >= 0 and at.max() < len(pointer.memory), "read out of bounds"
        return pointer.memory[at]
    at, mask = torch.broadcast_tensors(at, mask)
    safe = torch.where(mask, at, 0)
    assert safe.min() >= 0 and safe.max() < len(pointer.memory), "read out of bounds"
    return torch.where(mask, pointer.memory[safe], torch.tensor(other, dtype=pointer.memory.dtype))


def store(pointer, value, mask=None, eviction_policy=None):
    mask = torch.tensor(True) if mask is None else mask
    at, value, mask = torch.broadcast_tensors(pointer.at, torch.as_tensor(value), mask)
    assert not mask.any() or (at[mask].min() >= 0 and at[mask].max() < len(pointer.memory)), "written out of bounds"
    pointer.memory[at[mask]] = value[mask].to(pointer.memory.dtype)


@contextmanager
def triton_on_cpu() -> Iterator[None]:
    """In this context, `import triton` imports this module."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.jit, triton.language = jit, language  # pyright: ignore
    language.constexpr = lambda value: value  # pyright: ignore
    for name in ("float32", "int32", "int64", "exp", "log", "sqrt", "sigmoid", "erf", "cos", "sin", "maximum", "where"):
        setattr(language, name, getattr(torch, name))
    for name, function in {
        "load": load,
        "store": store,
        "program_id": lambda axis: torch.tensor(_running["program"][axis], dtype=torch.int32),
        "num_programs": lambda axis: _running["grid"][axis],
        "arange": lambda first, end: torch.arange(first, end, dtype=torch.int32),
        "zeros": lambda shape, dtype: torch.zeros(shape, dtype=dtype),
        "full": lambda shape, value, dtype: torch.full(shape, value, dtype=dtype),
        "zeros_like": torch.zeros_like,
        "sum": lambda x, axis: x.sum(axis),
        "max": lambda x, axis: x.amax(axis),
        "div_rn": torch.div,
    }.items():
        setattr(language, name, function)
    before = {name: sys.modules.get(name) for name in ("triton", "triton.language")}
    sys.modules |= {"triton": triton, "triton.language": language}
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
