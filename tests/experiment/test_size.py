"""Models that cannot fit into memory are refused before they are built."""

import dataclasses

import pytest
import torch
from tiny import cache_in, tiny_recipe

from headway import tasks
from headway.core.errors import UserError
from headway.experiment.assembly import assemble
from headway.experiment.size import check_batch, check_weights, kept_at_least, needed_at_most, parameters_of_recipe
from headway.models.backbone import check_ids
from headway.models.language_model import LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.recipe.recipe import Recipe, load
from headway.training import setting as settings
from headway.training.update import Update

CPU = torch.device("cpu")
KINDS = {
    "classifier": ("python-modules", "model.layers=11"),
    "masked": ("masked-demo", "model.layers=9"),
    "encoder-decoder": ("pig-latin", "model.layers=10 model.encoder_layers=12"),
    "recurrent": ("pig-latin-gru", "model.layers=10"),
    "clip": ("scenes", "model.layers=10"),
}


@pytest.fixture(scope="module", autouse=True)
def cache(workshop):
    with cache_in(workshop.cache):
        yield


def test_parameters_are_counted_without_building_the_model(workshop):
    recipe = tiny_recipe(workshop.text, "model.layers=12")
    task = tasks.load(recipe)
    built = sum(p.numel() for p in task.build([0], "cpu").parameters())
    assert parameters_of_recipe(recipe, task) == built


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_every_kind_of_model_are_counted(kind):
    name, changes = KINDS[kind]
    recipe = load(name, changes.split())
    task = tasks.load(recipe)
    built = sum(p.numel() for p in task.build([0], "cpu").parameters())
    assert parameters_of_recipe(recipe, task) == built


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.width=1048576", ("parameters need at least", "TB for weights and their gradients")),
        ("model.width=1099511627776", ("more than", "parameters")),
        ("training.batch=1000000000000", ("data.segment", "training.batch", "tokens in a batch")),
        ("model.context=1000000000000", ("need at least",)),
        (
            "data.segment=1000000000 model.mixer=lstm model.positions=none",
            ("data.segment", "4,000,000,000 tokens in a batch"),
        ),
        ("data.segment=8", ()),
    ],
)
def test_models_that_cannot_fit_are_refused_with_parameters_and_bytes(workshop, change, said):
    recipe = tiny_recipe(workshop.text, *change.split())
    task = dataclasses.replace(tasks.load(tiny_recipe(workshop.text)), recipe=recipe)
    if not said:
        check_weights(recipe, task, 1, CPU)
        check_batch(recipe, task, 1, CPU)
        return
    with pytest.raises(UserError) as caught:
        check_weights(recipe, task, 1, CPU)
        check_batch(recipe, task, 1, CPU)
    assert all(words in str(caught.value) for words in said)


def test_every_replica_counts(workshop, monkeypatch):
    recipe = tiny_recipe(workshop.text)
    task = tasks.load(recipe)
    weights, batch = 2 * 4 * parameters_of_recipe(recipe, task), kept_at_least(recipe, task, CPU)
    for check, needed, said in (
        (check_weights, weights, "4 replicas of "),
        (check_batch, batch, "of 4 replicas.*--together"),
    ):
        monkeypatch.setattr("headway.experiment.size.memory_of", lambda device, needed=needed: 3 * needed)
        check(recipe, task, 3, CPU)
        with pytest.raises(UserError, match=said):
            check(recipe, task, 4, CPU)


def test_processes_on_gpus_divide_the_batch(workshop, monkeypatch):
    recipe, gpu = tiny_recipe(workshop.text), torch.device("cuda:0")
    task = tasks.load(recipe)
    needed = kept_at_least(recipe, task, gpu)
    monkeypatch.setattr("headway.experiment.size.memory_of", lambda device: needed / 2)
    check_batch(recipe, task, 1, gpu, processes=2)
    for device, processes in ((gpu, 1), (CPU, 2)):
        with pytest.raises(UserError, match="training needs at least"):
            check_batch(recipe, task, 1, device, processes)


def test_audits_need_no_room_for_a_batch(workshop, monkeypatch):
    """Audits take excerpts of a batch, before training and after it."""
    from headway.experiment.audit import audit_recipe

    recipe = tiny_recipe(workshop.text)
    task = tasks.load(recipe)
    needed = 2 * 4 * parameters_of_recipe(recipe, task)
    assert kept_at_least(recipe, task, CPU) > 0
    monkeypatch.setattr("headway.experiment.size.memory_of", lambda device: 3 * needed)
    monkeypatch.setattr("headway.experiment.size.kept_at_least", lambda *given: 10**18)
    assert audit_recipe(recipe).findings


def test_frozen_layers_keep_nothing():
    for tuning, kept in (("frozen", False), ("full", True)):
        recipe = load("python-modules", [f"training.tuning={tuning}"])
        assert (kept_at_least(recipe, tasks.load(recipe), CPU) > 0) == kept


def test_training_checks_the_size_first(workshop, monkeypatch, command_line, tmp_path):
    monkeypatch.chdir(tmp_path)
    for words in (["model.width=1048576"], ["training.batch=1000000000000", "--vary", "seed=0..1"]):
        answer = command_line("train", str(workshop.recipe), "--name", "new", *words)
        assert answer.code == 2 and "at least" in answer.words
    assert not (tmp_path / "runs").exists()
    deep = command_line("train", str(workshop.recipe), "--name", "new", "model.layers=100000")
    assert deep.code == 2 and "model.layers" in deep.words


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (torch.zeros(5, dtype=torch.long), "replicas and rows are missing: ids[None, None]"),
        (torch.zeros(2, 5, dtype=torch.long), "replicas are missing: ids[None]"),
        (torch.zeros(1, 1, 2, 5, dtype=torch.long), "[1, 1, 2, 5]: expected"),
        ([1, 2], "not a list"),
        (torch.zeros(1, 2, 5), "of integers"),
    ],
)
def test_a_model_says_which_axis_is_missing(ids, said):
    with pytest.raises(UserError) as caught:
        check_ids(ids)
    assert said in str(caught.value)


def test_every_model_checks_its_input(monkeypatch):
    asked = []
    monkeypatch.setattr("headway.models.backbone.check_ids", asked.append)
    ids = torch.zeros(1, 2, 5, dtype=torch.long)
    LanguageModelSpec(layers=1, width=8, mixer=AttentionSpec(heads=1)).build(9)(ids)
    assert asked == [ids]


def kept_for_gradients(recipe: Recipe, task) -> int:
    """Bytes that the forward pass of one replica saves for the backward pass."""
    setting, kept = settings.choose(recipe.training, recipe.model.width), {}
    made, sampler = assemble([recipe], task, setting)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # keeps the memory from being reused
        return tensor

    step = Update(made.model, made.optimizer, sampler, recipe.training, setting, torch.ones(1, dtype=torch.bool))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step(0, 0.0)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(
    "changes",
    [
        "",
        "model.mixer.backend=plain model.mixer.dropout=0.2 model.dropout=0.2",
        "model.feedforward=swiglu training.batch=1",
        *(f"model.mixer={kind}" for kind in ("lstm", "gru", "rnn", "mingru")),
        *(f"model.mixer={kind} model.norm=none model.feedforward=none" for kind in ("lstm", "gru", "rnn", "mingru")),
        "model.norm=none model.feedforward=none",
        "model.layers=1 training.accumulate=2",
    ],
)
def test_the_memory_for_gradients_is_between_its_lower_and_upper_bound(workshop, changes):
    recipe = tiny_recipe(workshop.text, *changes.split())
    task = tasks.load(recipe)
    needed = needed_at_most(recipe, task)
    memories = 4 * 4 * parameters_of_recipe(recipe, task)  # weights, gradients, and two moments of AdamW
    kept = kept_for_gradients(recipe, task)
    assert kept_at_least(recipe, task, CPU) <= kept
    assert needed is not None and needed > 1.5 * (kept + memories)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed", [*(name for name, _ in KINDS.values()), "scenes model.picture.patch=4 training.batch=16"]
)
def test_the_upper_bound_exceeds_the_needed_memory_for_every_kind(changed):
    name, *changes = changed.split()
    recipe = load(name, changes)
    task = tasks.load(recipe)
    assert (needed_at_most(recipe, task) or 0) > 1.5 * kept_for_gradients(recipe, task)
