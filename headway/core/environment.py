"""Where a run was made: versions, device, git state and command."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headway import __version__


def environment(device: str) -> dict[str, Any]:
    """What a reader needs to reproduce a run's numbers."""
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
    """The command that starts this Python interpreter again, and its environment. The current folder is not on the
    path, since it may contain anybody's `yaml.py`. (An empty entry in PYTHONPATH also means the current folder.)"""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = {"PYTHONPATH": os.pathsep.join(filter(None, named))}
    return [sys.executable, "-P"], {**os.environ, **path}


def _named(device: str) -> str:
    """The device, with the model name of a GPU: measurements do not carry over to other models."""
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"


_HARMLESS = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_NO_NETWORK = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}


def _git_state() -> dict[str, Any] | None:
    """The commit of the current folder. The repository may be anybody's, so programs that its configuration would make
    git run (a monitor, hooks, filters, remote fetches) are disabled."""

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
