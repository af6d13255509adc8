"""Each data audit on a few rows: what it counts, what it reports, and what it ignores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.audit.audit import DoesNotApply
from headway.audit.data import text_set
from headway.audit.data.classes import class_balance, conflicting_labels
from headway.audit.data.row_set import RowSet, normalise, shortened
from headway.audit.data.rows import (
    ROW_AUDITS,
    metadata_rows,
    repeated_rows,
    seen_rows,
    seen_rows_nearly,
    seen_rows_normalised,
    shared_rows,
)
from headway.audit.data.text import (
    nearly_repeated_text,
    repeated_text,
    repeated_within,
    shared_text,
    split_by_line,
)
from headway.audit.data.text_set import TextSet
from headway.audit.data.tokens import TokenSet, out_of_vocabulary, vocabulary_from_train

LONG = "the committee met on a rainy tuesday to settle the matter of the leaking roof once and for all"


def filler(count: int, seed: int = 0) -> list[str]:
    """Rows of random words that have nothing else in common."""
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{number}" for number in rng.integers(0, 3000, 12)) for _ in range(count)]


def test_exact_normalised_and_near_copies_are_each_counted_once():
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


def test_among_many_rows_even_a_small_share_is_more_than_chance():
    train, test = filler(200), filler(9900, 1)
    data = RowSet({"train": train, "test": train[:100] + test})
    assert seen_rows.check(data).value == 0.01 and seen_rows.check(data).verdict == "pass"  # exactly 1/√10,000
    data = RowSet({"train": train, "test": train[:110] + test})
    assert seen_rows.check(data).verdict == "warn"


def spoilt(row: str, how: str) -> str:
    words = row.split()
    if how == "shuffled":
        return " ".join(sorted(words))
    if how == "cut":
        return " ".join(words[: len(words) // 2])
    return " ".join(word if k % 3 else f"x{word}" for k, word in enumerate(words))  # replaced


@pytest.mark.parametrize("how", ["shuffled", "cut", "replaced"])
def test_near_copies_are_found_after_every_kind_of_change(how):
    rows = filler(300)
    test = [*filler(90, 1), *(spoilt(row, how) for row in rows[:10])]
    outcome = seen_rows_nearly.check(RowSet({"train": rows, "test": test}))
    assert outcome.verdict == "fail" and outcome.value == 0.1 and "train has “w" in outcome.sentence
    assert seen_rows_nearly.check(RowSet({"train": test[:90], "test": filler(100, 2)})).value == 0


def test_if_train_is_full_of_near_copies_they_are_reported_but_are_no_leak():
    both = [word for row in filler(400) for word in (row, spoilt(row, "replaced"))]
    data = RowSet({"train": both[:600], "test": both[601:]})
    assert data.usual == 1 and seen_rows_nearly.check(data).value == 0
    mixed = np.random.default_rng(0).permutation(both).tolist()
    outcome = seen_rows_nearly.check(RowSet({"train": mixed[:700], "test": mixed[700:]}))
    assert outcome.verdict == "warn" and "of the rows of train" in outcome.sentence


def test_rows_of_one_held_out_split_in_another():
    rows = filler(200, 1)
    data = RowSet({"train": filler(300), "valid": rows[:100], "test": [row.upper() for row in rows[90:]]})
    outcome = shared_rows.check(data)
    assert outcome.verdict == "fail" and outcome.value == pytest.approx(10 / 110) and "in valid too" in outcome.sentence
    apart = RowSet({"train": filler(300), "valid": rows[:100], "test": rows[100:]})
    assert shared_rows.check(apart).value == 0
    with pytest.raises(DoesNotApply, match="one held-out split"):
        shared_rows.check(RowSet({"train": rows[:100], "test": rows[100:]}))


def test_fifty_rows_eighteen_times_are_fifty_rows():
    outcome = repeated_rows.check(RowSet({"train": filler(400), "test": filler(50, 1) * 18}))
    assert outcome.verdict == "fail" and outcome.value == pytest.approx(1 / 18)
    assert "the 900 rows of test are effectively 50" in outcome.sentence and "4.2 times too short" in outcome.sentence


def test_rows_repeated_in_train_may_be_in_test():
    said = ["no", "yes", "what next"]
    rng = np.random.default_rng(0)
    train, test = ([said[k] for k in rng.integers(0, 3, n)] + filler(n, n) for n in (400, 100))
    data = RowSet({"train": train, "test": test})
    outcome = repeated_rows.check(data)
    # half of train consists of repetitions
    assert outcome.verdict == "warn" and "of the rows of train repeat" in outcome.sentence
    assert outcome.value > 0.8


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


def test_blank_rows_and_rows_of_punctuation_are_never_seen_rows():
    data = RowSet({"train": ["", "?!", *filler(10)], "test": ["", "…", *filler(10, 1)]})
    assert seen_rows.check(data).value == seen_rows_normalised.check(data).value == 0


def test_without_a_second_split_or_labels_the_audits_do_not_apply():
    alone = RowSet({"train": filler(5)})
    for check in (seen_rows, seen_rows_normalised, seen_rows_nearly):
        with pytest.raises(DoesNotApply, match="no split other than train"):
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
        ({"a": 50, "b": 50}, {"a": 20, "b": 20}, ("a", "b", "c"), "fail", "class 'c' has no row in train"),
        ({"a": 50, "b": 50}, {"a": 20, "c": 20}, (), "fail", "class 'c' has no row in train, but 20 rows"),
        ({"a": 50}, {"a": 20}, (), "fail", "only one class"),
        ({"a": 50, "b": 9}, {"a": 20, "b": 5}, (), "warn", "train has 9 of class 'b'"),
        ({"a": 50, "b": 20}, {"a": 20, "b": 4}, (), "warn", "test has 4 of class 'b'"),
        ({"a": 90, "b": 10}, {"a": 90, "b": 10}, (), "warn", "90% of test is class 'a'"),
        ({"a": 500, "b": 500}, {"a": 350, "b": 150}, (), "warn", "20% of its rows would have to change class"),
        # also 20 %, but that can be chance among 20 rows
        ({"a": 50, "b": 50}, {"a": 14, "b": 6}, (), "pass", "2 classes"),
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
    assert metadata_rows.check(RowSet({"train": odd * 9 + plain})).verdict == "pass"  # most of the data looks like that


@given(st.lists(st.text(max_size=30), min_size=1, max_size=8), st.lists(st.text(max_size=30), min_size=1, max_size=8))
def test_no_rows_break_an_audit(train, test):
    data = RowSet({"train": train, "test": test}, {"train": ["a"] * len(train), "test": ["b"] * len(test)})
    for one in ROW_AUDITS:
        assert not [f for f in one.run(data).findings if "could not be carried out" in f.sentence]


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


@pytest.mark.parametrize(("every", "verdict"), [(6, "fail"), (3, "fail"), (2, "fail")])
def test_a_paraphrased_slice_of_train(every, verdict):
    train = story(400, 0)
    words = " ".join(train.splitlines()[100:180]).upper().split()
    reworded = " ".join(f"new{k}" if k % every == 0 else word for k, word in enumerate(words))
    data = TextSet({"train": train, "valid": reworded})
    assert repeated_text.check(data).value == 0
    outcome = nearly_repeated_text.check(data)
    assert outcome.verdict == verdict and outcome.value > 0.25 and "where train has" in outcome.sentence
    assert nearly_repeated_text.check(TextSet({"train": train, "valid": story(80, 1)})).value == 0


def test_case_and_punctuation_do_not_hide_a_copy():
    train = story(400, 0)
    hidden = ", ".join(train.split()[1000:2000]).title()
    assert repeated_text.check(TextSet({"train": train, "valid": hidden})).value == 1


def test_text_of_one_held_out_split_in_another():
    both = {"train": story(400, 0), "valid": story(50, 1), "test": story(50, 1).upper()}
    assert shared_text.check(TextSet(both)).verdict == "fail"
    assert shared_text.check(TextSet({**both, "test": story(50, 2)})).value == 0


def test_a_repeated_page():
    outcome = repeated_within.check(TextSet({"train": story(400, 0), "valid": "\n".join([story(5, 1)] * 10)}))
    assert outcome.verdict == "fail" and outcome.value < 0.12 and "10 times" in outcome.sentence
    page = story(5, 1)
    refrain = {"train": "\n".join([page] * 40), "valid": "\n".join([page] * 10)}
    outcome = repeated_within.check(TextSet(refrain))
    assert outcome.verdict == "warn" and "of train repeats" in outcome.sentence


def test_repetition_within_train_is_not_blamed_on_the_split():
    litany = "\n".join(line for line in filler(150) for _ in range(2))
    train = litany + "\n" + litany
    assert repeated_text.check(TextSet({"train": train, "test": litany})).verdict == "warn"


def test_windows_are_equal_if_and_only_if_the_words_are():
    rng = np.random.default_rng(0)
    words = rng.integers(0, 3, 4000)
    by_hash = text_set._windows(words)
    by_words = [tuple(words[i : i + text_set.WINDOW]) for i in range(len(by_hash))]
    assert len(set(by_hash.tolist())) == len(set(by_words)) == len(set(zip(by_hash.tolist(), by_words, strict=True)))


def test_too_little_text_is_not_judged():
    tiny = TextSet({"train": "a b c", "test": "a b"})
    for check in (repeated_text, split_by_line):
        with pytest.raises(DoesNotApply, match="few"):
            check.check(tiny)
    with pytest.raises(DoesNotApply, match="no text other than train"):
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


def test_a_vocabulary_without_unknown_words_is_not_audited():
    with pytest.raises(DoesNotApply, match="a token for every text"):
        out_of_vocabulary.check(tokens([1], [1], unknown=None))


def test_a_vocabulary_built_on_all_splits_is_distinguished_from_a_foreign_one():
    train, test = list(range(1, 150)), list(range(100, 160))
    made_from_both = vocabulary_from_train.check(tokens(train, test, vocabulary=160))
    assert made_from_both.verdict == "fail" and made_from_both.value == 10 and "‘150’" in made_from_both.sentence
    made_elsewhere = vocabulary_from_train.check(tokens(train, test, vocabulary=1000))
    assert made_elsewhere.verdict == "pass" and "840 more are in no split" in made_elsewhere.sentence
    # unknown words are no leak
    assert vocabulary_from_train.check(tokens(train, [0, *train], vocabulary=150)).value == 0
