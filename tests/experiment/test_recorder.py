"""Writing in the background of training: in order, with a bounded queue, and without losing errors."""

import threading
import time

import pytest
from tiny import Workshop, snapshot, tiny_recipe

import headway.experiment.train as experiment
from headway.experiment.recorder import Writer, WriterBeside, writer_for
from headway.training.processes import ALONE, Processes
from headway.training.setting import choose
from headway.training.spec import TrainingSpec


@pytest.fixture
def beside():
    writer = WriterBeside(ALONE, at_most=2)
    yield writer
    writer.close()


def test_writes_run_in_another_thread_and_in_order(beside: WriterBeside):
    done = []
    for k in range(20):
        beside(lambda k=k: done.append((k, threading.current_thread().name)))
    beside.finish()
    assert [k for k, _ in done] == list(range(20))
    assert all(name.startswith("headway-writer") for _, name in done)


def test_the_queue_of_copies_is_bounded(beside: WriterBeside):
    gate = threading.Event()
    for _ in range(2):
        beside(gate.wait)
    threading.Timer(0.2, gate.set).start()
    began = time.perf_counter()
    beside(lambda: None)  # has to wait until the gate opens
    assert time.perf_counter() - began > 0.1


def full() -> None:
    raise OSError("No space left on device")


def test_an_error_is_raised_by_a_later_write(beside: WriterBeside):
    beside(full)
    with pytest.raises(OSError, match="No space left"):
        for _ in range(3):
            beside(lambda: None)


def test_an_error_is_raised_at_the_end_at_the_latest(beside: WriterBeside):
    beside(full)
    with pytest.raises(OSError, match="No space left"):
        beside.finish()


def test_queued_writes_are_completed_however_training_ends():
    done = []
    writer = WriterBeside(ALONE, at_most=5)
    for k in range(5):
        writer(lambda k=k: (time.sleep(0.02), done.append(k)))
    writer.close()
    assert done == list(range(5))


def test_a_cpu_and_several_processes_write_at_once():
    setting = choose(TrainingSpec(device="cpu"), width=16)
    assert type(writer_for(setting, ALONE, 3)) is Writer
    assert type(writer_for(setting, Processes(0, 2), 3)) is Writer


def test_a_run_written_in_the_background_equals_one_written_immediately(workshop: Workshop, tmp_path, monkeypatch):
    recipe = tiny_recipe(workshop.text, "training.keep_best=true", "training.checkpoint_every=1step")
    experiment.train([recipe], ["run"], tmp_path / "at-once")
    monkeypatch.setattr(experiment, "writer_for", lambda setting, processes, n: WriterBeside(processes, n))
    experiment.train([recipe], ["run"], tmp_path / "beside")
    at_once, beside = snapshot(tmp_path / "at-once"), snapshot(tmp_path / "beside")
    assert at_once.keys() == beside.keys()
    for name in at_once:
        if name.endswith((".safetensors", "scores.json", "metrics.jsonl")):
            assert at_once[name] == beside[name], name
