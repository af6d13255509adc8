"""Which texts a step reads: each once per epoch, as a pure function of seed and step, independent of other replicas."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from headway.core.errors import UserError
from headway.data.labelled.batches import RowBatch, RowTable, Shuffled, bucket_widths
from headway.data.labelled.by_length import ByLength


def table(lengths: list[int]) -> RowTable:
    """The tokens of text k are all k + 1, and its label is k."""
    sizes = np.array(lengths)
    ids = np.where(np.arange(sizes.max()) < sizes[:, None], np.arange(1, len(sizes) + 1)[:, None], 0)
    return RowTable(ids.astype(np.int32), sizes, np.arange(len(sizes)), "cpu")


def lengths(n: int, most: int = 30) -> list[int]:
    return (1 + torch.randint(most, (n,), generator=torch.Generator().manual_seed(n))).tolist()


LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=200)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 7), st.integers(1, 5), st.integers(0, 3))
def test_an_epoch_has_every_text_once_and_a_few_twice_to_fill_the_last_batches(given_lengths, batch, buckets, epoch):
    sampler = Shuffled(buckets=buckets).build(table(given_lengths), batch, [5])
    seen: Counter[int] = Counter()
    for step in range(epoch * sampler.steps_per_epoch, (epoch + 1) * sampler.steps_per_epoch):
        made = sampler.at(step)
        assert made.inputs.shape == made.padding_mask.shape and made.inputs.shape[:2] == made.targets.shape == (
            1,
            batch,
        )
        for row, padding_mask, label in zip(
            made.inputs[0], made.padding_mask[0], made.targets[0].tolist(), strict=True
        ):
            assert int(padding_mask.sum()) == given_lengths[label] and (row[padding_mask] == label + 1).all()
            assert not row[~padding_mask].any()
        seen.update(made.targets.flatten().tolist())
    assert set(seen) == set(range(len(given_lengths)))
    assert sampler.steps_per_epoch * batch - len(given_lengths) < buckets * batch


def test_batches_depend_only_on_seed_and_step():
    rows = table(lengths(300))
    together = Shuffled().build(rows, 8, [3, 9, 4])
    for r, seed in enumerate([3, 9, 4]):
        alone = Shuffled().build(rows, 8, [seed])
        for step in (700, 0, 41, 1):  # in any order: the sampler has no state
            ours, theirs = together.at(step), alone.at(torch.tensor(step, dtype=torch.int32))
            for a, b in [
                (ours.inputs, theirs.inputs),
                (ours.padding_mask, theirs.padding_mask),
                (ours.targets, theirs.targets),
            ]:
                assert torch.equal(a[r], b[0])


def test_seeds_and_epochs_have_different_orders():
    sampler = Shuffled(buckets=1).build(table(lengths(64)), 64, [0, 1])
    first, second = sampler.at(0).targets, sampler.at(1).targets
    assert sampler.steps_per_epoch == 1
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], second[0])
    assert first[0].sort().values.tolist() == list(range(64))


def test_buckets_save_padding_and_do_not_sort_by_length():
    rows = table(lengths(2000))
    batches = {k: Shuffled(buckets=k).build(rows, 8, [0]) for k in (1, 4)}
    padding, widths = {}, {}
    for k, sampler in batches.items():
        made = [sampler.at(step) for step in range(sampler.steps_per_epoch)]
        padding[k] = sum(int((~m.padding_mask).sum()) for m in made) / sum(m.padding_mask.numel() for m in made)
        widths[k] = [m.inputs.shape[2] for m in made]
    assert padding[1] > 0.4 and padding[4] < 0.2
    assert len(set(widths[4])) == 4 and len(set(widths[1])) == 1
    half = len(widths[4]) // 2
    assert abs(np.mean(widths[4][:half]) - np.mean(widths[4][half:])) < 3


def test_few_texts_or_texts_of_one_length_have_few_buckets():
    assert bucket_widths(np.array([3] * 999), 4, 8) == [3]
    assert bucket_widths(np.array([3] * 999 + [4]), 4, 8) == [4]
    assert bucket_widths(np.arange(1, 40), 4, 8) == [39]
    assert bucket_widths(np.array([2] * 64 + [9] * 64), 4, 8) == [2, 9]
    assert bucket_widths(np.array([2] * 64 + [9] * 63), 4, 8) == [9]


def test_buckets_of_texts_of_one_length_mix_their_order():
    """A table sorted by class must not put one class into one bucket and the other into the next."""
    sampler = Shuffled().build(table([5] * 1600), 40, [0])
    halves = [(sampler.at(step).targets < 800).float().mean() for step in range(40)]
    assert min(halves) > 0.2 and max(halves) < 0.8


def test_a_recordable_step_reads_the_same_rows_in_one_shape_without_synchronising():
    rows = table(lengths(300))
    plain, recorded = (Shuffled().build(rows, 8, [0, 1]) for _ in range(2))
    recorded._recordable = True  # as on CUDA
    for step in (0, 5, 99):
        ours, theirs = recorded.at(step), plain.at(step)
        assert ours.inputs.shape == (2, 8, 30) and torch.equal(ours.targets, theirs.targets)
        width = theirs.inputs.shape[2]
        assert torch.equal(ours.inputs[..., :width], theirs.inputs) and not ours.padding_mask[..., width:].any()
    with FakeTensorMode() as fake:  # tensors without values, so that reading one is an error
        for part in (recorded, recorded._texts):
            for name, value in vars(part).items():
                if isinstance(value, torch.Tensor):
                    setattr(part, name, fake.from_tensor(value))
        made = recorded.at(torch.empty((), dtype=torch.int32))
        assert made.inputs.shape == (2, 8, 30)


def test_a_batch_is_split_into_parts():
    whole = Shuffled().build(table(lengths(50)), 6, [0, 1]).at(3)
    parts = [whole.part(k, 3) for k in range(3)]
    assert [part.first_row for part in parts] == [0, 2, 4]
    for name in ("inputs", "padding_mask", "targets"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts], 1), getattr(whole, name))
    with pytest.raises(UserError, match="a batch of 6 rows cannot be split into 4 equal parts"):
        whole.part(0, 4)
    assert isinstance(parts[0].part(1, 2), RowBatch) and parts[1].part(1, 2).first_row == 3


# Each batch is as long as its longest text


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 7), st.integers(0, 3))
def test_by_length_an_epoch_has_every_text_and_batches_are_as_long_as_their_longest(given_lengths, batch, epoch):
    sampler = ByLength().build(table(given_lengths), batch, [5, 6])
    seen = [Counter(), Counter()]
    first = epoch * sampler.steps_per_epoch
    for step in range(first, first + sampler.steps_per_epoch):
        made = sampler.at(step)
        assert made.targets.shape == (2, batch)
        for r in range(2):
            assert made.padding_mask[r, :, -1].any()  # each replica's width is that of its own longest text
            for row, told, label in zip(made.inputs[r], made.padding_mask[r], made.targets[r].tolist(), strict=True):
                assert (
                    int(told.sum()) == given_lengths[label] and (row[told] == label + 1).all() and not row[~told].any()
                )
            seen[r].update(made.targets[r].tolist())
        assert torch.equal(sampler.rows_at(step), made.targets)  # the label of text k is k
    for r in range(2):
        assert set(seen[r]) == set(range(len(given_lengths)))
        if len(given_lengths) > batch:
            assert max(seen[r].values()) <= 2 and seen[r].total() - len(given_lengths) <= batch


def test_by_length_batches_depend_only_on_seed_and_step_and_seeds_and_epochs_differ():
    rows = table(lengths(300, most=6))
    together = ByLength().build(rows, 16, [3, 9])
    alone = ByLength().build(rows, 16, [9])
    for step in (70, 0, 41, 1):
        ours, theirs = together.at(step), alone.at(torch.tensor(step, dtype=torch.int32))
        assert torch.equal(ours.inputs[1], theirs.inputs[0]) and torch.equal(ours.targets[1], theirs.targets[0])
        assert not torch.equal(ours.targets[0], ours.targets[1])
    S = together.steps_per_epoch
    one, two = (sorted(tuple(together.at(k + step).targets[0].tolist()) for step in range(S)) for k in (0, S))
    assert one != two


def test_by_length_there_is_little_padding():
    rows = table(lengths(2000))
    slots = {}
    for spec in (Shuffled(), ByLength()):
        sampler = spec.build(rows, 16, [0])
        slots[spec.kind] = sum(sampler.at(step).inputs.numel() for step in range(sampler.steps_per_epoch))
    assert slots["by-length"] < 1.03 * rows.lengths_on_host.sum() < slots["shuffled"]


def test_by_length_a_recordable_step_reads_the_same_rows_in_few_shapes_without_synchronising():
    rows = table(lengths(200))
    recorded, plain = (ByLength().build(rows, 8, [0, 1]) for _ in range(2))
    recorded._recordable = True
    shapes = {recorded.shape_of(step) for step in range(recorded.steps_per_epoch)}
    assert shapes <= {8, 16, 24, 30}
    for step in (0, 7, 31):
        ours, theirs = recorded.at(step), plain.at(step)
        width = theirs.inputs.shape[2]
        assert torch.equal(ours.targets, theirs.targets) and torch.equal(ours.inputs[..., :width], theirs.inputs)
        assert not ours.padding_mask[..., width:].any()
    with FakeTensorMode() as fake:
        for part in (recorded, recorded.texts):
            for name, value in vars(part).items():
                if isinstance(value, torch.Tensor):
                    setattr(part, name, fake.from_tensor(value))
        assert recorded.of_shape(16).at(torch.empty((), dtype=torch.int32)).inputs.shape == (2, 8, 16)
