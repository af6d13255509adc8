"""Levels compared at their best: tuned on one split, and compared on another, on which only the chosen arms are
scored."""

import numpy as np
import pytest

from headway.core.errors import UserError
from headway.core.status import State, Status
from headway.recipe.recipe import from_tree
from headway.study.conclude import conclude, measure_all
from headway.study.design.questions import Better, BetterTuned
from headway.study.design.study import Study
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.study.results.evidence import Circumstances, Measured, best_arms
from headway.study.results.results import read_results
from headway.study.verdicts.analyse import analyse

NOISE = np.random.default_rng(0).normal(0, 0.004, size=(2, 8))
RATES = ("low", "high")


def evidence(dev: dict[str, float], test: dict[str, float], lost: str | None = None) -> Measured:
    """Scores of the arms `optimizer.rate`, with eight seeds each."""

    def around(value: float, arm: str, k: int) -> dict[int, float]:
        return dict(enumerate((value + NOISE[k] * (1 if "adamw" in arm else -1)).tolist()))

    tables = [{arm: around(value, arm, k) for arm, value in of.items()} for k, of in enumerate((dev, test))]
    diverged = {3: Status(State.DIVERGED, 5, "no number")}
    about = {
        arm: Circumstances(
            levels=dict(zip(("optimizer", "rate"), arm.split("."), strict=True)), lost=diverged if arm == lost else {}
        )
        for arm in dev
    }
    return Measured({"valid.accuracy": tables[0], "test.accuracy": tables[1]}, about)


DEV = {"adamw.low": 0.90, "adamw.high": 0.60, "sgd.low": 0.50, "sgd.high": 0.88}
QUESTION = BetterTuned(factor="optimizer", level="sgd", than="adamw")


def test_each_level_is_represented_by_its_best_arm_and_compared_on_another_split():
    (verdict,) = analyse([QUESTION], evidence(DEV, {"adamw.low": 0.89, "sgd.high": 0.92}))
    assert verdict.outcome == "better" and verdict.question == QUESTION
    assert verdict.effect == pytest.approx(3.0, abs=1.0)
    assert any(
        "sgd is represented by sgd.high, the best of its 2 arms on valid.accuracy" in note for note in verdict.notes
    )
    # At a rate that suits only one of them, the answer is different.
    low = {arm: value for arm, value in DEV.items() if arm.endswith("low")}
    (same,) = analyse([QUESTION], evidence(low, {"adamw.low": 0.89, "sgd.low": 0.5}))
    assert same.outcome == "worse"


def test_optimizers_compared_at_one_rate_get_a_warning():
    (verdict,) = analyse(
        [Better(arm="a", than="b", on="valid.accuracy")],
        Measured(
            {"valid.accuracy": {"a": {0: 0.5, 1: 0.51, 2: 0.5}, "b": {0: 0.9, 1: 0.92, 2: 0.9}}},
            {"a": Circumstances(optimizer=("sgd", 5e-5)), "b": Circumstances(optimizer=("adamw", 5e-5))},
        ),
    )
    assert any("sgd and adamw share one learning rate (5e-05)" in n for n in verdict.notes)


def test_an_arm_that_diverged_is_never_the_best():
    assert best_arms(evidence(DEV, {}), "valid.accuracy", "optimizer") == {"adamw": "adamw.low", "sgd": "sgd.high"}
    found = best_arms(evidence(DEV, {}, lost="sgd.high"), "valid.accuracy", "optimizer")
    assert found == {"adamw": "adamw.low", "sgd": "sgd.low"}
    assert best_arms(evidence(DEV, {}), "valid.accuracy") == {"": "adamw.low"}


@pytest.fixture
def study(tmp_path) -> Study:
    rows = [f"{word} words {k}\t{word}\n" for k in range(60) for word in ("good", "bad")]
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + "".join(rows), "utf-8")
    model = {"kind": "classifier", "layers": 1, "width": 8, "context": 8, "mixer": {"heads": 2}}
    training = {"duration": "6 steps", "batch": 8, "evaluate_every": "6 steps", "checkpoint_every": "6 steps"}
    base = {"data": {"kind": "labelled", "source": "files", "path": str(folder)}, "model": model, "training": training}
    return Study.model_validate(
        {
            "title": "Which rate?",
            "base": from_tree({**base, "scoring": {"splits": ["valid"]}}, "base"),
            "factors": {
                "optimizer": {"named": {name: [f"training.optimizer.kind={name}"] for name in ("adamw", "sgd")}},
                "rate": {"key": "training.optimizer.learning_rate", "values": [1e-6, 3e-2]},
            },
            "seeds": 2,
            "measures": [{"kind": "chosen", "of": "optimizer"}],
            "questions": [QUESTION.model_dump(mode="json")],
        }
    )


def test_only_chosen_arms_are_scored_on_test_and_only_once(study, tmp_path):
    folder = tmp_path / "study"
    execute(study, folder, InProcess())
    last = sorted((folder / "runs").glob("*.seed-1"))[-1]
    last.rename(tmp_path / "elsewhere")  # as if it had not been trained yet
    measure_all(folder)
    assert "test.accuracy" not in read_results(folder).score_names
    (tmp_path / "elsewhere").rename(last)
    for _ in range(2):  # nothing is computed again
        found = conclude(folder)
    results = found.results
    chosen = set(best_arms(results, "valid.accuracy", "optimizer").values())
    assert len(chosen) == 2
    assert {run.arm for run in results.runs if "test.accuracy" in run.scores} == chosen
    assert {run.arm: run.test_scored for run in results.runs} == {arm: int(arm in chosen) for arm in results.arms}
    assert found.verdicts[0].question == QUESTION


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"measures": [{"kind": "chosen", "of": "optimiser"}]}, "no factor 'optimiser'; did you mean 'optimizer'"),
        ({"measures": [{"kind": "chosen", "on": "test.accuracy"}]}, "chosen on a split looks better there"),
        ({"questions": [{**QUESTION.model_dump(mode="json"), "level": "sdg"}]}, "no level 'sdg'; did you mean 'sgd'"),
        ({"questions": [{**QUESTION.model_dump(mode="json"), "factor": "rte"}]}, "no factor 'rte'"),
        ({"questions": [{**QUESTION.model_dump(mode="json"), "on": "valid.loss"}]}, "compare on another"),
    ],
)
def test_mistakes_are_reported_before_anything_is_trained(study, changes, words):
    with pytest.raises((UserError, ValueError), match=words):
        Study.model_validate({**study.model_dump(mode="json", by_alias=True), **changes})
