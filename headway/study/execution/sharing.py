"""Processes that share a GPU: how many, and how their kernels run at the same time.

By default a GPU serves one process after the other, a few milliseconds each, however small their kernels are. NVIDIA's
Multi-Process Service (MPS), which comes with the driver, runs the kernels of several processes side by side. For
kernels that do not fill the card this is where the gain of sharing lies (docs/speed.md has the figures).

A study starts a service of its own for each GPU that several of its processes share, and stops it afterwards. Without
the service's program, or if it does not work here, processes share the GPU without it.
"""

import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from headway.core.environment import own_python
from headway.core.processors import SHARE, cores

AT_ONCE, CORES_EACH = 4, 4
"""The default number of processes that share a GPU, and the cores that each of them should have. Scoring and auditing a
small model take as long as training it, or longer, mostly on the CPU. With more than four processes, most would wait
for the GPU."""
PROGRAM, SOCKETS = "nvidia-cuda-mps-control", "CUDA_MPS_PIPE_DIRECTORY"
EVERYBODYS = Path("/tmp/nvidia-mps/control")
"""Where a service of the whole machine listens, which all processes use unless told otherwise."""
SECONDS = 20
"""How long to wait for the service to start, to answer, and to stop."""
LONGEST_FOLDER = 80
"""In bytes: the path of a Unix socket may have 107, of which the service needs some for its file names."""

_KEEPER = f"""
trap '' PIPE  # its reader may be gone
{PROGRAM} -d > /dev/null && echo started && read -r forever
echo quit | {PROGRAM} > /dev/null
rm -rf "${SOCKETS}"
"""
"""Starts the service, and stops it when its input closes: also when the study's process was killed."""
_PROBE = """
import ctypes, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
sys.exit(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
"""
"""Creates a CUDA context."""


def most_processes(gpus: int = 1) -> int:
    """The default limit of processes per GPU, by the cores of this machine."""
    return max(1, min(AT_ONCE, cores() // (CORES_EACH * gpus)))


@contextmanager
def shared_gpus(names: Sequence[str], uuids: Mapping[str, str]) -> Iterator[dict[str, dict[str, str]]]:
    """By GPU, the environment variables of the processes that use it; a GPU is shared if it is named more than once.
    Names are those of CUDA_VISIBLE_DEVICES. Only a GPU whose UUID is known gets a service: a process that does not
    reach the service goes on without it, and must then still be on the same GPU."""
    with ExitStack() as services:
        environments: dict[str, dict[str, str]] = {}
        for name in dict.fromkeys(names):
            environments[name] = {"CUDA_VISIBLE_DEVICES": name, SHARE: str(1 / names.count(name))}
            if names.count(name) > 1 and name in uuids and (folder := _folder()) is not None:
                served = {"CUDA_VISIBLE_DEVICES": uuids[name], SOCKETS: str(folder)}
                if services.enter_context(_service(served)):
                    environments[name] |= served
        yield environments


def run_side_by_side(environments: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether the kernels of all processes that share a GPU run at the same time."""
    shared = [one for one in environments.values() if float(one[SHARE]) < 1]
    return bool(shared) and all(SOCKETS in one for one in shared)


def _folder() -> Path | None:
    """A folder for a service's sockets; None if there can be no service, or if somebody else's is in use already."""
    if SOCKETS in os.environ or EVERYBODYS.exists() or shutil.which(PROGRAM) is None:
        return None
    try:
        folder = Path(tempfile.mkdtemp(prefix="headway-mps-"))
    except OSError:
        return None
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        folder.rmdir()
        return None
    return folder


@contextmanager
def _service(environment: Mapping[str, str]) -> Iterator[bool]:
    """Keep a service running inside this block, for processes with these variables; yields whether it works."""
    keeper = subprocess.Popen(
        ["sh", "-c", _KEEPER],
        env={**os.environ, **environment, "CUDA_MPS_LOG_DIRECTORY": environment[SOCKETS]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal must not stop it before the workers
    )
    assert keeper.stdin is not None and keeper.stdout is not None
    try:
        yield _has_started(keeper) and _serves(environment)
    finally:
        with suppress(OSError):
            keeper.stdin.close()
        try:
            keeper.wait(SECONDS)
        except subprocess.TimeoutExpired:  # it hangs
            os.killpg(keeper.pid, signal.SIGKILL)
            keeper.wait()
        keeper.stdout.close()
        shutil.rmtree(environment[SOCKETS], ignore_errors=True)


def _has_started(keeper: subprocess.Popen[bytes]) -> bool:
    assert keeper.stdout is not None
    with selectors.DefaultSelector() as output:
        output.register(keeper.stdout, selectors.EVENT_READ)
        if not output.select(SECONDS):
            os.killpg(keeper.pid, signal.SIGKILL)
            return False
    return keeper.stdout.readline() == b"started\n"


def _serves(environment: Mapping[str, str]) -> bool:
    """Whether a process with these variables gets a CUDA context, and by the service: it then has a server."""
    python, variables = own_python()
    asked = {"env": {**variables, **environment}, "timeout": SECONDS, "capture_output": True}
    try:
        if subprocess.run([*python, "-c", _PROBE], stdin=subprocess.DEVNULL, **asked).returncode:
            return False
        servers = subprocess.run([PROGRAM], input=b"get_server_list\n", **asked).stdout
        return re.search(rb"\d", servers) is not None  # its process id
    except (OSError, subprocess.TimeoutExpired):
        return False
