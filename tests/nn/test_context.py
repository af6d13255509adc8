"""What the layers share in one forward pass, and when no mask is needed."""

import torch

from headway.nn.context import AttentionContext
from headway.nn.masks import Causal, Everything, Mask, Padding, Prefix, Window
from headway.nn.positions import T5, Alibi, NoPositions

R, B, H, T = 2, 3, 4, 5
SLOTS = torch.arange(T)


def context(mask: Mask, positions=None, queries=SLOTS, keys=SLOTS, **more) -> AttentionContext:
    positions = (positions or NoPositions()).build(R, 8, H, T)
    return AttentionContext((R, B, H), positions, mask, queries, keys, **more)


def test_if_everything_is_visible_there_is_no_mask():
    made = context(Everything())
    assert made.allowed is None and made.bias is None and made.addend is None
    assert not made.is_plainly_causal


def test_only_a_whole_causal_sequence_uses_the_causal_kernel():
    assert context(Causal()).is_plainly_causal
    assert not context(Causal(), queries=SLOTS[3:]).is_plainly_causal
    assert not context(Causal() & Window(2)).is_plainly_causal
    assert not context(Prefix(1)).is_plainly_causal


def test_a_single_slot_sees_its_past_and_not_its_future():
    assert context(Causal(), queries=SLOTS[-1:]).allowed.all()
    assert context(Causal(), queries=SLOTS[2:3]).allowed.flatten().tolist() == [True, True, True, False, False]


def test_masks_have_as_many_axes_as_scores_and_no_more_rows_than_they_need():
    assert context(Causal()).allowed.shape == (1, 1, 1, T, T)
    padding_mask = torch.ones(R * B, T, dtype=torch.bool)
    assert context(Padding(padding_mask) & Causal()).allowed.shape == (R, B, 1, T, T)
    assert context(Padding(padding_mask)).allowed.shape == (R, B, 1, T, T)


def test_padding_finds_the_row_of_each_replica():
    padding_mask = torch.rand(R * B, T, generator=torch.Generator().manual_seed(0)) < 0.5
    allowed = context(Padding(padding_mask) & Causal()).allowed
    for r in range(R):
        for b in range(B):
            assert torch.equal(allowed[r, b, 0], padding_mask[r * B + b] & torch.ones(T, T).tril().bool())


def test_later_queries_get_their_rows_of_the_whole_mask():
    whole, part = context(Causal() & Window(2)), context(Causal() & Window(2), queries=SLOTS[3:])
    assert torch.equal(part.allowed, whole.allowed[..., 3:, :])
    assert torch.equal(context(Causal(), Alibi(), SLOTS[3:]).bias, context(Causal(), Alibi()).bias[..., 3:, :])


def test_biases_have_as_many_axes_as_scores():
    assert context(Everything(), Alibi()).bias.shape == (1, 1, H, T, T)
    assert context(Everything(), T5()).bias.shape == (R, 1, H, T, T)


def test_mask_and_bias_are_one_addend():
    only_mask, only_bias, both = context(Causal()), context(Everything(), Alibi()), context(Causal(), Alibi())
    assert only_mask.addend is only_mask.allowed
    assert only_bias.addend is only_bias.bias
    assert torch.equal(both.addend.isneginf(), ~both.allowed.expand_as(both.addend))
    assert torch.equal(both.addend.masked_fill(~both.allowed, 0), both.bias.masked_fill(~both.allowed, 0))


def test_shared_values_are_computed_once():
    made = context(Causal(), Alibi())
    assert made.allowed is made.allowed and made.bias is made.bias and made.addend is made.addend
