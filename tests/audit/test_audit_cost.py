"""Audits are cheap because they share work: whatever depends only on the data is computed once, and forward passes are
few."""

from collections import Counter
from dataclasses import replace

import pytest
from examined import OF_WEIGHTS, examine
from scored import CLASSIFIER, Ground
from tiny import tiny_recipe

from headway import tasks
from headway.audit.audit import run_audits
from headway.audit.data import text_set
from headway.audit.data.text import TEXT_AUDITS
from headway.audit.data.text_set import TextSet
from headway.audit.runner import audit_model
from headway.audit.running import evidence
from headway.audit.running.evidence import TextEvidence
from headway.audit.scores.scored import ScoredPopulation
from headway.audit.scores.scores import SCORE_AUDITS
from headway.core import plugins
from headway.experiment.audit import audit_run, audit_runs
from headway.experiment.train import train
from headway.models.classifier import Classifier
from headway.models.language_model import LanguageModel
from headway.recipe.sweep import varied
from headway.tasks.language_modelling import LanguageModelling
from headway.training.population import load_weights


def counted(monkeypatch: pytest.MonkeyPatch, where: object, name: str, calls: Counter[str]) -> None:
    original = getattr(where, name)

    def call(*given, **named):
        calls[name] += 1
        return original(*given, **named)

    monkeypatch.setattr(where, name, call)


@pytest.fixture
def calls(tmp_path, monkeypatch) -> Counter[str]:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    found: Counter[str] = Counter()
    counted(monkeypatch, TextEvidence, "audit_data", found)
    counted(monkeypatch, TextEvidence, "recount", found)
    counted(monkeypatch, evidence, "language_baselines", found)
    return found


def test_what_depends_on_the_data_is_computed_once_for_a_population(workshop, tmp_path, calls):
    names, recipes = varied(tiny_recipe(workshop.text), "tiny", ["seed=0..2"])
    runs = train(recipes, names, tmp_path / "runs")
    reports = audit_runs(runs, tasks.load(recipes[0]))
    assert calls == {"audit_data": 1, "language_baselines": 1, "recount": 1}
    assert len({report.finding("scored-split").verdict for report in reports}) == 1


def test_members_of_a_population_are_audited_in_one_batch(workshop, tmp_path, monkeypatch):
    """The number of calls to the scorer, and of models built and evaluated, does not depend on the size of the
    population."""
    asked: dict[int, Counter[str]] = {5: Counter(), 7: Counter()}
    for members, calls in asked.items():
        names, recipes = varied(tiny_recipe(workshop.text), f"tiny-{members}", [f"seed=0..{members - 1}"])
        runs = train(recipes, names, tmp_path / "runs")
        task = tasks.load(recipes[0])
        with monkeypatch.context() as patch:
            for name in ("score", "evaluate", "build"):
                counted(patch, type(task), name, calls)
            counted(patch, ScoredPopulation, "_single", calls)
            audit_runs(runs, task)
    assert asked[5] == asked[7] and asked[7]["_single"] == 0 < asked[7]["evaluate"] <= 4


@pytest.mark.audited
def test_findings_about_a_member_equal_those_about_it_alone(workshop, tmp_path):
    names, recipes = varied(tiny_recipe(workshop.text, "training.keep_best=true"), "tiny", ["seed=0..2"])
    runs = train(recipes, names, tmp_path / "runs")
    spoilt = runs[1]
    spoilt.save_scores([replace(one, value=one.value * 1.01) for one in spoilt.scores()])
    together = audit_runs(runs, tasks.load(recipes[0]))
    for run, report in zip(runs, together, strict=True):
        alone = audit_run(run)
        for one in SCORE_AUDITS:
            found, expected = report.finding(one.name), alone.finding(one.name)
            assert found.verdict == expected.verdict == ("fail" if _is_spoilt(one, run, spoilt) else "pass")
            assert found.value == pytest.approx(expected.value, abs=1e-5)


@pytest.mark.audited
@pytest.mark.parametrize(
    ("kind", "places"), [("lm", [1, 0, 2, 3, 4]), ("lm", [4, 0, 1, 2, 3]), ("rows", [0, 1, 2, 4, 3])]
)
def test_a_fault_that_only_large_populations_have_is_found_in_their_scores(tmp_path, monkeypatch, kind, places):
    """Outputs of five replicas are exchanged. A single replica is right, and so are the three of a control group."""
    runs = Ground(tmp_path).train(*([CLASSIFIER] if kind == "rows" else []), seeds=5)
    model = Classifier if kind == "rows" else LanguageModel
    honest = model.forward

    def changing_places(self, *given, **named):
        found = honest(self, *given, **named)
        if self.replicas < 5:
            return found
        return (found[0][places], *found[1:]) if isinstance(found, tuple) else found[places]

    monkeypatch.setattr(model, "forward", changing_places)
    task = tasks.load(runs[0].recipe)
    for run, scores in zip(runs, scored_as_one(runs, task), strict=True):
        run.save_scores(scores)
    reports = audit_runs(runs, task)
    assert all(report.finding("beside-others").verdict == "pass" for report in reports)
    for place, (of, report) in enumerate(zip(places, reports, strict=True)):
        assert report.finding("scores-again").verdict == ("pass" if of == place else "fail")


@pytest.mark.audited
def test_exchanged_evaluations_are_found(tmp_path, monkeypatch):
    """A fault in the evaluation of a population cannot be found by evaluating the same population again."""
    honest = LanguageModelling.evaluate

    def changing_places(self, model):
        found = honest(self, model)
        return found[1:] + found[:1]

    monkeypatch.setattr(LanguageModelling, "evaluate", changing_places)
    runs = Ground(tmp_path).train("training.optimizer.learning_rate=0.03", seeds=4)
    reports = audit_runs(runs, tasks.load(runs[0].recipe))
    assert [report.finding("kept-checkpoint").verdict for report in reports] == ["fail"] * 4


def scored_as_one(runs, task):
    model = task.build([run.recipe.seed for run in runs], "cpu").eval()
    for r, run in enumerate(runs):
        load_weights(model, r, run.checkpoint("auto").weights)
    return task.score(model, task.scored_splits)


def _is_spoilt(audit, run, spoilt) -> bool:
    return run is spoilt and audit.name == "scores-again"


def test_what_depends_on_the_data_is_computed_once_for_all_runs_on_it(workshop, calls):
    """As in a study: audits of a text do not depend on the model, and n-gram baselines only on its window."""
    for change in ("seed=1", "model.width=8", "model.positions=alibi", "scoring.segment=8"):
        assert tasks.load(tiny_recipe(workshop.text, change)).evidence.data.findings
    assert calls == {"audit_data": 1, "language_baselines": 2}


def test_findings_cached_by_other_versions_of_the_audits_are_not_used(workshop, tmp_path, calls, monkeypatch):
    """After an update, the cache must not return findings of the older version."""
    for version, found in (("old", 1), ("old", 1), ("new", 2)):
        (tmp_path / version).mkdir(exist_ok=True)
        (tmp_path / version / "audits.py").write_text(f"SAID = '{version}'\n")
        monkeypatch.setattr("headway.audit.evidence.SOURCES", (tmp_path / version,))
        assert tasks.load(tiny_recipe(workshop.text)).evidence.data.findings
        assert calls["audit_data"] == found


def test_findings_cached_before_a_users_audit_was_loaded_do_not_hide_it(workshop, tmp_path, calls):
    assert tasks.load(tiny_recipe(workshop.text)).evidence.data.finding("vowels") is None
    (tmp_path / "own.py").write_text(
        "from headway.audit.audit import audit, passed\n\n\n"
        '@audit("data")\ndef vowels(tokens):\n    """There are vowels."""\n    return passed(None, "there are")\n'
    )
    plugin = plugins.load_plugin(tmp_path / "own.py")
    try:
        assert tasks.load(tiny_recipe(workshop.text)).evidence.data.finding("vowels") is not None
    finally:
        plugins.forget(plugin)
    assert calls["audit_data"] == 2 and calls["language_baselines"] == 1


@pytest.mark.parametrize(("changes", "most"), [((), 63), (("model.dropout=0.2",), 72)])
def test_audits_need_few_forward_passes(monkeypatch, changes, most):
    """All audits of a model together, except the one that trains it."""
    passes: Counter[str] = Counter()
    counted(monkeypatch, LanguageModel, "hidden", passes)
    report = audit_model(examine(*changes), OF_WEIGHTS)
    assert not report.failures and passes["hidden"] <= most, passes


def test_with_a_large_vocabulary_fewer_sequences_are_used():
    """With ten times the vocabulary, audits use fewer sequences of the same length."""
    few = examine()
    large = few.recipe.model.build(50_000, [0]).eval()
    many = replace(few, model=large, fresh=lambda: large)
    assert few.sentences.shape == (1, 8, 32) and many.sentences.shape == (1, 5, 32)
    assert few.trains_as_it_evaluates and not examine("model.dropout=0.2").trains_as_it_evaluates


def test_the_words_of_a_text_are_indexed_once(monkeypatch):
    passes: Counter[str] = Counter()
    counted(monkeypatch, text_set, "words_of", passes)
    splits = {"train": "a b c d e f g h i " * 50, "valid": "k l m n o p q r s t " * 20}
    run_audits(TEXT_AUDITS, TextSet(splits))
    assert passes["words_of"] == len(splits)
