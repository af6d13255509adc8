"""A state carried from batch to batch, saved and restored, with a toy: a leaky mean of all previous tokens."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from training.conftest import TEXT, Recorder

from headway.core.errors import UserError
from headway.data.running.batches import Contiguous
from headway.nn.replicated import Embedding, Linear
from headway.nn.seeding import seed
from headway.nn.trainable import Carried, Trainable
from headway.training import checkpoint, setting
from headway.training.adam import AdamW
from headway.training.carried import CarriedState
from headway.training.checkpoint import Checkpoint
from headway.training.loop import Loop
from headway.training.population import Population
from headway.training.processes import Processes
from headway.training.schedule import Constant, Duration
from headway.training.spec import TrainingSpec

V, D, SEGMENT, BATCH = 13, 6, 5, 4
STEPS_PER_EPOCH = (len(TEXT) // BATCH - 1) // SEGMENT


class LeakyMean(Trainable):
    """Predicts the next token from a mean of the previous ones in which older ones weigh less; its memory never
    ends."""

    def __init__(self, replicas: int):
        super().__init__()
        self.replicas = replicas
        self.embedding, self.output = Embedding(replicas, V, D, std=1.0), Linear(replicas, D, V)

    def loss(self, batch, state: Carried | None = None):
        x = self.embedding(batch.inputs)  # [R, B, T, D]
        mean = torch.zeros_like(x[:, :, 0]) if state is None else state["mean"]
        means = []
        for t in range(x.shape[2]):
            mean = 0.9 * mean + 0.1 * x[:, :, t]
            means.append(mean)
        logits = self.output(torch.stack(means, 2))
        nats = F.cross_entropy(logits.flatten(0, 2), batch.targets.flatten(), reduction="none")
        return nats.view(self.replicas, -1).mean(1), {"mean": mean}


def loop_of(seeds: Sequence[int], rates: Sequence[float], steps: int = 12, **training) -> Loop:
    model = LeakyMean(len(seeds))
    seed(model, seeds)
    given = {"schedule": Constant(), "evaluate_on": [], "batch": BATCH, "optimizer": AdamW(), "device": "cpu"}
    spec = TrainingSpec(duration=Duration(steps, "steps"), **given | training)
    optimizer = spec.optimizer.build(dict(model.named_parameters()), list(rates), [0.0] * len(seeds))
    population = Population(model, optimizer, len(seeds))
    sampler = Contiguous().build(TEXT, SEGMENT, BATCH, list(seeds))
    where = setting.choose(spec, D)
    states, carried = population.replica_states, population.carried
    made = Loop(model, optimizer, sampler, spec, where, 1, list, Recorder(), states, carried=carried)
    made.population = population
    return made


def slices(loop: Loop) -> list[Checkpoint]:
    return [loop.population.slice(r, loop.step) for r in range(len(loop.replica_states))]


def equal(a: Checkpoint, b: Checkpoint) -> bool:
    return a.files.keys() == b.files.keys() and all(
        a.files[file].keys() == b.files[file].keys() and all(torch.equal(t, b.files[file][k]) for k, t in mine.items())
        for file, mine in a.files.items()
    )


def losses(loop: Loop, replica: int = 0) -> list[float]:
    return loop.recorder.losses(replica)


def test_segments_are_read_as_one_text_until_the_sampler_starts_again():
    """With a learning rate of zero the model is constant, so the losses of all steps can be computed by hand."""
    loop = loop_of([0], [0.0], steps=STEPS_PER_EPOCH + 3)
    loop.run()
    stream = TEXT[: BATCH * (len(TEXT) // BATCH)].view(1, BATCH, -1)
    x, mean, found = loop.model.embedding(stream), torch.zeros(1, BATCH, D), []
    for t in range(STEPS_PER_EPOCH * SEGMENT):
        mean = 0.9 * mean + 0.1 * x[:, :, t]
        found.append(F.cross_entropy(loop.model.output(mean[:, :, None])[0, :, 0], stream[0, :, t + 1]).item())
    expected = torch.tensor(found).view(-1, SEGMENT).mean(1).tolist()
    assert losses(loop) == pytest.approx([*expected, *expected[:3]], rel=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("stop", [5, STEPS_PER_EPOCH, STEPS_PER_EPOCH + 1])
def test_a_resumed_training_is_bit_identical(tmp_path: Path, stop: int, accumulate: int):
    settings = {"seeds": [3, 4], "rates": [1e-2, 3e-2], "steps": STEPS_PER_EPOCH + 4, "accumulate": accumulate}
    whole, first, again = loop_of(**settings), loop_of(**settings), loop_of(**settings)
    whole.run()
    for _ in range(stop):
        first.take_step()
    for r, saved in enumerate(slices(first)):
        folder = checkpoint.step_folder(tmp_path / str(r), stop)
        checkpoint.save(folder, saved)
        assert saved.state["mean"].shape == (BATCH, D)
        again.population.restore(r, checkpoint.unpack(checkpoint.pack(checkpoint.load(folder))))
    again.step = stop
    again.run()
    assert losses(again) == losses(whole)[stop:]
    assert all(equal(a, b) for a, b in zip(slices(whole), slices(again), strict=True))


def test_replicas_together_equal_replicas_alone():
    seeds, rates = [3, 4, 5], [1e-2, 3e-2, 1e-3]
    together = loop_of(seeds, rates)
    together.run()
    for r in range(3):
        alone = loop_of(seeds[r : r + 1], rates[r : r + 1])
        alone.run()
        assert losses(alone) == pytest.approx(losses(together, r), rel=1e-5)
        torch.testing.assert_close(slices(alone)[0].state, slices(together)[r].state)


def test_parts_of_a_batch_keep_their_own_states():
    whole, parts = loop_of([3], [1e-2]), loop_of([3], [1e-2], accumulate=2)
    whole.run(), parts.run()
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-5)
    torch.testing.assert_close(slices(parts)[0].state, slices(whole)[0].state)


def test_processes_keep_the_states_of_their_rows_and_save_them_as_one():
    """A state saved by one process is shared by two, and saved as one again; the other process is simulated."""
    saved = {"mean": torch.arange(8.0).view(4, 2)}

    class Played(Processes):
        def gather(self, tensor):
            return [one.here["mean"][0] for one in two]

    two = [CarriedState(Played(rank, 2)) for rank in range(2)]
    for one in two:
        one.restore(0, 1, saved, torch.device("cpu"))
    assert [one.here["mean"].tolist() for one in two] == [[[[0, 1], [2, 3]]], [[[4, 5], [6, 7]]]]
    assert torch.equal(two[0].of_replica(0)["mean"], saved["mean"])


def test_rows_may_be_reset_one_by_one():
    carried = CarriedState()
    carried.after(0, 1, {"h": torch.ones(2, 3, 4), "cells": torch.ones(2, 3, dtype=torch.bool)})
    begins = torch.tensor([[True, False, False], [False, False, True]])
    found = carried.before(0, 1, begins)
    assert torch.equal(found["h"][..., 0] == 0, begins) and torch.equal(found["cells"], ~begins)
    assert carried.here["h"].all()  # the stored state is another tensor


def test_a_state_of_another_batch_is_refused():
    first, other = loop_of([0], [1e-2]), loop_of([0], [1e-2])
    first.take_step()
    other.population.restore(0, slices(first)[0])
    with pytest.raises(UserError, match=r"training.batch: the saved state \(mean\) has 4 rows, not 8"):
        other.carried.check_rows(8)


def test_attention_carries_nothing_and_its_checkpoints_are_unchanged(ran, tmp_path: Path):
    loop = ran(steps=2)
    assert not loop.carried
    checkpoint.save(tmp_path / "step", loop.population.slice(0, 2))
    assert checkpoint.STATE not in {file.name for file in (tmp_path / "step").iterdir()}
