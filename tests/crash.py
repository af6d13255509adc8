"""Processes that are killed, stopped or run out of disk space at a chosen moment.

`Forge` is one process that has imported everything and forks for every request, so that a real process with a real lock
starts in milliseconds. The child counts every call that changes the disk (opening for writing, write, fsync, rename,
remove, mkdir). At the n-th such call it gets SIGKILL (in the middle of the call if it is a write), SIGSTOP, or "no
space left on device" for this and all later calls.
"""

import builtins
import copy
import errno
import functools
import gc
import importlib
import io
import itertools
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

CHANGING = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir")
NEEDING_SPACE = ("open", "write", "fsync", "replace", "mkdir")
CLI = "from headway.cli import main; main()"


class Ended(NamedTuple):
    code: int
    """The exit code, or minus the number of the signal."""
    out: str
    err: str
    calls: list[str]
    """The calls that changed the disk, in order."""


class Forge:
    """A context manager that starts processes in a folder, with this process's environment variables and some more."""

    def __init__(self, notes: Path):
        self.home, self.notes, self.variables = Path(), notes, {}
        self.orders = itertools.count(1)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )

    def __enter__(self) -> "Forge":
        return self

    def __exit__(self, *_: Any) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def at(self, home: Path, **variables: str) -> "Forge":
        """The same forge, with processes that run in another folder."""
        there = copy.copy(self)
        there.home, there.variables = home, variables
        return there

    def start(
        self, *words: str, at: int = 0, what: str = "kill", code: str = CLI, seconds: int | None = None
    ) -> "Child":
        """A child that runs this code with these arguments; at the n-th change of the disk (0: never) `what` happens.
        After this much CPU time, or six times as much wall time, it is killed."""
        notes = Path(tempfile.mkdtemp(dir=self.notes))
        order = {"code": code, "argv": ["headway", *words], "at": at, "what": what, "notes": str(notes)}
        order |= {"seconds": seconds}
        order |= {"cwd": str(self.home.absolute()), "variables": {**os.environ, **self.variables}}
        return Child(self, self.ask(order), notes)

    def run(self, *words: str, **settings: Any) -> Ended:
        return self.start(*words, **settings).wait()

    def ask(self, order: dict[str, Any]) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        number = next(self.orders)
        self.process.stdin.write(json.dumps({**order, "number": number}) + "\n")
        self.process.stdin.flush()
        while True:
            answered, answer = json.loads(self.process.stdout.readline())
            if answered == number:  # other answers belong to children whose tests did not wait for them
                return answer


class Child:
    def __init__(self, forge: Forge, pid: int, notes: Path):
        self.forge, self.pid, self.notes = forge, pid, notes

    def wait(self) -> Ended:
        code = self.forge.ask({"wait": self.pid})
        return Ended(code, self.said("out"), self.said("err"), self.said("calls").splitlines())

    def said(self, where: str) -> str:
        return (self.notes / where).read_text("utf-8") if (self.notes / where).exists() else ""

    @property
    def has_ended(self) -> bool:
        return bool(self.forge.ask({"has_ended": self.pid}))

    def wait_until(self, true: Callable[[], bool], seconds: float = 60) -> None:
        """Waits until this is true while the child is running."""
        until = time.monotonic() + seconds
        while not true():
            assert not self.has_ended, self.said("err")
            assert time.monotonic() < until, self.said("err")
            time.sleep(0.005)

    def wait_until_stopped(self) -> None:
        assert self.forge.ask({"wait_stopped": self.pid}) == signal.SIGSTOP

    def interrupt(self) -> Ended:
        os.kill(self.pid, signal.SIGINT)
        return self.wait()

    def kill(self) -> Ended:
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()


# --- inside the forge ------------------------------------------------------------------------------------------------


def serve() -> None:
    gc.disable()
    import typer.main

    import headway.cli
    import headway.experiment.train  # and with it torch, before the first fork
    from headway.audit.audit import Report

    for module in {module.name for module in pkgutil.iter_modules(headway.cli.__path__)} - {"__main__"}:
        importlib.import_module(f"headway.cli.{module}")  # all verbs, and what rich needs for bars and tables
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(headway.cli.app)  # built once for all children, which need not collect garbage in it either
    gc.enable()
    gc.freeze()

    os.fsync = lambda descriptor: None  # a killed process loses nothing it has written; see conftest.py
    headway.core.files.AT_ONCE = 1  # folders one after the other, so that the n-th change is the same in every run
    # Audits take longer than these trainings and report how long they took; they have their own tests.
    headway.experiment.train.audit_runs = lambda runs, task: [Report()] * len(runs)

    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        elif "wait_stopped" in order:
            status = os.waitpid(order["wait_stopped"], os.WUNTRACED)[1]
            answer = os.WSTOPSIG(status) if os.WIFSTOPPED(status) else -1
        elif "has_ended" in order:
            looked = os.WEXITED | os.WNOHANG | os.WNOWAIT
            answer = os.waitid(os.P_PID, order["has_ended"], looked) is not None
        else:
            answer = os.fork()
            if not answer:
                live(order)
        print(json.dumps([order["number"], answer]), flush=True)


def live(order: dict[str, Any]) -> None:
    """Runs in the child; does not return."""
    notes = Path(order["notes"])
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(notes / name, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["variables"])
    sys.argv = order["argv"]
    calls = os.open(notes / "calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    code = 1
    if order["seconds"]:
        signal.setitimer(signal.ITIMER_PROF, order["seconds"])
        signal.setitimer(signal.ITIMER_REAL, 6 * order["seconds"])
    try:
        Fate(order["at"], order["what"], calls).rule()
        exec(order["code"], {"__name__": "child"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Fate:
    """Counts changes of the disk, and makes the n-th one fail as requested."""

    def __init__(self, at: int, what: str, calls: int):
        self.at, self.what, self.calls, self.numbers = at, what, calls, itertools.count(1)

    def rule(self) -> None:
        for name in CHANGING:
            setattr(os, name, self.counted(name, getattr(os, name)))
        plain = io.open

        def opened(file: Any, mode: str = "r", *args: Any, **settings: Any) -> Any:
            if not set(mode) & set("wax+") or not isinstance(file, str | Path):
                return plain(file, mode, *args, **settings)
            self.strike("open", file)
            return Watched(plain(file, mode, *args, **settings), self)

        builtins.open = io.open = opened

    def counted(self, name: str, plain: Callable) -> Callable:
        def call(*args: Any, **settings: Any) -> Any:
            self.strike(name, Path(f"/proc/self/fd/{args[0]}").readlink() if name == "fsync" else args[0])
            return plain(*args, **settings)

        return call

    def strike(self, name: str, where: Any, half: Callable[[], Any] = lambda: None) -> None:
        number = next(self.numbers)  # one per call, even if threads write at the same time, so that none is missed
        os.write(self.calls, f"{name} {where}\n".encode())
        if not self.at or number < self.at:
            return
        if self.what == "full":
            if name in NEEDING_SPACE:
                half()
                named = () if name in ("write", "fsync") else (str(where),)  # as the operating system does
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *named)
        elif number == self.at and self.what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number == self.at:
            half()
            os.kill(os.getpid(), signal.SIGKILL)


class Watched:
    """A file open for writing."""

    def __init__(self, file: Any, fate: Fate):
        self.file, self.fate = file, fate

    def write(self, content: Any) -> int:
        def half() -> None:
            self.file.write(content[: len(content) // 2])
            self.file.flush()

        self.fate.strike("write", self.file.name, half)
        return self.file.write(content)

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()

    def __iter__(self) -> Any:
        return iter(self.file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


if __name__ == "__main__":
    serve()
