"""The task of language modelling."""

import pytest

from headway import tasks
from headway.audit.audit import read_report
from headway.core.errors import UserError
from headway.recipe.recipe import from_tree
from headway.scoring.metrics import parsed
from headway.tasks.language_modelling import LanguageModelling


def test_it_has_the_scores_and_baselines_it_declares(workshop):
    promised = [metric.name for metric in LanguageModelling.metrics]
    assert [parsed(score.name).metric for score in workshop.run.scores()] == promised
    report = read_report(workshop.run.folder)
    assert report is not None
    assert {baseline.method for baseline in report.baselines} == set(LanguageModelling.cheap_methods.names)
    assert {baseline.score.name for baseline in report.baselines} == {f"valid.{LanguageModelling.headline.name}"}


def test_a_constant_text_and_too_long_segments_are_refused_with_a_message(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "same.txt").write_text("a" * 4000)
    (tmp_path / "other.txt").write_text("to be or not to be\n" * 400)
    tree = {
        "model": {"layers": 1, "width": 8, "mixer": {"heads": 2}, "positions": "alibi"},
        "training": {"duration": "1 step"},
    }
    tree["data"] = {"source": "files", "path": str(tmp_path / "same.txt")}
    with pytest.raises(UserError, match="3,600 times the same token, 'a': there is nothing to predict"):
        tasks.load(from_tree(tree, "same")).check_splits()
    tree["data"]["path"] = str(tmp_path / "other.txt")
    tree |= {"scoring": {"segment": 100_000}}
    task = tasks.load(from_tree(tree, "other"))
    task.check_splits()  # all of valid at once
    monkeypatch.setattr("headway.tasks.language_modelling.MAX_ELEMENTS", 1 << 10)
    with pytest.raises(UserError, match=r"scoring.segment=100,000: to read 759 tokens of 'valid' at once takes"):
        task.check_splits()
