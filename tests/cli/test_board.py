"""The progress line of a running study: how many runs are done, and how long the rest will take."""

import re

import pytest

from headway.cli import board
from headway.cli.board import Counts
from headway.core.events import Began, Ended, Event, Opened, Stepped
from headway.core.status import State, Status


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(board.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def told(counts: Counts, *events: Event) -> str:
    for event in events:
        counts(event)
    return counts.summary


def opened(runs: int, done: tuple[str, ...] = ()) -> Opened:
    return Opened(of=(), arm_of={f"a.seed-{k}": "a" for k in range(runs)}, done=done)


def began(*names: str, step: int = 0) -> Began:
    return Began(of=names, folder="runs", title=(), step=step, total=100, resumed=step > 0)


def stepped(step: int, *names: str) -> Stepped:
    return Stepped(of=names, step=step, total=100, losses=(1.0,) * len(names), tokens_per_second=1.0)


def ended(name: str, state: State = State.FINISHED) -> Ended:
    return Ended(of=(name,), status=Status(state, 100))


def test_the_time_left_falls_during_runs(clock):
    counts, seconds = Counts(), []
    told(counts, opened(4), began("a.seed-0"))
    for step, waited in ((50, 75), (75, 25), (100, 25)):  # 25 seconds to start, then one per step
        clock(waited)
        found = re.search(r"(\d+):(\d+) left", told(counts, stepped(step, "a.seed-0")))
        assert found
        seconds.append(60 * int(found[1]) + int(found[2]))
    assert seconds == sorted(seconds, reverse=True)
    assert told(counts, ended("a.seed-0")) == "1 of 4 runs, 6:15 left"


def test_no_time_left_is_shown_before_half_a_run_is_done(clock):
    counts = Counts()
    clock(5)
    assert "left" not in told(counts, opened(3), began("a.seed-0"), stepped(40, "a.seed-0"))


def test_members_of_a_population_advance_together_and_failures_are_counted(clock):
    counts = Counts()
    names = ("a.seed-1", "a.seed-2")
    told(counts, opened(4, done=("a.seed-0",)), began(*names, step=50))
    clock(30)
    assert told(counts, stepped(100, *names)) == "1 of 4 runs, 0:30 left"  # half of two runs took 30 seconds
    clock(6)
    assert told(counts, ended("a.seed-1"), ended("a.seed-2", State.DIVERGED)) == "2 of 4 runs, 1 failed, 0:36 left"
    assert told(counts, began("a.seed-3"), stepped(100, "a.seed-3"), ended("a.seed-3")) == "3 of 4 runs, 1 failed"
