"""Each data audit on a few rows: what it counts, what it says, and what it leaves alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.audit import text
from headway.audit.audit import DoesNotApply
from headway.audit.rows import (
    ROW_AUDITS,
    RowSet,
    class_balance,
    conflicting_labels,
    metadata_rows,
    normalise,
    seen_rows,
    seen_rows_nearly,
    seen_rows_normalised,
    shortened,
)
from headway.audit.text import TextSet, TokenSet, out_of_vocabulary, repeated_text, split_by_line, vocabulary_from_train

LONG = "the committee met on a rainy tuesday to settle the matter of the leaking roof once and for all"


def filler(count: int, seed: int = 0) -> list[str]:
    """Rows with nothing in common but their words."""
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{number}" for number in rng.integers(0, 3000, 12)) for _ in range(count)]


def test_rows_are_found_as_they_are_normalised_and_nearly_and_counted_once():
    test = [*filler(97, 1), LONG, LONG.upper() + " !", LONG.replace("rainy", "sunny")]
    data = RowSet({"train": [*filler(200), LONG], "test": test})
    for check, row in ((seen_rows, 97), (seen_rows_normalised, 98), (seen_rows_nearly, 99)):
        outcome = check.check(data)
        assert outcome.value == 0.01 and outcome.verdict == "pass"
        assert "1 of 100 rows of test (1.0%)" in outcome.sentence
        assert test[row][:30] in outcome.sentence
    assert LONG[:30] in seen_rows_nearly.check(data).sentence.split("train has")[1]


@pytest.mark.parametrize(("copies", "verdict"), [(0, "pass"), (2, "pass"), (3, "warn"), (6, "fail")])
def test_a_few_seen_rows_pass_more_warn_many_fail(copies, verdict):
    train = filler(300)
    data = RowSet({"train": train, "test": train[:copies] + filler(100 - copies, 1)})
    assert seen_rows.check(data).verdict == verdict


def test_of_many_rows_even_a_small_share_is_more_than_chance():
    train, test = filler(200), filler(9900, 1)
    data = RowSet({"train": train, "test": train[:100] + test})
    assert seen_rows.check(data).value == 0.01 and seen_rows.check(data).verdict == "pass"  # 1/√10,000, just
    data = RowSet({"train": train, "test": train[:110] + test})
    assert seen_rows.check(data).verdict == "warn"


@given(st.text())
def test_normalising_twice_changes_nothing(row):
    assert normalise(normalise(row)) == normalise(row)


def test_normalising_keeps_words_alone():
    assert normalise("  The “ﬁne”\tCAFÉ,  no. 5! ") == "the fine café no 5"
    assert normalise("?!") == ""


def test_short_and_generic_rows_are_not_nearly_seen():
    generic = "it is one of the best of the year"
    data = RowSet({"train": [f"{generic} {word}" for word in filler(60)], "test": [generic + " indeed", "one of the"]})
    assert seen_rows_nearly.check(data).value == 0


def test_blank_rows_and_rows_of_signs_are_in_no_train_split():
    data = RowSet({"train": ["", "?!", *filler(10)], "test": ["", "…", *filler(10, 1)]})
    assert seen_rows.check(data).value == seen_rows_normalised.check(data).value == 0


def test_without_a_second_split_or_labels_the_audits_do_not_apply():
    alone = RowSet({"train": filler(5)})
    for check in (seen_rows, seen_rows_normalised, seen_rows_nearly):
        with pytest.raises(DoesNotApply, match="no split beside train"):
            check.check(alone)
    for check in (conflicting_labels, class_balance):
        with pytest.raises(DoesNotApply, match="no labels"):
            check.check(alone)


def test_conflicting_labels_are_found_across_case_and_splits():
    rows, labels = filler(100), ["a"] * 100
    data = RowSet({"train": [*rows, "So it is."], "test": ["so it is"]}, {"train": [*labels, "a"], "test": ["b"]})
    outcome = conflicting_labels.check(data)
    assert outcome.verdict == "warn" and outcome.value == pytest.approx(2 / 102)
    assert "“So it is.” is 'a' 1× and 'b' 1×" in outcome.sentence
    data = RowSet({"train": [*rows, "So it is."], "test": ["so it is"]}, {"train": [*labels, "a"], "test": ["a"]})
    assert conflicting_labels.check(data).verdict == "pass"


@pytest.mark.parametrize(
    ("train", "test", "classes", "verdict", "sentence"),
    [
        ({"a": 50, "b": 50}, {"a": 20, "b": 20}, (), "pass", "2 classes"),
        ({"a": 50, "b": 50}, {"a": 20, "b": 20}, ("a", "b", "c"), "fail", "class 'c' has no row in train in any split"),
        ({"a": 50, "b": 50}, {"a": 20, "c": 20}, (), "fail", "class 'c' has no row in train, but 20 rows of other"),
        ({"a": 50}, {"a": 20}, (), "fail", "one class only"),
        ({"a": 50, "b": 9}, {"a": 20, "b": 5}, (), "warn", "train has 9 of class 'b'"),
        ({"a": 50, "b": 20}, {"a": 20, "b": 4}, (), "warn", "test has 4 of class 'b'"),
        ({"a": 90, "b": 10}, {"a": 90, "b": 10}, (), "warn", "90% of test is class 'a'"),
        ({"a": 500, "b": 500}, {"a": 350, "b": 150}, (), "warn", "20% of its rows would have to change class"),
        ({"a": 50, "b": 50}, {"a": 14, "b": 6}, (), "pass", "2 classes"),  # 20 %, too: but of 20 rows, by chance
    ],
)
def test_class_balance(train, test, classes, verdict, sentence):
    labels = {
        name: [label for label, n in part.items() for _ in range(n)]
        for name, part in (("train", train), ("test", test))
    }
    outcome = class_balance.check(RowSet({s: ["x"] * len(part) for s, part in labels.items()}, labels, classes))
    assert outcome.verdict == verdict and sentence in outcome.sentence


def test_metadata_among_text_is_found_and_special_words_are_not():
    odd = ["<title>On tea</title>", "<url>x</url>", "http://example.org/a", '{"id": 3, "text": "x"}', "<!-- note -->"]
    plain = ["<unk> is a word", "a < b", "see http://example.org", "{x} in braces", "<s> begins", "[1] a footnote"]
    data = RowSet({"train": odd + plain + filler(30), "test": filler(9)})
    outcome = metadata_rows.check(data)
    assert outcome.verdict == "warn" and "5 of 41 rows of train (12.2%)" in outcome.sentence
    assert "“<title>On tea</title>”" in outcome.sentence
    assert metadata_rows.check(RowSet({"train": odd * 9 + plain})).verdict == "pass"  # it is what the data is


@given(st.lists(st.text(max_size=30), min_size=1, max_size=8), st.lists(st.text(max_size=30), min_size=1, max_size=8))
def test_no_rows_at_all_break_an_audit(train, test):
    data = RowSet({"train": train, "test": test}, {"train": ["a"] * len(train), "test": ["b"] * len(test)})
    for one in ROW_AUDITS:
        (finding,) = one.run(data).findings
        assert "could not be carried out" not in finding.sentence


def test_examples_are_shortened():
    assert shortened("a  b\nc") == "“a b c”" and len(shortened("x" * 200)) == 62


# --- running text ------------------------------------------------------------------------------------------------


def story(count: int, seed: int) -> str:
    return "\n".join(filler(count, seed))


def test_windows_of_a_held_out_text_that_are_in_train_are_counted():
    train, fresh = story(400, 0), story(50, 1)
    copied = "\n".join(train.splitlines()[100:150])
    assert repeated_text.check(TextSet({"train": train, "test": fresh})).value == 0
    outcome = repeated_text.check(TextSet({"train": train, "test": fresh, "valid": copied}))
    assert outcome.verdict == "fail" and outcome.value == 1 and "of valid" in outcome.sentence
    half = repeated_text.check(TextSet({"train": train, "valid": copied + "\n" + fresh}))
    assert half.value == pytest.approx(0.5, abs=0.01)


def test_where_train_repeats_itself_the_split_is_not_to_blame():
    litany = "\n".join(line for line in filler(150) for _ in range(2))
    train = litany + "\n" + litany
    assert repeated_text.check(TextSet({"train": train, "test": litany})).verdict == "warn"


def test_windows_are_equal_if_and_only_if_the_words_are():
    rng = np.random.default_rng(0)
    words = rng.integers(0, 3, 4000)
    by_hash = text._windows(words)
    by_words = [tuple(words[i : i + text.WINDOW]) for i in range(len(by_hash))]
    assert len(set(by_hash.tolist())) == len(set(by_words)) == len(set(zip(by_hash.tolist(), by_words, strict=True)))


def test_too_little_text_is_not_judged():
    tiny = TextSet({"train": "a b c", "test": "a b"})
    for check in (repeated_text, split_by_line):
        with pytest.raises(DoesNotApply, match="few"):
            check.check(tiny)
    with pytest.raises(DoesNotApply, match="no text beside train"):
        repeated_text.check(TextSet({"train": "a b c", "test": " "}))


# --- tokens ------------------------------------------------------------------------------------------------------


def tokens(train, test, unknown=0, vocabulary=200):
    return TokenSet({"train": np.array(train), "test": np.array(test)}, vocabulary, unknown)


@pytest.mark.parametrize(
    ("in_train", "in_test", "verdict"),
    [(5, 5, "pass"), (0, 1, "pass"), (0, 2, "warn"), (5, 11, "warn"), (5, 31, "fail")],
)
def test_out_of_vocabulary(in_train, in_test, verdict):
    data = tokens([0] * in_train + [1] * (100 - in_train), [0] * in_test + [1] * (100 - in_test))
    outcome = out_of_vocabulary.check(data)
    assert outcome.verdict == verdict and f"test {in_test}.0%" in outcome.sentence
    assert ("never saw" in outcome.sentence) == (verdict == "warn" and not in_train)


def test_a_vocabulary_without_unknown_words_is_not_asked():
    with pytest.raises(DoesNotApply, match="a token for every text"):
        out_of_vocabulary.check(tokens([1], [1], unknown=None))


def test_a_vocabulary_made_from_all_splits_is_told_from_one_made_elsewhere():
    train, test = list(range(1, 150)), list(range(100, 160))
    made_from_both = vocabulary_from_train.check(tokens(train, test, vocabulary=160))
    assert made_from_both.verdict == "fail" and made_from_both.value == 10 and "‘150’" in made_from_both.sentence
    made_elsewhere = vocabulary_from_train.check(tokens(train, test, vocabulary=1000))
    assert made_elsewhere.verdict == "pass" and "840 more are in no split" in made_elsewhere.sentence
    assert vocabulary_from_train.check(tokens(train, [0, *train], vocabulary=150)).value == 0  # unknown is no leak
