"""Whether to compile is decided by estimated times; the step of the switch is recorded, and used again on resuming."""

import pytest

from headway.core import processors
from headway.training import auto_compile
from headway.training.auto_compile import AutoCompile, Costs, InBackground, InPlace


class Update:
    """Records at which step it was compiled."""

    def __init__(self):
        self.step, self.compiled_at, self.uncompiled_at = 0, [], []

    def compile(self, whole):
        self.compiled_at.append(self.step)

    def uncompile(self):
        self.uncompiled_at.append(self.step)

    @property
    def is_compiled(self):
        return len(self.compiled_at) > len(self.uncompiled_at)


class Process:
    """A compiling process that finishes, or fails, after this many steps of training."""

    def __init__(self, steps, why=""):
        self.steps, self.why, self.stopped = steps, why, False

    def ended(self):
        self.steps -= 1
        return self.why if self.steps < 0 else None

    def stop(self):
        self.stopped = True


ASSUMED = {"layers": Costs(compiling=25.0, pause=8.0, times=1.12), "whole": Costs(45.0, pause=17.0, times=1.2)}


@pytest.fixture
def training(monkeypatch, tmp_path):
    """Simulates this many steps, of this many seconds each on a fake clock; compiled steps are twice as fast."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))

    def run(
        total, each, process=None, swap_at=None, first=0, window=10, by=None, contended=1.0, first_compiled=0.0,
        times=2.0, until=None,
    ):  # fmt: skip
        """`contended`: how many times slower a step is while another process compiles; `first_compiled`: extra seconds
        of the first compiled step; `times`: how many times faster compiled steps are."""
        clock = [0.0]
        monkeypatch.setattr(auto_compile.time, "perf_counter", lambda: clock[0])
        update, notes, said, started = Update(), [], [], []

        def start(way):
            started.append(process)
            return process

        compiler = by or InBackground(start)

        def note(compiled_from=None, compiled_until=None):
            notes.append(compiled_from[0] if compiled_from else -compiled_until)

        watched = AutoCompile("a kind", total, lambda: compiler, note, said.append, swap_at, "whole", until, ASSUMED)
        began, mark = 0.0, first
        for step in range(first, total):
            update.step = step
            watched.before(step, update)
            slower = contended if watched.job is not None else 1.0
            clock[0] += each / times if update.is_compiled else each * slower
            clock[0] += first_compiled if update.compiled_at == [step] else 0.0
            if (step + 1 - first) % window == 0:
                watched.after(mark, step + 1, clock[0] - began)
                began, mark = clock[0], step + 1
        watched.stop()
        run.uncompiled_at = update.uncompiled_at
        return update.compiled_at, notes, said, started

    return run


def test_a_short_training_is_not_compiled_and_the_reason_has_numbers(training):
    compiled, notes, said, started = training(200, 0.01)
    assert (compiled, notes, started) == ([], [], [])
    assert len(said) == 1 and said[0].startswith("not compiled: 180 steps of 10.00 ms remain, 2 s")


def test_a_long_training_is_compiled_in_the_background_and_the_switch_is_recorded(training):
    process = Process(steps=50)
    compiled, notes, said, started = training(2000, 0.1, process)
    assert started == [process] and process.stopped
    assert compiled == notes and len(compiled) == 1 and 60 < compiled[0] < 90
    assert "compiling in the background" in said[0] and f"compiled from step {compiled[0]} on" in said[1]


def test_the_measured_speedup_is_used_by_the_next_training(training):
    training(2000, 0.1, Process(steps=50))
    (costs,) = (costs for costs in auto_compile.known("a kind", ASSUMED).values() if costs.measured)
    assert costs.times == pytest.approx(2, rel=0.05) and costs.step == pytest.approx(0.1)
    compiled, notes, said, started = training(2000, 0.1)
    assert (compiled, notes, started) == ([0], [0], [])
    assert "compiled from the first step" in said[0] and "2,000 steps of 100.00 ms remain, 200 s" in said[0]
    assert training(30, 0.1)[0] == []  # and not if so few steps gain nothing


def test_measurements_on_a_shared_gpu_are_not_stored(training, monkeypatch):
    monkeypatch.setenv(processors.SHARE, "0.5")
    assert training(2000, 0.1, Process(steps=50))[0]
    assert auto_compile.known("a kind", ASSUMED) == ASSUMED


def test_training_goes_back_if_compiled_steps_are_slower(training):
    compiled, notes, said, _ = training(2000, 0.1, Process(steps=50), times=0.9)
    (start,), (end,) = compiled, training.uncompiled_at
    assert start < end < start + 40 and notes == [start, -end]
    assert said[-1] == f"uncompiled again from step {end} on: compiled steps are 1.11 times slower"
    compiled, notes, said, started = training(2000, 0.1, Process(steps=50), times=0.9)
    assert (compiled, notes, started) == ([], [], []) and "as measured before" in said[0]  # nor does the next one try


def test_nothing_is_noted_after_the_last_step(training):
    for steps in range(80, 110):
        assert all(abs(at) < steps for at in training(steps, 1.0, Process(steps=20), times=0.5, window=5)[1])


def test_only_long_trainings_try_where_there_are_kernels():
    began = []
    for assumed, minutes in (("WITH_KERNELS", 15), ("WITH_KERNELS", 20), ("WITHOUT_KERNELS", 4)):
        by = InBackground(lambda way: began.append((way, assumed, minutes)) or Process(10))  # noqa: B023
        watched = AutoCompile(
            assumed, 60 * minutes, lambda by=by: by, print, print, assumed=getattr(auto_compile, assumed)
        )
        watched.before(0, Update())
        watched.after(10, 20, 10.0)
    assert began == [("whole", "WITH_KERNELS", 20), ("layers", "WITHOUT_KERNELS", 4)]


def test_small_differences_are_no_reason_to_go_back(training):
    compiled, notes, *_ = training(2000, 0.1, Process(steps=50), times=0.99)
    assert training.uncompiled_at == [] and notes == compiled


def test_steps_on_a_shared_gpu_are_no_reason_to_go_back(training, monkeypatch):
    monkeypatch.setenv(processors.SHARE, "0.5")
    training(2000, 0.1, Process(steps=50), times=0.5)
    assert training.uncompiled_at == []


def test_a_resumed_training_goes_back_at_the_recorded_step(training):
    assert training(100, 0.1, swap_at=40, until=70, first=20)[:2] == ([40], []) and training.uncompiled_at == [70]
    assert training(100, 0.1, swap_at=40, until=70, first=60)[:2] == ([60], []) and training.uncompiled_at == [70]
    assert training(100, 0.1, swap_at=40, until=70, first=80)[:2] == ([], []) and training.uncompiled_at == []
    # Measured again, from a checkpoint before the swap: the recorded step counts.
    assert training(200, 0.1, swap_at=60, until=150, first=20, times=0.9)[:2] == ([60], [])
    assert training.uncompiled_at == [150]
    assert training(200, 0.1, swap_at=60, first=20, times=0.9)[:2] == ([60], []) and training.uncompiled_at == []


def test_a_resumed_training_switches_at_the_recorded_step(training):
    assert training(100, 0.1, swap_at=40, first=20)[:2] == ([40], [])
    # later than the switch, so compiled from the start
    assert training(100, 0.1, swap_at=40, first=60)[:2] == ([60], [])


def test_the_longer_the_training_the_more_is_compiled(training):
    """A single compiled layer is ready sooner; a compiled step is faster afterwards."""
    ways = []
    for steps in (1500, 20000):
        beside = InBackground(lambda way: ways.append(way) or Process(10))
        watched = AutoCompile("another", steps, lambda beside=beside: beside, print, print, assumed=ASSUMED)
        watched.before(0, Update())
        watched.after(10, 20, 1.0)
    assert ways == ["layers", "whole"]


def test_a_compilation_that_is_too_late_is_left_for_the_next_training(training):
    compiled, notes, said, _ = training(2000, 0.1, Process(steps=1950))
    assert (compiled, notes) == ([], [])
    assert "too late for this training" in said[-1]


def test_a_compiler_that_fails_changes_nothing(training):
    compiled, _, said, _ = training(2000, 0.1, Process(steps=5, why="it ended with 1: no compiler"))
    assert compiled == [] and said[-1] == "not compiled: it ended with 1: no compiler"


@pytest.mark.parametrize(
    "kept",
    [
        "[]",
        '{"whole": 5}',
        '{"whole": {"compiling": null, "pause": 1, "times": 2, "measured": true}}',
        '{"whole": {"compiling": 1, "pause": 1, "times": 0, "measured": true}}',
        '{"whole": {"compiling": 1, "pause": NaN, "times": 2, "measured": true}}',
        '{"whole": {"compiling": 1, "pause": -1e9, "times": 2, "measured": true}}',
        '{"whole": {"compiling": 1, "pause": 1' + "0" * 400 + ', "times": 2, "measured": true}}',
    ],
)
def test_invalid_stored_costs_are_ignored(training, kept):
    training(2000, 0.1, Process(steps=50))
    auto_compile._entry("a kind").write_text(kept)
    assert auto_compile.known("a kind", ASSUMED) == ASSUMED
    assert training(200, 0.01)[0] == []


def test_the_estimated_end_is_computed():
    costs = Costs(compiling=20, pause=5, times=2)
    assert costs.in_background(100) == 20 + 5 + 40
    assert costs.from_cache(100) == 55
    assert costs.in_background(10) == 15  # training ends before the compiler does
    assert costs.in_place(100) == 20 + 50


def test_without_room_for_another_process_the_whole_compilation_counts(training):
    """A pause of 8 s would pay off within 200 s of training, but one of 25 s does not: 25 + 200 / 1.12."""
    compiled, notes, said, started = training(2020, 0.1, by=InPlace())
    assert (compiled, notes, started) == ([], [], [])
    assert "200 s; with compiling 204 s (a pause of 25 s" in said[0]


def test_the_pause_for_compiling_is_stored_for_the_next_training(training):
    compiled, notes, said, _ = training(10_000, 0.1, by=InPlace(), first_compiled=40.0)
    assert compiled == notes == [20] and len(said) == 1 and "a pause of 45 s" in said[0]
    costs = auto_compile.known("a kind", ASSUMED)["whole"]
    assert costs.measured and costs.compiling == pytest.approx(40, abs=1)
    assert costs.pause == ASSUMED["whole"].pause  # read from the cache, which nobody has measured yet
    training(10_000, 0.1, first_compiled=6.0)
    assert auto_compile.known("a kind", ASSUMED)["whole"].pause == pytest.approx(6, abs=1)
    training(10_000, 0.1, first_compiled=60.0)  # the cache was cleared
    assert auto_compile.known("a kind", ASSUMED)["whole"].pause == pytest.approx(6, abs=1)


def test_steps_are_measured_while_nothing_compiles(training):
    compiled, _, said, _ = training(2000, 0.1, Process(steps=50), contended=3.0)
    left = 2000 - compiled[0]
    assert f"{left:,} steps of 100.00 ms remain, {left / 10:.0f} s" in said[1]
    assert auto_compile.known("a kind", ASSUMED)["layers"].times == pytest.approx(2, rel=0.05)


def test_compiling_ends_with_the_training(training):
    process = Process(steps=10**9)
    training(2000, 0.1, process)
    assert process.stopped


def test_messages_of_a_resumed_training_name_its_first_step(training):
    training(2000, 0.1, Process(steps=50))
    said = training(2000, 0.1, first=500)[2]
    assert "compiled from step 500 on" in said[0] and "1,500 steps" in said[0]
