"""The process that compiles in the background: what it is sent, how it ends, and that its errors never stop a
training."""

import errno
import os
import time
from dataclasses import replace

import pytest
import torch
from listening import Told
from varied import losses, trained

from headway.core import plugins
from headway.core.errors import UserError
from headway.core.events import Noted
from headway.experiment import background_compile
from headway.experiment.background_compile import CompilingProcess, end_with, kind_of_step, order_for, start_compiling
from headway.training import setting as settings


def ended(process: CompilingProcess) -> str | None:
    for _ in range(600):
        if (why := process.ended()) is not None:
            return why
        time.sleep(0.02)
    return None


@pytest.fixture
def another_program(monkeypatch):
    """Replaces the compiling process by one that prints this and ends like this."""

    def runs(code: str) -> None:
        monkeypatch.setattr(background_compile, "own_python", lambda: (["python", "-c", code], dict(os.environ)))

    return runs


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("", ""),
        ("import sys; print('a word'); sys.exit('no compiler')", "exited with 1: no compiler"),
        ("import os; os.kill(os.getpid(), 9)", "exited with -9: no output"),
    ],
    ids=["done", "failed", "killed"],
)
def test_how_it_ended_is_reported(another_program, code, told):
    another_program(code)
    process = CompilingProcess(b"{}")
    assert told in (ended(process) or "") and (told != "" or ended(process) == "")
    process.stop()


def test_one_that_hangs_ends_when_it_is_stopped(another_program):
    another_program("import time; time.sleep(1000)")
    process = CompilingProcess(b"{}")
    assert process.ended() is None
    process.stop()
    assert process.process.returncode == -9
    process.stop()  # stopping twice is allowed


def test_a_full_disk_does_not_stop_training(monkeypatch, base):
    def full(*given, **settings):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(background_compile.tempfile, "TemporaryFile", full)
    process = start_compiling([base], "whole")
    assert "No space left on device" in (process.ended() or "")
    process.stop()


def test_plugins_from_packages_are_not_sent_as_files(monkeypatch, base):
    """They are installed for the other process too."""
    file = plugins.Plugin("mine.py", "mine.py", "", "mine")
    package = plugins.Plugin("theirs==1.0", "theirs", "theirs==1.0", "theirs")
    monkeypatch.setattr("headway.recipe.plugins.concerning", lambda *specs: [file, package])
    with pytest.raises(UserError):
        plugins.load_text(package.name, package.text)  # what would happen in the other process
    assert b'"plugins": {"mine.py": ""}' in order_for([base], "whole")


def test_it_ends_with_the_training(monkeypatch):
    left = []
    monkeypatch.setattr(background_compile.os, "_exit", left.append)
    end_with(os.getppid(), look_every=0.01)
    time.sleep(0.05)
    assert left == []  # the parent is still running
    end_with(os.getpid(), look_every=0.01)  # not the parent's process number, as if the parent had ended
    for _ in range(200):
        if left:
            break
        time.sleep(0.01)
    assert left == [1]


def test_the_kind_of_a_step_has_everything_its_time_depends_on(base):
    """Otherwise the printed estimates, of the step time and the gain of compiling, would be those of a different
    step."""

    def kind(*changes: str, words: int = 7, seeds: int = 1) -> str:
        made = base.with_changes(["training.device=cpu", *changes])
        model = made.model.build(words, list(range(seeds)))
        return kind_of_step(made, model, object(), 64, settings.choose(made.training, made.model.width))  # pyright: ignore

    same = kind()
    assert kind("training.optimizer.learning_rate=0.5", "training.duration=7 steps", "seed=3") == same
    others = [kind(words=8), kind(seeds=2), kind("training.optimizer=sgd"), kind("training.batch=3")]
    assert len({same, *others}) == 5


@pytest.fixture
def of_several_lengths(base, tmp_path):
    """A classifier whose batches are each as long as their longest text."""
    table = tmp_path / "rows.tsv"
    texts = "".join(f"{'ab ' * (k % 5 + 1)}word{k}\t{'yes' if k % 2 else 'no'}\n" for k in range(60))
    table.write_text("text\tlabel\n" + texts)
    data = {"kind": "labelled", "source": "files", "path": str(table), "batches": "by-length"}
    model = {"kind": "classifier", "layers": 1, "width": 8, "mixer": {"heads": 2}}
    return base.model_validate({**base.model_dump(mode="json"), "data": data, "model": model})


def test_batches_of_several_lengths_are_not_compiled_in_the_background_which_is_reported(
    monkeypatch, of_several_lengths
):
    """Every shape would be compiled while training waits, which the estimated cost does not include."""
    chosen, told = settings.choose, Told()
    monkeypatch.setattr(settings, "choose", lambda *given: replace(chosen(*given), may_compile=True))
    trained([of_several_lengths], "rows", listeners=[told])
    said = [event.text for event in told.events if isinstance(event, Noted)]
    assert any(text.startswith("not compiled: batches have several lengths") for text in said)


def test_if_a_later_length_cannot_be_compiled_training_continues_uncompiled(monkeypatch, of_several_lengths, caplog):
    (plain,) = trained([of_several_lengths], "plain")
    seen: set[int] = set()

    def compiled(loss, **how):
        def call(batch, *rest):
            seen.add(batch.inputs.shape[-1])
            if len(seen) > 1:
                raise ImportError("file too short")
            return loss(batch, *rest)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    (run,) = trained([of_several_lengths.with_changes(["training.compile=on"])], "compiled")
    assert len(seen) > 1 and "training continues uncompiled" in caplog.text
    assert losses(run) == losses(plain)
