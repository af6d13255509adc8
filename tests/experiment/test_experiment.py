"""From recipes to finished runs: populations, the best checkpoint, patience, metrics."""

import json
import math
from pathlib import Path

import pytest
import torch
from listening import Told
from varied import STEPS, evaluations, losses, same_end, trained

from headway.core.errors import UserError
from headway.core.events import Halted
from headway.experiment.assembly import check_population
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.recipe.recipe import Recipe

# Populations


def test_four_replicas_train_together_as_alone(variants: list[Recipe]):
    together = trained(variants, "together")
    for k, (run, recipe) in enumerate(zip(together, variants, strict=True)):
        (alone,) = train([recipe], [f"alone-{k}"])
        assert losses(run) == pytest.approx(losses(alone), abs=1e-5) and len(losses(run)) == STEPS
        assert evaluations(run) == pytest.approx(evaluations(alone), abs=1e-5)
        for ours, theirs in zip(run.scores(), alone.scores(), strict=True):
            assert ours.label == theirs.label and ours.value == pytest.approx(theirs.value, rel=1e-4)
        assert run.recipe == alone.recipe == recipe
    assert len({losses(run)[-1] for run in together}) == 4


def test_a_replica_that_diverges_is_reported_and_does_not_affect_the_others(variants: list[Recipe]):
    calm = trained(variants, "calm")
    wild = list(variants)
    wild[1] = wild[1].with_changes(["training.optimizer.learning_rate=1e38"])
    told = Told()
    disturbed = trained(wild, "wild", listeners=[told])
    for k in (0, 2, 3):
        assert same_end(disturbed[k], calm[k])
        assert str(disturbed[k].status) == "finished"
    assert str(disturbed[1].status).startswith("diverged at step 2")
    assert disturbed[1].metrics()[-1]["ended"] == disturbed[1].facts["status"] == "diverged"
    (halted,) = told.of_kind(Halted)
    assert halted.of == ("wild-1",) and halted.status == disturbed[1].status and halted.others_go_on


def test_members_share_nothing_but_the_computation(variants: list[Recipe]):
    run = trained(variants)[2]
    model, saved = load_model(run)
    assert (model.replicas, saved.step, model.training) == (1, STEPS, False)
    assert run.scores() and sorted(p.name for p in (run.folder / "checkpoints").iterdir()) == [
        "step-00000010",
        "step-00000012",
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["model.width=16"], "model.width"),
        (["model.layers=2", "training.batch=8"], "model.layers, training.batch"),
        (["model.positions=alibi"], "model.positions.kind"),
        (["training.optimizer=sgd"], "training.optimizer.kind"),
        (["training.duration=5 steps", "seed=9"], "training.duration"),
        (["model.mixer.dropout=0.5"], "model.mixer.dropout"),
    ],
    ids=str,
)
def test_recipes_of_other_shape_are_no_population(base: Recipe, changes: list[str], named: str):
    with pytest.raises(UserError, match=f"differ in .*{named}.*only seed, training.optimizer.learning_rate") as caught:
        check_population([base, base.with_changes(changes)])
    assert "seed" not in str(caught.value).split(";")[0]


def test_seeds_and_rates_may_vary_within_a_population(variants: list[Recipe]):
    check_population(variants)


def test_the_dropout_of_a_recipe_is_the_dropout_of_the_model(base: Recipe):
    """mixer.dropout applies to the attention weights, model.dropout to everything else; neither sets the other."""
    plain = base.with_changes(["model.mixer.backend=plain"])
    ways = {
        "neither": ["model.dropout=0.0"],
        "model": ["model.dropout=0.3"],
        "mixer": ["model.dropout=0.0", "model.mixer.dropout=0.3"],
        "both": ["model.dropout=0.3", "model.mixer.dropout=0.3"],
    }
    found = {way: losses(*train([plain.with_changes(c)], [way])) for way, c in ways.items()}
    assert len({values[0] for values in found.values()}) == 4
    (fused,) = train([base.with_changes(["model.dropout=0.3"])], ["fused"])
    assert losses(fused) == pytest.approx(found["model"], abs=1e-5)


def test_all_runs_must_be_new_before_any_is_made(base: Recipe, variants: list[Recipe]):
    train([base], ["run-2"])
    with pytest.raises(UserError, match="run-2 exists"):
        trained(variants)
    assert sorted(p.name for p in Path("runs").iterdir()) == ["run-2"]


# Best and patience


def test_the_best_checkpoint_is_the_one_with_the_lowest_loss(base: Recipe):
    """The learning rate is so high that the loss goes up and down."""
    recipe = base.with_changes(
        [
            "training.keep_best=true",
            "training.schedule=constant",
            "training.optimizer.learning_rate=0.1",
            "training.evaluate_tokens=null",
        ]
    )
    (run,) = train([recipe], ["run"])
    by_hand = min(evaluations(run).items(), key=lambda entry: entry[1])
    best = run.checkpoint("auto")
    assert best.step == by_hand[0] != STEPS
    replica_state = run.checkpoint("last").facts["standing"]
    assert (replica_state["best_step"], replica_state["best"]) == by_hand
    (score,) = (s for s in run.scores() if s.name == "valid.loss")
    assert score.value == pytest.approx(by_hand[1], rel=1e-6)
    plain, _ = load_model(run, "last")
    chosen, _ = load_model(run)
    assert not torch.equal(plain.embedding.weight, chosen.embedding.weight)


def stop_by_hand(found: dict[int, float], patience: int) -> int | None:
    lowest, since = math.inf, 0
    for step, loss in found.items():
        lowest, since = (loss, 0) if loss < lowest else (lowest, since + 1)
        if since >= patience:
            return step
    return None


@pytest.mark.parametrize("patience", [1, 2])
def test_patience_stops_where_a_simple_rule_does(base: Recipe, patience: int):
    changes = ["training.optimizer.learning_rate=0.3", "training.evaluate_every=1 step", "training.duration=30 steps"]
    (endless,) = train([base.with_changes(changes)], ["endless"])
    expected = stop_by_hand(evaluations(endless), patience)
    assert expected is not None and expected < 30
    (run,) = train([base.with_changes([*changes, f"training.patience={patience}"])], ["run"])
    assert str(run.status).startswith(f"stopped at step {expected}: no new lowest loss in {patience} evaluation")
    assert losses(run) == losses(endless)[:expected]
    assert run.checkpoint("last").step == expected


# What a run folder contains


def test_a_run_that_was_never_resumed_has_one_line_per_step_and_evaluation(base: Recipe):
    (run,) = train([base], ["run"])
    lines = run.metrics()
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, STEPS + 1))
    assert list(evaluations(run)) == [3, 6, 9, 12]
    assert str(run.status) == "finished" and run.facts["step"] == run.facts["steps"] == STEPS


def test_metrics_are_json_also_when_a_replica_diverges(base: Recipe):
    (run,) = train(
        [base.with_changes(["training.optimizer.learning_rate=1e38", "training.evaluate_every=1 step"])], ["run"]
    )

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    texts = (run.folder / "metrics.jsonl").read_text().splitlines()
    texts += [file.read_text() for file in run.folder.rglob("*.json")]
    for text in texts:
        json.loads(text, parse_constant=refuse)
    assert str(run.status) == "diverged at step 1: the loss on valid is no longer a finite number"


def test_a_misspelt_split_is_noticed_before_training(base: Recipe):
    with pytest.raises(UserError, match="no split 'valis'; did you mean 'valid'"):
        train([base.with_changes(["training.evaluate_on=[valis]"])], ["run"])
    assert not Path("runs").exists()


# What a run was trained on, and for how many steps


def test_a_text_that_changed_is_not_trained_on_again(base: Recipe):
    (run,) = train([base], ["run"])
    path = Path(base.data.path or "")
    letters = (run.folder / "tokenizer.json").read_text()
    path.write_text("".join(reversed(path.read_text())))  # the same characters in another order
    with pytest.raises(UserError, match=r"text\.txt' has changed since run was trained on it"):
        train([base], ["run"], resume=True)
    path.write_text(path.read_text().replace("e", "é"))
    with pytest.raises(UserError, match="has changed since run was trained on it"):
        train([base], ["run"], resume=True)
    assert (run.folder / "tokenizer.json").read_text() == letters


def test_a_diverged_run_names_its_step_whenever_divergence_was_noticed(base: Recipe):
    wild = base.with_changes(["training.optimizer.learning_rate=1e38"])
    calm, broken = train([base, wild], ["calm", "wild"])
    assert str(broken.status).startswith(f"diverged at step {broken.facts['step']}:")
    assert broken.checkpoint("last").step == broken.facts["step"] < calm.facts["step"] == STEPS
