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


def own_python() -> tuple[list[str], dict[str, str]]:
    """The interpreter that runs us, to be started again, and its environment: without the current folder on its path,
    where anybody's `yaml.py` may lie. (An empty place in PYTHONPATH means that folder, too.)"""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = {"PYTHONPATH": os.pathsep.join(filter(None, named))}
    return [sys.executable, "-P"], {**os.environ, **path}


def _named(device: str) -> str:
    """A GPU by its model: figures of one do not hold for another."""
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"


_HARMLESS = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_NO_NETWORK = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}


def _git_state() -> dict[str, Any] | None:
    """Of the current folder, which may be anybody's: what a repository's configuration would have git run (a monitor,
    hooks, filters, what fetches from elsewhere) is not run."""

    def ask(*words: str) -> str:
        command, quiet = ["git", *_HARMLESS, *words], {**os.environ, **_NO_NETWORK}
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True, env=quiet).stdout.strip()

    try:
        commit = ask("rev-parse", "HEAD")
        keys = ask("config", "--null", "--name-only", "--get-regexp", r"^(filter|core)\.").split("\0")
        filters = dict.fromkeys(key.rpartition(".")[0] for key in keys if key.startswith("filter."))
        off = [f"{name}.{key}={value}" for name in filters for key, value in _NO_FILTER.items()]
        settings = [word for setting in off for word in ("-c", setting)]
        return {"commit": commit, "changed": bool(ask(*settings, "status", "--porcelain", "--ignore-submodules=all"))}
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


_NO_FILTER = {"clean": "", "smudge": "", "process": "", "required": "false"}
