"""The training part of a recipe: impossible combinations and values."""

import pytest
from pydantic import ValidationError

from headway.training.adam import AdamW
from headway.training.optimizers import Sgd
from headway.training.parallel import Ddp, Fsdp
from headway.training.schedule import Constant, Cosine, Duration
from headway.training.spec import TrainingSpec


def test_the_defaults_have_no_problems():
    spec = TrainingSpec()
    assert not list(spec.all_problems())
    assert isinstance(spec.optimizer, AdamW) and isinstance(spec.schedule, Cosine) and spec.clip == 1.0
    assert spec.schedule.warmup


def test_a_batch_must_be_divisible_into_equal_parts():
    (problem,) = TrainingSpec(batch=10, accumulate=4).problems()
    assert problem.keys == ("batch", "accumulate") and "10 rows cannot be computed in 4 equal parts" in problem.reason
    assert not list(TrainingSpec(batch=12, accumulate=4).problems())


@pytest.mark.parametrize(("key", "value"), [("keep_best", True), ("patience", 3)])
def test_best_and_patience_need_a_split(key: str, value):
    (problem,) = TrainingSpec(**{key: value}, evaluate_on=[]).problems()
    assert problem.keys == (key, "evaluate_on")
    assert not list(TrainingSpec(**{key: value}).problems())


def test_kinds_by_name_with_settings_and_by_default():
    spec = TrainingSpec.model_validate({"optimizer": "sgd", "schedule": {"kind": "constant", "warmup": "5 steps"}})
    assert spec.optimizer == Sgd() and spec.schedule == Constant(warmup=Duration(5, "steps"))
    assert spec.parallel == Ddp() and TrainingSpec.model_validate({"parallel": "fsdp"}).parallel == Fsdp()
    assert TrainingSpec.model_validate({"optimizer": {"learning_rate": 0.5}}).optimizer == AdamW(learning_rate=0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": {"learning_rate": -1.0}},
        {"optimizer": {"learning_rate": float("nan")}},
        {"optimizer": {"learning_rate": float("inf")}},
        {"optimizer": {"momentum": 0.9}},
        {"optimizer": "lion"},
        {"batch": 0},
        {"clip": 0.0},
        {"duration": "5 apples"},
        {"duration": 500},
        {"precision": "fp16"},
        {"parallel": "pipeline"},
        {"patience": 0},
    ],
    ids=str,
)
def test_impossible_values_are_refused(wrong: dict):
    with pytest.raises(ValidationError):
        TrainingSpec.model_validate(wrong)
