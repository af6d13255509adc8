"""Which tokens are masked is a pure function of seed, step, row and position, at the configured rate."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.audit.masking.recount import chosen
from headway.core.errors import UserError
from headway.core.validation import ImpossibleError
from headway.data.marks import Marks
from headway.data.running.masking import Hiding
from headway.data.running.rows import pieces, rows_of_lines
from headway.data.vocabularies import Word
from headway.models.masked_language_model import ALL_HIDDEN, Masking
from headway.recipe.recipe import from_tree
from headway.scoring.masked import hide

MARKS = Marks(50, 51, 52, 53)
WORDS = torch.arange(50)


def rows(R: int, B: int, T: int, lengths=None):
    ids = torch.randint(0, 50, (R, B, T), generator=torch.Generator().manual_seed(1))
    ids[..., 0] = MARKS.cls
    lengths = torch.full((B,), T) if lengths is None else torch.tensor(lengths)
    mask = (torch.arange(T) < lengths[:, None]).expand(R, B, T)
    ids = ids.where(mask, MARKS.pad)
    ids[:, torch.arange(B), lengths - 1] = MARKS.sep
    return ids, mask


def test_a_replica_masks_the_same_tokens_alone_in_a_population_and_in_parts():
    ids, _ = rows(1, 8, 20)
    among = Hiding(Masking(), MARKS, WORDS, [3, 4, 5], 20, "hidden")(ids.expand(3, -1, -1), None, 7)
    alone = Hiding(Masking(), MARKS, WORDS, [4], 20, "hidden")(ids, None, 7)
    assert torch.equal(among.inputs[1:2], alone.inputs) and torch.equal(among.places[1:2], alone.places)
    assert not torch.equal(among.inputs[0], among.inputs[2])
    later = Hiding(Masking(), MARKS, WORDS, [4], 20, "hidden")(ids, None, 8)
    assert not torch.equal(later.places, alone.places)
    part = alone.part(1, 4)
    assert torch.equal(part.inputs, alone.inputs[:, 2:4]) and part.first_row == 2
    behind = Hiding(Masking(), MARKS, WORDS, [4], 20, "hidden")(ids[:, 2:4], None, 7, first=2)
    assert torch.equal(behind.inputs, part.inputs)
    with pytest.raises(UserError, match="3 equal parts"):
        alone.part(0, 3)


def test_padding_does_not_change_the_masked_tokens():
    lengths = [20, 5, 3, 12]
    ids, mask = rows(2, 4, 20, lengths)
    make = Hiding(Masking(share=0.3), MARKS, WORDS, [0, 1], 24, "hidden")
    short, wide = (
        make(ids, mask, 3),
        make(torch.nn.functional.pad(ids, (0, 4)), torch.nn.functional.pad(mask, (0, 4)), 3),
    )
    assert torch.equal(short.inputs, wide.inputs[..., :20])
    assert short.asked is not None and short.asked[0].sum(1).tolist() == [5, 1, 1, 3]
    assert torch.equal(short.restored, ids)
    hidden = short.places[short.asked]
    assert bool((hidden > 0).all()) and bool(mask.gather(2, short.places)[short.asked].all())


def test_what_masked_tokens_are_replaced_by():
    ids, _ = rows(1, 4000, 22)
    found = Hiding(Masking(), MARKS, WORDS, [0], 22, "hidden")(ids, None, 0)
    put = found.inputs.gather(2, found.places)
    masked, kept = (put == MARKS.mask).double().mean(), (put == found.targets).double().mean()
    assert masked == pytest.approx(0.8, abs=0.02) and kept == pytest.approx(0.1 + 0.1 / 50, abs=0.02)
    assert found.places.shape[2] == 3 and int(put.max()) <= MARKS.mask
    where = torch.bincount(found.places.flatten(), minlength=22)[1:-1] / 4000
    assert where.min() > 0.12 and where.max() < 0.18


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 14), min_size=1, max_size=9), st.floats(0.05, 0.9))
def test_masks_for_scoring_equal_their_plain_definition(lengths, share):
    tokenizer = Word().learn("a b c d e").with_marks()
    text = "\n".join(" ".join("abcde"[(3 * k + j) % 5] for j in range(n)) for k, n in enumerate(lengths))
    split = rows_of_lines(text, tokenizer, 14)
    assert split.lengths.tolist() == lengths
    found = hide(split, tokenizer, share)
    for k, n in enumerate(lengths):
        ours = found.places[0, k][found.asked[0, k]] - 1
        assert sorted(ours.tolist()) == sorted(chosen(k, n, 14, share, tokenizer.marks))
    assert set(found.inputs[0][(found.inputs != found.restored)[0]].tolist()) <= {tokenizer.marks.mask}


def test_rows():
    split = pieces(np.arange(10, dtype=np.int32), 4)
    assert split.lengths.tolist() == [4, 4, 2] and split.beginning(8).ids.tolist() == list(range(8))
    table, lengths = split.only(slice(1, 3)).padded(MARKS)
    assert table.tolist() == [[50, 4, 5, 6, 7, 51], [50, 8, 9, 51, 53, 53]] and lengths.tolist() == [6, 4]
    tokenizer = Word().learn("a b\n\nc d e\n")
    lines = rows_of_lines("a b\n\n  \nc d e\n", tokenizer, 2)
    assert [tokenizer.decode(lines.only(slice(k, k + 1)).ids) for k in range(3)] == ["a b", "c d", "e"]


@pytest.mark.parametrize(
    ("data", "model", "said"),
    [
        ({}, {"masking": {"masked": 0.8, "random": 0.3}}, "more than 100%"),
        ({}, {"kind": "language-model", "masking": {"share": 0.2}}, "masking"),
        ({"batches": "lines"}, {"kind": "language-model"}, "masked-language-models"),
        ({"segment": 3}, {}, "use 4 or more"),
        ({"segment": 65}, {}, "do not fit"),
    ],
)
def test_impossible_settings(data, model, said):
    with pytest.raises((ImpossibleError, UserError), match=said):
        from_tree({"data": data, "model": {"kind": "masked-language-model", **model}}, "hidden")
    with pytest.raises((ImpossibleError, UserError), match="segment, stride and state do not apply"):
        from_tree({"model": {"kind": "masked-language-model"}, "scoring": {"stride": 4}}, "hidden")


def test_in_scoring_all_chosen_tokens_are_masked():
    assert ALL_HIDDEN.masked == 1 and ALL_HIDDEN.random == 0
