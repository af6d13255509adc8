"""Runs whose state is carried from batch to batch: trained, scored as one stream, killed and resumed."""

import pytest
import torch
from tiny import tiny_recipe

from headway import tasks
from headway.core.errors import UserError
from headway.experiment.evaluate import score_file, score_sentence, score_splits_again
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.run.folder import Run
from headway.scoring.likelihood import losses_going_on, token_losses
from headway.tasks.abilities import ReadingWindow

REMEMBERING = ("model.positions=rotary", "model.mixer.memory=24", "data.batches=contiguous", "data.segment=8")


@pytest.fixture(scope="module")
def run(workshop, tmp_path_factory) -> Run:
    (made,) = train([tiny_recipe(workshop.text, *REMEMBERING)], ["run"], tmp_path_factory.mktemp("runs"))
    return made


def losses(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses with the state carried, and without."""
    model, _ = load_model(run, "auto")
    ids = torch.as_tensor(tasks.load_for(run).data.split("valid").ids)
    with torch.no_grad():
        return losses_going_on(model.eval(), ids, 8).double(), token_losses(model, ids, 8, 8).double()


def test_runs_trained_on_streams_are_scored_and_evaluated_as_one_stream(run: Run):
    carried, fresh = (found.mean().item() for found in losses(run))
    (score,) = (score for score in run.scores() if score.name == "valid.loss")
    assert score.value == pytest.approx(carried, rel=1e-6) and abs(carried - fresh) > 1e-4
    assert "segment 8, state carried" in score.label
    first = losses(run)[0][0, :64].mean().item()  # training.evaluate_tokens
    assert run.metrics()[-1]["scores"]["valid.loss"] == pytest.approx(first, rel=1e-5)
    assert "reset with each epoch" in run.facts["state"]


def test_the_state_can_be_chosen_for_scoring(run: Run, tmp_path):
    carried, fresh = (found.mean().item() for found in losses(run))
    by_state = {s: score_splits_again(run, None, ReadingWindow(state=s))[0] for s in ("carried", "fresh")}
    assert by_state["carried"].value == pytest.approx(carried, rel=1e-6)
    assert by_state["fresh"].value == pytest.approx(fresh, rel=1e-6)
    assert "segment 8, stride 8, no state carried" in by_state["fresh"].label
    # a stride reads tokens twice, which excludes a carried state
    strided = score_splits_again(run, None, ReadingWindow(stride=2))[0]
    assert "stride 2, no state carried" in strided.label
    (tmp_path / "a.txt").write_text("the dog jumps over the fox, said Zoë. " * 3)
    assert "state carried" in score_file(run, tmp_path / "a.txt")[0].label
    texts = [
        score_sentence(run, "the lazy dog jumps, said a fox", ReadingWindow(state=s)) for s in ("carried", "fresh")
    ]
    assert texts[0][1][0].value != texts[1][1][0].value


def test_carrying_a_state_is_refused_where_impossible(run: Run, workshop):
    with pytest.raises(UserError, match="a stride of 2 is not possible"):
        score_splits_again(run, None, ReadingWindow(stride=2, state="carried"))
    with pytest.raises(UserError, match="no layer of this model carries a state"):
        score_splits_again(workshop.run, None, ReadingWindow(state="carried"))
    with pytest.raises(UserError, match="no layer of this model carries a state"):
        tiny_recipe(workshop.text, "scoring.state=carried")
    with pytest.raises(UserError, match="every token is read once, so a stride of 4 is not possible"):
        tiny_recipe(workshop.text, *REMEMBERING, "scoring.state=carried", "scoring.stride=4")


def test_crops_carry_no_state_in_training_or_scoring(workshop, tmp_path):
    (made,) = train([tiny_recipe(workshop.text, *REMEMBERING, "data.batches=crops")], ["run"], tmp_path)
    assert "no state carried" in made.scores()[0].label
    assert made.facts["state"] == "no state is carried: every row (crops) starts with a fresh state"
