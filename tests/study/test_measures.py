"""Measures of a finished run, in shorter segments and on single sentences, compared with scores computed one by one."""

import math

import pytest
import torch
from small import small_study

from headway import tasks
from headway.core.errors import UserError
from headway.experiment.load import load_model
from headway.recipe.recipe import from_tree
from headway.run.folder import Run
from headway.scoring.likelihood import losses_going_on, token_losses
from headway.study.conclude import measure_all
from headway.study.design.measures import Segments, Sentences
from headway.study.design.study import Study
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.study.execution.plan import Sizes, check_scores
from headway.study.report.figures import by_length
from headway.study.report.tables import early_tokens_table
from headway.study.results.measuring import FILE, measured_scores, sentences_in
from headway.study.results.results import read_results

SENTENCES = {"kind": "sentences", "split": "train", "count": 12, "shortest": 10, "longest": 80}
MEASURES = [{"kind": "segments", "lengths": [16, 4], "tokens": 100}, SENTENCES]


@pytest.fixture(scope="module")
def model(workshop):
    return load_model(workshop.run)[0]


@pytest.fixture(scope="module")
def task(workshop):
    return tasks.load_for(workshop.run)


def test_segments_are_consecutive_parts_of_the_split(model, task):
    found = {score.name: score for score in Segments(lengths=[16, 4], tokens=100).scores(model, task)}
    assert list(found) == ["valid-16.loss", "valid-16.perplexity", "valid-4.loss", "valid-4.perplexity"]
    ids = torch.as_tensor(task.data.split("valid").ids[:101]).long()
    for length in (16, 4):
        wanted = token_losses(model, ids, length, length).double().mean().item()
        assert found[f"valid-{length}.loss"].value == pytest.approx(wanted)
    assert found["valid-4.loss"].value != found["valid-16.loss"].value
    assert "segment 4, stride 4" in found["valid-4.perplexity"].label


def test_sliding_windows_move_by_a_quarter_and_the_report_shows_the_cost_of_early_tokens(
    workshop, tmp_path, monkeypatch
):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    lengths = {"lengths": [16, 8], "tokens": 100}
    measures = [{"kind": "segments", **lengths}, {"kind": "sliding", **lengths}]
    execute(small_study(workshop.text, measures=measures), tmp_path / "m", InProcess())
    measure_all(tmp_path / "m")
    results = read_results(tmp_path / "m")
    run = results.of("learned")[0]
    recipe = results.study.recipes["learned"].model_copy(update={"seed": run.seed})
    model, task = load_model(Run(run.folder, recipe))[0], tasks.load(recipe)
    ids = torch.as_tensor(task.data.split("valid").ids[:101]).long()
    wanted = {stride: token_losses(model, ids, 8, stride).double().mean().item() for stride in (8, 2)}
    assert results.table("valid-8.loss")["learned"][run.seed] == pytest.approx(wanted[8])
    assert results.table("valid-8-sliding.loss")["learned"][run.seed] == pytest.approx(wanted[2])
    table = early_tokens_table(results)
    assert table is not None and [row.cells[0] for row in table.rows] == ["8", "16"] * 2
    assert [row.name for row in table.rows] == [name for arm in results.arms for name in (arm, "")]
    drawn = by_length(results)
    assert drawn is not None and "learned, sliding" in drawn.picture
    assert drawn.picture.count("stroke-dasharray:6 4") == 2 and "--curve-3" not in drawn.picture  # a colour per arm


def test_arms_with_a_state_carry_it_over_the_same_tokens(workshop, tmp_path, monkeypatch):
    """Segments may be longer than in training if positions are not limited."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    lengths = {"lengths": [40], "tokens": 90}
    measures = [{"kind": "segments", **lengths}, {"kind": "carried", **lengths}]
    arms = {"gru": ["model.mixer=gru"], "attention": []}
    changes = ["model.positions=none", "data.batches=contiguous"]
    study = small_study(workshop.text, arms=arms, changes=changes, measures=measures, seeds=1, questions=[])
    execute(study, tmp_path / "m", InProcess())
    measure_all(tmp_path / "m")
    results = read_results(tmp_path / "m")
    recipe = results.study.recipes["gru"]
    model, task = load_model(Run(results.of("gru")[0].folder, recipe))[0], tasks.load(recipe)
    ids = torch.as_tensor(task.data.split("valid").ids[:91]).long()
    with torch.no_grad():
        wanted = {"valid-40": token_losses(model, ids, 40, 40), "valid-40-carried": losses_going_on(model, ids, 40)}
    for name, losses in wanted.items():
        assert results.table(f"{name}.loss")["gru"][0] == pytest.approx(losses.double().mean().item(), rel=1e-6)
    assert results.table("valid-40.loss")["attention"] and not results.table("valid-40-carried.loss")["attention"]
    assert "90 tokens · segment 40, state carried" in results.label("valid-40-carried.perplexity")


def test_sentences_are_scored_separately(model, task):
    measure = Sentences(split="train", count=12, shortest=10, longest=80)
    texts = sentences_in(task, measure)
    (stop,) = task.data.tokenizer.encode(".").ids.tolist()
    assert texts and all(text[-1] == stop and stop not in text[:-1] and 10 <= len(text) <= 80 for text in texts)
    found = {score.name: score.value for score in measure.scores(model, task)}
    cut = [text[: model.spec.context + 1] for text in texts]
    nats = torch.cat([token_losses(model, text, 16, 16)[0] for text in cut]).double()
    assert found["sentences.loss"] == pytest.approx(nats.mean().item(), rel=1e-5)
    assert found["sentences.perplexity"] == pytest.approx(math.exp(nats.mean().item()), rel=1e-5)
    assert set(found) == {f"{s}.{q}" for s in ("sentences", "scrambled", "joined") for q in ("loss", "perplexity")}
    again = {score.name: score.value for score in measure.scores(model, task)}
    assert again == found  # scrambled tokens always have the same order


def test_measures_of_a_study_are_computed_once_and_can_be_used_in_questions(workshop, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    asked = {"kind": "better", "arm": "learned", "than": "none", "on": "sentences.perplexity"}
    study = small_study(workshop.text, measures=MEASURES, questions=[asked])
    execute(study, tmp_path / "m", InProcess())
    measure_all(tmp_path / "m")
    files = sorted((tmp_path / "m" / "runs").glob(f"*/{FILE}"))
    before = [file.stat().st_mtime_ns for file in files]
    assert len(files) == 4 and len(measured_scores(files[0].parent, study.measures)) == 10
    assert measured_scores(files[0].parent, study.measures[:1]) == {}, "these are other measures"
    measure_all(tmp_path / "m")
    assert [file.stat().st_mtime_ns for file in files] == before
    results = read_results(tmp_path / "m")
    assert all(len(row) == 2 for row in results.table("valid-4.perplexity").values())
    files[0].write_text("broken")
    measure_all(tmp_path / "m")
    assert read_results(tmp_path / "m").table("sentences.perplexity") == results.table("sentences.perplexity")


def test_other_measures_of_the_same_runs_may_be_added_later(workshop, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    execute(small_study(workshop.text), tmp_path / "m", InProcess())
    more = small_study(workshop.text, measures=[{"kind": "segments", "lengths": [2]}])
    execute(more, tmp_path / "m", InProcess())
    measure_all(tmp_path / "m")
    assert read_results(tmp_path / "m").table("valid-2.perplexity")["none"]


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ({"kind": "segments", "lengths": [32]}, "segments of 32 tokens are longer than the 16 learned positions"),
        ({"kind": "segments", "lengths": [4], "split": "dev"}, "no split 'dev'"),
        ({"kind": "sentences", "shortest": 2, "longest": 4}, "has 0 sentences of 2 to 4 tokens that end in '.'"),
    ],
)
def test_impossible_measures_are_refused_before_training(workshop, monkeypatch, measure, message):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    with pytest.raises(UserError, match=message):
        check_scores(small_study(workshop.text, measures=[measure]), Sizes())


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"kind": "best", "on": "dev.perplexity"}, "the runs do not score 'dev'"),
        ({"kind": "best", "on": "valid.accuracy"}, "'valid' is not scored in accuracy; there are: bits_per_byte, loss"),
        ({"kind": "best", "on": "valid-8.bits_per_byte"}, "'valid-8' is not scored in bits_per_byte"),
        (
            {"kind": "better", "arm": "none", "than": "majority"},
            "there is no baseline",
        ),
        (
            {"kind": "better", "arm": "none", "than": "unigram", "on": "valid.loss"},
            "is only computed for valid.perplexity",
        ),
    ],
)
def test_questions_about_unknown_scores_are_refused_before_training(workshop, monkeypatch, question, message):
    """Found only after training, the mistake would waste all of it, because questions are part of a study."""
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    measures = [{"kind": "segments", "lengths": [8]}]
    with pytest.raises(UserError, match=message):
        check_scores(small_study(workshop.text, measures=measures, questions=[question]), Sizes())


def test_of_baselines_only_a_bag_of_words_is_scored_on_unseen_rows(tmp_path):
    rows = "".join(f"{'good' if k % 2 else 'bad'} {k % 9}\t{k % 2}\n" for k in range(60))
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + rows)
    data = ["data.source=files", f"data.path={tmp_path / 'rows.tsv'}", "data.tokenizer=word"]
    base = from_tree({"model": {"kind": "classifier"}, "data": {"kind": "labelled"}}, "r", overrides=data)

    def check(than: str) -> None:
        asked = {"kind": "better", "arm": "plain", "than": than, "on": "test.accuracy_unseen"}
        given = {"title": "t", "base": base.model_dump(mode="json"), "arms": {"plain": []}, "questions": [asked]}
        check_scores(Study.model_validate({**given, "seeds": 2}), Sizes())

    check("bag of words")
    with pytest.raises(UserError, match=r"'majority' is only computed for valid\.accuracy and test\.accuracy"):
        check("majority")


def test_invalid_lengths(workshop):
    with pytest.raises(UserError, match=r"measures.0.lengths: expected different lengths of at least 1, not \[4, 4\]"):
        small_study(workshop.text, measures=[{"kind": "segments", "lengths": [4, 4]}])
