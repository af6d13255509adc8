"""Attention masks: truth tables, and the rules of combining masks. True = may attend."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.nn.masks import Both, Causal, Everything, Mask, Padding, Prefix, Window

ROWS, SLOTS = 2, 5
REAL = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]).bool()


def table(mask: Mask, rows: int = ROWS, slots: int = SLOTS) -> Tensor:
    """[rows, i, j]"""
    row, i, j = torch.arange(rows)[:, None, None], torch.arange(slots)[:, None], torch.arange(slots)[None, :]
    return mask.allows(row, i, j).expand(rows, slots, slots)


def written(*lines: str) -> Tensor:
    return torch.tensor([[c == "x" for c in line] for line in lines])


TABLES = {
    "everything": (Everything(), ["xxxxx", "xxxxx", "xxxxx", "xxxxx", "xxxxx"]),
    "causal": (Causal(), ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"]),
    "window": (Window(2), ["xx...", "xxx..", ".xxx.", "..xxx", "...xx"]),
    "window of one": (Window(1), ["x....", ".x...", "..x..", "...x.", "....x"]),
    "prefix": (Prefix(3), ["xxx..", "xxx..", "xxx..", "xxxx.", "xxxxx"]),
    "prefix of nothing": (Prefix(0), ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"]),
    "causal window": (Causal() & Window(2), ["x....", "xx...", ".xx..", "..xx.", "...xx"]),
    "prefix window": (Prefix(2) & Window(2), ["xx...", "xx...", ".xx..", "..xx.", "...xx"]),
}


@pytest.mark.parametrize("name", TABLES)
def test_truth_table(name: str):
    mask, lines = TABLES[name]
    assert torch.equal(table(mask)[0], written(*lines))
    assert torch.equal(table(mask)[0], table(mask)[1])


def test_padding_hides_the_keys_of_each_row():
    found = table(Padding(REAL))
    assert torch.equal(found[0], written(*["xxx.."] * 5))
    assert torch.equal(found[1], written(*[".xxxx"] * 5))


def test_a_query_of_a_causal_padded_row_can_have_no_visible_keys():
    found = table(Padding(REAL) & Causal())
    assert torch.equal(found[1], written(".....", ".x...", ".xx..", ".xxx.", ".xxxx"))


def test_a_mask_gives_the_same_by_index_as_for_a_grid():
    mask = Causal() & Window(3) & Padding(REAL)
    grid = table(mask)
    for row in range(ROWS):
        for i in range(SLOTS):
            for j in range(SLOTS):
                assert mask.allows(*map(torch.tensor, (row, i, j))) == grid[row, i, j]


MASKS = st.one_of(
    st.just(Everything()),
    st.just(Causal()),
    st.builds(Window, st.integers(1, 6)),
    st.builds(Prefix, st.integers(0, 6)),
    st.lists(st.booleans(), min_size=ROWS * SLOTS, max_size=ROWS * SLOTS).map(
        lambda padding_mask: Padding(torch.tensor(padding_mask).view(ROWS, SLOTS))
    ),
)


@given(a=MASKS, b=MASKS, c=MASKS)
@settings(max_examples=50, deadline=None)
def test_and_is_the_conjunction_associative_and_commutative(a: Mask, b: Mask, c: Mask):
    expected = table(a) & table(b) & table(c)
    for combined in ((a & b) & c, a & (b & c), c & b & a):
        assert torch.equal(table(combined), expected)
        if isinstance(combined, Both):
            assert not any(isinstance(part, Both | Everything) for part in combined.parts)


@given(mask=MASKS)
@settings(max_examples=30, deadline=None)
def test_everything_is_the_neutral_mask(mask: Mask):
    assert mask & Everything() == mask == Everything() & mask


def test_masks_of_numbers_are_compared_by_value():
    assert Causal() == Causal() and Window(3) == Window(3)
    assert Window(3) != Window(4) and Prefix(2) != Window(2) and Causal() != Causal() & Window(2)
