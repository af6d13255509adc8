"""What README shows works: its recipes load with their changes, its verbs exist, and its data sets are known."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from headway.cli import app
from headway.data.images.sources import KNOWN_SETS as PICTURES
from headway.data.labelled.sources import KNOWN_TABLES
from headway.data.pairs.sources import KNOWN_PAIRS
from headway.data.running.sources import KNOWN_SETS
from headway.recipe.recipe import load
from headway.recipe.sweep import varied

DOCS = Path(__file__).parents[1] / "docs"
README = (DOCS.parent / "README.md").read_text("utf-8")
COMMANDS = [shlex.split(line, comments=True) for line in README.splitlines() if line.startswith("headway ")]
OWN = {"model.positions=mine"}  # needs a file of the user's


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_its_commands_are_commands(words):
    command = typer.main.get_command(app)
    assert words[1] in command.commands
    options = {name for parameter in command.commands[words[1]].params for name in parameter.opts}
    inner = getattr(command.commands[words[1]], "commands", {})
    if inner:
        options = {name for parameter in inner[words[2]].params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("words", [w for w in COMMANDS if w[1] in ("train", "recipe", "tune")], ids=" ".join)
def test_its_recipes_load_without_any_data(words, monkeypatch):
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    changes = [word for word in words[3:] if "=" in word and ".." not in word and word not in OWN]
    recipe = load(words[2], changes)
    assert recipe.data.source in ("python-docs", "python-modules", "pig-latin", "numbers-en-fr", "scenes")
    if "--vary" in words:
        assert len(varied(recipe, "x", [words[words.index("--vary") + 1]])[0]) > 1


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_its_commands_work_one_after_the_other_on_a_fresh_machine(tmp_path, monkeypatch):
    """Run in a folder that contains only what README says the user has."""
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    own = re.search(r"```python\n(.*?)```", (DOCS / "own-variant.md").read_text("utf-8"), re.DOTALL)
    asked = re.search(r"```yaml\n(.*?)```", (DOCS / "studies.md").read_text("utf-8"), re.DOTALL)
    assert own is not None and asked is not None
    (tmp_path / "mine.py").write_text(own[1].replace('"gaussian"', '"mine"'), "utf-8")
    (tmp_path / "mine.yaml").write_text(
        asked[1].replace("300 steps", "40 steps").replace("seeds: 8", "seeds: 2"), "utf-8"
    )
    environment = {**os.environ, "HEADWAY_CACHE": str(tmp_path / "cache")}
    for words in COMMANDS:
        if words[1] == "open":  # it serves until it is stopped; tests/workbench tests it
            continue
        shorter = ["--trials", "2", "training.duration=60 steps"] if words[1] == "tune" else []
        files = [str(found) for word in words for found in (sorted(tmp_path.glob(word)) if "*" in word else [word])]
        done = subprocess.run(
            [sys.executable, "-m", "headway.cli", *files[1:], *shorter],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"
    assert {"maps.html", "curves.html"} <= {path.name for path in tmp_path.iterdir()}


def test_every_known_data_set_is_listed_with_its_files():
    table = dict(re.findall(r"^\| `([\w-]+)` \| (.*?) \|", README, re.MULTILINE))
    files = {name: list(one.files.values()) for known in (KNOWN_SETS, KNOWN_TABLES) for name, one in known.items()}
    files |= {
        name: [f"{stem}.{side}" for stem in one.stems.values() for side in one.languages]
        for name, one in KNOWN_PAIRS.items()
    }
    for name, expected in files.items():
        assert [file for file in expected if not _told(file, table[name])] == []
    assert set(PICTURES) <= set(table)


def _told(file: str, cell: str) -> bool:
    """Braces in a name stand for several files."""
    stem = file.removesuffix(".gz")
    names = re.findall(r"`([^`]+)`", cell)
    patterns = ["".join("(" + part[1:-1].replace(",", "|") + ")" if part[0] == "{" else re.escape(part)
                        for part in re.findall(r"\{[^}]*\}|[^{]+", name)) for name in names]  # fmt: skip
    return any(re.fullmatch(pattern, stem) for pattern in patterns)
