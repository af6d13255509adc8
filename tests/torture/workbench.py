"""Exact resume under stress: whatever kills a run or damages its files, the resumed run equals an undisturbed one.

Every process here is a real one with its own lock, killed by SIGKILL; see crash.py. "The same end" compares the whole
run folder, file by file and byte by byte, except dates, process ids and seconds; no other files may be left behind.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from crash import Ended, Forge
from tiny import snapshot

from headway.core.seal import FILE as SEAL
from headway.core.seal import damages
from headway.training.checkpoint import FACTS

RECIPE = """
data: {source: files, path: text.txt, valid_fraction: 0.2}
model: {layers: 1, width: 8, context: 8, dropout: 0.2, mixer: {heads: 2}}
training:
  duration: 12 steps
  batch: 4
  optimizer: {kind: adamw, learning_rate: 0.5}  # so high that the best is not the last
  schedule: {kind: cosine, warmup: 2 steps}
  evaluate_every: 2 steps
  evaluate_tokens: 64
  keep_best: true
  checkpoint_every: 3 steps
  device: cpu
"""
NO_SPACE = "No space left on device"


class Bench:
    """A text, a recipe, and the result of an undisturbed run, alone and as a population."""

    def __init__(self, home: Path, forge: Forge):
        self.home, self.forge, self.made = home, forge, 0
        (home / "text.txt").write_text("".join(f"line {k} of {k * k % 17} and {k % 5}\n" for k in range(80)))
        (home / "torture.yaml").write_text(RECIPE)
        self.forge.run(*self.words("warm", 1))  # the text is in the cache from now on
        (home / "whole").mkdir()
        self.calls, self.whole = {}, {}
        for replicas in (1, 3):
            done = self.go("whole", replicas)
            assert done.code == 0, done.err
            self.calls[replicas], self.whole[replicas] = done.calls, ending(home / "whole" / str(replicas))

    def words(self, runs: str, replicas: int, *changes: str) -> list[str]:
        many = ["--vary", f"seed=0..{replicas - 1}"] if replicas > 1 else []
        return ["train", "torture.yaml", *changes, "--name", "run", "--runs", f"{runs}/{replicas}", *many]

    def go(self, runs: str, replicas: int, at: int = 0, what: str = "kill") -> Ended:
        """Starts training, or resumes what is there."""
        return self.forge.run(*self.next_words(runs, replicas), at=at, what=what)

    def next_words(self, runs: str, replicas: int) -> list[str]:
        folder = self.home / runs / str(replicas)
        there = folder.is_dir() and any(not inner.name.startswith(".") for inner in folder.iterdir())
        return [*self.words(runs, replicas), *(["--resume"] if there else [])]

    def new(self) -> str:
        """A new folder for folders of runs."""
        self.made += 1
        (self.home / f"runs-{self.made}").mkdir()
        return f"runs-{self.made}"

    def ends_well(self, runs: str, replicas: int) -> Ended:
        """Resumes without disturbance, checks the result, and removes the folder."""
        done = self.go(runs, replicas)
        assert done.code == 0, done.err
        same_end(ending(self.home / runs / str(replicas)), self.whole[replicas])
        shutil.rmtree(self.home / runs)
        return done

    def place(self, words: str, replicas: int = 1) -> int:
        """The number of the last call that contains these words."""
        return max(n for n, call in enumerate(self.calls[replicas], 1) if words in call)


def ending(runs: Path) -> dict[str, Any]:
    """Everything in a folder of runs, except what may differ: times, durations, and process ids."""
    passing = ("/lock", "/events.jsonl")
    found: dict[str, Any] = {name: content for name, content in snapshot(runs).items() if not name.endswith(passing)}
    for name, content in found.items():
        if name.endswith("/environment.json"):
            found[name] = json.loads(content)["versions"]
        elif name.endswith(f"/{SEAL}"):  # only that it matches, because its contents differ in dates
            folder = (runs / name).parent
            assert damages(folder) == []
            found[name] = sorted(json.loads(content)["files"])
        elif name.endswith("/run.json"):
            found[name] = {k: v for k, v in json.loads(content).items() if k not in ("created", "seconds")}
        elif name.endswith(f"/{FACTS}"):
            facts = json.loads(content)
            del facts["standing"]["seconds"], facts["sha256"][FACTS]
            found[name] = facts
    return found


def same_end(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    differing = [name for name in ours if ours[name] != theirs[name]]
    assert not differing, {name: (ours[name], theirs[name]) for name in differing[:2]}


def visible(folder: Path) -> list[str]:
    return sorted(inner.name for inner in folder.iterdir() if not inner.name.startswith("."))
