"""Random commands and damaged files: no traceback, no hang, no silent use of damaged data. Some of them here; with
`slow`, ten thousand commands and five thousand damaged files."""

import itertools
import random
import shutil
from pathlib import Path

import pytest
from crash import Forge
from torture.fuzz import Ground, commands, lay_traps, wrong

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs a system that tells of its processes")


def try_commands(forge: Forge, home: Path, seed: int, count: int) -> list[str]:
    """The commands that went wrong. What they write goes to folders that are replaced regularly."""
    found = []
    for k, words in enumerate(itertools.islice(commands(seed), count)):
        place = home / f"place-{seed}-{k // 50}"
        if k % 50 == 0:
            shutil.rmtree(home / f"place-{seed}-{k // 50 - 1}", ignore_errors=True)
            shutil.copytree(home / "template", place, symlinks=True)
            lay_traps(place)
        ended = forge.at(place, **forge.variables).run(*words, seconds=10)
        if why := wrong(ended):
            found.append(f"headway {words}: {why}")
    return found


@pytest.fixture(scope="module")
def template(workshop, forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> tuple[Forge, Path]:
    home = tmp_path_factory.mktemp("fuzz")
    shutil.copytree(workshop.runs, home / "template" / "runs")
    for file in (workshop.recipe, workshop.text):
        shutil.copy(file, home / "template")
    return forge.at(home, HEADWAY_CACHE=str(workshop.cache)), home


@pytest.fixture(scope="module")
def runs(workshop, template, tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """Two runs of one recipe with different seeds."""
    forge, _ = template
    home = tmp_path_factory.mktemp("runs")
    shutil.copy(workshop.recipe, home / "tiny.yaml")
    there = forge.at(home, **forge.variables)
    for seed in (0, 1):
        done = there.run("train", "tiny.yaml", f"seed={seed}", "--name", f"run-{seed}", "--runs", "at")
        assert done.code == 0, done.err
    words = [
        ["runs", "--runs", "at"],
        ["runs", "--runs", "at", "--json"],
        *([verb, name, "--runs", "at"] for verb in ("score", "look") for name in ("run-0", "run-1")),
        ["sample", "run-0", "--runs", "at", "--prompt", "The", "--tokens", "4"],
        ["export", "run-1", "--runs", "at", "-o", "out"],
        ["train", "tiny.yaml", "seed=0", "--name", "run-0", "--runs", "at", "--resume"],
    ]
    words = [[*w, "The fox"] if w[0] == "look" else w for w in words]
    return Ground(tmp_path_factory.mktemp("damaged"), home / "at", there, words)


@pytest.fixture(scope="module")
def studies(workshop, template, tmp_path_factory: pytest.TempPathFactory) -> Ground:
    from study.small import small_study

    from headway.study.execution.execute import execute
    from headway.study.execution.in_process import InProcess

    home = tmp_path_factory.mktemp("studies")
    execute(small_study(workshop.text), home / "at" / "first", InProcess())
    words = [["study", verb, "first", "--studies", "at"] for verb in ("results", "report")]
    words += [["study", "results", "first", "--studies", "at", "--json"], ["runs", "--runs", "at/first/runs"]]
    forge, _ = template
    return Ground(tmp_path_factory.mktemp("damaged"), home / "at", forge.at(home, **forge.variables), words)


def test_some_commands(template):
    assert try_commands(*template, seed=1, count=16) == []


def test_some_damages(runs: Ground, studies: Ground):
    draw = random.Random(1)
    assert [why for ground in (runs, studies) for _ in range(6) if (why := ground.try_one(draw))] == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_commands(template, seed: int):
    assert try_commands(*template, seed=100 + seed, count=1000) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(5))
def test_five_thousand_damages(runs: Ground, studies: Ground, seed: int):
    draw = random.Random(100 + seed)
    assert [why for k in range(1000) if (why := (studies if k % 4 == 0 else runs).try_one(draw))] == []
