"""McNemar's test and the paired bootstrap, compared with scipy and by simulation."""

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headway.core.errors import UserError
from headway.stats.paired import McNemar, mcnemar, rows_and_seeds
from headway.study.conclude import so_far
from headway.study.design.study import Study
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.study.results.results import correct_in


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemars_test_equals_the_exact_binomial_test(first, second):
    expected = stats.binomtest(first, first + second, 0.5).pvalue if first + second else 1.0
    assert McNemar(first, second).p == pytest.approx(expected)


def test_only_discordant_rows_count():
    a = np.array([True, True, True, False, False, True])
    b = np.array([True, False, False, True, False, False])
    assert mcnemar(a, b) == McNemar(3, 1)


def test_different_rows_are_a_user_error():
    with pytest.raises(UserError, match="same rows"):
        mcnemar(np.ones(3, bool), np.ones(4, bool))
    with pytest.raises(UserError, match="at least two"):
        rows_and_seeds(np.ones((1, 4), bool), np.ones((1, 4), bool))


def answers(random, seeds, rows, shift):
    """Rows are easy or hard for all models, and seeds better or worse on all rows; seeds of one arm fail on similar
    rows."""
    hard = random.normal(0, 1.5, size=rows)

    def arm(shift):
        own = random.normal(0, 1, size=rows)
        return random.random((seeds, rows)) < 1 / (
            1 + np.exp(-(hard + own + random.normal(0, 0.3, (seeds, 1)) + shift))
        )

    return arm(shift), arm(0)


def test_pooling_seeds_as_rows_finds_too_much_and_the_crossed_test_does_not():
    random, pooled, crossed = np.random.default_rng(0), 0, 0
    for _ in range(500):
        a, b = answers(random, 5, 150, 0)
        pooled += mcnemar(a.ravel(), b.ravel()).p < 0.05
        crossed += rows_and_seeds(a, b).p < 0.05
    assert pooled / 500 > 0.12, "the naive test should find too much"
    assert crossed / 500 <= 0.06


def test_a_real_difference_is_found_and_reported():
    found = rows_and_seeds(*answers(np.random.default_rng(1), 5, 400, 1.5))
    assert found.p < 0.01 and found.interval[0] > 0.05
    assert found.sentence.startswith("different for other rows and seeds: +") and "5 of 5 seeds" in found.sentence


def test_equal_answers_are_not_distinguishable():
    same = np.random.default_rng(0).random((3, 20)) < 0.5
    assert rows_and_seeds(same, same).p == 1.0


def test_rows_are_read_from_the_run_folders(tmp_path, monkeypatch):
    from headway.experiment.train import train
    from headway.recipe.recipe import from_tree

    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    rows = [f"{'wave' if k % 2 else 'cloud'} no {k}\t{'sea' if k % 2 else 'sky'}" for k in range(60)]
    (tmp_path / "set.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    tree = {
        "data": {"kind": "labelled", "source": "files", "path": str(tmp_path / "set.tsv"), "valid_fraction": 0.3},
        "model": {"kind": "classifier", "layers": 1, "width": 8, "context": 6, "mixer": {"heads": 2}},
        "training": {"duration": "3 steps", "batch": 4, "schedule": "constant", "device": "cpu"},
    }
    recipes = [from_tree(tree, "test", overrides=[f"seed={seed}"]) for seed in (0, 1)]
    made = train(recipes, ["a.seed-0", "a.seed-1"], tmp_path / "runs")
    (tmp_path / "set.tsv").unlink()  # verdicts need only the run folders, not the data
    correct = correct_in(tmp_path / "runs")("a", "valid.accuracy")
    stored = [next(score.value for score in run.scores() if score.name == "valid.accuracy") for run in made]
    assert [float(correct[seed].mean()) for seed in (0, 1)] == pytest.approx(stored)
    assert correct_in(tmp_path / "runs")("b", "valid.accuracy") == {}
    (made[1].folder).rename(tmp_path / "runs" / "a.seed-1.seed-0")  # as for an arm called a.seed-1
    shutil.copytree(made[0].folder, tmp_path / "runs" / "a.seed-0-copy")
    assert [*correct_in(tmp_path / "runs")("a", "valid.accuracy")] == [0]


def test_rows_of_different_data_are_not_compared(tmp_path, monkeypatch):
    """A study may compare data sets; comparing rows is then impossible, but no error."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    for name, count in (("small", 40), ("large", 60)):
        rows = [f"{'wave' if k % 2 else 'cloud'} no {k}\t{'sea' if k % 3 else 'sky'}" for k in range(count)]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    tree = {
        "title": "Do more texts help?",
        "base": {
            "data": {"kind": "labelled", "source": "files", "path": str(tmp_path / "small.tsv"), "valid_fraction": 0.3},
            "model": {"kind": "classifier", "layers": 1, "width": 8, "context": 6, "mixer": {"heads": 2}},
            "training": {"duration": "3 steps", "batch": 4, "schedule": "constant", "device": "cpu"},
        },
        "arms": {"small": [], "large": [f"data.path={tmp_path / 'large.tsv'}"]},
        "seeds": 3,
        "questions": [{"kind": "better", "arm": "large", "than": "small", "on": "valid.accuracy"}],
    }
    study = Study.model_validate(tree)
    execute(study, tmp_path / "study", InProcess())
    (verdict,) = so_far(tmp_path / "study").verdicts
    assert study.reads_other_rows and not any("row by row" in note for note in verdict.notes)
    tokens = Study.model_validate({**tree, "arms": {"words": [], "signs": ["data.tokenizer=char"]}, "questions": []})
    assert not tokens.reads_other_rows
