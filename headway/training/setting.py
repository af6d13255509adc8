"""Device, precision and compilation of a training: chosen once, each with a reason."""

import ctypes
import os
import re
from contextlib import suppress
from dataclasses import dataclass

import torch

from headway.core import files
from headway.core.errors import UserError
from headway.training.processes import ALONE, Processes
from headway.training.spec import TrainingSpec


@dataclass(frozen=True)
class Setting:
    device: torch.device
    precision: torch.dtype
    compiled: bool
    recorded: bool
    """Whether a step is recorded once as a CUDA graph and then replayed."""
    reasons: tuple[str, ...]
    """One printable line per choice."""
    may_compile: bool = False
    """Whether training may switch to compiled programs if it then finishes sooner (`training/auto_compile.py`)."""

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == torch.bfloat16)


def choose(spec: TrainingSpec, width: int, processes: Processes = ALONE) -> Setting:
    device, why_device = _device(spec.device, processes)
    precision, why_precision = _precision(spec.precision, device, width)
    sharded = spec.parallel.sharded and processes.world > 1
    compiled, may_compile, why_compiled = _compile(spec.compile, device, sharded, processes.world)
    if device.type == "cuda":
        keep_compiled()
    recorded = device.type == "cuda" and processes.world == 1
    reasons = [why_device, why_precision, why_compiled]
    if recorded:
        reasons.append("steps are replayed as one CUDA graph, which saves the launch overhead of single kernels")
    elif device.type == "cuda":
        reasons.append("steps are not recorded as a CUDA graph, because processes communicate in the middle of them")
    if processes.world > 1:
        reasons.append(spec.parallel.reason(processes))
    return Setting(device, precision, compiled, recorded, tuple(reasons), may_compile)


def _device(asked: str, processes: Processes = ALONE) -> tuple[torch.device, str]:
    if processes.world > 1 and asked in ("auto", "cuda") and torch.cuda.is_available():
        return _own_gpu(processes)
    if processes.world > 1 and asked.startswith("cuda:"):
        raise UserError(
            f"training.device: '{asked}' is one GPU, but there are {processes.world} processes; "
            "with training.device=cuda each uses its own"
        )
    if asked == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda"), f"cuda: found {torch.cuda.get_device_name()}"
        by = ", processes communicate by gloo" if processes.world > 1 else ""
        return torch.device("cpu"), f"cpu: no CUDA device found; threads: {torch.get_num_threads()}{by}"
    kind, _, number = asked.partition(":")
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", asked):
        raise UserError(f"training.device: there is no device '{asked}'; use auto, cpu, cuda, cuda:1 …")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("training.device: no CUDA device is available here; set training.device=cpu or auto")
    if kind == "cuda" and number and int(number) >= torch.cuda.device_count():
        raise UserError(f"training.device: there is no '{asked}'; the last one is cuda:{torch.cuda.device_count() - 1}")
    return torch.device(asked), f"{asked}: as requested"


def _own_gpu(processes: Processes) -> tuple[torch.device, str]:
    there = torch.cuda.device_count()
    if processes.local_rank >= there:
        raise UserError(
            f"training.device: each process needs its own GPU, but the last on this machine is cuda:{there - 1}; "
            f"start torchrun with --nproc-per-node {there}, or set training.device=cpu"
        )
    mine = torch.device("cuda", processes.local_rank)
    return mine, f"{mine}: one {torch.cuda.get_device_name(mine)} per process; they communicate by NCCL"


def _precision(asked: str, device: torch.device, width: int) -> tuple[torch.dtype, str]:
    if device.type == "cpu" and asked == "bf16" and not multiplies_bf16():
        return torch.bfloat16, "bf16: as requested; this processor has no bf16 instructions, float32 would be faster"
    if asked != "auto":
        return (torch.bfloat16 if asked == "bf16" else torch.float32), f"{asked}: as requested"
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major >= 8:
            return torch.bfloat16, f"bf16: CUDA SM {major}{minor} supports it"
        return torch.float32, f"float32: CUDA SM {major}{minor} has no bf16"
    if not multiplies_bf16():
        return torch.float32, "float32: this processor has no bf16 instructions"
    if width < 384:
        return torch.float32, "float32: the reference; training.precision=bf16 is faster only with a large vocabulary"
    return torch.float32, "float32: the reference; training.precision=bf16 is faster at this width"


def multiplies_bf16() -> bool:
    """Whether this processor has bf16 instructions; others emulate them, which is slower than float32."""
    able = getattr(torch.cpu, "get_capabilities", dict)()
    return any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16", "arm_bf16"))


def _compile(asked: str, device: torch.device, sharded: bool, world: int) -> tuple[bool, bool, str]:
    """Whether the first step is compiled, whether a later one may be, and why."""
    if asked != "auto":
        return asked == "on", False, f"compile {asked}: as requested"
    if sharded:
        return False, False, "not compiled: fsdp gathers weights between layers, which breaks a compiled graph"
    if device.type == "cuda" and world > 1:
        return True, False, "compiled from the first step, because several processes cannot switch to it later"
    if device.type == "cuda":
        return False, True, "uncompiled at first; compiled in the background if training then finishes sooner"
    return False, False, "not compiled: on a CPU it costs 20–60 s and gains little"


def keep_compiled() -> None:
    """Keep compiled kernels among Headway's caches, so that the next run finds them."""
    for variable, name in (("TORCHINDUCTOR_CACHE_DIR", "programs"), ("TRITON_CACHE_DIR", "kernels")):
        with suppress(OSError, RuntimeError):  # if it cannot be created, torch uses its own folder
            folder = files.cache_folder() / "compiled" / name
            folder.mkdir(parents=True, exist_ok=True)
            os.environ.setdefault(variable, str(folder))


def keep_freed_memory() -> None:
    """Keep up to 256 MB of freed memory in this process. Every step allocates and frees the same memory, but glibc
    returns freed memory at the end of its heap to the system, and the next step has page faults again: at width 128,
    3,600 pages and a fifteenth of the step. (Blocks of more than 32 MB are returned to the system as before.)"""
    with suppress(OSError, AttributeError):  # other C libraries have no mallopt
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_MMAP_THRESHOLD, 32 << 20)
        allocator.mallopt(_TRIM_THRESHOLD, 256 << 20)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from malloc.h
