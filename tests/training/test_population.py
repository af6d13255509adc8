"""The checkpoint of a replica is independent of the others: it can leave a population, or join one."""

import pytest
import torch

from headway.core.errors import UserError
from headway.core.status import State, Status
from headway.training.checkpoint import Checkpoint
from headway.training.loop import Loop
from headway.training.population import check_fits, load_weights

SEEDS, RATES, DROPOUTS = [7, 8, 9], [1e-3, 3e-3, 1e-2], [0.0, 0.2, 0.4]


def slices(loop: Loop) -> list[Checkpoint]:
    return [loop.population.slice(r, loop.step) for r in range(len(loop.replica_states))]


def resumed(loop: Loop, saved: list[Checkpoint]) -> Loop:
    for r, one in enumerate(saved):
        loop.population.restore(r, one)
    loop.step = saved[0].step
    loop.run()
    return loop


def stopped_after(loop: Loop, steps: int) -> Loop:
    for _ in range(steps):
        loop.take_step()
    loop.write_down()
    return loop


def equal(a: Checkpoint, b: Checkpoint) -> bool:
    return (
        a.step == b.step
        and a.weights.keys() == b.weights.keys()
        and a.optimizer.keys() == b.optimizer.keys()
        and all(torch.equal(a.weights[k], b.weights[k]) for k in a.weights)
        and all(torch.equal(a.optimizer[k], b.optimizer[k]) for k in a.optimizer)
    )


def test_a_slice_has_no_replica_axis_and_is_a_copy(made_loop):
    loop = made_loop(SEEDS)
    taken = loop.population.slice(1, 0)
    for name, p in loop.model.named_parameters():
        assert torch.equal(taken.weights[name], p[1]) and taken.weights[name].shape == p.shape[1:]
    kept = {name: t.clone() for name, t in taken.weights.items()}
    stopped_after(loop, 1)
    assert all(torch.equal(taken.weights[name], kept[name]) for name in kept)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_stopped_and_restored_population_equals_an_uninterrupted_one(made_loop, ran, replicas: int):
    settings = [SEEDS[:replicas], RATES[:replicas], DROPOUTS[:replicas]]
    whole = ran(*settings)
    again = resumed(made_loop(*settings), slices(stopped_after(made_loop(*settings), 5)))
    assert all(equal(a, b) for a, b in zip(slices(whole), slices(again), strict=True))
    assert again.recorder.losses(0) == whole.recorder.losses(0)[5:]


def test_replicas_can_leave_a_population_and_join_another(made_loop, ran):
    together = slices(stopped_after(made_loop(SEEDS, RATES, DROPOUTS), 5))
    alone = resumed(made_loop(SEEDS[1:2], RATES[1:2], DROPOUTS[1:2]), together[1:2])
    whole = ran(SEEDS, RATES, DROPOUTS)
    assert alone.recorder.losses(0) == pytest.approx(whole.recorder.losses(1)[5:], abs=1e-5)
    pair = resumed(made_loop(SEEDS[::-2], RATES[::-2], DROPOUTS[::-2]), together[::-2])
    assert pair.recorder.losses(0) == pytest.approx(whole.recorder.losses(2)[5:], abs=1e-5)
    assert pair.recorder.losses(1) == pytest.approx(whole.recorder.losses(0)[5:], abs=1e-5)


def test_the_state_of_patience_and_best_is_restored_with_its_replica(made_loop):
    loop = made_loop([0, 1])
    ended = Status(State.PRUNED, 40, "why")
    loop.replica_states[1].ended, loop.replica_states[1].best, loop.replica_states[1].best_step = ended, 1.5, 40
    saved = loop.population.slice(1, 50)
    other = made_loop([0, 1])
    other.population.restore(1, saved)
    assert other.population.replica_states[1] == loop.replica_states[1]
    assert other.population.replica_states[0].ended is None
    assert other.optimizer.steps == 50


def test_restoring_one_replica_does_not_change_the_others(made_loop):
    saved = slices(stopped_after(made_loop([0, 1]), 3))
    loop = made_loop([5, 6])
    before = [p[0].clone() for p in loop.model.parameters()]
    loop.population.restore(1, saved[1])
    assert all(torch.equal(p[0], old) for p, old in zip(loop.model.parameters(), before, strict=True))
    assert all(torch.equal(p[1], saved[1].weights[name]) for name, p in loop.model.named_parameters())


# What does not fit


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(made_loop):
    loop = made_loop([0, 1])
    saved = loop.population.slice(0, 0)
    saved.weights["embedding.weight"] = torch.zeros(13, 9)
    before = [p.clone() for p in loop.model.parameters()]
    with pytest.raises(
        UserError, match=r"weights do not fit this recipe: embedding.weight is \[13, 9\], expected \[13, 8\]"
    ):
        load_weights(loop.model, 1, saved.weights)
    assert all(torch.equal(p, old) for p, old in zip(loop.model.parameters(), before, strict=True))


def test_missing_and_foreign_tensors_are_named(made_loop):
    loop = made_loop([0])
    saved = loop.population.slice(0, 0)
    saved.optimizer["mean/other"] = saved.optimizer.pop("mean/norm.weight")
    with pytest.raises(
        UserError, match=r"optimizer do.* mean/norm.weight is missing; mean/other is not part of this model"
    ):
        loop.population.restore(0, saved)


def test_a_long_list_of_mismatches_is_shortened():
    ours = {f"w{k}": torch.Size([2]) for k in range(6)}
    with pytest.raises(UserError, match=r"w0 is missing; w1 is missing; w2 is missing \(and 3 more\)"):
        check_fits(ours, {}, "weights")
