"""What a process may use of its machine: cores, and a share of the memory of a GPU."""

import math
import os
from pathlib import Path

SHARE = "HEADWAY_SHARE_OF_GPU"
"""The environment variable with this process's share of the memory of its GPU, if processes of a study share it
(`study/execution/sharing.py`)."""


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The number of cores this process may use. In a container it may be limited by a CPU quota (cgroup)."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        used, period = map(int, quota.read_text().split())
        return max(1, min(here, math.ceil(used / period)))
    except (OSError, ValueError, ZeroDivisionError):  # no quota, or "max"
        return here


def share_of_gpu() -> float:
    """This process's share of the GPU's memory; 1 = no other process of its study uses it."""
    return float(os.environ.get(SHARE, "1"))
