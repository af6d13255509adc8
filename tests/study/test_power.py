"""What seeds can show is estimated before training from earlier runs, with an interval."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from small import small_study

from headway.study.results.evidence import Circumstances
from headway.study.verdicts.power import what_seeds_can_show

LOSS = "valid.loss"


def pilot(study, values: np.ndarray, **more) -> SimpleNamespace:
    """Results of an earlier study with these losses, `[arms, seeds]`."""
    table = {LOSS: {f"arm{k}": dict(enumerate(row.tolist())) for k, row in enumerate(values)}, **more}
    arms = {arm: Circumstances() for arm in table[LOSS]}
    return SimpleNamespace(
        study=study, folder=Path("pilot"), score_names=list(table), arms=arms, table=table.__getitem__
    )


def asking(workshop, seeds=8, **question):
    asked = {"kind": "better", "arm": "learned", "than": "none", "on": LOSS, **question}
    return small_study(workshop.text, seeds=seeds, questions=[asked])


def test_the_interval_covers_95_times_in_100_and_the_effect_has_80_percent_power(workshop):
    study, random, spread = asking(workshop), np.random.default_rng(0), 0.1
    critical = stats.t.ppf(0.975, 7)
    truth = next(
        d for d in np.arange(0.05, 0.5, 0.0005) if stats.nct.sf(critical, 7, d / (spread * (2 / 8) ** 0.5)) > 0.8
    )
    hits, effects = [], []
    for _ in range(400):
        values = 3 + random.normal(size=(1, 6)) + spread * random.normal(size=(3, 6))
        (found,) = what_seeds_can_show(study, [pilot(study, values)])
        hits.append(found.interval[0] <= truth <= found.interval[1])
        effects.append(found.effect)
    assert 0.92 <= np.mean(hits) <= 0.98
    assert np.sqrt(np.mean(np.square(effects))) == pytest.approx(truth, rel=0.04)


def test_more_seeds_show_smaller_effects_and_optional_stopping_larger_ones(workshop):
    values = np.random.default_rng(1).normal(3, 0.1, (2, 8))

    def effect(study):
        return what_seeds_can_show(study, [pilot(study, values)])[0].effect

    assert effect(asking(workshop, 16)) < effect(asking(workshop, 8))
    assert effect(asking(workshop).model_copy(update={"looks": "any"})) > effect(asking(workshop))


def test_without_earlier_scores_nothing_is_estimated(workshop):
    study = asking(workshop)
    other = pilot(study, np.random.default_rng(2).normal(3, 0.1, (2, 8)))
    other.score_names = ["test.loss"]
    few = pilot(study, np.random.default_rng(2).normal(3, 0.1, (2, 3)))
    for earlier in ([], [other], [few]):
        (found,) = what_seeds_can_show(study, earlier)
        assert found.effect is None and "is not known yet" in found.sentence
    assert "shows nothing" in what_seeds_can_show(asking(workshop, 1), [])[0].sentence


def test_every_kind_of_question_is_covered(workshop):
    factors = {
        "positions": {"key": "model.positions", "values": ["none", "learned"]},
        "width": {"key": "model.width", "values": [16, 32]},
    }
    questions = [
        {"kind": "best", "on": LOSS},
        {"kind": "depends", "effect": "positions", "on_factor": "width", "on": LOSS},
        {"kind": "ordered", "arm": "none.16", "scores": ["train.loss", LOSS]},
        {"kind": "better", "arm": "none.16", "than": "unigram", "on": LOSS},
    ]
    study = small_study(workshop.text, arms={}, factors=factors, questions=questions, seeds=8)
    random = np.random.default_rng(3)
    train = {f"arm{k}": dict(enumerate(random.normal(2, 0.1, 6).tolist())) for k in range(3)}
    earlier = pilot(study, random.normal(3, 0.1, (3, 6)), **{"train.loss": train})
    for found in what_seeds_can_show(study, [earlier]):
        low, high = found.interval
        assert 0 < low < found.effect < high and "8 seeds can detect a difference of" in found.sentence
        assert found.as_json()["known_from"] == "pilot"
