"""The status of a run is written and read back; formats of earlier versions can be read."""

import json

import pytest

from headway.core.errors import UserError
from headway.core.status import State, Status
from headway.training.loop import ReplicaState

NAN = "the loss is no longer a finite number"
SENTENCES = {
    "started": Status(State.STARTED, 9),
    "finished": Status(State.FINISHED, 9),
    "imported": Status(State.IMPORTED, 9),
    "interrupted at step 7": Status(State.INTERRUPTED, 7),
    f"diverged at step 12: {NAN}": Status(State.DIVERGED, 12, NAN),
    "stopped at step 40: no new lowest loss in 3 evaluations": Status(
        State.STOPPED, 40, "no new lowest loss in 3 evaluations"
    ),
    "pruned at step 8: others were better by then": Status(State.PRUNED, 8, "others were better by then"),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_sentences_of_earlier_versions_are_read(sentence):
    status = SENTENCES[sentence]
    assert Status.read({"status": sentence, "step": 9}) == status
    assert str(status) == sentence.replace("started", "not finished")


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("rest", [{}, {"step": 3}, {"step": 3, "reason": "at step 4: a colon, and more"}])
def test_what_is_written_is_read_back(state, rest):
    status = Status(state, **rest)
    assert Status.read(json.loads(json.dumps({**status.as_json(), "seconds": 1.0}))) == status
    kept = ReplicaState(ended=status, best=1.5)
    assert ReplicaState.from_json(json.loads(json.dumps(kept.as_json()))) == kept


def test_a_run_that_has_ended_is_not_trained_further():
    ends = {state for state in State if Status(state).is_end}
    assert ends == {State.IMPORTED, State.FINISHED, State.STOPPED, State.PRUNED, State.DIVERGED}


@pytest.mark.parametrize("given", ["?", "", "finish", "diverged!", None, 3, ["finished"]])
def test_an_invalid_status_is_refused(given):
    with pytest.raises(UserError, match="is not a run's status"):
        Status.read({"status": given})


def test_replica_states_of_earlier_versions_are_read():
    rest = {"best_step": 4, "evaluations_since_best": 1, "lines": 9, "seconds": 0.5}
    old = ReplicaState.from_json({"ended": f"diverged at step 12: {NAN}", "ended_at": 12, "best_loss": 2.5, **rest})
    assert old == ReplicaState(Status(State.DIVERGED, 12, NAN), best=2.5, **rest)
    assert ReplicaState.from_json({"ended": None, "ended_at": None, **rest}).ended is None
