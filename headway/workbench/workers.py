"""Processes that answer what the server itself must not: what needs torch, takes long, or may run out of memory.

A worker is `python -m headway.workbench.workers`: a line of JSON in, a line of JSON out; an answer that is bytes
follows a line that says how many. It is started when first asked, keeps what it has loaded, and dies with the server
(its input ends), or when nobody has asked it for a while. If it dies before, the question it died of is answered with
an error, and the next one starts another. Where memory runs out, the kernel is told to take a worker first.

There are several of a kind, and none of them is anybody's: whoever has waited a moment for one that is busy is answered
by another (`AnsweringProcesses`), so that a slow question holds up nobody but the one who asked it. A question whose
asker has gone is dropped, and if it goes on computing all the same, so is the process.
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
"""Seconds that a question waits for a process that has the model, before it is taken to another."""
MODELS = 3
"""That a process keeps at a time: those it was asked about last."""
GRACE = 3.0
"""Seconds that an answer may still take when nobody waits for it any more: a process that is ended takes models with it
which would have to be loaded again."""


class AnsweringProcess:
    """One such process; one question at a time, in the order they come."""

    def __init__(self, seconds: float = 120.0, idle: float = 900.0):
        self.seconds, self.idle = seconds, idle
        """The longest that anybody waits for an answer; and how long a process is kept that nobody asks."""
        self._process: subprocess.Popen[bytes] | None = None
        self._turns = ThreadPoolExecutor(max_workers=1)
        self._asked_at = 0.0
        self.is_busy = False
        """Taken by somebody who asks, or is about to."""
        self.knows: deque[str] = deque(maxlen=MODELS)
        """What it was asked about last, and has loaded."""

    async def ask(self, function: str, **given: Any) -> Any:
        """What `module:function` gives for these, in the worker. A UserError there is one here."""
        question = json.dumps({"function": function, "given": given}).encode() + b"\n"
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._turns, self._asked, question)
        loop.call_later(self.idle, lambda: self._turns.submit(self._end_if_idle))
        if "error" in answer:
            raise UserError(answer["error"])
        return answer["answer"]

    @property
    def pid(self) -> int | None:
        """While it runs."""
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
            return {"error": f"this took longer than {self.seconds:.0f} seconds, and was given up"}
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return {"error": f"the process that answers was ended by {how}, perhaps for want of memory; ask again"}

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
                start_new_session=True,  # Ctrl-C is the server's to handle
            )
        return self._process

    def give_up(self) -> None:
        """End what it is computing, whatever that is."""
        if (process := self._process) is not None:
            process.kill()

    def stop(self) -> None:
        """It is started again when somebody asks."""
        process, self._process = self._process, None
        self.knows.clear()
        if process is not None:
            process.kill()
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(OSError):  # what was not sent is not sent any more
                    pipe.close()


class AnsweringProcesses:
    """Several, of which each question takes one: that which has loaded what it is about, or one that is free."""

    def __init__(self, most: int, seconds: float = 120.0, idle: float = 900.0):
        self.processes = [AnsweringProcess(seconds, idle) for _ in range(most)]
        self._freed = asyncio.Event()

    async def ask(self, function: str, about: str = "", **given: Any) -> Any:
        """As `AnsweringProcess.ask`; `about`: what must be loaded for it. May be cancelled."""
        process = await self._taken(about)
        answer = asyncio.ensure_future(process.ask(function, **given))
        answer.add_done_callback(lambda _: self._free(process))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(GRACE, lambda: answer.done() or process.give_up())
            answer.add_done_callback(lambda late: late.cancelled() or late.exception())  # which nobody hears
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
        """None: it is worth waiting, for a process that has it, or for any that runs: starting one takes seconds."""
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
    """None: it died of the question, or before."""
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
    except (OSError, ValueError):  # a pipe that broke, or was closed by whoever stopped it
        return None


def main() -> None:
    """Answer until the questions end. What is printed meanwhile goes to stderr: stdout is for answers."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with contextlib.suppress(OSError):  # elsewhere than on Linux there is no such thing
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
        except Exception as error:  # it is an answer's failure, not the worker's
            print(f"{asked['function']}: {type(error).__name__}: {error}", file=sys.stderr)
            told, after = json.dumps({"error": f"{type(error).__name__}: {error}"}), b""
        answers.write(told.encode() + b"\n" + after)
        answers.flush()


def _named(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    main()
