"""`extends:` in recipe files."""

from pathlib import Path

import pytest

from headway.core.errors import UserError
from headway.recipe.recipe import load


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(**texts: str) -> Path:
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
        return tmp_path

    return write


def test_a_recipe_equals_the_one_it_extends_except_for_its_own_keys(files):
    here = files(mine="extends: demo\nmodel: {positions: alibi}\nseed: 3\n")
    mine = load(str(here / "mine.yaml"))
    assert mine == load("demo", ["model.positions=alibi", "seed=3"])
    assert mine.hash == load("demo", ["model.positions=alibi", "seed=3"]).hash  # by its resulting values


def test_paths_are_relative_to_the_file_that_names_them(files, tmp_path, monkeypatch):
    (tmp_path / "deeper").mkdir()
    here = files(**{"deeper/middle": "extends: ../base.yaml\nseed: 2", "base": "extends: demo\nmodel: {layers: 1}"})
    (here / "top.yaml").write_text("extends: deeper/middle.yaml\nmodel: {width: 32}")
    monkeypatch.chdir("/")
    assert load(str(here / "top.yaml")) == load("demo", ["model.layers=1", "model.width=32", "seed=2"])
    (here / "base.yaml").write_text("extends: demo\nmodel: {layers: 3}")
    assert load(str(here / "top.yaml")).model.layers == 3


@pytest.mark.parametrize(
    ("under", "over", "changes"),
    [
        ("{optimizer: {beta1: 0.5}}", "{optimizer: {beta2: 0.25}}", ["beta1=0.5", "beta2=0.25"]),
        ("{optimizer: {learning_rate: 0.5}}", "{optimizer: {kind: adamw}}", ["learning_rate=0.5"]),
        ("{optimizer: {learning_rate: 0.5, beta1: 0.5}}", "{optimizer: sgd}", ["kind=sgd"]),
        ("{optimizer: {learning_rate: 0.5, beta1: 0.5}}", "{optimizer: {kind: sgd}}", ["kind=sgd"]),
        ("{optimizer: sgd}", "{optimizer: {learning_rate: 0.5}}", ["kind=sgd", "learning_rate=0.5"]),
    ],
)  # fmt: skip
def test_another_kind_resets_its_settings_and_the_same_keeps_them(files, under, over, changes):
    here = files(base=f"training: {under}", mine=f"extends: base.yaml\ntraining: {over}")
    expected = load(str(files(plain="seed: 0") / "plain.yaml"), [f"training.optimizer.{change}" for change in changes])
    assert load(str(here / "mine.yaml")) == expected


def test_a_mistake_is_reported_with_its_file(files):
    here = files(base="model:\n  wdith: 3\n  layers: 0\n", mine="extends: base.yaml\nmodel:\n  layers: 2\n  heads: 3\n")
    with pytest.raises(UserError) as caught:
        load(str(here / "mine.yaml"))
    assert "base.yaml:2: model.wdith: unknown key; did you mean 'width'?" in str(caught.value)
    assert "mine.yaml:4: model.heads" in str(caught.value)
    assert "base.yaml:3" not in str(caught.value)  # that value was replaced


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"a": "extends: a.yaml"}, "a.yaml:1: extends: a recipe cannot extend itself: a.yaml → a.yaml"),
        (
            {"a": "seed: 1\nextends: b.yaml", "b": "extends: c.yaml", "c": "extends: ./b.yaml"},
            "c.yaml:1: extends: a recipe cannot extend itself: b.yaml → c.yaml → b.yaml",
        ),
        ({"a": "extends: none.yaml"}, "a.yaml:1: extends: there is no recipe file"),
        ({"a": "extends: dmeo"}, "a.yaml:1: extends: there is no recipe 'dmeo'; did you mean 'demo'?"),
        ({"a": "extends: [demo, sst2]"}, "a.yaml:1: extends: expected the name of one packaged recipe or YAML file"),
        ({"a": "extends: 3"}, "a.yaml:1: extends: expected"),
        ({"a": "extends:"}, "a.yaml:1: extends: expected"),
        ({"a": "extends: b.yaml", "b": "- 1"}, "b.yaml: expected keys and values, found a list"),
        (
            {"a": "extends: r0.yaml", **{f"r{k}": f"extends: r{k + 1}.yaml" for k in range(20)}, "r20": "seed: 0"},
            "a chain of more than 10 recipes",
        ),
    ],
)
def test_what_cannot_be_extended_is_refused_with_its_line(files, texts, message):
    here = files(**texts)
    with pytest.raises(UserError) as caught:
        load(str(here / "a.yaml"))
    assert message in str(caught.value)


def test_plugins_are_relative_to_the_file_that_names_them(files, tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/fancy_warmth.py").write_text(
        "from typing import Literal\nfrom headway.training.schedule import ScheduleSpec\n"
        "class Warmth(ScheduleSpec):\n"
        '    """Half."""\n    kind: Literal["fancy-warmth"] = "fancy-warmth"\n'
        "    def after_warmup(self, progress): return 0.5\n"
    )
    (tmp_path / "shared/base.yaml").write_text("plugins: [fancy_warmth.py]\ntraining: {schedule: fancy-warmth}")
    here = files(mine="extends: shared/base.yaml\nseed: 4")
    assert load(str(here / "mine.yaml")).training.schedule.kind == "fancy-warmth"


def test_a_recipe_in_a_run_folder_cannot_load_code_by_extending(files, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/evil.py").write_text("raise SystemExit('it was run')")
    (tmp_path / "other/base.yaml").write_text("plugins: [evil.py]")
    here = files(recipe="extends: other/base.yaml")
    with pytest.raises(UserError, match="only runs with your permission"):
        load(str(here / "recipe.yaml"))


def test_a_pipe_is_refused_without_waiting(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for what in ("pipe", "folder"):
        with pytest.raises(UserError, match=f"cannot read the recipe .*: it is a {what}, not a file"):
            load(str(tmp_path / f"{what}.yaml"))
