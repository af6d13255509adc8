"""What a new user types first: the version, a key by its name in another tool, a changed recipe, the tab key."""

import subprocess
import sys
from pathlib import Path

import pytest

import headway as package
from headway.cli.options import recipes_like
from headway.core.validation import known_keys
from headway.recipe.recipe import CALLED_ELSEWHERE, Recipe, load


def test_the_version(headway):
    answer = headway("--version")
    assert (answer.code, answer.out) == (0, f"headway {package.__version__}\n")


def test_the_public_names_are_listed():
    assert set(package.__all__) <= set(dir(package))
    assert "import_module" not in dir(package)
    assert all(getattr(package, name) is not None for name in dir(package))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_installed(shell):
    from typer.completion import get_completion_script

    assert "headway" in get_completion_script(prog_name="headway", complete_var="_HEADWAY_COMPLETE", shell=shell)


def test_recipes_and_runs_are_completed(home):
    assert "demo" in recipes_like("de")
    assert recipes_like("tin") == ["tiny-imagenet-10", "tiny.yaml"]
    env = {"_HEADWAY_COMPLETE": "complete_bash", "COMP_WORDS": "headway score ti", "COMP_CWORD": "2"}
    import os

    done = subprocess.run(
        [sys.executable, "-c", "from headway.cli import app; app(prog_name='headway')"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["tiny"]


def test_names_of_other_tools_lead_to_keys_that_exist():
    keys = set(known_keys(Recipe))
    for words in CALLED_ELSEWHERE.values():
        key, _, value = words.partition("=")
        assert key in keys
        if value:
            load("demo", [words.replace("{value}", "7")])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("training.lr=1e-3", "training.optimizer.learning_rate"),
        ("training.optimizer.lr=1e-3", "training.optimizer.learning_rate"),
        ("lr=1e-3", "training.optimizer.learning_rate"),
        ("steps=500", "training.duration=500 steps"),
        ("training.steps=500", "training.duration=500 steps"),
        ("training.epochs=3", "training.duration=3 epochs"),
        ("training.epochs=[a, b]", "training.duration=10 epochs"),
        ("training.batch_size=3", "training.batch"),
        ("model.n_head=2", "model.mixer.heads"),
        ("model.d_model=2", "model.width"),
        ("model.wdith=2", "width"),  # a typing mistake
    ],
)
def test_common_first_attempts_get_a_hint(headway, typed, meant):
    answer = headway("recipe", "demo", typed)
    assert answer.code == 2
    assert f"did you mean '{meant}'?" in answer.err
    assert answer.err.count("\n") == 2


@pytest.mark.parametrize("words", [(), ("--space", "none.yaml"), ("--space", "wrong.yaml")])
def test_the_example_of_a_search_space_can_be_used(headway, home, words):
    (home / "wrong.yaml").write_text("lr: 3\n")
    answer = headway("tune", "tiny.yaml", *words)
    assert answer.code == 2
    from headway.tuning.space import check_space, read_space

    (home / "right.yaml").write_text(answer.err.splitlines()[-1].strip())
    check_space(read_space(home / "right.yaml"), load("demo"))


def test_a_grid_is_counted_before_it_is_expanded():
    from headway.core.errors import UserError
    from headway.tuning.space import Between, grid

    with pytest.raises(UserError, match="a grid of 390,625 combinations"):
        grid({f"k{k}": Between(key="seed", low=1.0, high=2.0) for k in range(8)})


def trained(headway, *words: str) -> str:
    return Path(headway("train", "tiny.yaml", "training.duration=1 step", *words, "--json").json["run"]).name


def test_a_changed_recipe_gets_its_own_name(headway, home):
    assert trained(headway, "model.positions=alibi") == "tiny-duration-1-step-alibi"
    again = headway("train", "tiny.yaml", "training.duration=1 step", "model.positions=alibi")
    assert again.code == 2
    assert "exists: continue it with --resume" in again.err  # an equal recipe gets the same name
    assert headway("train", "tiny.yaml", "training.duration=1 step", "model.positions=alibi", "--resume").code == 0


def test_a_change_without_effect_makes_no_other_recipe(headway, home):
    answer = headway("train", "tiny.yaml", "seed=0")
    assert (answer.code, "runs/tiny exists" in answer.err) == (2, True)


def test_a_name_taken_by_another_recipe_is_made_unique(headway, home):
    for folder in ("a", "b"):
        (home / folder).mkdir()
        (home / folder / "x.txt").write_text((home / "tiny.txt").read_text() + folder)
    first, second = (trained(headway, f"data.path={folder}/x.txt") for folder in "ab")
    assert first == "tiny-duration-1-step-x"
    assert second.startswith(f"{first}-")
    words = ("training.duration=1 step", "data.path=b/x.txt")
    assert headway("train", "tiny.yaml", *words, "--resume").code == 0  # --resume finds the second run


def test_runs_from_before_they_had_names_are_resumed(headway, home):
    headway("train", "tiny.yaml", "training.duration=1 step", "--name", "tiny2")
    (home / "tiny2.yaml").write_text((home / "tiny.yaml").read_text())
    answer = headway("train", "tiny2.yaml", "training.duration=1 step", "--resume", "--json")
    assert Path(answer.json["run"]).name == "tiny2"


@pytest.mark.parametrize(
    "words",
    [
        ("train", "tiny.yaml", "--vary", "seed=0..99999999"),
        ("train", "tiny.yaml", "--vary", "seed=0..99999999999999999999999"),
        ("train", "tiny.yaml", "--vary", "seed=" + "0..4000," * 50 + "1"),
        ("train", "tiny.yaml", "--vary", "seed=0..4000", "--vary", "training.optimizer.learning_rate=1,2"),
        ("train", "tiny.yaml", "--name", "x" * 300),
        ("train", "tiny.yaml", "seed=" + "9" * 5000),
        ("train", "tiny.yaml", "model.positions=" + "{a: " * 500),
        ("train", "tiny.yaml", "model.positions=" + "[" * 500 + "]" * 500),
        ("train", "tiny.yaml" + "x" * 300),
        ("score", "x" * 300),
    ],
)  # fmt: skip
def test_limits_are_checked_before_anything_grows(headway, words):
    answer = headway(*words)
    assert answer.code == 2, answer.err
    assert len(answer.err) < 1500
    assert "Traceback" not in answer.err
