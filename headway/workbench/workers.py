"""Processes that answer what the server itself must not: what needs torch, takes long, or may run out of memory.

A worker is `python -m headway.workbench.workers`: a line of JSON in, a line of JSON out. It is started when first
asked, keeps what it has loaded, and dies with the server (its input ends). If it dies before, the question it died
of is answered with an error, and the next one starts another.
"""

import asyncio
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from headway.core.errors import UserError

LONGEST_LINE = 1 << 28
"""Bytes of an answer: the maps of a large model are many numbers."""


class AnsweringProcess:
    """One such process, asked from the event loop; one question at a time, in the order they come."""

    def __init__(self, seconds: float = 120.0):
        self.seconds = seconds
        """The longest that anybody waits for an answer."""
        self._process: asyncio.subprocess.Process | None = None
        self._turn: asyncio.Lock | None = None

    async def ask(self, function: str, **given: Any) -> Any:
        """What `module:function` gives for these, in the worker. A UserError there is one here."""
        self._turn = self._turn or asyncio.Lock()
        async with self._turn:
            answer = await self._asked(json.dumps({"function": function, "given": given}).encode() + b"\n")
        if "error" in answer:
            raise UserError(answer["error"])
        return answer["answer"]

    async def _asked(self, question: bytes) -> dict[str, Any]:
        process = await self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(self.seconds):
                process.stdin.write(question)
                await process.stdin.drain()
                line = await process.stdout.readline()
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
        return json.loads(line)

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
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = {"answer": _named(asked["function"])(**asked["given"])}
            told = json.dumps(found, ensure_ascii=False, allow_nan=False)
        except UserError as error:
            told = json.dumps({"error": str(error)})
        except Exception as error:  # it is an answer's failure, not the worker's
            print(f"{asked['function']}: {type(error).__name__}: {error}", file=sys.stderr)
            told = json.dumps({"error": f"{type(error).__name__}: {error}"})
        answers.write(told + "\n")
        answers.flush()


def _named(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    main()
