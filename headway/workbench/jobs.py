"""Trainings and studies started from a page: separate processes, running the command that a user would type.

Each has its own session, so neither the server's end nor a Ctrl-C in its terminal reaches it, and writes to a log file,
so it can never block on the server. Progress is read from the folders that they write; a job only has the output of the
process, and how it ended. Stopping a job does what Ctrl-C does.
"""

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.core.environment import own_python
from headway.core.errors import UserError
from headway.core.files import holder, write_json

HOME = ".headway"
"""The folder of job logs, inside the served folder. Nothing in it is shown as a run."""
SAID = 4000
"""Characters shown from the end of a job's output."""


class Jobs:
    def __init__(self, folder: Path):
        self.folder, self.home = folder, folder / HOME / "jobs"
        self._ours: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers = itertools.count()

    def start(self, words: Sequence[str]) -> dict[str, Any]:
        """Run `headway WORDS` in the folder. Returns the job, as in `all`."""
        if not self._is_here(self.home):
            raise UserError(f"cannot start anything: {self.home} is a link that leads out of the folder")
        python, variables = own_python()
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(self._numbers)}"
            with (self.home / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    [*python, "-m", "headway.cli", *words],
                    env=variables,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise UserError(f"cannot start anything in {self.folder}: {error.strerror}") from None
        self._ours[name] = process
        facts = {"command": shlex.join(["headway", *words]), "process": process.pid, "started": time.time()}
        write_json(self.home / f"{name}.json", facts)
        return self.told(name)

    def told(self, name: str) -> dict[str, Any]:
        told, log = self.home / f"{name}.json", self.home / f"{name}.log"
        try:
            if not (self._is_here(told) and self._is_here(log)):
                raise OSError
            facts = json.loads(told.read_text("utf-8"))
            facts = {key: facts[key] for key in ("command", "process", "started")}
            said = log.read_bytes()[-SAID:].decode("utf-8", "replace")
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"there is no job {name!r}") from None
        process = self._ours.get(name)
        code = process.poll() if process else None
        running = process is not None and code is None if process else _lives(facts["process"], facts["started"])
        return {"job": name, **facts, "running": running, "code": code, "said": said}

    def all(self) -> list[dict[str, Any]]:
        """All jobs, newest first."""
        found = []
        for name in sorted((path.stem for path in self.home.glob("*.json")), reverse=True)[:50]:
            with contextlib.suppress(UserError):  # half written, or not written by Headway
                found.append(self.told(name))
        return found

    def _is_here(self, path: Path) -> bool:
        """Whether a path is inside the folder. A folder from somebody else may contain a link to one of our files."""
        return path.resolve().is_relative_to(self.folder.resolve())


def stop(folder: Path) -> int:
    """Ask the process that trains in this folder of a run or study to save and stop, as Ctrl-C does."""
    process = holder(folder)
    if process is None or process == os.getpid():
        raise UserError(f"{folder.name} is not being trained, so there is nothing to stop")
    try:
        os.kill(process, signal.SIGINT)
    except (ProcessLookupError, PermissionError) as error:
        raise UserError(f"process {process} cannot be stopped from here: {error.strerror}") from None
    return process


def _lives(process: int, started: float) -> bool:
    """Whether a process started by an earlier server still runs, and its number was not reused."""
    try:
        return abs(Path(f"/proc/{process}").stat().st_ctime - started) < 60
    except OSError:
        return False
