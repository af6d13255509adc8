"""One loop for R replicas: they are independent, accumulated parts equal the whole batch, and every replica ends when
it should."""

import os
import signal

import pytest
import torch

from headway.core.status import State, Status
from headway.training.loop import Loop
from headway.training.optimizers import Adagrad, Sgd
from headway.training.schedule import Cosine, Duration

SEEDS, RATES, DROPOUTS = [3, 1, 4, 5], [1e-3, 3e-3, 1e-2, 3e-3], [0.0, 0.1, 0.3, 0.5]


def every(steps: int) -> Duration:
    return Duration(steps, "steps")


def same_weights(a: Loop, b: Loop, replicas=None) -> bool:
    theirs = dict(b.model.named_parameters())
    chosen = slice(None) if replicas is None else list(replicas)
    return all(torch.equal(p[chosen], theirs[name][chosen]) for name, p in a.model.named_parameters())


# Together and alone


@pytest.mark.parametrize(
    "optimizer", [{}, {"optimizer": Sgd()}, {"optimizer": Adagrad()}], ids=["adamw", "sgd", "adagrad"]
)
def test_four_replicas_have_the_same_losses_together_as_alone(ran, optimizer):
    together = ran(SEEDS, RATES, DROPOUTS, **optimizer).recorder
    for r in range(4):
        alone = ran(SEEDS[r : r + 1], RATES[r : r + 1], DROPOUTS[r : r + 1], **optimizer).recorder
        assert together.losses(r) == pytest.approx(alone.losses(0), abs=1e-5)
        assert len(together.losses(r)) == 12
    assert len({tuple(together.losses(r)) for r in range(4)}) == 4


def test_training_lowers_the_loss(ran):
    losses = ran(steps=80, rates=[1e-2]).recorder.losses(0)
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.1


def test_dropout_seed_and_rate_change_the_losses(ran):
    base = ran([0]).recorder.losses(0)
    assert ran([1]).recorder.losses(0) != base
    assert ran([0], rates=[1e-2]).recorder.losses(0)[1:] != base[1:]
    assert ran([0], dropouts=[0.3]).recorder.losses(0) != base
    assert ran([0]).recorder.losses(0) == base


# Divergence


@pytest.mark.parametrize("clip", [1.0, None])
def test_a_replica_that_diverges_ends_without_affecting_the_others(ran, clip):
    calm = ran(SEEDS, RATES, DROPOUTS, clip=clip)
    disturbed = ran(SEEDS, [1e-3, 1e38, 1e-2, 3e-3], DROPOUTS, clip=clip)
    for r in (0, 2, 3):
        assert disturbed.recorder.losses(r) == calm.recorder.losses(r)
    assert same_weights(disturbed, calm, [0, 2, 3])
    ended = disturbed.replica_states[1].ended
    assert (ended.state, ended.step) == (State.DIVERGED, 2) and len(disturbed.recorder.losses(1)) == 1
    assert disturbed.recorder.lines[1][-1] == {"step": 2, "ended": "diverged", "reason": ended.reason}
    assert disturbed.recorder.endings == [1]
    assert [s.ended for k, s in enumerate(disturbed.replica_states) if k != 1] == [None] * 3
    assert [r for r, _ in disturbed.recorder.checkpoints] == [1, 0, 2, 3]


@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_replica_that_breaks_keeps_the_weights_it_had(made_loop, ran, poison: str):
    loop = made_loop([0, 1])
    healthy = loop.update.loss

    def broken(batch, state):
        losses, state = healthy(batch, state)
        if loop.step < 3:
            return losses, state
        if poison == "loss":
            return losses * torch.tensor([1.0, torch.nan]), state
        losses.register_hook(lambda gradient: gradient * torch.tensor([1.0, torch.inf]))
        return losses, state

    loop.update.loss = broken
    loop.run()
    assert loop.replica_states[1].ended == Status(State.DIVERGED, 4, f"the {poison} is no longer a finite number")
    assert same_weights(loop, ran([0, 1], steps=3), [1])
    assert same_weights(loop, ran([0, 1]), [0])


def test_when_all_have_diverged_the_loop_ends(made_loop):
    loop = made_loop([0, 1], rates=[1e38], steps=1000)
    for _ in range(3):
        loop.take_step()
    loop.write_down()
    assert not loop.anyone_left
    loop.run()
    assert loop.step == 3
    assert loop.recorder.endings == [0, 1]


# Accumulation


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_batch_in_parts_equals_the_batch(ran, parts: int):
    whole, split = (ran([0, 1], [0.1], [0.0, 0.4], accumulate=n, optimizer=Sgd()) for n in (1, parts))
    for r in range(2):
        assert split.recorder.losses(r) == pytest.approx(whole.recorder.losses(r), abs=1e-5)
    theirs = dict(whole.model.named_parameters())
    for name, p in split.model.named_parameters():
        torch.testing.assert_close(p, theirs[name], rtol=1e-5, atol=1e-5)


def test_a_batch_in_parts_equals_the_batch_for_adamw_too(ran):
    whole, split = (ran([0, 1], dropouts=[0.0, 0.4], accumulate=n).recorder for n in (1, 4))
    for r in range(2):
        assert split.losses(r) == pytest.approx(whole.losses(r), abs=1e-5)


# Evaluation, patience, best


def test_evaluations_and_checkpoints_are_made_when_due_and_at_the_end(ran):
    loop = ran([0, 1], steps=11, evaluate_on=["valid"], evaluate_every=every(4), checkpoint_every=every(5))
    assert loop.recorder.evaluated(0) == loop.recorder.evaluated(1) == [4, 8, 11]
    assert loop.recorder.checkpoints == [(r, step) for step in (5, 10, 11) for r in (0, 1)]


def test_without_splits_nothing_is_evaluated(ran):
    assert ran(evaluate_every=every(1)).recorder.evaluated(0) == []


def test_the_best_is_the_lowest_so_far(ran):
    scores = [[3.0, 2.0, 2.5, 2.0, 1.5, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]
    loop = ran([0, 1], scores=scores, evaluate_on=["valid"], evaluate_every=every(2), keep_best=True)
    assert [b for b in loop.recorder.bests if b[0] == 0] == [(0, 2), (0, 4), (0, 10)]  # an equal loss is no new lowest
    assert [b for b in loop.recorder.bests if b[0] == 1] == [(1, 2)]
    assert [(s.best, s.best_step) for s in loop.replica_states] == [(1.5, 10), (1.0, 2)]
    assert [s.evaluations_since_best for s in loop.replica_states] == [1, 5]


def test_the_best_is_chosen_on_the_first_split_and_saved_only_if_set(ran):
    loop = ran(scores=[[2.0, 1.0]], steps=4, evaluate_on=["test", "valid"], evaluate_every=every(2))
    assert loop.recorder.bests == [] and loop.replica_states[0].best_step == 4


def test_patience_ends_one_replica_without_affecting_the_others(ran):
    scores = [[3.0, 2.0, 2.1, 2.2, 9.0, 9.0], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]]
    settings = {"evaluate_on": ["valid"], "evaluate_every": every(2), "seeds": [0, 1]}
    loop, patient = ran(scores=scores, patience=2, **settings), ran(scores=scores, **settings)
    impatient = loop.replica_states[0]
    assert impatient.ended == Status(State.STOPPED, 8, "no new lowest loss in 2 evaluations")
    assert impatient.best_step == 4
    assert loop.recorder.losses(0) == patient.recorder.losses(0)[:8]
    assert loop.recorder.evaluated(0) == [2, 4, 6, 8] and loop.recorder.evaluated(1) == [2, 4, 6, 8, 10, 12]
    assert loop.recorder.losses(1) == patient.recorder.losses(1) and same_weights(loop, patient, [1])
    assert loop.recorder.checkpoints == [(0, 8), (1, 12)]
    stopped = ran(seeds=[0, 1], steps=8)
    assert same_weights(loop, stopped, [0])


def test_a_listener_can_end_one_replica_without_affecting_the_others(made_loop, ran):
    settings = {"evaluate_on": ["valid"], "evaluate_every": every(2), "seeds": [0, 1]}
    loop, unwatched = made_loop(**settings), ran(**settings)
    written = loop.recorder.metrics

    def watched(replica, lines):
        written(replica, lines)
        return (
            "others were better"
            if replica == 0 and any("scores" in line and line["step"] == 4 for line in lines)
            else None
        )

    loop.recorder.metrics = watched
    loop.run()
    assert loop.replica_states[0].ended == Status(State.PRUNED, 4, "others were better")
    assert loop.recorder.losses(0) == unwatched.recorder.losses(0)[:4]
    assert loop.recorder.checkpoints == [(0, 4), (1, 12)]
    assert same_weights(loop, unwatched, [1]) and same_weights(loop, ran(seeds=[0, 1], steps=4), [0])


def test_when_all_replicas_ran_out_of_patience_the_loop_ends(ran):
    loop = ran(scores=[[1.0, 2.0, 3.0]], steps=100, evaluate_on=["valid"], evaluate_every=every(2), patience=1)
    assert loop.step == 4 and loop.replica_states[0].ended


def test_a_replica_whose_score_is_not_a_number_has_diverged(ran):
    nan = float("nan")
    settings = {"evaluate_on": ["valid"], "evaluate_every": every(2), "keep_best": True, "patience": 1}
    loop = ran([0, 1, 2], scores=[[3.0, nan], [nan, nan], [2.0, 1.0]], steps=4, **settings)
    assert loop.recorder.bests == [(0, 2), (2, 2), (2, 4)]
    for r, step in ((0, 4), (1, 2)):
        ended = Status(State.DIVERGED, step, "the loss on valid is no longer a finite number")
        assert loop.replica_states[r].ended == ended and loop.recorder.lines[r][-1]["ended"] == "diverged"
        assert (r, step) in loop.recorder.checkpoints
    assert [s.best for s in loop.replica_states] == [3.0, None, 1.0]
    assert len(loop.recorder.losses(1)) == 2


# The learning rate


def test_the_recorded_rate_is_the_rate_that_was_used(ran):
    loop = ran([0, 1], rates=[1e-3, 1e-2], steps=6, schedule=Cosine(warmup=every(2), final=0.5))
    rates = [[line["rate"] for line in loop.recorder.lines[r]] for r in (0, 1)]
    assert rates[0] == pytest.approx([1e-3 * f for f in (1 / 3, 2 / 3, 1, 0.875, 0.625, 0.5)])
    assert rates[1] == pytest.approx([10 * rate for rate in rates[0]])


def test_durations_may_be_epochs_and_tokens(made_loop):
    loop = made_loop(evaluate_every=Duration(0.5, "epochs"), checkpoint_every=Duration(100, "tokens"))
    assert (loop.sampler.steps_per_epoch, loop.tokens_per_step) == (11, 48)
    assert (loop.evaluate_every, loop.checkpoint_every) == (6, 3)


# Interrupts


def test_an_interrupt_finishes_the_step_and_saves_without_another_evaluation(ran):
    def interrupt(loop: Loop) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    settings = {"evaluate_on": ["valid"], "evaluate_every": every(4), "seeds": [0, 1]}
    loop = ran(on_evaluate=interrupt, scores=[[1.0], [1.0]], patience=1, **settings)
    assert loop.interrupted and loop.step == 5
    assert loop.recorder.evaluated(0) == [4]
    assert loop.recorder.checkpoints == [(0, 5), (1, 5)]
    assert [s.ended for s in loop.replica_states] == [None, None]
    assert len(loop.recorder.losses(0)) == 5


def test_a_finished_loop_does_nothing_more(ran):
    loop = ran(steps=5)
    before = [len(lines) for lines in loop.recorder.lines.values()]
    loop.run()
    assert loop.step == 5 and [len(lines) for lines in loop.recorder.lines.values()] == before


# Compiled


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_a_step_that_cannot_be_compiled_is_trained_uncompiled(made_loop, ran, monkeypatch, caplog, seeds):
    """For example because a killed compiler left a truncated file in the cache. (For two replicas the optimizer is
    compiled too.)"""

    def refused(*given, **settings):
        def call(*arguments):
            raise ImportError("file too short")

        return call

    loop = made_loop(seeds)
    for _ in range(3):
        loop.take_step()
    monkeypatch.setattr(torch, "compile", refused)
    loop.update.compile()
    loop.run()
    assert "file too short" in caplog.text and "training continues uncompiled" in caplog.text
    plain = ran(seeds)
    assert same_weights(loop, plain)
    assert loop.recorder.lines == plain.recorder.lines
