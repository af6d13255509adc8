import json
import shutil

import pytest
from tiny import TEXT, cache_in, reseal, snapshot, tiny_recipe

from headway import tasks
from headway.core.errors import UserError
from headway.data.running.sources import read_splits
from headway.experiment.evaluate import (
    audited,
    sample_text,
    score_file,
    score_sentence,
    score_splits_again,
    with_baselines_in,
)
from headway.experiment.train import train
from headway.run.folder import Run, open_run
from headway.tasks.abilities import Draw, ReadingWindow


@pytest.fixture(autouse=True)
def _cache(workshop):
    with cache_in(workshop.cache):
        yield


@pytest.fixture
def run(workshop, tmp_path) -> Run:
    """A copy of the finished run, which a test may change."""
    shutil.copytree(workshop.run.folder, tmp_path / "tiny")
    return open_run("tiny", tmp_path)


def values(scores) -> dict[str, float]:
    return {s.name: s.value for s in scores}


def drawn(run: Run, prompt: str = "The ", tokens: int = 20, **settings) -> tuple[str, list[str]]:
    shown: list[str] = []
    how = Draw(tokens, **{"temperature": 1.0, **settings})
    text, _ = sample_text(run, prompt, how, "auto", shown.append)
    return text, shown


# --- scores ----------------------------------------------------------------------------------------------------------


def test_scoring_again_gives_the_scores_of_training_and_stores_them(run):
    trained = run.scores()
    (run.folder / "scores.json").unlink()
    assert score_splits_again(run) == trained
    assert run.scores() == trained


@pytest.mark.parametrize(
    "asked",
    [(["train"],), (None, ReadingWindow(8)), (None, ReadingWindow(stride=4)), (None, ReadingWindow(), "8")],
)
def test_scores_of_something_else_are_not_stored(run, asked):
    before = snapshot(run.folder)
    assert score_splits_again(run, *asked)
    assert snapshot(run.folder) == before


def test_scores_that_cannot_be_stored_are_returned_nevertheless(run, monkeypatch, capsys):
    def read_only(scores):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(run, "save_scores", read_only)
    assert score_splits_again(run)
    assert "could not be stored in" in capsys.readouterr().err


def test_segment_and_stride_default_to_those_of_the_recipe(run):
    def cut(segment, stride):
        return score_splits_again(run, ["valid"], ReadingWindow(segment, stride))[0].label

    assert "segment 16, stride 16" in cut(None, None)
    assert "segment 8, stride 8" in cut(8, None)
    assert "segment 16, stride 3" in cut(None, 3)
    assert "segment 8, stride 3" in cut(8, 3)


def test_an_earlier_checkpoint_scores_worse(run):
    loss = {which: values(score_splits_again(run, ["valid"], which=which))["valid.loss"] for which in ("8", "12")}
    assert loss["8"] > loss["12"]


def test_a_file_scores_as_the_split_it_holds(run, workshop, tmp_path):
    held_out = read_splits("files", str(workshop.text), 0.1)["valid"]
    (tmp_path / "held.txt").write_text(held_out, "utf-8")
    found = score_file(run, tmp_path / "held.txt")
    assert [s.value for s in found] == [s.value for s in run.scores()]
    assert found[0].name == "held.txt.loss" and "held.txt" in found[0].label


def test_a_sentence_is_scored_token_by_token(run):
    scored, scores = score_sentence(run, "The quick Zoë")
    assert len(scored.pieces) == len(scored.nats) == 13
    assert values(scores)["text.loss"] == pytest.approx(sum(scored.nats) / 13)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((["vlid"],), r"has no split 'vlid'; did you mean 'valid'\?"),
        ((None, ReadingWindow(17)), "a segment of 17 tokens is too long: the learned positions end at 16"),
        ((None, ReadingWindow(8, 9)), "a stride of 9 would skip tokens between segments of 8"),
        ((None, ReadingWindow(stride=17)), "a stride of 17 would skip tokens between segments of 16"),
        ((None, ReadingWindow(), "best"), "has no best checkpoint"),
        ((None, ReadingWindow(), "99"), "has no checkpoint '99'"),
    ],
)
def test_what_cannot_be_scored_is_refused(run, asked, message):
    with pytest.raises(UserError, match=message):
        score_splits_again(run, *asked)


def test_a_corpus_that_has_changed_is_noticed(workshop, tmp_path):
    text = tmp_path / "own.txt"
    text.write_text(TEXT, "utf-8")
    (run,) = train([tiny_recipe(text, "training.duration=1 step")], ["own"], tmp_path / "runs")
    text.write_text(TEXT.replace("fox", "f☃x"), "utf-8")
    with pytest.raises(UserError, match="has changed since own was trained on it"):
        score_splits_again(run)


def test_a_checkpoint_that_does_not_fit_its_recipe_is_refused(run):
    path = run.folder / "recipe.yaml"
    path.write_text(path.read_text("utf-8").replace("width: 16", "width: 32"), "utf-8")
    reseal(run.folder)
    with pytest.raises(UserError, match=r"the checkpoint's weights do not fit this recipe: .*expected .* more\)"):
        score_sentence(open_run("tiny", run.folder.parent), "The")


# --- samples ---------------------------------------------------------------------------------------------------------


def test_the_pieces_shown_make_up_the_returned_text(run):
    text, shown = drawn(run)
    assert "".join(shown) == text
    assert text.startswith("The ") and len(text) == 24


def test_a_long_text_is_decoded_piece_by_piece(run, monkeypatch):
    """The number of ids decoded per new token does not grow with the text."""
    most, decode = [], type(run.tokenizer).decode
    monkeypatch.setattr(type(run.tokenizer), "decode", lambda self, ids: (most.append(len(ids)), decode(self, ids))[1])
    shown: list[str] = []
    text, _ = sample_text(run, "The", Draw(120), "auto", shown.append)
    assert "".join(shown) == text and sorted(most)[-2] <= 8


def test_samples_depend_on_their_seed_however_large(run):
    assert drawn(run, seed=10**30) == drawn(run, seed=10**30)
    assert drawn(run, seed=10**30) != drawn(run, seed=1)


def test_characters_of_several_tokens_are_shown_once_complete(workshop, tmp_path):
    changes = ["data.tokenizer.kind=bpe", "data.tokenizer.size=256", "training.duration=1 step"]
    (run,) = train([tiny_recipe(workshop.text, *changes)], ["bpe"], tmp_path)
    for seed in range(3):
        text, shown = drawn(run, prompt="Zoë ☃", tokens=12, seed=seed)
        assert "".join(shown) == text
        assert text.startswith("Zoë ☃")


def test_a_model_without_a_cache_is_reported(workshop, tmp_path):
    changes = ["model.mixer.fusion=reweight", "training.duration=1 step"]
    (run,) = train([tiny_recipe(workshop.text, *changes)], ["leaky"], tmp_path)
    _, note = sample_text(run, "The", Draw(5, temperature=0.0), "auto", lambda piece: None)
    assert note is not None and note.startswith("without a cache: reweighted heads")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ("The quick brown fox", "19 tokens, but the model's context is 16"),
        ("☃", "lacks '☃'"),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused(run, prompt, message):
    with pytest.raises(UserError, match=message):
        drawn(run, prompt)


def test_reading_a_run_does_not_change_it(run):
    before = snapshot(run.folder)
    drawn(run)
    score_sentence(run, "The")
    assert snapshot(run.folder) == before
    assert json.loads(before["run.json"])["status"] == "finished"


def test_baselines_get_as_much_context_as_the_model(run):
    """If a text is scored in other segments than the recipe's, the baselines beside the score are too."""
    report = audited(run)
    assert with_baselines_in(run, report, ReadingWindow()) is report
    narrow = with_baselines_in(run, report, ReadingWindow(2))
    assert all(one.score.label.endswith("segment 2, stride 2, no state carried") for one in narrow.baselines)
    before, after = ({b.method: b.score.value for b in one.baselines} for one in (report, narrow))
    assert after["unigram"] == before["unigram"] and after["5-gram"] > before["5-gram"]


def test_baselines_with_a_carried_state_are_cached_separately(workshop):
    """The same text in segments of the same length, with and without a carried state, has different baselines."""
    recurrent = ("model.mixer=gru", "model.positions=none", "data.batches=contiguous", "data.segment=4")
    fresh, stream = (
        tasks.load(tiny_recipe(workshop.text, *recurrent, f"scoring.state={state}")) for state in ("fresh", "carried")
    )
    assert "no state carried" in fresh.evidence.baselines[0].score.label
    assert "segment 4, state carried" in stream.evidence.baselines[0].score.label
