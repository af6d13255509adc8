"""Comparisons of runs."""

import json
import math

import numpy as np
import pytest
from scipy import stats
from tiny import tiny_recipe

from headway.core.errors import UserError
from headway.experiment.compare import ONE_SEED, compare
from headway.run.folder import Run
from headway.scoring.score import Score


@pytest.fixture
def made(workshop, tmp_path, monkeypatch):
    """Untrained runs with made-up scores."""
    monkeypatch.chdir(tmp_path)

    def make(name: str, *changes: str, corpus: str = "x", label: str = "per token", **scores: float) -> Run:
        run = Run.create(tmp_path / "runs" / name, tiny_recipe(workshop.text, *changes), "cpu", corpus=corpus)
        run.note(status="finished", step=3, headline="perplexity")
        run.save_scores([Score(f"valid.{metric}", value, label) for metric, value in scores.items()])
        return run

    return make


def test_seeds_are_grouped_and_compared_in_pairs(made):
    ours, theirs = [10.0, 11.0, 12.5, 9.0], [9.5, 10.6, 11.7, 8.7]
    plain = [made(f"plain-seed-{k}", f"seed={k}", perplexity=value) for k, value in enumerate(ours)]
    other = [made(f"alibi-{k}", f"seed={k}", "model.positions=alibi", perplexity=v) for k, v in enumerate(theirs)]
    found = compare([*plain, *other])
    assert [arm.name for arm in found.arms] == ["plain", "alibi"]
    mean = found.mean(found.arms[0], "valid.perplexity")
    assert mean.value == pytest.approx(math.exp(np.log(ours).mean()))
    low, high = stats.t.interval(0.95, 3, np.log(ours).mean(), stats.sem(np.log(ours)))
    assert mean.interval == pytest.approx((math.exp(low), math.exp(high)))
    ahead = found.ahead(found.arms[1], "valid.perplexity")
    assert ahead.by > 0 and ahead.is_told_apart and ahead.seeds == 4  # lower by half a point with every seed
    assert found.differences == {"model.positions.kind": ["learned", "alibi"]}
    assert ONE_SEED not in found.notes


def test_one_seed_each_is_reported_as_no_evidence(made, command_line):
    made("a", loss=2.0, perplexity=7.4)
    made("b", "model.layers=2", loss=1.9, perplexity=6.7)
    answer = command_line("compare", "a", "b")
    assert answer.code == 0
    assert ONE_SEED in answer.words
    assert "0.7000 better" in answer.words
    assert "model.layers" in answer.words
    told = command_line("compare", "a", "b", "--json").json
    assert told["arms"][1]["beside_first"]["valid.perplexity"]["interval"] is None
    assert told["differences"] == {"model.layers": [1, 2]}


def test_doubts_about_a_comparison_are_reported(made):
    runs = [
        made("a", loss=2.0, label="per token · valid · segment 16"),
        made("b", "model.layers=2", perplexity=math.nan, corpus="y"),
        made("c", "scoring.segment=8", loss=2.0, label="per token · valid · segment 8"),
    ]
    runs[1].note(status="diverged", step=2, reason="the loss is no longer a finite number")
    (runs[0].folder / "audit.json").write_text(
        json.dumps({"findings": [{"audit": "causality", "verdict": "fail", "value": 1, "sentence": "s", "seconds": 0}],
                    "not_run": {}, "baselines": []})
    )  # fmt: skip
    notes = " | ".join(compare(runs).notes)
    assert "trained on different data" in notes
    assert "b: diverged at step 2" in notes
    assert "a failed causality" in notes
    alike = "valid was measured differently: per token · valid; a: segment 16; c: segment 8"
    assert alike in compare([runs[0], runs[2]]).notes


def test_counts_in_a_label_are_not_a_different_measurement(made):
    a, b = (made(f"{k}", f"model.layers={k}", accuracy=k / 9, label=f"accuracy: {k} of 9 · valid") for k in (1, 2))
    assert not any("measured differently" in note for note in compare([a, b]).notes)


def test_equal_runs_count_once(made):
    a, again, b = made("a", loss=1.0), made("again", loss=1.0), made("b", "model.layers=2", loss=2.0)
    found = compare([a, again, b])
    assert [len(arm.runs) for arm in found.arms] == [1, 1]
    assert any("again is left out" in note for note in found.notes)
    with pytest.raises(UserError, match="at least two runs"):
        compare([a, a])


def test_equal_scores_of_all_seeds_have_no_interval(made):
    runs = [
        made(f"{arm}-{k}", f"seed={k}", f"model.layers={n}", loss=float(n))
        for arm, n in (("a", 1), ("b", 2))
        for k in (0, 1)
    ]
    found = compare(runs)
    assert found.mean(found.arms[0], "valid.loss").interval is None
    assert found.ahead(found.arms[1], "valid.loss").by == -1.0
    assert not found.ahead(found.arms[1], "valid.loss").is_told_apart


def test_unknown_runs_and_scores_are_named(made, command_line):
    made("a", loss=1.0)
    made("b", "model.layers=2", loss=2.0)
    assert "did you mean 'valid.loss'?" in command_line("compare", "a", "b", "--on", "valid.los").words
    assert command_line("compare", "a", "c").code == 2
    assert command_line("compare", "a").code == 2


@pytest.mark.parametrize("ending", ["html", "svg", "png"])
def test_learning_curves_of_seeds_are_drawn(made, command_line, tmp_path, ending):
    for name, change in (("plain", "model.positions=learned"), ("alibi", "model.positions=alibi")):
        for seed in range(3):
            run = made(f"{name}-seed-{seed}", f"seed={seed}", change, perplexity=7.0 + seed)
            losses = {step: 5.0 - step / 10 + seed / 8 for step in range(0, 30, 10)}
            write_metrics(run, losses | ({40: math.nan} if seed == 2 else {40: 1.0}))
    names = [f"{name}-seed-{seed}" for name in ("plain", "alibi") for seed in range(3)]
    answer = command_line("compare", *names, "-o", f"curves.{ending}")
    assert answer.code == 0 and f"drawn: curves.{ending}" in answer.err
    drawn = (tmp_path / f"curves.{ending}").read_bytes()
    if ending != "png":
        assert drawn.count(b'class="each"') == 6 and drawn.count(b'class="curve"') == 2
        assert b"nan" not in drawn and b"plain" in drawn
    else:
        assert drawn.startswith(b"\x89PNG")


def test_without_evaluations_nothing_is_drawn(made, command_line, tmp_path):
    made("a", loss=2.0)
    made("b", "seed=1", loss=1.9)
    answer = command_line("compare", "a", "b", "-o", "curves.html")
    assert answer.code == 2 and "training.evaluate_every" in answer.err and not (tmp_path / "curves.html").exists()
    assert command_line("compare", "a", "b", "-o", "curves.gif").code == 2


def write_metrics(run: Run, losses: dict[int, float]) -> None:
    lines = [json.dumps({"step": step, "scores": {"valid.loss": loss}}) for step, loss in losses.items()]
    (run.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
