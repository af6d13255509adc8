"""A run that switches to compiled programs during training records the step, and a resumed run switches at the same
step."""

from dataclasses import replace

import pytest
from listening import Interrupting, Told
from varied import losses, same_end, trained

from headway.core.events import Noted
from headway.experiment import train as training
from headway.training import auto_compile, checkpoint
from headway.training import setting as settings
from headway.training.update import Update


@pytest.fixture(autouse=True)
def compiles(monkeypatch):
    """Compiling is simulated as on a GPU where it always pays; compiled steps are recognised by slightly different
    losses."""
    chosen = settings.choose
    monkeypatch.setattr(settings, "choose", lambda *given: replace(chosen(*given), may_compile=True))
    monkeypatch.setattr(auto_compile, "MIN_GAIN", -1e9)
    monkeypatch.setattr(auto_compile.Costs, "in_place", lambda self, plain: -self.pause)
    monkeypatch.setattr(training, "compiler_for", lambda recipes, device: auto_compile.InPlace())

    def compile(self, whole):
        plain = self.loss
        self.loss = lambda batch, state: (plain(batch, state)[0] * 1.001, plain(batch, state)[1])

    def uncompile(self):
        self.loss = self.model.loss

    monkeypatch.setattr(Update, "compile", compile)
    monkeypatch.setattr(Update, "uncompile", uncompile)


def test_the_step_of_the_switch_is_recorded_in_every_folder(variants):
    told = Told()
    plain = trained(variants[:2], "plain", listeners=[told])
    noted = {tuple(run.facts["compiled_from"]) for run in plain}
    assert noted == {(6, "whole")}  # the first step after the measured ones
    said = [event.text for event in told.events if isinstance(event, Noted)]
    assert any("steps of" in text and "ms remain" in text for text in said)
    assert any(text.startswith("compiled from step 6 on") for text in said)


def dies_after(step, variants, monkeypatch):
    """A training that is lost after the checkpoint of this step."""
    save = checkpoint.save

    def dying(folder, made):
        if made.step > step:
            raise MemoryError("killed")
        save(folder, made)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", dying)
        with pytest.raises(MemoryError):
            trained(variants, "broken")


@pytest.mark.parametrize("saved", [5, 11], ids=["before the swap", "after it"])
def test_a_resumed_run_switches_at_the_same_step(variants, monkeypatch, saved):
    whole = trained(variants[:2], "whole")
    if saved == 11:
        trained(variants[:2], "broken", listeners=[Interrupting(10)])
    else:
        dies_after(saved, variants[:2], monkeypatch)
    resumed = trained(variants[:2], "broken", resume=True)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert losses(ours) == losses(theirs)
        assert same_end(ours, theirs)


@pytest.mark.parametrize("saved", [10, 15], ids=["between", "after the way back"])
def test_a_resumed_run_goes_back_to_uncompiled_steps_at_the_same_step(variants, monkeypatch, saved):
    monkeypatch.setattr(auto_compile, "SLOWER", 1e9)
    costs = {"whole": auto_compile.Costs(1.0, 1.0, 2.0)}
    monkeypatch.setattr(training, "assumed_for", lambda model, optimizer: costs)
    monkeypatch.setattr(auto_compile.AutoCompile, "_keep", lambda self: None)  # each training measures by itself
    variants, told = [one.with_changes(["training.duration=24 steps"]) for one in variants[:2]], Told()
    whole = trained(variants, "whole", listeners=[told])
    ((start, end),) = {(run.facts["compiled_from"][0], run.facts["compiled_until"]) for run in whole}
    assert start == 6 and 10 < end < 16
    assert any("uncompiled again" in event.text for event in told.events if isinstance(event, Noted))
    dies_after(saved, variants, monkeypatch)
    resumed = trained(variants, "broken", resume=True)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert ours.facts["compiled_until"] == end
        assert losses(ours) == losses(theirs)
        assert same_end(ours, theirs)
