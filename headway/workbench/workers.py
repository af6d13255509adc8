"""Processes that answer what the server itself must not: what needs torch, takes long, or may run out of memory.

A worker is `python -m headway.workbench.workers`: a line of JSON in, a line of JSON out; an answer that is bytes
follows a line that says how many. It is started when first asked, keeps what it has loaded, and dies with the server
(its input ends), or when nobody has asked it for a while. If it dies before, the question it died of is answered with
an error, and the next one starts another. Where memory runs out, the kernel is told to take a worker first.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headway.core.environment import own_python
from headway.core.errors import UserError


class AnsweringProcess:
    """One such process; one question at a time, in the order they come."""

    def __init__(self, seconds: float = 120.0, idle: float = 900.0):
        self.seconds, self.idle = seconds, idle
        """The longest that anybody waits for an answer; and how long a process is kept that nobody asks."""
        self._process: subprocess.Popen[bytes] | None = None
        self._turns = ThreadPoolExecutor(max_workers=1)
        self._asked_at = 0.0

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

    def stop(self) -> None:
        """It is started again when somebody asks."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(OSError):  # what was not sent is not sent any more
                    pipe.close()


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
