"""Starts the GPU and its kernel compiler beside other work. On an H200's machine the two take three quarters of a
second, mostly outside Python: nearly as long as importing Headway does after torch.
"""

import threading
from contextlib import suppress
from pathlib import Path

DRIVER = Path("/dev/nvidiactl")
"""The device file of NVIDIA's driver: whether there is a GPU can be told by it without importing torch."""
THREAD = "headway-gpu"


def start_gpu_meanwhile() -> None:
    """Start CUDA and Triton in a thread, as soon as torch is imported: for commands that train in this process. The
    interpreter waits for the thread at its end, because CUDA must not start while it is being taken down."""
    if DRIVER.exists():
        threading.Thread(target=_start_gpu, name=THREAD).start()


def wait_for_gpu() -> None:
    """Until that thread has ended: before this process is forked, which is only safe without others at work."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()


def _start_gpu() -> None:
    with suppress(Exception):  # whatever is wrong will be reported by the one who needs it
        import torch

        if torch.cuda.is_available():
            torch.cuda.init()  # takes no memory on any GPU yet, so it does not matter which one will be used
            load_kernel_compiler()


def load_kernel_compiler() -> None:
    """Import Triton, and have it compute the key of its cache, a checksum of all its files. CUDA is not started."""
    with suppress(Exception):  # there is no Triton, or another version of it
        import triton.language  # noqa: F401  # pyright: ignore[reportMissingImports]
        from triton.runtime.cache import triton_key  # pyright: ignore[reportMissingImports]

        triton_key()
