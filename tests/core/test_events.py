"""Events are written as they happen and can be read back even if the process was killed."""

import json

import pytest

from headway.core.events import (
    FILE,
    Began,
    Closed,
    Ended,
    Halted,
    Logged,
    Noted,
    Opened,
    Saved,
    Scored,
    Stepped,
    Trained,
    Warned,
    append,
    last,
    read_event,
    read_events,
    tell,
)
from headway.core.status import State, Status

RUN = ("a",)
WRITTEN = [
    Began(of=RUN, folder="runs", title=("a: 12 parameters",), step=0, total=9, resumed=False),
    Warned(of=RUN, text="no warm-up"),
    Noted(of=RUN, text="two fit"),
    Scored(of=RUN, step=3, scores={"valid.loss": 2.5}),
    Saved(of=RUN, step=3, kind="step"),
    Halted(of=RUN, status=Status(State.DIVERGED, 4, "no number"), best_loss=None, others_go_on=True),
    Trained(of=RUN),
    Ended(of=RUN, status=Status(State.DIVERGED, 4, "no number")),
    Opened(of=("study",), arm_of={"a.seed-0": "a"}, done=["a.seed-0"]),
    Closed(of=("study",), interrupted=False),
]
TOLD_ONLY = [
    Stepped(of=("a", "b"), step=3, total=9, losses=(2.0, 3.0), tokens_per_second=10.0),
    Logged(of=RUN, lines=[{"step": 3, "loss": 2.0}]),
]


def plain(event):
    """As in JSON: tuples become lists."""
    return json.loads(json.dumps(event.as_json()))


@pytest.mark.parametrize("event", [*WRITTEN, *TOLD_ONLY], ids=lambda event: type(event).__name__)
def test_every_event_is_read_back(event):
    again = read_event(plain(event))
    assert type(again) is type(event) and plain(again) == plain(event) and again.of == event.of


def test_all_events_but_steps_are_written_in_order(tmp_path):
    for event in (*WRITTEN, *TOLD_ONLY):
        append(tmp_path, event)
    found = read_events(tmp_path)
    assert [plain(event) for event in found] == [plain(event) for event in WRITTEN]
    assert last(found, Ended) == WRITTEN[7] and last(found, Stepped) is None


@pytest.mark.parametrize("damage", [b'{"event": "sav', b'{"event": "from the future", "of": ["a"]}\n', b"[]\n"])
def test_half_a_line_loses_only_that_line(tmp_path, damage):
    append(tmp_path, WRITTEN[0])
    with (tmp_path / FILE).open("ab") as file:
        file.write(damage)
    append(tmp_path, WRITTEN[6])
    assert [type(event) for event in read_events(tmp_path)] == [Began, Trained]


def test_no_file_means_no_events(tmp_path):
    assert read_events(tmp_path) == []


def test_every_listener_gets_every_event_until_one_answers():
    heard = []
    answers = [lambda event: None, lambda event: heard.append(event), lambda event: "enough", lambda event: "too late"]
    assert tell(answers, WRITTEN[3]) == "enough" and heard == [WRITTEN[3]]
