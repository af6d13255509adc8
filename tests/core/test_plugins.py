"""Plugins: what they add, what a run stores of them, how their errors are reported, and that none runs without
consent."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny import tiny_recipe

import headway as package
from headway.core import plugins
from headway.core.errors import UserError
from headway.experiment.train import train
from headway.recipe.plugins import use
from headway.recipe.recipe import load
from headway.recipe.text import annotated
from headway.run.folder import open_run

SQUARE = '''from typing import Literal

from pydantic import Field

from headway.nn.positions import Positions, PositionSpec


class Square(PositionSpec):
    """A penalty that grows with the square of the distance."""

    kind: Literal["square"] = "square"
    strength: float = Field(default=0.01, gt=0)
    """How steep it is."""

    def build(self, replicas, width, heads, context):
        return SquarePositions(self.strength)


class SquarePositions(Positions):
    has_bias = True

    def __init__(self, strength):
        super().__init__()
        self.strength = strength

    def bias(self, replica, head, i, j):
        return -self.strength * (i - j) ** 2 + 0 * head
'''


@pytest.fixture(autouse=True)
def forgotten():
    """Every test starts without plugins and leaves none behind."""
    yield
    for plugin in plugins.loaded():
        plugins.forget(plugin)
    use()


@pytest.fixture
def square(tmp_path: Path) -> Path:
    file = tmp_path / "square.py"
    file.write_text(SQUARE)
    return file


def test_a_recipe_with_it_is_documented_and_can_be_read_back(square: Path, tmp_path: Path):
    package.load_plugin(square)
    text = annotated(load("demo", ["model.positions=square"]))
    assert "# How steep it is.\n    strength: 0.01" in text
    (tmp_path / "written.yaml").write_text(text)
    plugins.forget(plugins.loaded()[0])
    assert load(str(tmp_path / "written.yaml")).model.positions.kind == "square"


def test_plugins_of_a_recipe_are_relative_to_it(square: Path, tmp_path: Path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("plugins: [square.py]\nmodel: {positions: {kind: square, strength: 0.5}}\n")
    assert load(str(recipe)).model.positions.strength == 0.5
    recipe.write_text("plugins: square.py\n")
    with pytest.raises(UserError, match="plugins: expected a list"):
        load(str(recipe))


def test_mistakes_in_a_recipe_with_plugins_are_reported(square: Path):
    plugins.load_plugin(square)
    with pytest.raises(UserError, match=r"model\.positions\.strength: expected a number greater than 0, not -1"):
        load("demo", ["model.positions=square", "model.positions.strength=-1"])
    with pytest.raises(UserError, match="unknown kind 'squar'; did you mean 'square'"):
        load("demo", ["model.positions=squar"])
    with pytest.raises(UserError, match="alibi has no such setting; square has"):
        load("demo", ["model.positions=alibi", "model.positions.strength=1"])


def test_recipe_hashes_include_the_content_of_used_plugins(square: Path):
    before = load("demo").hash
    plugins.load_plugin(square)
    first = load("demo", ["model.positions=square"]).hash
    square.write_text(SQUARE.replace("0 * head", "0.0 * head"))
    plugins.load_plugin(square)
    assert load("demo", ["model.positions=square"]).hash != first
    square.write_text(SQUARE)
    plugins.load_plugin(square)
    assert load("demo", ["model.positions=square"]).hash == first
    assert load("demo").hash == before and len(plugins.loaded()) == 1


WRONG = {
    "syntax": ("class Square(PositionSpec):", "class Square(:", r"square\.py:8: "),
    "import": ("from pydantic import Field", "from pydantyc import Field", r"square\.py:3: .*pydantyc"),
    "no kind": ('    kind: Literal["square"] = "square"\n', "", r'square\.py:8: .*kind: Literal\["square"\]'),
    "no build": ("def build", "def biuld", r"square\.py:8: .*build\(replicas, width, heads, context\)"),
    "other arguments": (
        "replicas, width, heads, context",
        "replicas",
        r"square\.py:15: .*build\(replicas\) will be called as",
    ),
    "taken": ('"square"', '"alibi"', r"'alibi' is defined in .*positions\.py:\d+ and in .*square\.py:8"),
    "no annotation": ('kind: Literal["square"]', "kind", r"square\.py:8: .*kind"),
    "leaves": ("class Square(", "raise SystemExit(3)\n\n\nclass Square(", r"square\.py:8: SystemExit"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_in_the_file_is_one_message_with_its_line(square: Path, what: str):
    was, is_, said = WRONG[what]
    square.write_text(SQUARE.replace(was, is_))
    with pytest.raises(UserError, match=said) as caught:
        plugins.load_plugin(square)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="unknown kind 'square'"):
        load("demo", ["model.positions=square"])
    square.write_text(SQUARE)  # the corrected file is loaded
    plugins.load_plugin(square)


def test_files_that_are_no_plugins(tmp_path: Path):
    (tmp_path / "square.py").write_text("x = 1\n")
    with pytest.raises(UserError, match="defines nothing that Headway can use"):
        plugins.load_plugin(tmp_path / "square.py")
    with pytest.raises(UserError, match=r"did you mean '.*square\.py'"):
        plugins.load_plugin(tmp_path / "sqare.py")
    with pytest.raises(UserError, match=r"end in \.py"):
        plugins.load_plugin(tmp_path / "square.txt")


@pytest.mark.parametrize(
    "was, is_, line",
    [("self.strength = strength", "self.strength = strenth", 24), ("replica, head, i, j", "i, j", 19)],
)
def test_later_errors_inside_a_plugin_name_its_file(square: Path, tmp_path: Path, was: str, is_: str, line: int):
    square.write_text(SQUARE.replace(was, is_))
    plugins.load_plugin(square)
    with pytest.raises((NameError, TypeError)) as caught:
        model = load("demo", ["model.positions=square"]).model.build(10)
        model(torch.zeros(1, 1, 4, dtype=torch.long))
    assert (plugins.blamed_on_plugin(caught.value) or "").startswith(f"{square}:{line}: ")
    assert plugins.blamed_on_plugin(ValueError("something else")) is None


def test_replicas_train_together_as_alone_and_the_file_is_stored(square: Path, workshop, tmp_path: Path):
    plugins.load_plugin(square)
    recipes = [tiny_recipe(workshop.text, "model.positions=square", f"seed={seed}") for seed in range(2)]
    together = train(recipes, ["a", "b"], tmp_path / "together")
    for recipe, run in zip(recipes, together, strict=True):
        (alone,) = train([recipe], [run.name], tmp_path / "apart")
        losses = [[line["loss"] for line in one.metrics() if "loss" in line] for one in (run, alone)]
        assert losses[0] and losses[0] == pytest.approx(losses[1], rel=1e-5)
        assert (run.folder / "plugins" / "square.py").read_text() == SQUARE
        assert open_run(str(run.folder)).recipe == recipe, "its code was made by this process, so no consent is needed"


def test_code_of_a_run_folder_is_never_run_without_consent(square: Path, workshop, tmp_path: Path):
    plugins.load_plugin(square)
    (run,) = train([tiny_recipe(workshop.text, "model.positions=square")], ["theirs"], tmp_path)
    plugins.forget(plugins.loaded()[0])
    kept, ran = run.folder / "plugins" / "square.py", tmp_path / "ran"
    kept.write_text(f"open({str(ran)!r}, 'w').close()\n{SQUARE}")
    for opened in (lambda: open_run(str(run.folder)), lambda: load(str(run.folder / "recipe.yaml"))):
        with pytest.raises(UserError, match=r"--with .*square\.py, or --trust") as caught:
            opened()
        assert str(kept) in str(caught.value) and not ran.exists()
    assert open_run(str(run.folder), trust=True).recipe.model.positions.kind == "square"
    assert ran.exists()


def test_a_run_is_not_resumed_with_other_code(square: Path, workshop, tmp_path: Path):
    plugins.load_plugin(square)
    recipe = tiny_recipe(workshop.text, "model.positions=square")
    train([recipe], ["mine"], tmp_path)
    square.write_text(SQUARE.replace("0 * head", "0.0 * head"))
    plugins.load_plugin(square)
    with pytest.raises(UserError, match="made with different code"):
        train([tiny_recipe(workshop.text, "model.positions=square")], ["mine"], tmp_path, resume=True)


def test_commands_accept_plugins(square: Path, workshop, tmp_path: Path, command_line):
    changes = [str(workshop.recipe), "model.positions=square"]
    runs = ["--runs", str(tmp_path)]
    assert command_line("recipe", *changes).code == 2
    made = command_line("recipe", *changes, "--with", str(square), "--json").json
    assert made["recipe"]["model"]["positions"] == {"kind": "square", "strength": 0.01}
    trained = command_line("train", *changes, "--with", str(square), "--name", "mine", "--json", *runs)
    assert trained.code == 0, trained.err
    plugins.forget(plugins.loaded()[0])
    (listed,) = command_line("runs", "--json", *runs).json["runs"]
    assert listed["scores"] == trained.json["scores"], "scores can be shown without its code"
    assert "valid" in command_line("runs", *runs).words
    asked = command_line("sample", "mine", "--tokens", "3", *runs)
    assert asked.code == 2 and "--trust" in asked.words
    assert command_line("sample", "mine", "--tokens", "3", "--trust", *runs).code == 0
    plugins.forget(plugins.loaded()[0])
    assert command_line("score", "mine", "--with", str(square), *runs).code == 0


OTHERS = '''from typing import Literal

import torch

from headway.audit.audit import audit, passed
from headway.nn.heads import Fusion, FusionSpec, side_by_side
from headway.training.optimizers import Sgd
from headway.scoring.metrics import Metric, register

register(Metric("surprise", "surprise", lower_is_better=True), __name__)


class Backwards(FusionSpec):
    kind: Literal["backwards"] = "backwards"

    def build(self, replicas, heads):
        return TurnedRound(replicas)


class TurnedRound(Fusion):
    def forward(self, heads, padding_mask=None):
        return side_by_side(heads.flip(2))


class Slow(Sgd):
    kind: Literal["slow"] = "slow"
    learning_rate: float = 1e-3


@audit("model")
def has_weights(probe):
    """Are there weights at all?

    Counted."""
    count = sum(p.numel() for p in probe.model.parameters())
    return passed(count, f"{count} weights")
'''


@pytest.mark.audited
def test_fusions_optimizers_metrics_and_audits_are_plugins_too(workshop, tmp_path: Path):
    (tmp_path / "others.py").write_text(OTHERS)
    plugins.load_plugin(tmp_path / "others.py")
    recipe = tiny_recipe(workshop.text, "model.mixer.fusion=backwards", "training.optimizer=slow")
    (run,) = train([recipe], ["mine"], tmp_path / "runs")
    found = json.loads((run.folder / "audit.json").read_text())["findings"]
    assert [one["verdict"] for one in found if one["audit"] == "has-weights"] == ["pass"]
    shutil.rmtree(run.folder)
    (plain,) = train([tiny_recipe(workshop.text)], ["plain"], tmp_path / "runs")
    assert (plain.folder / "plugins" / "others.py").exists(), "its audits were run on this run as well"


def test_packages_register_plugins_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "square_package.py").write_text(SQUARE)
    info = tmp_path / "square_package-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: square-package\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[headway.plugins]\nsquare = square_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.load_installed.cache_clear()
    recipe = load("demo", ["model.positions=square"])
    assert "square-package==1.5" in annotated(recipe)
    (tmp_path / "mine.yaml").write_text("plugins: [square-package]\nmodel: {positions: square}\n")
    load(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("plugins: [circle-package]\n")
    with pytest.raises(UserError, match="circle-package"):
        load(str(tmp_path / "mine.yaml"))


INSIDE = """from dataclasses import dataclass
from typing import Literal

from headway.nn.attention import AttentionSpec
from headway.nn.block import Rms
from headway.nn.masks import Mask


@dataclass(frozen=True)
class Strided(Mask):
    step: int

    def allows(self, row, i, j):
        return (i - j) % self.step == 0


class StridedAttention(AttentionSpec):
    kind: Literal["strided"] = "strided"
    step: int = 2

    @property
    def own_mask(self):
        return Strided(self.step)


class Named(Rms):
    kind: Literal["my-norm"] = "my-norm"
"""


def test_mixers_masks_and_norms_are_plugins_too(workshop, tmp_path: Path):
    (tmp_path / "inside.py").write_text(INSIDE)
    plugins.load_plugin(tmp_path / "inside.py")
    changes = ["model.mixer={kind: strided, heads: 2, step: 3}", "model.norm=my-norm"]
    model = tiny_recipe(workshop.text, *changes).model.build(10).eval()
    ids = torch.arange(8)[None, None] % 7
    other = ids.clone()
    other[..., 4] = 9  # three steps back from 7, but two from 6
    assert torch.equal(model(ids)[0][..., 6, :], model(other)[0][..., 6, :])
    assert not torch.equal(model(ids)[0][..., 7, :], model(other)[0][..., 7, :])
