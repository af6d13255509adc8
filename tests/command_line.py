"""What `headway …` prints and returns."""

import json
import os
import re
import subprocess
import sys
from typing import NamedTuple

import pytest


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """The JSON object on stdout; fails if anything else is printed."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))

    @property
    def words(self) -> str:
        """All output as one line of text, without frames and line breaks."""
        return " ".join(re.sub(r"[│╭╮╰╯─]", " ", self.out + self.err).split())


COMMAND = [sys.executable, "-m", "headway.cli"]


def headway_process(*words: str, **settings) -> Answer:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=env, **settings)
    return Answer(done.returncode, done.stdout, done.stderr)
