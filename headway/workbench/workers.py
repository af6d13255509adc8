"""Worker processes for what the server must not do itself: what needs torch, takes long, or may run out of memory.

A worker is `python -m headway.workbench.workers`. It reads questions and writes answers, one line of JSON each; a
binary answer follows a line with its length. It is started by the first question, keeps what it has loaded, and ends
with the server (its input ends), or when it is idle for a while. If it dies, its question is answered with an error,
and the next question starts another. If memory runs out, the kernel is told to kill a worker first.

There are several workers of each kind, and any of them can take any question. A question that has waited a moment for a
busy worker is given to another (`AnsweringProcesses`), so a slow question only delays its own client. A question is
dropped when its client disconnects; if its computation continues, the process is killed.
"""

import asyncio
import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headway.core.environment import own_python
from headway.core.errors import UserError

PATIENCE = 1.0
"""Seconds that a question waits for a process that has its model loaded, before another one takes it."""
MODELS = 3
"""The number of recently used models that a process keeps loaded."""
GRACE = 3.0
"""Seconds that a computation may continue after its client has gone: killing the process would also lose its loaded
models."""


class AnsweringProcess:
    """One worker process. It answers one question at a time, in order."""

    def __init__(self, seconds: float = 120.0, idle: float = 900.0):
        self.seconds, self.idle = seconds, idle
        """The longest time for an answer, and how long an idle process is kept, in seconds."""
        self._process: subprocess.Popen[bytes] | None = None
        self._turns = ThreadPoolExecutor(max_workers=1)
        self._asked_at = 0.0
        self.is_busy = False
        """Taken by a client, or about to be."""
        self.knows: deque[str] = deque(maxlen=MODELS)
        """The models it was asked about recently, which are loaded."""

    async def ask(self, function: str, **given: Any) -> Any:
        """Call `module:function` in the worker. A UserError there is raised here."""
        question = json.dumps({"function": function, "given": given}).encode() + b"\n"
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._turns, self._asked, question)
        loop.call_later(self.idle, lambda: self._turns.submit(self._end_if_idle))
        if "error" in answer:
            raise UserError(answer["error"])
        return answer["answer"]

    @property
    def pid(self) -> int | None:
        """The process id while it runs, otherwise None."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def _asked(self, question: bytes) -> dict[str, Any]:
        process, late = self._started(), threading.Event()
        timer = threading.Timer(self.seconds, lambda: (late.set(), process.kill()))
        timer.daemon = True
        timer.start()
        try:
            answer = _answer_of(process, question)
        finally:
            timer.cancel()
            self._asked_at = time.monotonic()
        if answer is not None:
            return answer
        code = process.wait()
        self.stop()
        if late.is_set():
            return {"error": f"this took longer than {self.seconds:.0f} seconds and was cancelled"}
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return {"error": f"the worker process was ended by {how}, perhaps for lack of memory; try again"}

    def _end_if_idle(self) -> None:
        if time.monotonic() - self._asked_at >= self.idle:
            self.stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            python, variables = own_python()
            self._process = subprocess.Popen(
                [*python, "-m", "headway.workbench.workers"],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is handled by the server
            )
        return self._process

    def give_up(self) -> None:
        """Kill the process, and so end whatever it is computing."""
        if (process := self._process) is not None:
            process.kill()

    def stop(self) -> None:
        """End the process; the next question starts another."""
        process, self._process = self._process, None
        self.knows.clear()
        if process is not None:
            process.kill()
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(OSError):  # unsent data are dropped
                    pipe.close()


class AnsweringProcesses:
    """Several worker processes. Each question goes to one that has its model loaded, or to a free one."""

    def __init__(self, most: int, seconds: float = 120.0, idle: float = 900.0):
        self.processes = [AnsweringProcess(seconds, idle) for _ in range(most)]
        self._freed = asyncio.Event()

    async def ask(self, function: str, about: str = "", **given: Any) -> Any:
        """Like `AnsweringProcess.ask`; `about`: what must be loaded. May be cancelled."""
        process = await self._taken(about)
        answer = asyncio.ensure_future(process.ask(function, **given))
        answer.add_done_callback(lambda _: self._free(process))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(GRACE, lambda: answer.done() or process.give_up())
            answer.add_done_callback(lambda late: late.cancelled() or late.exception())  # mark it as retrieved
            raise

    def stop(self) -> None:
        for process in self.processes:
            process.stop()

    async def _taken(self, about: str) -> AnsweringProcess:
        until = time.monotonic() + PATIENCE
        while (found := self._best(about, time.monotonic() >= until)) is None:
            left = until - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if left > 0 else None):
                    await self._freed.wait()
        found.is_busy = True
        with contextlib.suppress(ValueError):
            found.knows.remove(about)
        if about:
            found.knows.append(about)
        return found

    def _best(self, about: str, was_waited: bool) -> AnsweringProcess | None:
        """Choose a free process. None if waiting is better: for one that has the model loaded, or for a running one,
        since starting one takes seconds."""
        free = [one for one in self.processes if not one.is_busy]
        running = [one for one in free if one.pid is not None]
        knowing = [one for one in self.processes if one.pid is not None and about in one.knows]
        if ready := [one for one in running if one in knowing]:
            return ready[0]
        if running and (was_waited or not knowing):
            return running[0]
        is_first = len(free) == len(self.processes)
        return free[0] if free and (was_waited or is_first) else None

    def _free(self, process: AnsweringProcess) -> None:
        process.is_busy = False
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()


def _answer_of(process: subprocess.Popen[bytes], question: bytes) -> dict[str, Any] | None:
    """Send a question and read its answer; None if the process died."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(question)
        process.stdin.flush()
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            return None
        answer = json.loads(line)
        if "bytes" in answer:
            found = process.stdout.read(answer["bytes"])
            return {"answer": found} if len(found) == answer["bytes"] else None
        return answer
    except (OSError, ValueError):  # a broken pipe, or one closed by `stop`
        return None


def main() -> None:
    """Answer questions until the input ends. Other output goes to stderr, since stdout is for answers."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with contextlib.suppress(OSError):  # exists on Linux only
        Path("/proc/self/oom_score_adj").write_text("1000")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found, after = _named(asked["function"])(**asked["given"]), b""
            if isinstance(found, bytes):
                told, after = json.dumps({"bytes": len(found)}), found
            else:
                told = json.dumps({"answer": found}, ensure_ascii=False, allow_nan=False)
        except UserError as error:
            told, after = json.dumps({"error": str(error)}), b""
        except Exception as error:  # report the error, and keep the worker running
            print(f"{asked['function']}: {type(error).__name__}: {error}", file=sys.stderr)
            told, after = json.dumps({"error": f"{type(error).__name__}: {error}"}), b""
        answers.write(told.encode() + b"\n" + after)
        answers.flush()


def _named(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    main()
