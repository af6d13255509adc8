"""A recipe as a form: its fields, its messages about mistakes, and what it starts, compared with the command line."""

from pathlib import Path

import pytest
from bench_tools import AnsweringHere, asker
from tiny import cache_in

from headway.core.errors import UserError
from headway.recipe.library import packaged
from headway.recipe.recipe import Recipe, load
from headway.study.design.study import load_study
from headway.workbench.bench import Bench
from headway.workbench.changing import changes
from headway.workbench.changing.form import fields_of


def flat(fields):
    return {one["key"]: one for field in fields for one in [field, *flat(field.get("fields", [])).values()]}


@pytest.fixture(scope="module")
def demo():
    return flat(changes.form("demo", [], "demo")["fields"])


def test_the_form_has_choices_ranges_and_documentation_from_the_specs(demo):
    assert demo["model.mixer.heads"]["least"] == 1 and "share the width" in demo["model.mixer.heads"]["meaning"]
    assert demo["model.dropout"] | {"least": 0, "below": 1} == demo["model.dropout"]
    kinds = [one["kind"] for one in demo["model.positions"]["choices"]]
    assert {"alibi", "rotary", "learned"} <= set(kinds) and demo["model.positions"]["value"] == "rotary"
    assert demo["model.positions.base"]["above"] == 1 and demo["training.clip"]["nullable"]
    assert demo["training.precision"]["choices"] == ["auto", "float32", "bf16"]
    assert demo["training.duration"]["value"] == "300 steps"
    assert all(one["meaning"] or one["kind"] in ("variant", "part") for one in demo.values())


@pytest.mark.parametrize("name", sorted(packaged()))
def test_every_recipe_has_a_form_whose_values_give_the_recipe_back(name):
    try:
        recipe = load(name)
    except UserError as missing:
        pytest.skip(str(missing))
    tree = recipe.model_dump(mode="json", by_alias=True)
    fields = flat(fields_of(Recipe, tree, tree))
    plain = [one for one in fields.values() if one["kind"] not in ("variant", "part", "written")]
    if recipe.model.own_tokenizer is not None:  # it follows from the initial weights, and is not in the recipe
        plain = [one for one in plain if not one["key"].startswith("data.tokenizer.")]
    assert len(plain) > 20
    again = load(name, [f"{one['key']}={one['value']}" for one in plain])
    assert again == recipe and all(one["value"] == one["was"] for one in fields.values())


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        (["model.width=abc"], ["model.width"]),
        (["model.positions=alib"], ["model.positions"]),
        (["model.mixer.heads=5"], ["model.width", "model.mixer.heads"]),
        (["training.clip=-1", "model.widht=3"], ["training.clip", "model.widht"]),
    ],
)
def test_mistakes_are_reported_as_on_the_command_line(command_line, given, keys):
    found = changes.form("demo", given, "demo")
    answer = command_line("recipe", "demo", *given)
    assert answer.code == 2 and found["complaints"] and found["command"] is None
    assert all(one["line"] in answer.err for one in found["complaints"])
    assert set(keys) <= {key for one in found["complaints"] for key in one["keys"]}
    assert found["fields"], "the form is kept"


def test_another_kind_has_its_own_settings_and_is_shown_as_a_difference():
    found = changes.form("demo", ["model.positions=t5"], "demo")
    assert "model.positions.base" not in flat(found["fields"])
    assert {"key": "model.positions.kind", "was": "rotary", "is": "t5"} in found["difference"]
    assert found["command"] == "headway train demo model.positions=t5" and found["score"] == "valid.perplexity"
    assert found["name"] == "demo-t5"
    wrong = flat(changes.form("demo", ["model.kind=classifier"], "demo")["fields"])
    assert "model.pooling" in wrong, "the form of an incomplete recipe"


def test_a_run_is_changed_by_its_own_recipe(workshop):
    path = workshop.run.folder / "recipe.yaml"
    found = changes.form(str(path), ["model.width=32"], "runs/tiny/recipe.yaml")
    assert found["difference"] == [{"key": "model.width", "was": "16", "is": "32"}]
    assert found["command"] == "headway train runs/tiny/recipe.yaml model.width=32" and found["name"] == "tiny-width-32"


def test_the_study_compares_the_change_with_the_original(workshop, tmp_path):
    path, shown = str(workshop.run.folder / "recipe.yaml"), "runs/tiny/recipe.yaml"
    (tmp_path / "mine.yaml").write_text(changes.study_text(path, ["model.positions=alibi"], 3, shown), "utf-8")
    study = load_study(tmp_path / "mine.yaml")
    assert list(study.recipes) == ["original", "alibi"] and study.seeds == [0, 1, 2]
    assert study.recipes["original"] == workshop.run.recipe
    assert [str(one) for one in study.questions] == ["Is alibi better than original on valid.perplexity?"]
    with pytest.raises(UserError, match="nothing is changed"):
        changes.study_text(path, ["model.width=16"], 3, shown)
    with cache_in(workshop.cache):
        found = changes.takes(path, ["model.width=32"], 3, shown)
    assert found["arms"]["width-32"]["parameters"] > found["arms"]["original"]["parameters"]
    assert found["arms"]["original"]["steps"] == 12 and found["seconds"] > 0


class Started:
    """Jobs that are only recorded."""

    def __init__(self, folder: Path):
        self.home, self.words = folder / ".headway" / "jobs", []

    def start(self, words):
        self.words.append(list(words))
        return {"job": "1", "command": "", "process": 1, "started": 0.0, "running": True, "code": None, "said": ""}


def test_the_page_starts_the_command_it_shows(tmp_path):
    bench = Bench(tmp_path, readers=AnsweringHere())
    started = Started(tmp_path)
    bench.jobs = started  # pyright: ignore
    given = {"recipe": "demo", "changes": ["model.positions=alibi"]}
    with asker(bench) as client:
        assert client.post("/api/change/train", json=given).json()["run"] == "runs/demo-alibi"
        study = {**given, "seeds": 3, "name": "mine"}
        assert client.post("/api/change/study", json=study).json()["study"] == "studies/mine"
        assert client.post("/api/change/study", json={**given, "name": "mine"}).status_code == 422, "the study exists"
        for bad in (
            {"recipe": "../secret.yaml"},
            {"recipe": "/etc/passwd"},
            {"run": "../elsewhere"},
            {"recipe": "demo", "run": "runs/x"},
            {},
            {**given, "changes": ["--with=evil.py"]},
            {**given, "changes": ["--json"]},
            {**given, "name": "../out"},
        ):
            assert client.post("/api/change/train", json=bad).status_code in (404, 422), bad
    assert started.words == [
        ["train", "demo", "model.positions=alibi", "--name", "demo-alibi", "--runs", "runs"],
        ["study", "run", "studies/mine.yaml", "--studies", "studies"],
    ]
    assert load_study(tmp_path / "studies" / "mine.yaml").title == "Does model.positions=alibi help demo?"


@pytest.mark.parametrize(
    ("served", "runs", "studies", "run"),
    [("home", "runs", "studies", "runs/d"), ("runs", ".", "studies", "d"), ("studies", "runs", ".", "runs/d")],
)
def test_new_runs_and_studies_are_created_beside_existing_ones(tmp_path, monkeypatch, served, runs, studies, run):
    """Below the served folder and nowhere else; if the served folder is itself a folder of runs, no `runs` is created
    in it."""
    (tmp_path / served).mkdir()
    bench = Bench(tmp_path / served, readers=AnsweringHere())
    started = []
    monkeypatch.setattr(bench.jobs, "start", lambda words: started.append(list(words)) or {"job": "1"})
    api, asked = asker(bench), {"recipe": "demo", "changes": ["seed=1"], "name": "d"}
    told = api.post("/api/ask/change", json={"recipe": "demo"}).json()
    assert told["goes_to"] == {"runs": runs, "studies": studies}
    assert api.post("/api/change/train", json=asked).json()["run"] == run
    assert started == [["train", "demo", "seed=1", "--name", "d", "--runs", runs]]
    home = "" if studies == "." else "studies/"
    assert api.post("/api/change/study", json={**asked, "name": "s"}).json()["study"] == f"{home}s"
    assert started[1] == ["study", "run", f"{home}s.yaml", "--studies", studies]
    assert (bench.folder / f"{home}s.yaml").is_file()
