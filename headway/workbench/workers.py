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
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.core.errors import UserError

LONGEST_LINE = 1 << 28
"""Bytes of an answer: the maps of a large model are many numbers."""


class AnsweringProcess:
    """One such process, asked from the event loop; one question at a time, in the order they come."""

    def __init__(self, seconds: float = 120.0, idle: float = 900.0):
        self.seconds, self.idle = seconds, idle
        """The longest that anybody waits for an answer; and how long a process is kept that nobody asks."""
        self._ends: asyncio.TimerHandle | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._turn: asyncio.Lock | None = None

    async def ask(self, function: str, **given: Any) -> Any:
        """What `module:function` gives for these, in the worker. A UserError there is one here."""
        self._turn = self._turn or asyncio.Lock()
        async with self._turn:
            if self._ends is not None:
                self._ends.cancel()
            answer = await self._asked(json.dumps({"function": function, "given": given}).encode() + b"\n")
            self._ends = asyncio.get_running_loop().call_later(self.idle, self._end)
        if "error" in answer:
            raise UserError(answer["error"])
        return answer["answer"]

    def _end(self) -> None:
        """Nobody has asked for a while; whoever asks just now comes first."""
        if self._turn is not None and not self._turn.locked() and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process = None

    @property
    def pid(self) -> int | None:
        """While it runs."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def _asked(self, question: bytes) -> dict[str, Any]:
        process = await self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(self.seconds):
                process.stdin.write(question)
                await process.stdin.drain()
                line = await process.stdout.readline()
                answer = json.loads(line) if line else {}
                if "bytes" in answer:
                    answer = {"answer": await process.stdout.readexactly(answer["bytes"])}
        except asyncio.IncompleteReadError:
            line, answer = b"", {}
        except TimeoutError:
            await self.stop()
            return {"error": f"this took longer than {self.seconds:.0f} seconds, and was given up"}
        except (ConnectionError, ValueError) as error:
            await self.stop()
            return {"error": f"the process that answers could not be asked: {error}"}
        except asyncio.CancelledError:  # whoever asked has gone; the answer would be taken for the next one's
            await self.stop()
            raise
        if not line:
            code = await process.wait()
            self._process = None
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return {"error": f"the process that answers was ended by {how}, perhaps for want of memory; ask again"}
        return answer

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headway.workbench.workers"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LONGEST_LINE,
                start_new_session=True,  # Ctrl-C is the server's to handle
            )
        return self._process

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


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
