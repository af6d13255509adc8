"""Every fault of a score is caught by the audit meant for it, and correct scores raise no alarm."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scored import CLASSIFIER, Ground, examined
from tiny import cache_in, reseal

from headway import tasks
from headway.audit.audit import AUDITS
from headway.audit.plants.library import faults
from headway.audit.plants.needs import MASKED, MATCHER, TRANSLATOR
from headway.audit.plants.planting import Fault, planted
from headway.audit.scores.recount import Counted
from headway.audit.scores.scored import Recomputed, ScoredPopulation
from headway.audit.scores.scores import SCORE_AUDITS, _off_parts
from headway.data.tokens import Tokens
from headway.experiment.evaluate import score_splits_again
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.run.folder import open_run
from headway.scoring.score import Score


@pytest.fixture(scope="module")
def ground(tmp_path_factory) -> Iterator[Ground]:
    home = tmp_path_factory.mktemp("ground")
    with cache_in(home / "cache"):
        yield Ground(home)


OF_SCORES = [  # translators and masked models: test_planted_translators.py, test_planted_masking.py
    fault
    for fault in faults()
    if AUDITS[fault.caught_by].subject == "scores" and not {MASKED, MATCHER, TRANSLATOR} & {*fault.needs}
]


@pytest.mark.parametrize("plant", OF_SCORES, ids=lambda plant: plant.name)
def test_planted(plant: Fault, ground: Ground):
    if plant.trains:
        with planted(plant):
            (run,) = ground.train(*plant.changes)
            report = examined(run)
    else:
        run = ground.copy_of(*plant.changes)
        with planted(plant):
            score_splits_again(run)
            report = examined(run)
    failures = {f.audit: f.sentence for f in report.failures}
    assert plant.caught_by in failures, f"not caught; {report}"
    assert not set(failures) - {plant.caught_by, *plant.also}, failures


CLEAN = [
    (),
    ("scoring.segment=12", "scoring.stride=5"),
    ("scoring.segment=8", "scoring.stride=1"),
    ("data.tokenizer=word", "model.dropout=0.3"),
    ("data.tokenizer={kind: word, punctuation: apart, lower: true, size: 30}",),
    ("data.tokenizer={kind: bpe, size: 300}", "training.keep_best=true"),
    ("training.keep_best=true", "training.patience=1", "training.optimizer.learning_rate=0.3"),
    ("data.batches=contiguous", "scoring.splits=[train, valid]", "training.evaluate_tokens=null"),
    ("model.context=700", "training.duration=1 steps"),
    ("data.batches=contiguous-shifted", "model.mixer.memory=20", "model.positions=alibi", "data.segment=8"),
    (CLASSIFIER,),
    (CLASSIFIER, "model.dropout=0.3", "training.keep_best=true", "model.pooling=max"),
    (CLASSIFIER, "model.context=4", "data.tokenizer={kind: bpe, size: 300}", "training.evaluate_tokens=null"),
    (CLASSIFIER, "training.optimizer.learning_rate=0", "scoring.splits=[train, valid]"),
]


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: " ".join(case))
@pytest.mark.parametrize("seconds", [1e3, 0], ids=["whole", "in parts"])
def test_clean(case, seconds, ground: Ground):
    report = examined(ground.copy_of(*case), seconds=seconds)
    assert not report.failures and not report.warnings, report
    assert {f.audit for f in report.findings} | report.not_run.keys() == {one.name for one in SCORE_AUDITS}
    assert len(report.findings) >= 3, report.not_run


def test_missing_data_is_a_reason_not_a_failure(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    run = ground.copy_of()

    def gone(*given):
        raise FileNotFoundError("the file is gone")

    monkeypatch.setattr("headway.audit.running.recount.text_again", gone)
    report = examined(run)
    assert not report.failures and "the file is gone" in report.not_run["scores-again"]


def test_without_scores_there_is_nothing_to_audit(ground: Ground):
    run = ground.copy_of(CLASSIFIER)
    (run.folder / "scores.json").unlink()
    reseal(run.folder)
    assert set(examined(run).not_run.values()) == {"nothing was scored"}


def test_every_audit_of_scores_finds_something():
    assert {one.name for one in SCORE_AUDITS} == {plant.caught_by for plant in OF_SCORES} | {"score-and-curve"}


MADE_BEFORE = Path(__file__).parents[1] / "run" / "made_before"


@pytest.mark.parametrize("name", ["finished", "interrupted", "diverged", "classifier"])
def test_runs_made_by_an_earlier_version(name, tmp_path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(MADE_BEFORE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    # the version that made them, which is part of a text's identity
    monkeypatch.setattr("tokenizers.__version__", "0.23.3")
    report = examined(open_run(name))
    assert not report.failures and not report.warnings, report


@pytest.mark.parametrize("changes", [(), ("training.keep_best=true",)], ids=["last", "best"])
def test_a_run_that_was_interrupted_and_resumed(changes, ground: Ground):
    run = ground.copy_of(*changes)
    assert run.forget_after(6)
    train([run.recipe], [run.name], run.folder.parent, resume=True)
    assert run.status.step == 12
    assert not examined(run).failures


def test_imported_weights_have_no_curve(ground: Ground):
    """Their training is unknown, but their scores can still be recomputed."""
    run = ground.copy_of()
    run.note(imported_from="elsewhere")
    (run.folder / "metrics.jsonl").unlink()
    reseal(run.folder)
    report = examined(run)
    assert not report.failures and {f.audit for f in report.findings} == {"scored-split", "scores-again"}


def test_of_a_split_too_large_to_score_again_half_is_scored(ground: Ground):
    run = ground.copy_of()
    task = tasks.load_for(run)
    tokens = task.data.split("valid")
    half = Tokens(tokens.ids[:150], tokens.bytes[:150], tokens.starts[:150])
    model, _ = load_model(run)
    data = replace(task.data, splits={**task.data.splits, "valid": half})
    run.save_scores(replace(task, data=data).score(model, ["valid"])[0])
    (failure,) = [f for f in examined(run, seconds=0.0).failures if f.audit == "scores-again"]
    assert "words" in failure.sentence


class _Rarely:
    """A split of 1,000 rows, 2 of which have all of the loss; a sample of the rows misses both."""

    whole, parts, many = np.arange(1000), [np.arange(0, 1000, 50)], np.arange(1000)

    def losses(self, part, asked):
        return [Counted({}, np.where(np.isin(part, (101, 707)), 9.0, 1e-4))]


@pytest.mark.parametrize(("stored", "right"), [(0.0181, True), (0.4, False)])
def test_if_few_rows_have_all_the_loss_all_are_scored_again(stored, right):
    rarely, scores = _Rarely(), {"test": {"loss": Score("test.loss", stored, "")}}
    (counted,) = rarely.losses(rarely.parts[0], None)
    population = ScoredPopulation([None], [None], None, "cpu", 1.0)  # pyright: ignore
    part = Recomputed("a part", False, {}, counted, None)
    population.__dict__.update(recomputed={"test": [[part]]}, recounts={"test": rarely}, stored=[scores], asked=None)
    (scored,) = population.members
    assert (_off_parts(scored, "test") is None) is right
