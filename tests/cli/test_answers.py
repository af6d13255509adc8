"""What every command prints with --json conforms to its schema."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import typer

from headway.answers.verbs import SCHEMAS, checked, json_schema
from headway.cli import app

BEFORE = Path(__file__).parents[1] / "run" / "made_before"
ASKED = {
    "train": "train {recipe} --name new training.duration='1 step'",
    "train many": "train {recipe} --name many training.duration='1 step' --vary seed=0..1",
    "score": "score finished",
    "score text": "score finished --text 'The fox'",
    "score classes": "score classifier",
    "score ensemble": "score finished interrupted --ensemble",
    "score lengths": "score finished --lengths 4,8 --tokens 50",
    "audit": "audit finished",
    "audit explain": "audit --explain causality",
    "sample": "sample finished --tokens 3",
    "look": "look finished 'The fox'",
    "look gradients": "look classifier 'the cold day' --show gradients",
    "look gradient flow": "look finished interrupted --gradient-flow",
    "look gradient flow of classes": "look classifier finished --gradient-flow",
    "look beside": "look finished 'The fox' --beside interrupted",
    "classify": "classify classifier 'the cold day'",
    "recipe": "recipe demo",
    "recipes": "recipes",
    "runs": "runs",
    "cases": "cases",
    "case": "case D2 --quick",
    "bench": "bench --size tiny --seconds 0.1 --device cpu",
    "cache": "cache",
    "tune": "tune {recipe} training.duration='4 steps' --over training.optimizer.learning_rate=1e-3..1e-2 --trials 1",
    "study plan": "study plan studies/positions/study.yaml",
    "study results": "study results positions",
    "study report": "study report positions",
    "solve query": "solve query '1,0; 0,1; -1,-1' --select 0",
    "solve query identity": "solve query '1,0; 0,1; -1,-1' --identity",
    "solve key": "solve key 2,1 '1,0; 0,1; -1,-1' --replace 2 --select 2",
    "solve convolution": "solve convolution 2,0,1",
    "solve shift": "solve shift 1",
    "solve mean-pool": "solve mean-pool 3",
    "solve max-pool": "solve max-pool 3",
    "solve matrix": "solve matrix '0.5,0.5; 0.2,0.8'",
    "solve fixed-layer": "solve fixed-layer --tokens 3",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("answers")
    shutil.copytree(BEFORE, home, dirs_exist_ok=True)
    return home


@pytest.mark.parametrize("asked", ASKED)
def test_an_answer_conforms_to_its_schema(asked, home, workshop, monkeypatch, command_line):
    monkeypatch.chdir(home)
    monkeypatch.setenv("HEADWAY_CACHE", str(home / "cache"))
    # the version that made them, which is part of a text's identity
    monkeypatch.setattr("tokenizers.__version__", "0.23.3")
    words = shlex.split(ASKED[asked].format(recipe=workshop.recipe))
    answer = command_line(*words, "--json")
    verb = " ".join(words[:2]) if words[0] in ("study", "solve") else words[0]
    found = json.loads(answer.out)
    assert found and checked(verb, found) == found


def verbs(command, name=()):
    """All commands that take --json."""
    for child, inner in getattr(command, "commands", {}).items():
        yield from verbs(inner, (*name, child))
    if any("--json" in parameter.opts for parameter in command.params):
        yield " ".join(name)


def test_every_verb_that_takes_json_has_a_schema():
    assert set(verbs(typer.main.get_command(app))) == set(SCHEMAS)


@pytest.mark.parametrize("verb", SCHEMAS)
def test_schemas_are_json_schema(verb):
    found = json_schema(verb)
    assert json.loads(json.dumps(found)) == found
    assert found.get("type") == "object" or found.get("anyOf")


def test_the_schema_verb_prints_them(command_line):
    assert json.loads(command_line("schema", "study", "plan").out) == json_schema("study plan")
    assert json.loads(command_line("schema").out).keys() == SCHEMAS.keys()
    code, _, said = command_line("schema", "trian")
    assert code == 2 and "did you mean 'train'?" in said
