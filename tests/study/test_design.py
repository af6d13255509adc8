"""Study files are strict: what is trained is exactly what they say, and mistakes are reported with their place."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import small_study

from headway.core.errors import UserError
from headway.core.yaml import read_tree, read_value
from headway.recipe import recipe as recipes
from headway.study.design.factors import Factor, label
from headway.study.design.study import Study, load_study
from headway.study.folder import written

ARMS = """title: Which?
base: demo
arms:
  concat: []
  shift: [model.mixer.fusion=shift]
seeds: 3
questions:
  - {kind: better, arm: shift, than: concat}
"""


@pytest.fixture
def study_file(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(text, "utf-8")
        return path

    return write


def refused(path: Path) -> str:
    with pytest.raises(UserError) as error:
        load_study(path)
    return str(error.value)


# --- expanding a study -----------------------------------------------------------------------------------------------


def test_every_arm_is_trained_with_every_seed(study_file):
    study = load_study(study_file(ARMS))
    runs = study.runs()
    assert [run.name for run in runs] == [f"{arm}.seed-{s}" for arm in ("concat", "shift") for s in range(3)]
    assert [run.recipe.seed for run in runs] == [0, 1, 2] * 2
    demo = recipes.load("demo")
    assert runs[1].recipe == demo.with_changes(["seed=1"])
    assert runs[5].recipe == demo.with_changes(["seed=2", "model.mixer.fusion=shift"])


def test_factors_are_crossed_and_pairs_vary_together(study_file):
    factors = """factors:
  positions: {key: model.positions, values: [learned, {kind: rotary, base: 500}]}
  size: {keys: [model.width, model.layers], values: [[64, 2], [128, 4]]}
"""
    study = load_study(study_file("title: x\nbase: demo\n" + factors))
    names = ["learned.64-2", "learned.128-4", "rotary-base-500.64-2", "rotary-base-500.128-4"]
    assert [arm.name for arm in study.arms] == names
    assert study.arms[3].levels == {"positions": "rotary-base-500", "size": "128-4"}
    shapes = [(r.model.positions.kind, r.model.width, r.model.layers) for r in study.recipes.values()]
    assert shapes == [("learned", 64, 2), ("learned", 128, 4), ("rotary", 64, 2), ("rotary", 128, 4)]
    assert study.recipes["rotary-base-500.64-2"].model.positions.base == 500  # pyright: ignore


def test_a_study_made_in_python_is_the_same(study_file):
    made = Study(
        title="Which?",
        base="demo",  # pyright: ignore[reportArgumentType]
        arms={"concat": [], "shift": ["model.mixer.fusion=shift"]},
        seeds=3,  # pyright: ignore[reportArgumentType]
        questions=[{"kind": "better", "arm": "shift", "than": "concat"}],  # pyright: ignore[reportArgumentType]
    )
    assert made == load_study(study_file(ARMS))


def test_the_base_is_relative_to_the_study(study_file, workshop, monkeypatch, tmp_path):
    (tmp_path / "mine.yaml").write_text(workshop.recipe.read_text("utf-8"), "utf-8")
    monkeypatch.chdir("/")
    assert load_study(study_file(ARMS.replace("demo", "mine.yaml"))).base == recipes.load(str(workshop.recipe))


def test_budgets_change_only_the_duration(study_file):
    study = load_study(study_file(ARMS))
    runs = study.runs({"shift": 77})
    assert str(runs[0].recipe.training.duration) == "300 steps"
    assert runs[3].recipe == study.runs()[3].recipe.with_changes(["training.duration=77 steps"])


def test_a_study_round_trips_through_its_file(workshop):
    study = small_study(workshop.text, seeds=[3, 5], title="1e-3", changes=["training.clip=null"])
    tree, _ = read_tree(written(study), "study.yaml")
    assert Study.model_validate(tree) == study
    assert tree["title"] == "1e-3" and study.recipes["learned"].training.clip is None


@given(st.recursive(st.one_of(st.booleans(), st.integers(), st.floats(-1e6, 1e6), st.text(max_size=9)), st.lists))
def test_a_value_round_trips_through_a_change(value):
    (changes,) = Factor(key="model.x", values=[value]).levels().values()
    assert read_value(changes[0].removeprefix("model.x=")) == value
    assert "/" not in label(value) and label(value)


def test_levels_may_have_names(study_file):
    named = Factor(named={"lstm": ["model.mixer=lstm", "model.positions=none"], "attention": []})
    assert list(named.levels()) == ["lstm", "attention"] and named.all_keys == ["model.mixer", "model.positions"]
    for wrong in (Factor(named={"a": []}, values=[1]), Factor(named={"a b": []}), Factor(key="seed"), Factor()):
        assert list(wrong.problems())


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_all_mistakes_are_reported_at_once_with_their_lines(study_file):
    wrong = ARMS.replace("demo", "dmo").replace("seeds: 3", "seed: 3").replace("shift,", "shift, x: 1,")
    text = refused(study_file(wrong))
    assert "study.yaml: 3 things are wrong" in text
    assert "study.yaml:2: base: there is no recipe 'dmo'; did you mean 'demo'?" in text
    assert "study.yaml:6: seed: unknown key; did you mean 'seeds'?" in text
    assert "study.yaml:8: questions.0.x: unknown key" in text


WRONG = {
    "arms: {a: [model.widht=3]}": "study.yaml:3: arms.a: model.widht: unknown key; did you mean 'width'?",
    "arms: {a: [model.width=wide]}": "arms.a: model.width: expected a valid integer, not 'wide'",
    "arms: {a: [model.width]}": "one thing is wrong\n  study.yaml:3: arms.a.0: expected KEY=VALUE, such as",
    "arms: {a: model.width=3}": "one thing is wrong\n  study.yaml:3: arms.a: expected a valid list",
    'arms: {"a\\0": []}': r"'a\x00' cannot be the name of an arm",
    "arms: {.a: []}": "'.a' cannot be the name of an arm",
    "arms: {A: [], a: [model.width=32]}": "'a' and 'A' would be the same folder on a case-insensitive file system",
    "arms: {unigram: []}": "'unigram' is the name of a baseline",
    "arms: {a: [seed=5]}": "arms.a: the seed is not part of an arm",
    "arms: {a: []}\nchanges: [seed=5]": "changes: the seed is not part of an arm",
    "arms: {a: []}\nquestions: [{kind: best}]": "'a' is the only arm",
    "arms: {a: []}\nquestions: [{arm: a}]": "its kind is missing; there are: best, best-size, better",
    "arms: {a: []}\nlook: [{text: x, layer: 7}]": "look.0.layer: there is no layer 7: the model has 3 layers",
    "factors: {p: {key: model.width, values: [16]}, q: {key: model.width, values: [32]}}": "which 'p' also sets",
    "factors: {p: {key: model.mixer, values: [{heads: 2}]}, q: {key: model.mixer.heads, values: [1]}}": "also sets",
    "arms: {a: [], b: []}": "arms.b: it is the same recipe as 'a'",
    "arms: {a/b: []}": "arms.a/b: 'a/b' cannot be the name of an arm",
    "seeds: 3": "arms, factors: neither is given",
    "arms: {a: []}\nfactors: {p: {key: model.width, values: [64]}}": "arms, factors: both are given",
    "factors: {p: {key: model.postions, values: [learned, alibi]}}": "factors.p: model.postions: unknown key; did you",
    "factors: {p: {key: learning_rate, values: [1]}}": "did you mean 'training.optimizer.learning_rate'?",
    "factors: {p: {values: [1]}}": "factors.p.key, factors.p.keys: give one of them",
    "factors: {p: {keys: [model.width, model.layers], values: [64]}}": "a list with 2 entries, one per key, not 64",
    "factors: {p: {key: model.width, values: [64, 64]}}": "two values would both be called '64'",
    "factors: {p: {key: model.width, values: []}}": "factors.p.values: expected at least 1 value, not []",
    "factors: {p: {key: seed, values: [1, 2]}}": "factors.p: the seed cannot be a factor",
    "factors: {p: {kye: model.width, values: [64]}}": "factors.p.kye: unknown key; did you mean 'key'?",
    "arms: {a: [], b: [seed=3]}": "arms.b: the seed is not part of an arm",
    "factors: {p: {key: model.width, values: [2, 4, 6]}}\nseeds: 4000": "12,000 runs are too many for one study",
    "arms: {a: []}\nchanges: [model.widht=3]": "study.yaml:4: changes: model.widht: unknown key; did you mean 'width'?",
    "arms: {a: []}\nseeds: 0": "seeds: expected the number of seeds (8 = 0..7), or a list of seeds, not 0",
    "arms: {a: []}\nseeds: [1, 1]": "seeds: a seed is listed twice",
    "arms: {a: []}\nseeds: true": "seeds: expected the number of seeds",
    "arms: {a: []}\nequal: flop": "or 'seconds', not 'flop'; did you mean 'flops'?",
    "arms: {a: []}\nquestions: [{kind: better, arm: aa, than: a}]": "there is no arm 'aa'; did you mean 'a'?",
    "arms: {a: []}\nquestions: [{kind: best, on: valid.perplexty}]": "did you mean 'valid.perplexity'?",
    "arms: {a: []}\nquestions: [{kind: depends, effect: x, on_factor: y}]": "there is no factor 'x'",
    "arms: {a: []}\nquestions: [{kind: bst}]": "unknown kind 'bst'; did you mean 'best'?",
    "arms: {a: []}\nquestions: [{kind: better, arm: a}]": "study.yaml:4: questions.0.than: it is missing",
    "arms: {a: []}\nreported: {figures: {b: {x: 1}}, conclusion: x}": "reported.figures: there is no arm 'b'",
    "arms: {a: [], b: [training.duration=5 steps]}\nequal: steps": "equal: equal: steps determines how long arms train",
    "arms: {a: []}\nbase: {model: {widht: 3}}": "base is given twice",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_a_mistake_is_reported_with_its_place(study_file, text, message):
    assert message in refused(study_file(f"title: x\nbase: demo\n{text}\n"))


def test_a_mistake_in_an_inline_base(study_file):
    rest = "\narms: {a: []}\n"
    text = refused(study_file("title: x\nbase: {model: {widht: 3}}" + rest))
    assert "study.yaml:2: base.model.widht: unknown key; did you mean 'width'?" in text
    text = refused(study_file("title: x\nbase: {model: {width: 30, mixer: {heads: 4}}}" + rest))
    assert "base.model.width, base.model.mixer.heads: " in text


def test_a_missing_study(tmp_path, study_file):
    study_file(ARMS)
    assert "did you mean" in refused(tmp_path / "studi.yaml")
    with pytest.raises(UserError, match="there is no study 'x'"):
        load_study("x", tmp_path)


# --- data ------------------------------------------------------------------------------------------------------------


def test_arms_that_differ_in_data_and_something_else_are_refused(study_file):
    arms = "arms: {a: [], b: [data.tokenizer=word, model.positions=alibi]}"
    message = "arms.b: it differs from 'a' in data (data.tokenizer.kind"
    assert message in refused(study_file(f"title: x\nbase: demo\n{arms}\n"))
    mixed = "factors: {x: {keys: [data.tokenizer, model.width], values: [[char, 64], [word, 32]]}}"
    assert "make them two factors" in refused(study_file(f"title: x\nbase: demo\n{mixed}\n"))


def test_arms_that_differ_only_in_data_are_allowed_with_a_warning(study_file):
    for what in (
        "arms: {a: [], b: [data.tokenizer=word]}",
        "factors: {t: {key: data.tokenizer, values: [char, word]}, p: {key: model.positions, values: [none, alibi]}}",
    ):
        (warning,) = load_study(study_file(f"title: x\nbase: demo\n{what}\n")).warnings()
        assert "do not read the same data" in warning and "data.tokenizer.kind" in warning


def test_the_segment_length_is_no_difference_in_data(study_file):
    pairs = "factors: {bptt: {keys: [data.segment, model.context], values: [[16, 64], [32, 32]]}}"
    assert load_study(study_file(f"title: x\nbase: demo\n{pairs}\n")).warnings() == []


def test_one_seed_with_a_question_is_allowed_with_a_warning(study_file):
    (warning,) = load_study(study_file(ARMS.replace("seeds: 3", "seeds: 1"))).warnings()
    assert "every verdict will be 'cannot say'" in warning
    assert load_study(study_file(ARMS)).warnings() == []
