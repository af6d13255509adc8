"""Checkpoints are restored exactly, and damage is named."""

import json
from pathlib import Path

import pytest
import torch

from headway.core.errors import UserError
from headway.training import checkpoint
from headway.training.checkpoint import FACTS, OPTIMIZER, WEIGHTS, BrokenCheckpointError, Checkpoint

FILES = [WEIGHTS, OPTIMIZER, FACTS]


@pytest.fixture
def made() -> Checkpoint:
    facts = {"standing": {"ended": None, "best": 0.625}}
    weights = {"a.weight": torch.randn(3, 4), "a.bias": torch.tensor([0.0, -0.0, torch.nan, torch.inf])}
    return Checkpoint(70, facts, weights, {"mean/a.weight": torch.randn(3, 4)})


@pytest.fixture
def folder(tmp_path: Path, made: Checkpoint) -> Path:
    path = checkpoint.step_folder(tmp_path / "checkpoints", made.step)
    checkpoint.save(path, made)
    return path


def test_a_checkpoint_is_restored_bit_for_bit(folder: Path, made: Checkpoint):
    found = checkpoint.load(folder)
    assert (found.step, found.facts) == (made.step, made.facts)
    for ours, theirs in ((found.weights, made.weights), (found.optimizer, made.optimizer)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[k].view(torch.int32), theirs[k].view(torch.int32)) for k in ours)


def test_a_checkpoint_is_three_files_and_nothing_else(folder: Path):
    assert sorted(file.name for file in folder.iterdir()) == sorted(FILES)
    assert [f.name for f in folder.parent.iterdir()] == ["step-00000070"]


def test_saving_again_replaces_the_whole_checkpoint(folder: Path, made: Checkpoint):
    checkpoint.save(folder, Checkpoint(70, {}, {"b": torch.ones(1)}, {}))
    found = checkpoint.load(folder)
    assert list(found.weights) == ["b"] and found.optimizer == {} and found.facts == {}


def test_a_save_that_fails_leaves_the_old_one(folder: Path, made: Checkpoint, monkeypatch: pytest.MonkeyPatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "as_json", fail)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(folder, Checkpoint(70, {}, {}, {}))
    assert checkpoint.load(folder).facts == made.facts
    assert [f.name for f in folder.parent.iterdir()] == ["step-00000070"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0, 9, 0.5, -2])
def test_a_changed_byte_is_noticed(folder: Path, name: str, place: float):
    content = bytearray((folder / name).read_bytes())
    content[int(place * len(content)) if isinstance(place, float) else place] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(BrokenCheckpointError, match=name if name != FACTS else "step-00000070"):
        checkpoint.load(folder)


def test_every_single_changed_digit_of_the_facts_is_noticed(folder: Path):
    text = (folder / FACTS).read_text()
    for place, letter in enumerate(text):
        if letter.isdigit():
            (folder / FACTS).write_text(text[:place] + str((int(letter) + 1) % 10) + text[place + 1 :])
            with pytest.raises(BrokenCheckpointError):
                checkpoint.load(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("left", [0, 10, 100])
def test_a_truncated_file_is_noticed(folder: Path, name: str, left: int):
    (folder / name).write_bytes((folder / name).read_bytes()[:left])
    with pytest.raises(BrokenCheckpointError, match="step-00000070"):
        checkpoint.load(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str):
    (folder / name).unlink()
    with pytest.raises(BrokenCheckpointError, match=f"{name} is missing"):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    "facts", ["null", "[]", "{}", '{"step": 1}', '{"step": 1, "sha256": {}}', '{"step": 1, "sha256": 3}']
)
def test_facts_of_another_kind_are_noticed(folder: Path, facts: str):
    (folder / FACTS).write_text(facts)
    with pytest.raises(BrokenCheckpointError, match="step-00000070"):
        checkpoint.load(folder)


def test_a_broken_checkpoint_is_a_message_and_not_a_traceback():
    assert issubclass(BrokenCheckpointError, UserError)


def test_facts_are_readable_json(folder: Path):
    facts = json.loads((folder / FACTS).read_text())
    assert facts["step"] == 70 and set(facts["sha256"]) >= {WEIGHTS, OPTIMIZER}


def test_steps_are_listed_newest_first_whatever_else_is_in_the_folder(tmp_path: Path):
    for name in ("step-00000009", "step-00000100", "step-00000020", "best", ".step-00000030.1.partial", "step-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000500").write_text("a file")
    assert checkpoint.saved_steps(tmp_path) == [100, 20, 9]
    assert checkpoint.saved_steps(tmp_path / "nowhere") == []
    assert checkpoint.step_folder(tmp_path, 9).name == "step-00000009"
