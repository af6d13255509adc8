import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from headway.core.errors import UserError
from headway.data.running.batches import Batch, BatchSpec, Contiguous, Crops, ShiftedContiguous

TOKENS = torch.arange(1000, dtype=torch.int32)


@pytest.mark.parametrize("spec", [Crops(), Contiguous()], ids=repr)
@given(length=st.integers(60, 400), segment=st.integers(1, 9), batch=st.integers(1, 5), step=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_targets_are_the_next_tokens(spec: BatchSpec, length: int, segment: int, batch: int, step: int):
    sampler = spec.build(TOKENS[:length], segment, batch, [3, 4])
    made = sampler.at(step)
    assert made.inputs.shape == made.targets.shape == (2, batch, segment)
    assert made.inputs.dtype == made.targets.dtype == torch.int64
    assert torch.equal(made.targets, made.inputs + 1)
    assert made.inputs.min() >= 0 and made.targets.max() < length
    again = sampler.at(step)
    assert torch.equal(made.inputs, again.inputs) and made.begins == again.begins


# Crops


def test_replicas_read_the_same_together_as_alone():
    seeds = [11, 5, 0, 7]
    together = Crops().build(TOKENS, 16, 8, seeds)
    for step in (0, 1, 999):
        for replica, seed in enumerate(seeds):
            alone = Crops().build(TOKENS, 16, 8, [seed]).at(step)
            assert torch.equal(together.at(step).inputs[replica], alone.inputs[0])


def test_seeds_and_steps_read_different_crops():
    sampler = Crops().build(TOKENS, 16, 8, [1, 2])
    first, second = sampler.at(0).inputs, sampler.at(1).inputs
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], second[0])


def test_crops_come_from_everywhere_first_and_last_included():
    sampler = Crops().build(TOKENS[:20], 16, 64, [0])
    firsts = torch.cat([sampler.at(step).inputs[0, :, 0] for step in range(20)])
    assert firsts.unique().tolist() == [0, 1, 2, 3]
    assert firsts.bincount().min() > 0.7 * len(firsts) / 4


def test_a_text_of_one_segment_has_one_crop():
    sampler = Crops().build(TOKENS[:17], 16, 2, [0])
    assert torch.equal(sampler.at(5).inputs[0], torch.arange(16).expand(2, -1))


def test_crops_never_continue():
    sampler = Crops().build(TOKENS, 16, 8, [0])
    assert sampler.steps_per_epoch == 8  # 1000 / 128, rounded up
    assert all(sampler.at(step).begins for step in range(10))


# Contiguous


@given(length=st.integers(60, 400), segment=st.integers(1, 9), batch=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_streams_cover_the_text_in_order(length: int, segment: int, batch: int):
    sampler = Contiguous().build(TOKENS[:length], segment, batch, [0])
    epoch = [sampler.at(step).inputs[0] for step in range(sampler.steps_per_epoch)]
    read = torch.cat(epoch, dim=1)
    stream = length // batch
    for row in range(batch):
        assert torch.equal(read[row], torch.arange(row * stream, row * stream + read.shape[1]))
    assert stream - 1 - read.shape[1] < segment  # the rest is too short for another segment


def test_epochs_start_again():
    sampler = Contiguous().build(TOKENS, 10, 4, [0, 1])
    assert sampler.steps_per_epoch == 24
    assert [step for step in range(100) if sampler.at(step).begins] == [0, 24, 48, 72, 96]
    assert torch.equal(sampler.at(3).inputs, sampler.at(27).inputs)


def test_every_seed_reads_the_same_order():
    made = Contiguous().build(TOKENS, 10, 4, [0, 1, 2]).at(7)
    assert torch.equal(made.inputs[0], made.inputs[1]) and torch.equal(made.inputs[0], made.inputs[2])
    assert torch.equal(made.inputs[:1], Contiguous().build(TOKENS, 10, 4, [9]).at(7).inputs)


def test_shifted_streams_are_contiguous_and_each_pass_is_cut_elsewhere():
    sampler, again = (ShiftedContiguous().build(TOKENS, 10, 4, [seed]) for seed in (0, 5))
    steps = sampler.steps_per_epoch
    assert steps == 24
    firsts, before = [], None
    for step in range(6 * steps):
        rows = sampler.at(torch.tensor(step, dtype=torch.int32))
        assert torch.equal(rows.inputs, again.at(step).inputs) and rows.begins == (step % steps == 0)
        if step % steps:
            assert torch.equal(rows.inputs[..., 0], before.targets[..., -1])
        else:
            firsts.append(int(rows.inputs[0, 0, 0]))
        before = rows
    assert max(firsts) < 10 and len(set(firsts)) > 2


@given(length=st.integers(8, 60), segment=st.integers(1, 9), batch=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_shifted_streams_stay_within_the_text(length: int, segment: int, batch: int):
    if length // batch < segment + 1:
        return
    sampler = ShiftedContiguous().build(TOKENS[:length], segment, batch, [0])
    assert sampler.steps_per_epoch >= 1
    ends = [sampler.at(step).targets[0, 0].max() for step in range(20 * sampler.steps_per_epoch)]
    assert max(ends) < length // batch


# Too short


def test_crops_of_too_short_a_text():
    with pytest.raises(UserError, match=r"has 16 tokens, too few for a segment of 16 .*longest possible segment is 15"):
        Crops().build(TOKENS[:16], 16, 2, [0])
    with pytest.raises(UserError, match=r"has 1 tokens, .* too short for any segment"):
        Crops().build(TOKENS[:1], 16, 2, [0])


def test_streams_of_too_short_a_text():
    Contiguous().build(TOKENS[:68], 16, 4, [0])
    with pytest.raises(UserError, match=r"has 67 tokens, too few .* segment is 15; .* training\.batch is 3 at most"):
        Contiguous().build(TOKENS[:67], 16, 4, [0])
    with pytest.raises(UserError, match=r"too short for any segment"):
        Contiguous().build(TOKENS[:7], 16, 4, [0])


# Parts


def test_the_parts_make_up_the_batch():
    whole = Crops().build(TOKENS, 16, 12, [0, 1]).at(0)
    parts = [whole.part(k, 3) for k in range(3)]
    assert whole.first_row == 0
    assert [part.first_row for part in parts] == [0, 4, 8]
    assert torch.equal(torch.cat([part.inputs for part in parts], dim=1), whole.inputs)
    assert torch.equal(torch.cat([part.targets for part in parts], dim=1), whole.targets)
    assert parts[2].part(1, 2).first_row == 10


def test_unequal_parts_are_refused():
    rows = torch.zeros(1, 10, 3, dtype=torch.int64)
    with pytest.raises(UserError, match="a batch of 10 rows cannot be split into 4 equal parts"):
        Batch(rows, rows, begins=True).part(0, 4)


def test_specs_by_name():
    spec = TypeAdapter(BatchSpec)
    assert spec.validate_python("contiguous") == Contiguous()
    assert spec.validate_python({"kind": "crops"}) == Crops()
    with pytest.raises(ValidationError):
        spec.validate_python("shuffled")
