"""Processes that share a GPU: how many, and how their kernels run at the same time.

By default a GPU serves one process after the other, a few milliseconds each, however small their kernels are. NVIDIA's
Multi-Process Service (MPS), which comes with the driver, runs the kernels of several processes side by side. For
kernels that do not fill the card this is where the gain of sharing lies (docs/speed.md has the figures).

A study starts a service of its own for each GPU that several of its processes share, and stops it afterwards. Without
the service's program, or if it does not work here, processes share the GPU without it.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from headway.core.environment import own_python
from headway.core.processors import SHARE, cores

AT_ONCE, CORES_EACH = 4, 4
"""The default number of processes that share a GPU, and the cores that each of them should have. Scoring and auditing a
small model take as long as training it, or longer, mostly on the CPU. With more than four processes, most would wait
for the GPU."""
SERVICE, SOCKETS = "nvidia-cuda-mps-control", "CUDA_MPS_PIPE_DIRECTORY"
SECONDS = 20
"""How long to wait for the service to start, to answer, and to stop."""
LONGEST_SOCKET_FOLDER = 80
"""The path of a Unix socket has at most 107 characters, of which the service uses some for its file names."""

_KEEPER = f"{SERVICE} -d && echo started && read -r forever; echo quit | {SERVICE}"
"""Starts the service, and stops it when its input closes: also when the study's process was killed."""
_PROBE = """
import ctypes, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
sys.exit(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
"""


def most_processes(gpus: int = 1) -> int:
    """The default limit of processes per GPU, by the cores of this machine."""
    return max(1, min(AT_ONCE, cores() // (CORES_EACH * gpus)))


@contextmanager
def shared_gpus(names: Sequence[str]) -> Iterator[dict[str, dict[str, str]]]:
    """By GPU, the environment variables of the processes that use it; a GPU is shared if it is named more than once.
    Names are those of CUDA_VISIBLE_DEVICES."""
    with ExitStack() as services:
        environments: dict[str, dict[str, str]] = {}
        for name in dict.fromkeys(names):
            processes, served = names.count(name), None
            if processes > 1 and SOCKETS not in os.environ:  # otherwise somebody else's service is in use already
                served = services.enter_context(_service(name))
            environments[name] = {"CUDA_VISIBLE_DEVICES": name, SHARE: str(1 / processes), **(served or {})}
        yield environments


def run_side_by_side(environment: dict[str, str]) -> bool:
    """Whether kernels of processes with this environment run at the same time."""
    return SOCKETS in environment or SOCKETS in os.environ


@contextmanager
def _service(gpu: str) -> Iterator[dict[str, str] | None]:
    """A service for this GPU alone, which its processes see as device 0; None if it does not work here."""
    folder = Path(tempfile.mkdtemp(prefix="headway-mps-"))
    try:
        if shutil.which(SERVICE) is None or len(str(folder)) > LONGEST_SOCKET_FOLDER:
            yield None
            return
        own = {SOCKETS: str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
        with _kept({**os.environ, **own, "CUDA_VISIBLE_DEVICES": gpu}) as has_started:
            visible = {**own, "CUDA_VISIBLE_DEVICES": "0"}
            yield visible if has_started and _answers(visible) else None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _kept(environment: dict[str, str]) -> Iterator[bool]:
    """Keep a service running inside this block; yields whether it started."""
    keeper = subprocess.Popen(
        ["sh", "-c", _KEEPER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal must not stop it before the workers
    )
    assert keeper.stdin is not None and keeper.stdout is not None
    try:
        yield keeper.stdout.readline() == b"started\n"
    finally:
        with suppress(OSError):
            keeper.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(SECONDS)
        keeper.stdout.close()


def _answers(environment: dict[str, str]) -> bool:
    """Whether a process with these environment variables gets a CUDA context."""
    python, variables = own_python()
    try:
        asked = subprocess.run(
            [*python, "-c", _PROBE],
            env={**variables, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
