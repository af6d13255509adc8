"""Random commands and random damage, from a seed: what users type by mistake, and what happens to folders.

A *command* is a verb with arguments and options, as declared by the command line itself, so that new verbs are
included; values come from a list of what people, scripts and attackers write. A *damage* replaces one file of a run's
or study's folder, and is followed by a command that may read it.
"""

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from crash import Ended, Forge

SECONDS = 10
"""CPU seconds of a process; a command that takes longer counts as hanging."""
NOT_TRIED = {"open", "bench", "case"}
"""Verbs that serve, measure or train for as long as needed."""
ENDLESS = {
    "--tokens",
    "--count",
    "--trials",
    "--together",
    "--resamples",
    "--seconds",
    "--minutes",
    "--workers",
    "--for",
}
"""Options for which a large number legitimately takes long."""

DEEP = "[" * 500 + "]" * 500
BOMB = "[&a [x,x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b], &d [*c,*c,*c,*c,*c,*c]]"
WORDS = [
    "",
    " ",
    "a",
    "tiny",
    "-",
    "--",
    "é☃",
    "\x1b[2J",
    "a\nb",
    "\x00"[:0],
    "..",
    "/",
    "~",
    "%s",
    "{}",
    "'",
    '"',
    "*",
    "0x",
]
NUMBERS = ["0", "-1", "1", "3", "1.5", "nan", "inf", "1e400", "-0", "9" * 5000, "1_000", "１"]
TEXTS = ["The fox", "Zoë", "☃", "x" * 5000, "[MASK]", "a\tb\n", "\ufeff", "\u202e"]
PATHS = [
    "none.txt",
    "tiny.txt",
    "tiny.yaml",
    "runs",
    "runs/tiny",
    "/dev/zero",
    "/dev/null",
    "pipe",
    "loop",
    "binary",
    ".",
    "/",
    "deep.json",
    "empty",
    "x" * 300,
    "bomb.yaml",
    "table.csv",
    "points.csv",
    "model",
    "study.yaml",
    "/proc/self/mem",
]
VALUES = [
    "null",
    "true",
    "[]",
    "{}",
    "[1, 2]",
    "{a: 1}",
    "*a",
    "&a [*a]",
    DEEP,
    BOMB,
    "!!python/object:os.system x",
    "2 steps",
]
KEYS = [
    "model.width",
    "model.layers",
    "model.mixer.heads",
    "model.mixer",
    "model.positions",
    "model.context",
    "model",
    "training",
    "training.duration",
    "training.batch",
    "training.optimizer.learning_rate",
    "training.schedule",
    "data",
    "data.source",
    "data.path",
    "data.tokenizer",
    "data.valid_fraction",
    "scoring.segment",
    "seed",
    "plugins",
]


def lay_traps(home: Path) -> None:
    """Creates what the names in `PATHS` refer to."""
    os.mkfifo(home / "pipe")
    (home / "loop").symlink_to("loop")
    (home / "binary").write_bytes(bytes(range(256)) * 4)
    (home / "empty").touch()
    (home / "deep.json").write_text("[" * 100_000)
    (home / "bomb.yaml").write_text("a: " + BOMB)
    (home / "table.csv").write_text("text,label\nhello there,a\nand you,b\n")
    (home / "points.csv").write_text("parameters,tokens,loss\n1e6,1e8,3\n2e6,1e8,2.9\n")
    (home / "model").mkdir()
    (home / "model" / "config.json").write_text(
        '{"model_type": "gpt2", "n_layer": 1000000000, "vocab_size": 1000000000}'
    )
    (home / "model" / "tokenizer.json").write_text(
        '{"model": {"type": "BPE", "vocab": {"a": 1000000000}, "merges": []}}'
    )
    (home / "model" / "model.safetensors").write_bytes(b"\xff" * 64)
    (home / "study.yaml").write_text("base: tiny.yaml\narms: {a: [], b: [seed=99]}\nseeds: 100000000\n")


# --- commands --------------------------------------------------------------------------------------------------------


def commands(seed: int) -> Iterator[list[str]]:
    """An endless sequence of commands."""
    from headway.cli import app

    draw, verbs = random.Random(seed), list(_verbs(typer.main.get_command(app), ()))
    while True:
        words, parameters = draw.choice(verbs)
        yield [*words, *_given(draw, parameters)]


def _verbs(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    for name, inner in getattr(command, "commands", {}).items():
        if name not in NOT_TRIED:
            yield from _verbs(inner, (*words, name))
    if words and not hasattr(command, "commands"):
        yield words, command.params


def _given(draw: random.Random, parameters: list[Any]) -> list[str]:
    words: list[str] = []
    for one in parameters:
        if one.param_type_name == "argument":
            many = draw.choice([0, 1, 1, 1, 1, 1, 2, 3]) if one.nargs != 1 else draw.choice([0] + [1] * 9)
            words += [_value(draw, one.name) for _ in range(many)]
        elif draw.random() < 0.15:
            flags = [option for option in one.opts if option not in ("--self-test", "--trust")]
            words += flags[:1] if one.is_flag else [flags[0], _value(draw, flags[0])]
    if draw.random() < 0.05:
        words.insert(draw.randrange(len(words) + 1), draw.choice(["--nope", "-x", "--json=3", "--help", "--", "-o"]))
    return words


def _value(draw: random.Random, name: str) -> str:
    if name == "changes":
        return f"{draw.choice(KEYS)}={draw.choice([*WORDS, *NUMBERS, *VALUES, *PATHS])}"
    if name in ("run", "name", "--name", "study") and draw.random() < 0.6:
        return draw.choice(["tiny", "tiny", "runs/tiny", "tniy"])
    if name in ("recipe", "file") and draw.random() < 0.4:
        return draw.choice(["tiny.yaml", "demo", "bomb.yaml", "study.yaml"])
    heap = draw.choice([WORDS, NUMBERS, TEXTS, PATHS, VALUES])
    if draw.random() < 0.05 and name not in ENDLESS:
        return "1000000000"
    return draw.choice(heap)


# --- damages ---------------------------------------------------------------------------------------------------------


def _flip(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes() or b"x")
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def _replaced(make: Callable[[Path], Any]) -> Callable[[Path, random.Random], None]:
    def damage(file: Path, draw: random.Random) -> None:
        file.unlink()
        make(file)

    return damage


def _other(file: Path, draw: random.Random) -> None:
    """Replaces it by another file, of the same name in another run if there is one."""
    others = [path for path in file.parent.parent.rglob(file.name) if path != file and path.is_file()]
    others += [path for path in file.parent.iterdir() if path.is_file() and path != file]
    content = file.read_bytes()
    others = [path for path in others if path.read_bytes() != content]
    shutil.copyfile(draw.choice(others), file) if others else _flip(file, draw)


def _digits(file: Path, draw: random.Random) -> None:
    content = file.read_bytes()
    places = [k for k, byte in enumerate(content) if chr(byte).isdigit()] or [0]
    place = draw.choice(places)
    file.write_bytes(content[:place] + b"7" * draw.choice([1, 2, 5000]) + content[place + 1 :])


DAMAGES: dict[str, Callable[[Path, random.Random], Any]] = {
    "a bit flipped": _flip,
    "a number changed": _digits,
    "cut": lambda file, draw: file.write_bytes(file.read_bytes()[: draw.randrange(max(1, file.stat().st_size))]),
    "empty": lambda file, draw: file.write_bytes(b""),
    "zeros": lambda file, draw: file.write_bytes(bytes(file.stat().st_size)),
    "garbage": lambda file, draw: file.write_bytes(draw.randbytes(draw.choice([1, 100, 5000]))),
    "another file": _other,
    "deep": lambda file, draw: file.write_bytes(b"[" * 100_000 + b"]" * 100_000),
    "gone": lambda file, draw: file.unlink(),
    "a pipe": _replaced(os.mkfifo),
    "a folder": _replaced(Path.mkdir),
    "a loop of links": _replaced(lambda file: file.symlink_to(file.name)),
    "a link to a device": _replaced(lambda file: file.symlink_to("/dev/zero")),
    "a link outside": _replaced(lambda file: file.symlink_to("/proc/self/environ")),
    "endless": _replaced(lambda file: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 1 << 42)),
}


@dataclass
class Ground:
    """Where damage is tried: an intact folder, and the output of commands on it."""

    home: Path
    whole: Path
    """The folder that is copied, damaged and read."""
    forge: Forge
    words: list[list[str]]
    """The commands, for a folder where `whole` is called `at`."""
    clean: dict[str, Ended] = field(default_factory=dict)
    count: int = 0

    def try_one(self, draw: random.Random) -> str:
        """What went wrong, as text; empty if nothing did."""
        self.count += 1
        words = draw.choice(self.words)
        if (key := json.dumps(words)) not in self.clean:
            self.clean[key] = self._run(words, None, draw)[0]
            if self.clean[key].code not in (0, 1):
                return f"undamaged, {words} gives {self.clean[key].err}"
        files = sorted(path for path in self.whole.rglob("*") if path.is_file() and path.name not in NOT_READ)
        file, damage = draw.choice(files).relative_to(self.whole), draw.choice(list(DAMAGES))
        ended, changed = self._run(words, (file, damage), draw)
        case = f"{file}: {damage}; headway {' '.join(words)}"
        if why := wrong(ended):
            return f"{case}: {why}"
        if changed:
            return f"{case}: {changed} was changed"
        if damage == "gone" and file.name in MADE_AGAIN:
            return ""
        named = file.name in ended.err + ended.out or file.parent.name in ended.err + ended.out
        if not named and (ended.code != self.clean[key].code or ended.out != self.clean[key].out):
            return f"{case}: used in silence (or not named): {ended.out[-300:]} {ended.err[-300:]}"
        return ""

    def _run(self, words: list[str], damage: tuple[Path, str] | None, draw: random.Random) -> tuple[Ended, str]:
        place = self.home / f"ground-{self.count}"
        shutil.copytree(self.whole, place / "at", symlinks=True)
        for beside in self.whole.parent.iterdir():
            if beside.is_file():
                shutil.copy(beside, place)
        before = {path: path.read_bytes() for path in place.iterdir() if path.is_file()}
        if damage is not None:
            DAMAGES[damage[1]](place / "at" / damage[0], draw)
        there = self.forge.at(place, **self.forge.variables)
        ended = there.run(*words, seconds=SECONDS)
        changed = next((path.name for path, content in before.items() if path.read_bytes() != content), "")
        shutil.rmtree(place)
        return ended, changed


NOT_READ = {"report.html", "report.md", "table.tex", "scores.csv", "log.txt", "verdicts.json", "lock"}
"""Files that are only for people, or have no effect; `verdicts.json` is only read for studies older than looks.json."""

MADE_AGAIN = {"audit.json"}
"""If this file is missing, audits are run as for a run without any, and their findings are reported."""


def wrong(ended: Ended) -> str:
    """A traceback, a hang, or a crash, as text."""
    if "Traceback (most recent call last)" in ended.err + ended.out:
        return ended.err[-1500:]
    if ended.code in (-signal.SIGPROF, -signal.SIGALRM):
        return f"takes more than {SECONDS} seconds"
    return f"ends with {ended.code}: {ended.err[-500:]}" if ended.code not in (0, 1, 2, 130) else ""
