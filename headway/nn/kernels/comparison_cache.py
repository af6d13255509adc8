"""A cache, shared by the processes of a machine, of which kernels agreed with their plain definitions (`trusted.py`).

Comparing a dozen kernels takes seconds. The result stays the same as long as everything that it depends on does: the
case, the sources of kernels and checks, the versions of torch, Triton and CUDA, and the GPU. All of these are hashed
into the file name, so any change leads to a new comparison, and nothing ever has to be invalidated. Only kernels that
agree are cached: one that does not is compared, and warned about, every time.

The files are with the other caches (`headway cache`) and may be deleted at any time. A broken or missing file costs a
comparison, never a run.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from headway.core import random
from headway.core.errors import UserError
from headway.core.files import as_json, cache_folder, checksum_of_files, write_whole
from headway.core.reading import read_json

MAX_BYTES = 1 << 16
"""The largest cache file that is read, in bytes."""


class KernelCase(NamedTuple):
    """A kernel in one case, and the check that compares it with its plain definition."""

    operation: str
    device: torch.device
    check: Callable[..., float]
    case: tuple[Any, ...]

    def cached_deviation(self) -> float | None:
        """The kernel's deviation in an earlier comparison on this machine; None = not in the cache."""
        if (key := self._key) is None:
            return None
        try:
            kept = read_json(_path(key), MAX_BYTES)
            off = kept["off"]
        except (OSError, RuntimeError, UserError, ValueError, KeyError, TypeError):
            return None
        is_ours = kept.get("of") == key and isinstance(off, float)
        return off if is_ours and 0 <= off < float("inf") else None

    def keep(self, off: float) -> None:
        """Store the deviation for later processes; if it cannot be written, they compare again."""
        if (key := self._key) is not None:
            with suppress(OSError, RuntimeError):
                _path(key).parent.mkdir(parents=True, exist_ok=True)
                write_whole(_path(key), as_json({"off": float(off), "of": key}))

    def forget(self) -> None:
        if (key := self._key) is not None:
            with suppress(OSError, RuntimeError):
                _path(key).unlink(missing_ok=True)

    @property
    def _key(self) -> dict[str, str] | None:
        """Everything that the result depends on; None = results are not cached on this device."""
        built_on = machine(self.device)
        if built_on is None:
            return None
        own = sys.modules[self.check.__module__].__file__ or ""
        sources = checksum_of_files(*sorted(Path(__file__).parent.glob("*.py")), Path(random.__file__), Path(own))
        asked = {"operation": self.operation, "check": self.check.__qualname__, "case": repr(self.case)}
        return {**asked, "sources": sources, **built_on}


@cache
def machine(device: torch.device) -> dict[str, str] | None:
    """The versions and the GPU that kernels depend on. None on a CPU: there each process compares its products."""
    if device.type != "cuda":
        return None
    versions = {name: _version(name) for name in ("torch", "triton")}
    versions |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    interpreted = os.environ.get("TRITON_INTERPRET", "")
    return {**versions, "gpu": torch.cuda.get_device_name(device), "can": capability, "interpreted": interpreted}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _path(key: dict[str, str]) -> Path:
    """The path of the cache file. Raises RuntimeError if the user has no home folder."""
    return cache_folder() / f"kernel-{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]}.json"
