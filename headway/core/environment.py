"""Where a run was made: versions, device, git state, command."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headway import __version__


def environment(device: str) -> dict[str, Any]:
    """What a reader needs to know to get the same figures."""
    packages = ("torch", "numpy", "tokenizers", "safetensors", "pydantic")
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "device": _named(device),
        "versions": {"headway": __version__, **{package: version(package) for package in packages}},
        "git": _git_state(),
    }


def _named(device: str) -> str:
    """A GPU by its model: figures of one do not hold for another."""
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"


def _git_state() -> dict[str, Any] | None:
    def ask(*words: str) -> str:
        answer = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True)
        return answer.stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
