"""From recipes to finished runs: populations, resuming to the bit, and what is chosen when something is broken."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from listening import Interrupting, Told
from tiny import cut, flip

from headway.core.errors import UserError
from headway.core.events import Began, Halted
from headway.data.spec import Text
from headway.experiment.assembly import check_population
from headway.experiment.train import load_model, train
from headway.models.language_model import LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.recipe.recipe import Recipe
from headway.run.folder import Run, open_run
from headway.training import checkpoint
from headway.training.optimizers import AdamW
from headway.training.schedule import Constant, Duration
from headway.training.spec import TrainingSpec

STEPS = 12
VARIED = [
    ["seed=3", "training.optimizer.learning_rate=0.001", "model.dropout=0.0"],
    ["seed=1", "training.optimizer.learning_rate=0.003", "model.dropout=0.1"],
    ["seed=4", "training.optimizer.learning_rate=0.01", "model.dropout=0.3", "training.optimizer.weight_decay=0.0"],
    ["seed=5", "training.optimizer.learning_rate=0.003", "model.dropout=0.5"],
]


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A tiny model on a small text; runs go to the current folder's `runs`."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {k} of {k * k % 17} and {k % 5}\n" for k in range(80)))
    return Recipe(
        data=Text(source="files", path=str(text), valid_fraction=0.2),
        model=LanguageModelSpec(layers=1, width=8, context=8, mixer=AttentionSpec(heads=2), dropout=0.1),
        training=TrainingSpec(
            duration=Duration(STEPS, "steps"),
            batch=4,
            optimizer=AdamW(learning_rate=1e-2),
            schedule=Constant(),
            evaluate_every=Duration(3, "steps"),
            evaluate_tokens=64,
            checkpoint_every=Duration(5, "steps"),
            device="cpu",
        ),
    )


@pytest.fixture
def variants(base: Recipe) -> list[Recipe]:
    return [base.with_changes(changes) for changes in VARIED]


def names(recipes: list[Recipe], prefix: str) -> list[str]:
    return [f"{prefix}-{k}" for k in range(len(recipes))]


def trained(recipes: list[Recipe], prefix: str = "run", **settings: Any) -> list[Run]:
    return train(recipes, names(recipes, prefix), **settings)


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in run.metrics() if "loss" in line]


def evaluations(run: Run) -> dict[int, float]:
    return {line["step"]: line["scores"]["valid.loss"] for line in run.metrics() if "scores" in line}


def same_end(a: Run, b: Run) -> bool:
    """Weights, optimizer, standing (but for the time it took) and metrics are equal to the bit."""
    ours, theirs = a.checkpoint("last"), b.checkpoint("last")
    replica_states = [{**c.facts["standing"], "seconds": 0} for c in (ours, theirs)]
    return (
        ours.step == theirs.step
        and replica_states[0] == replica_states[1]
        and _equal(ours.weights, theirs.weights)
        and _equal(ours.optimizer, theirs.optimizer)
        and a.metrics() == b.metrics()
        and [(s.name, s.value) for s in a.scores()] == [(s.name, s.value) for s in b.scores()]
    )


def _equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# Populations


def test_four_replicas_together_end_as_they_do_apart(variants: list[Recipe]):
    together = trained(variants, "together")
    for k, (run, recipe) in enumerate(zip(together, variants, strict=True)):
        (alone,) = train([recipe], [f"alone-{k}"])
        assert losses(run) == pytest.approx(losses(alone), abs=1e-5) and len(losses(run)) == STEPS
        assert evaluations(run) == pytest.approx(evaluations(alone), abs=1e-5)
        for ours, theirs in zip(run.scores(), alone.scores(), strict=True):
            assert ours.label == theirs.label and ours.value == pytest.approx(theirs.value, rel=1e-4)
        assert run.recipe == alone.recipe == recipe
    assert len({losses(run)[-1] for run in together}) == 4


def test_a_replica_that_diverges_is_reported_and_disturbs_nobody(variants: list[Recipe]):
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


def test_what_may_vary_may_vary(variants: list[Recipe]):
    check_population(variants)


def test_the_dropout_of_a_recipe_is_the_dropout_of_the_model(base: Recipe):
    """mixer.dropout is of the attention weights, model.dropout of everything else; neither sets the other."""
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


# Resuming


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("at", [3, 6, 9])
def test_interrupted_and_resumed_ends_as_if_never_interrupted(variants: list[Recipe], replicas: int, at: int):
    recipes = [r.with_changes(["training.keep_best=true", "training.patience=3"]) for r in variants[1 : 1 + replicas]]
    whole = trained(recipes, "whole")
    stopped = trained(recipes, "broken", listeners=[Interrupting(at)])
    assert [str(run.status) for run in stopped] == [f"interrupted at step {at + 1}"] * replicas
    assert all(run.scores() and len(losses(run)) == at + 1 for run in stopped)
    resumed = trained(recipes, "broken", resume=True)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert same_end(ours, theirs)
        assert _equal(ours.checkpoint("best").weights, theirs.checkpoint("best").weights)
        assert str(ours.status) == str(theirs.status)


def test_interrupted_twice_is_no_different(variants: list[Recipe]):
    whole = trained(variants[:2], "whole")
    trained(variants[:2], "broken", listeners=[Interrupting(3)])
    trained(variants[:2], "broken", listeners=[Interrupting(6)], resume=True)
    resumed = trained(variants[:2], "broken", resume=True)
    assert all(same_end(a, b) for a, b in zip(resumed, whole, strict=True))


def killed_after_step(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """From now on, saving anything after this step fails, as if the process had died there."""
    save = checkpoint.save

    def dying(folder: Path, made: checkpoint.Checkpoint) -> None:
        if made.step > step:
            raise MemoryError("killed")
        save(folder, made)

    monkeypatch.setattr(checkpoint, "save", dying)


@pytest.mark.parametrize("step", [0, 5, 10])
def test_a_killed_run_goes_on_from_its_last_checkpoint(variants: list[Recipe], step: int, monkeypatch):
    recipes = variants[:2]
    whole = trained(recipes, "whole")
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        killed_after_step(patch, step)
        trained(recipes, "broken")
    assert all(same_end(a, b) for a, b in zip(trained(recipes, "broken", resume=True), whole, strict=True))


def test_members_killed_between_their_checkpoints_go_on_from_a_common_one(variants: list[Recipe], monkeypatch):
    """The first member has saved step 10, the second one has not."""
    recipes, save = variants[:2], checkpoint.save

    def dying(folder: Path, made: checkpoint.Checkpoint) -> None:
        if made.step == 10 and "broken-1" in str(folder):
            raise MemoryError("killed")
        save(folder, made)

    whole = trained(recipes, "whole")
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(checkpoint, "save", dying)
        trained(recipes, "broken")
    resumed = trained(recipes, "broken", resume=True)
    assert all(same_end(a, b) for a, b in zip(resumed, whole, strict=True))


def test_an_ended_replica_stays_ended_when_the_others_are_resumed(variants: list[Recipe]):
    recipes = [variants[0], variants[1].with_changes(["training.optimizer.learning_rate=1e38"])]
    whole = trained(recipes, "whole")
    trained(recipes, "broken", listeners=[Interrupting(6)])
    told = Told()
    resumed = trained(recipes, "broken", resume=True, listeners=[told])
    assert [(event.step, event.total) for event in told.of_kind(Began)] == [(7, STEPS)]
    assert same_end(resumed[0], whole[0])
    assert str(resumed[1].status) == str(whole[1].status)
    assert resumed[1].metrics() == whole[1].metrics()


def test_resuming_a_finished_run_changes_nothing(base: Recipe):
    (run,) = train([base], ["run"])
    before, metrics = run.checkpoint("last"), run.metrics()
    (again,) = train([base], ["run"], resume=True)
    assert _equal(again.checkpoint("last").weights, before.weights) and again.metrics() == metrics
    assert str(again.status) == "finished"


def test_a_run_of_another_recipe_is_not_resumed(base: Recipe):
    train([base], ["run"])
    with pytest.raises(UserError, match=r"made by another recipe: .*model.dropout.*--name"):
        train([base.with_changes(["model.dropout=0.4"])], ["run"], resume=True)
    with pytest.raises(UserError, match=r"nothing to resume: .*other does not exist"):
        train([base], ["other"], resume=True)


# Broken checkpoints


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink], ids=["flipped", "cut", "missing"])
@pytest.mark.parametrize("name", [checkpoint.WEIGHTS, checkpoint.OPTIMIZER, checkpoint.FACTS])
def test_a_broken_checkpoint_is_named_and_the_one_before_it_used(
    base: Recipe, damage: Callable[[Path], None], name: str, capsys
):
    (whole,) = train([base], ["whole"])
    train([base], ["broken"], listeners=[Interrupting(6)])
    run = open_run("broken", Path("runs"))
    broken = run.folder / "checkpoints" / "step-00000007"
    damage(broken / name)
    assert run.checkpoint("last").step == 5
    told = capsys.readouterr().err
    assert "passing over a broken checkpoint" in told and "step-00000007" in told
    assert name in told or name == checkpoint.FACTS
    (resumed,) = train([base], ["broken"], resume=True)
    assert same_end(resumed, whole)


def test_without_a_good_checkpoint_training_begins_again(base: Recipe):
    (whole,) = train([base], ["whole"])
    (run,) = train([base], ["broken"])
    for folder in (run.folder / "checkpoints").iterdir():
        flip(folder / checkpoint.WEIGHTS)
    (again,) = train([base], ["broken"], resume=True)
    assert same_end(again, whole)


def test_a_checkpoint_that_does_not_fit_names_the_tensor(base: Recipe):
    (small,) = train([base], ["small"])
    (large,) = train([base.with_changes(["model.width=16"])], ["large"])
    of_small = small.checkpoint("last")
    for folder in (small.folder / "checkpoints").iterdir():
        step = int(folder.name.removeprefix("step-"))
        checkpoint.save(folder, replace(large.checkpoint("last"), step=step, facts=of_small.facts))
    with pytest.raises(UserError, match=r"embedding.weight is \[\d+, 16\], expected \[\d+, 8\]"):
        load_model(small)
    with pytest.raises(UserError, match=r"embedding.weight is"):
        train([base], ["small"], resume=True)


# Best and patience


def test_the_best_checkpoint_is_the_one_with_the_lowest_loss(base: Recipe):
    """A rate so high that the loss goes up and down."""
    recipe = base.with_changes(
        ["training.keep_best=true", "training.optimizer.learning_rate=1.0", "training.evaluate_tokens=null"]
    )
    (run,) = train([recipe], ["run"])
    by_hand = min(evaluations(run).items(), key=lambda entry: entry[1])
    best = run.checkpoint("auto")
    assert best.step == by_hand[0] != STEPS
    replica_state = run.checkpoint("last").facts["standing"]
    assert (replica_state["best_step"], replica_state["best_loss"]) == by_hand
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
def test_patience_stops_where_a_hand_would(base: Recipe, patience: int):
    changes = ["training.optimizer.learning_rate=0.3", "training.evaluate_every=1 step", "training.duration=30 steps"]
    (endless,) = train([base.with_changes(changes)], ["endless"])
    expected = stop_by_hand(evaluations(endless), patience)
    assert expected is not None and expected < 30
    (run,) = train([base.with_changes([*changes, f"training.patience={patience}"])], ["run"])
    assert str(run.status).startswith(f"stopped at step {expected}: no new lowest loss in {patience} evaluation")
    assert losses(run) == losses(endless)[:expected]
    assert run.checkpoint("last").step == expected


# What a run folder says


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


# What a run was trained on, and how far it came


def test_a_text_that_changed_is_not_trained_on_again(base: Recipe):
    (run,) = train([base], ["run"])
    path = Path(base.data.path or "")
    letters = (run.folder / "tokenizer.json").read_text()
    path.write_text("".join(reversed(path.read_text())))  # the same letters, in another order
    with pytest.raises(UserError, match=r"text\.txt' is not the text that run was trained on"):
        train([base], ["run"], resume=True)
    path.write_text(path.read_text().replace("e", "é"))
    with pytest.raises(UserError, match="is not the text that run was trained on"):
        train([base], ["run"], resume=True)
    assert (run.folder / "tokenizer.json").read_text() == letters


def test_a_run_that_diverged_says_at_which_step_whenever_that_was_noticed(base: Recipe):
    wild = base.with_changes(["training.optimizer.learning_rate=1e38"])
    calm, broken = train([base, wild], ["calm", "wild"])
    assert str(broken.status).startswith(f"diverged at step {broken.facts['step']}:")
    assert broken.checkpoint("last").step == broken.facts["step"] < calm.facts["step"] == STEPS
