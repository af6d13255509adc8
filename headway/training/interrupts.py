"""Ctrl-C: the first asks training to finish its step and save; the second stops at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible(aloud: bool = True) -> Iterator[Callable[[], bool]]:
    """Inside the block, the yielded function says whether Ctrl-C (or SIGTERM) was received."""
    asked = False

    def note(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        if aloud:
            print("\nfinishing this step, then saving; press Ctrl-C again to stop without saving", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach the main thread only
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopping_after(seconds: float | None) -> Iterator[None]:
    """Act as if Ctrl-C was pressed after this time inside the block; None = never."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(max(0.0, seconds), lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
