"""Which weights are trained, and at which multiple of the learning rate (the pace): how optimizers, checkpoints and
runs use it."""

import numpy as np
import pytest
import torch

from headway.core.errors import UserError
from headway.experiment.train import train
from headway.models.classifier import ClassifierSpec
from headway.nn.trainable import moving, pace_of
from headway.recipe.recipe import Recipe, from_tree
from headway.run.folder import open_run
from headway.training.adam import AdamW
from headway.training.optimizers import Adagrad, Sgd
from headway.training.tuning import Frozen, Full, LastLayers, Layerwise, Lora

V, C = 19, 3
SHAPE = {"layers": 3, "width": 8, "context": 7, "mixer": {"heads": 2}, "pooling": "pooler"}
SPEC = ClassifierSpec.model_validate(SHAPE)


def paces(tuning) -> dict[str, float]:
    model = tuning.apply(SPEC.build(V, C), [0])
    return {name: pace_of(p) for name, p in model.named_parameters()}


def part(name: str) -> str:
    first, _, rest = name.partition(".")
    return first if first != "layers" else f"layers.{rest[0]}"


PARTS = ("embedding", "positions", "layers.0", "layers.1", "layers.2", "norm", "pooler", "head")


@pytest.mark.parametrize(
    ("tuning", "expected"),
    [
        (Full(), (1, 1, 1, 1, 1, 1, 1, 1)),
        (Frozen(), (0, 0, 0, 0, 0, 0, 0, 1)),
        (LastLayers(layers=1), (0, 0, 0, 0, 1, 1, 1, 1)),
        (LastLayers(layers=3), (0, 0, 1, 1, 1, 1, 1, 1)),
        (Layerwise(decay=0.5), (1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1 / 2, 1 / 2, 1)),
    ],
    ids=lambda given: getattr(given, "kind", ""),
)
def test_every_part_has_its_learning_rate_multiple(tuning, expected):
    found: dict[str, set[float]] = {}
    for name, pace in paces(tuning).items():
        found.setdefault(part(name), set()).add(pace)
    assert found == {name: {float(pace)} for name, pace in zip(PARTS, expected, strict=True)}


def test_lora_trains_only_adapters_and_head():
    found = paces(Lora())
    expected = {name for name in found if ".adapter." in name or name.startswith("head.")}
    assert {name for name, pace in found.items() if pace} == expected


def test_more_layers_than_there_are_is_a_mistake():
    with pytest.raises(UserError, match="last 4 layers are to be trained, but there are only 3"):
        LastLayers(layers=4).apply(SPEC.build(V, C), [0])


@pytest.mark.parametrize("optimizer", [AdamW(learning_rate=0.1), Sgd(learning_rate=0.1), Adagrad(learning_rate=0.1)])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_at_a_pace_equals_one_at_that_multiple_of_the_rate(optimizer, replicas):
    """As with torch's parameter groups, including weight decay."""

    def stepped(pace: float, rate: float, compiled: bool = False) -> torch.Tensor:
        p = torch.nn.Parameter(torch.linspace(-1, 1, 6 * replicas).view(replicas, 2, 3))
        q = torch.nn.Parameter(torch.ones(replicas, 3))
        p.pace = pace
        built = optimizer.build({"p": p, "q": q}, [rate] * replicas, [0.1] * replicas)
        built.compiled = compiled
        for _ in range(3):
            p.grad, q.grad = p.detach() ** 2 + 0.5, torch.ones_like(q)
            built.step(torch.tensor(1.0), torch.ones(replicas, dtype=torch.bool))
        return p.detach()

    for compiled in (False, True):
        torch.testing.assert_close(stepped(0.3, 0.1, compiled), stepped(1.0, 0.03, compiled))


TEXTS = [f"{word} {' '.join(['some'] * (k % 5))} words {k}" for k in range(120) for word in ("good", "bad")]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{text.split()[0]}\n" for text in TEXTS), "utf-8")
    return path


def recipe(table, *changes: str) -> Recipe:
    tree = {
        "data": {"kind": "labelled", "source": "files", "path": str(table), "batches": "by-length"},
        "model": {"kind": "classifier", "layers": 2, "width": 8, "context": 12, "mixer": {"heads": 2}, "dropout": 0.1},
        "training": {
            "duration": "12 steps",
            "batch": 8,
            "optimizer": {"learning_rate": 1e-2},
            "evaluate_every": "4 steps",
            "checkpoint_every": "6 steps",
        },
        "scoring": {"splits": ["valid"]},
    }
    return from_tree(tree, "tuned", overrides=changes)


KINDS = ["frozen", "last", "layerwise", "lora"]


@pytest.mark.parametrize("kind", KINDS)
def test_tuning_in_a_population_equals_tuning_alone_and_resuming_is_bit_identical(kind, table, tmp_path):
    made = recipe(table, f"training.tuning={kind}", "training.averaging=moving" if kind == "lora" else "seed=3")
    runs = train([made, made.model_copy(update={"seed": 8})], ["a", "b"], tmp_path / "both")
    (alone,) = train([made], ["a"], tmp_path / "alone")
    apart = alone.checkpoint("last")
    assert set(runs[0].checkpoint("last").optimizer) == set(apart.optimizer)
    losses = [[line["loss"] for line in run.metrics() if "loss" in line] for run in (runs[0], alone)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    # Resumed from the checkpoint in the middle, as if killed there.
    alone.forget_after(6)
    (again,) = train([made], ["a"], tmp_path / "alone", resume=True)
    resumed = again.checkpoint("last")
    assert all(torch.equal(resumed.weights[name], weight) for name, weight in apart.weights.items())
    assert [s.value for s in again.scores()] == [s.value for s in alone.scores()]


def test_frozen_weights_have_no_optimizer_state_and_trained_ones_are_counted(table, tmp_path):
    (run,) = train([recipe(table, "training.tuning=frozen")], ["frozen"], tmp_path)
    saved = run.checkpoint("last")
    assert {name.split("/")[1].split(".")[0] for name in saved.optimizer} == {"head"}
    trained = sum(weight.numel() for name, weight in saved.weights.items() if name.startswith("head."))
    assert run.facts["trained_parameters"] == trained < run.facts["parameters"]
    assert {f.verdict for f in run_audit(run) if f.audit in ("moved", "tuning", "step", "one-batch")} == {"pass"}


def run_audit(run):
    from headway.experiment.audit import audit_run

    return audit_run(open_run(run.name, run.folder.parent)).findings


def test_cached_features_train_the_head_like_computed_features(table, tmp_path, monkeypatch):
    """Without dropout, both give the same training."""
    made = recipe(table, "training.tuning=frozen", "model.dropout=0")
    (kept,) = train([made], ["kept"], tmp_path)
    monkeypatch.setattr(Frozen, "keeps_features", False)
    (computed,) = train([made], ["computed"], tmp_path)
    weights, others = (run.checkpoint("last").weights for run in (kept, computed))
    for name in weights:
        torch.testing.assert_close(weights[name], others[name], rtol=1e-4, atol=1e-6)
    losses = [[line["scores"]["valid.loss"] for line in run.metrics() if "scores" in line] for run in (kept, computed)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_the_best_checkpoint_may_be_chosen_by_accuracy(table, tmp_path):
    changes = "training.keep_best=true", "training.best_by=accuracy", "training.patience=2"
    (run,) = train([recipe(table, *changes, "training.duration=40 steps")], ["best"], tmp_path)
    found = {line["step"]: line["scores"]["valid.accuracy"] for line in run.metrics() if "scores" in line}
    best = max(found, key=lambda step: found[step])  # the first of equal ones
    assert run.checkpoint("auto").step == best
    assert run.status.state == "stopped" and run.status.step == best + 8  # two evaluations later


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["training.best_by=acuracy", "training.keep_best=true"], "'acuracy' is not evaluated"),
        (["training.best_by=accuracy"], "has no effect"),
        (["training.tuning=forzen"], "did you mean 'frozen'"),
        (["training.tuning={kind: lora, targets: [querys]}"], "targets"),
        (["training.tuning={kind: lora, targets: [keys, keys]}"], "named twice"),
        (["training.tuning={kind: layerwise, decay: 0}"], "decay"),
    ],
)
def test_mistakes_are_reported(table, changes, words):
    with pytest.raises(UserError, match=words):
        recipe(table, *changes)


def test_a_model_without_a_separate_head_cannot_be_frozen_below_it():
    with pytest.raises(UserError, match="frozen trains a new head, but a language-model has none"):
        from_tree({"training": {"tuning": "frozen"}}, "text")


def test_earlier_recipes_keep_their_hash():
    plain = from_tree({"model": {"kind": "classifier"}, "data": {"kind": "labelled"}}, "plain")
    said = {"tuning": {"kind": "full"}, "best_by": "loss"}
    assert plain.hash == from_tree({**plain.model_dump(mode="json"), "training": said}, "said").hash
    assert moving(dict(SPEC.build(V, C).named_parameters()))  # and so do all weights of a model as built
