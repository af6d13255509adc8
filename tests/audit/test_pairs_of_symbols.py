"""No alarm on pairs of symbols and numbers, where punctuation carries the meaning and digits have no language."""

import numpy as np
import pytest

from headway.audit.audit import DoesNotApply, run_audits
from headway.audit.data.pair_set import PairSet
from headway.audit.data.pair_splits import AS_ROWS, cut_sides
from headway.audit.data.pairs import copied_targets, many_targets, misaligned_pairs, seen_pairs, swapped_sides
from headway.audit.data.row_set import normalise
from headway.data.embedded.numbers_en_fr import english


def _as_splits(pairs: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    return {"train": pairs[800:], "valid": pairs[:400], "test": pairs[400:800]}


def _sums(rng: np.random.Generator) -> tuple[str, str]:
    a, b = (int(number) for number in rng.integers(100, size=2))
    return (f"{a} + {b}", str(a + b)) if rng.random() < 0.5 else (f"{a} - {b}", str(a - b))


def _brackets(rng: np.random.Generator) -> tuple[str, str]:
    return "".join("()[]"[k] for k in rng.integers(4, size=20)), ("yes", "no")[rng.integers(2)]


def _backwards(rng: np.random.Generator) -> tuple[str, str]:
    number = str(rng.integers(10**6))
    return number, number[::-1]


@pytest.mark.parametrize("drawn", [_sums, _brackets, _backwards])
@pytest.mark.parametrize("in_order", [False, True])
def test_no_alarm_on_symbols_and_digits(drawn, in_order: bool):
    """Punctuation carries the meaning, lengths are fixed, and sorted numbers keep beginning with new digits."""
    rng = np.random.default_rng(0)
    pairs = list(dict.fromkeys(drawn(rng) for _ in range(4000)))
    splits = _as_splits(pairs)
    if in_order:
        splits["train"] = sorted(splits["train"], key=lambda pair: (len(pair[0]), pair[0]))
    audits = (seen_pairs, copied_targets, many_targets, swapped_sides, cut_sides, *AS_ROWS)
    found = run_audits(audits, PairSet(splits, one_answer=True)).findings
    assert [finding.sentence for finding in found if finding.verdict != "pass"] == []


def test_operators_are_only_read_before_numbers():
    assert normalise("3 - 4 = -1") == "3 - 4 - 1" != normalise("3 + 4 = 7")
    assert normalise("well-known: A/B - and more") == "well known a b and more"


def test_sides_without_different_trigrams_are_not_distinguished():
    with pytest.raises(DoesNotApply, match="do not tell"):
        swapped_sides.check(PairSet({"train": [(str(k), str(k + 7)) for k in range(10, 90)]}))


@pytest.mark.parametrize("held_out", ["as train", "swapped"])
@pytest.mark.parametrize("longest_first", [False, True])
def test_sorting_of_words_in_rows_by_length_is_not_taken_for_swapped(held_out: str, longest_first: bool):
    """Sources and targets contain the same words in different orders. With two words, half of the pairs look like
    swapped ones; with ten words, hardly any."""
    words = [english(n) for n in range(20)]
    for seed in (9, 14, 16):
        rng = np.random.default_rng(seed)
        rows = [[words[k] for k in rng.integers(len(words), size=rng.integers(2, 11))] for _ in range(1500)]
        pairs = [(" ".join(row), " ".join(sorted(row, reverse=bool(rng.integers(2))))) for row in rows]
        pairs = sorted(pairs, key=lambda pair: len(pair[0]), reverse=longest_first)
        valid = [pair[::-1] if held_out == "swapped" else pair for pair in pairs[::5]]
        (finding,) = run_audits([swapped_sides], PairSet({"train": pairs, "valid": valid})).findings
        assert finding.verdict == ("fail" if held_out == "swapped" else "pass")


@pytest.mark.parametrize("drawn", [_sums, _brackets])
def test_answers_without_words_of_their_questions_are_not_taken_for_misaligned(drawn):
    rng = np.random.default_rng(0)
    with pytest.raises(DoesNotApply):
        misaligned_pairs.check(PairSet({"train": [drawn(rng) for _ in range(2000)]}))
