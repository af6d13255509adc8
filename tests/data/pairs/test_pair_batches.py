"""Batches of pairs: a pure function of the step, every pair once per epoch, few shapes."""

import itertools

import numpy as np
import pytest
import torch

from headway.core.errors import UserError
from headway.data.pairs.batches import Buckets, least_padding
from headway.data.pairs.dataset import PairedTexts, Side

END = 50


def side(lengths, shift):
    ids = [np.full(n, k % 40 + shift, dtype=np.int32) for k, n in enumerate(lengths)]
    return Side([f"{k}" for k in range(len(ids))], np.concatenate(ids), np.cumsum([len(i) for i in ids]), END)


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, 400)
    return PairedTexts(side(lengths, 0), side(np.maximum(1, lengths + rng.integers(-1, 2, 400)), 1), np.ones(400, bool))


def built(pairs, seeds=(0,), longest=40, **settings):
    return Buckets(**settings).build(pairs, longest, 4, seeds, "cpu")


@pytest.mark.parametrize("equal", ["tokens", "rows"])
def test_an_epoch_has_every_pair_in_steps_of_similar_size(pairs, equal):
    sampler, seen, slots = built(pairs, equal=equal), [], set()
    for step in range(sampler.steps_per_epoch):
        batch = sampler.at(step)
        slots.add(batch.inputs[0].numel() if equal == "tokens" else batch.inputs.shape[1])
        for source, told in zip(batch.sources[0], batch.source_mask[0], strict=True):
            seen.append(tuple(source[told].tolist()))
    counts = {row: seen.count(row) for row in seen}
    right = [(*[k % 40] * int(n - 1), END) for k, n in enumerate(pairs.source.lengths)]
    assert all(counts[row] >= right.count(row) for row in right) and len(seen) < 1.2 * len(right)
    assert max(slots) <= (2 * min(slots) if equal == "tokens" else 4)


def test_targets_are_the_next_tokens_and_padding_is_masked(pairs):
    batch = built(pairs).at(5)
    assert (batch.inputs[..., 0] == END).all()
    assert torch.equal(batch.inputs[..., 1:], batch.targets[..., :-1])
    lengths = batch.padding_mask.sum(2)
    assert (batch.targets.gather(2, lengths[..., None] - 1) == END).all()
    assert (batch.sources.gather(2, batch.source_mask.sum(2, keepdim=True) - 1) == END).all()
    first = batch.sources[0, :, 0]
    assert torch.equal(batch.targets[0, :, 0], first + 1)  # source and target are of the same pair


def test_a_replica_reads_the_same_alone_as_in_a_population(pairs):
    both, alone = built(pairs, seeds=(3, 8)), built(pairs, seeds=(8,))
    for step in (0, 7, 100):
        for name in ("inputs", "targets", "sources", "source_mask"):
            assert torch.equal(getattr(both.at(step), name)[1], getattr(alone.at(step), name)[0])
    assert any(not torch.equal(both.at(s).sources[0], both.at(s).sources[1]) for s in range(5))


def test_a_batch_of_one_shape_depends_only_on_its_step(pairs):
    sampler = built(pairs)
    for step in range(0, 3 * sampler.steps_per_epoch, 7):
        one = sampler.of_shape(sampler.shape_of(step)).at(torch.tensor(step, dtype=torch.int32))
        assert torch.equal(one.sources, sampler.at(step).sources)


def test_the_parts_make_up_the_batch(pairs):
    batch = built(pairs).at(2)
    parts = [batch.part(k, 2) for k in range(2)]
    assert torch.equal(torch.cat([p.sources for p in parts], 1), batch.sources) and parts[1].first_row > 0


def test_pairs_that_are_too_long_are_left_out_and_it_is_an_error_if_all_are(pairs):
    sampler = built(pairs, longest=10)
    assert max(sampler.at(s).inputs.shape[2] for s in range(sampler.steps_per_epoch)) <= 10
    with pytest.raises(UserError, match="set model"):
        built(pairs, longest=1)


@pytest.mark.parametrize("seed", range(20))
def test_the_chosen_widths_have_the_least_padding(seed):
    rng = np.random.default_rng(seed)
    lengths, enough = rng.integers(1, 9, size=30), int(rng.integers(1, 12))

    def slots(widths) -> float:
        rows = np.histogram(lengths, [0, *(w + 0.5 for w in widths)])[0]
        return rows @ widths if len(widths) == 1 or rows.min() >= enough else np.inf

    most = int(lengths.max())
    others = [(*some, most) for n in range(3) for some in itertools.combinations(range(1, most), n)]
    assert slots(least_padding(lengths, 3, enough)) == min(map(slots, others))


def test_pairs_of_thousands_of_lengths_are_grouped_quickly():
    """A loop over all pairs of lengths would take half a minute each time."""
    assert len(least_padding(np.arange(1, 4001), 8, 50)) == 8
