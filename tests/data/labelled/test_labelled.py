"""Labelled texts: from tables and known data sets to tokens, with held-out rows, and everything that is refused."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headway.core.errors import UserError
from headway.data.labelled.dataset import LabelledSet, load
from headway.data.labelled.held_out import HeldOut, normalised
from headway.data.labelled.sources import Columns, read_rows
from headway.data.labelled.spec import Labelled
from headway.data.running.spec import Text
from headway.data.vocabularies import Char, Word

DATA = pytest.mark.skipif("HEADWAY_DATA" not in os.environ, reason="HEADWAY_DATA is not set")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))


def write(folder: Path, name: str, rows: list[tuple[str, str]]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), "utf-8")
    return path


ROWS = [(f"word{k} is a {kind}", kind) for k in range(20) for kind in ("cat", "dog")]


def from_files(path: Path, valid_fraction: float = 0.1, tokenizer=None, test_fraction=None) -> LabelledSet:
    return load("files", str(path), Columns(), HeldOut(valid_fraction, test_fraction), tokenizer or Word())


def test_a_share_of_a_single_table_is_held_out_as_valid(tmp_path: Path):
    made = from_files(write(tmp_path, "t.tsv", [*ROWS, *ROWS[:7]]), 0.25, test_fraction=0.0)
    assert made.held_out and list(made.splits) == ["train", "valid"]
    train, valid = made.split("train"), made.split("valid")
    assert len({normalised(t) for t in valid.texts}) == 10 and len(train) + len(valid) == 47
    assert not set(train.texts) & set(valid.texts)
    assert train.seen.all() and not valid.seen.any()
    assert made.classes == ("cat", "dog")
    words = made.tokenizer.pieces(train.ids[: train.ends[0]])
    assert words == train.texts[0].split()


def test_held_out_rows_do_not_depend_on_the_order_of_the_rows(tmp_path: Path):
    one = from_files(write(tmp_path, "a.tsv", ROWS)).split("valid").texts
    other = from_files(write(tmp_path, "b.tsv", ROWS[::-1])).split("valid").texts
    assert sorted(one) == sorted(other)


def test_nothing_is_held_out_if_the_share_is_zero(tmp_path: Path):
    made = from_files(write(tmp_path, "t.tsv", ROWS), 0.0)
    assert list(made.splits) == ["train"] and not made.held_out
    with pytest.raises(UserError, match=r"'t.tsv' has no split 'valid'.*with data.valid_fraction=0.1 a tenth of train"):
        made.split("valid")


def test_a_folder_of_tables_in_any_mix_of_formats(tmp_path: Path):
    folder = tmp_path / "set"
    write(folder, "train.tsv", ROWS)
    write(folder, "dev.tsv", ROWS[:2])
    write(folder, "test-hard.tsv", [("WORD1  is a  cat", "cat"), ("word1  is a  cat", "cat"), ("new dog", "dog")])
    (folder / "test.csv").write_text('text,label\n"a, b",dog\n')
    (folder / "notes.md").write_text("no table")
    made = from_files(folder)
    assert list(made.splits) == ["train", "valid", "test", "test-hard"] and not made.held_out
    assert made.split("valid").seen.tolist() == [True, True]
    assert made.split("test-hard").seen.tolist() == [False, True, False]  # compared exactly, apart from white space
    assert made.split("test").labels.tolist() == [1]


def test_the_vocabulary_is_learnt_from_train_only(tmp_path: Path):
    folder = tmp_path / "set"
    write(folder, "train.tsv", ROWS)
    write(folder, "valid.tsv", [("word1 strange words", "cat")])
    made = from_files(folder)
    valid = made.split("valid")
    assert (valid.ids == made.tokenizer.unknown).tolist() == [False, True, True]


def test_tokens_are_cached_and_an_edited_table_is_another_data_set(tmp_path: Path):
    first = from_files(write(tmp_path, "t.tsv", ROWS))
    again = from_files(tmp_path / "t.tsv")
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert first.identity == again.identity
    for split, texts in first.splits.items():
        assert np.array_equal(texts.ids, again.split(split).ids) and np.array_equal(texts.ends, again.split(split).ends)
    relabelled = from_files(write(tmp_path, "t.tsv", [*ROWS[:-1], (ROWS[-1][0], "cat")]))
    assert relabelled.identity != first.identity


def test_texts_are_truncated_and_padded(tmp_path: Path):
    made = from_files(write(tmp_path, "t.tsv", [("a b c", "x"), ("d", "y"), ("a", "x")]), 0.0)
    table, lengths = made.split("train").padded(2)
    assert table.shape == (3, 2) and lengths.tolist() == [2, 1, 1] and table[1, 1] == 0
    assert made.tokenizer.pieces(table[0]) == ["a", "b"]
    assert made.split("train").lengths.tolist() == [3, 1, 1]


def test_numeric_classes_are_sorted_as_numbers(tmp_path: Path):
    made = from_files(write(tmp_path, "t.tsv", [(f"t {k}", str(k)) for k in (10, 2, 1, 3)]), 0.0)
    assert made.classes == ("1", "2", "3", "10")
    assert made.split("train").labels.tolist() == [3, 1, 0, 2]


BAD = {
    "one class only": (
        [("a b", "x"), ("c d", "x"), ("e f", "x")],
        None,
        "all 2 texts of train have the same class, 'x'",
    ),
    "an empty class": (ROWS, [("new", "cta")], "1 texts of 'test' have the class 'cta', which does not occur in train"),
    "too few to hold out": (
        [("a b", "x"), ("a  b", "y")],
        None,
        "has 1 different texts in 1 classes, too few",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_data_sets_are_refused_with_a_message(tmp_path: Path, case):
    train, test, words = BAD[case]
    write(tmp_path / "set", "train.tsv", train)
    if test:
        write(tmp_path / "set", "test.tsv", test)
    with pytest.raises(UserError, match=words):
        from_files(tmp_path / "set")


def test_files_that_are_missing_or_ambiguous(tmp_path: Path):
    with pytest.raises(UserError, match="there is no file or folder"):
        from_files(tmp_path / "nothing.tsv")
    write(tmp_path / "set", "valid.tsv", ROWS)
    with pytest.raises(UserError, match=r"has no train file: expected train.tsv, train.csv or"):
        from_files(tmp_path / "set")
    write(tmp_path / "set", "train.tsv", ROWS)
    write(tmp_path / "set", "train.csv", ROWS)
    with pytest.raises(UserError, match=r"has two files for split 'train': train.csv and train.tsv"):
        from_files(tmp_path / "set")


def test_a_letter_that_train_lacks_is_named_with_its_text(tmp_path: Path):
    write(tmp_path / "set", "train.tsv", ROWS)
    write(tmp_path / "set", "test.tsv", [("a cat", "cat"), ("a cät", "cat")])
    with pytest.raises(UserError, match=r"split 'test', text 2: the vocabulary.*lacks 'ä'"):
        from_files(tmp_path / "set", tokenizer=Char())


PROBLEMS = {
    "an unknown set": ({"source": "sst-2"}, "there is no labelled set called 'sst-2'; did you mean 'sst2'?"),
    "a set of running text": (
        {"source": "wikitext-2"},
        "there is no labelled set called 'wikitext-2'; it exists with data.kind=text",
    ),
    "no path": ({"source": "files"}, "source: files needs a path, such as data.path=reviews.tsv"),
    "a path for nothing": ({"path": "x.tsv"}, "path is only read with source: files, not with python-modules"),
    "columns for nothing": ({"source": "sst2", "text": 2}, "sst2 has its own columns; text is for source: files"),
    "names without a header": (
        {"source": "files", "path": "x", "header": False},
        "columns have no names; give numbers",
    ),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_invalid_settings_are_found_before_anything_is_read(case):
    given, words = PROBLEMS[case]
    (problem,) = Labelled.model_validate(given).problems()
    assert words in problem.reason


def test_a_labelled_data_set_is_not_running_text():
    (problem,) = Text(source="sst2").problems()
    assert problem.reason == "there is no corpus called 'sst2'; it exists with data.kind=labelled"


def test_a_header_is_expected_if_columns_are_given_by_name(tmp_path: Path):
    (tmp_path / "t.tsv").write_text("text\tlabel\na b\tx\nc d\ty\n", "utf-8")

    def rows(**given) -> int:
        return len(Labelled(source="files", path="x", **given).columns.read(tmp_path / "t.tsv"))

    assert rows() == rows(text=1) == rows(text=1, label=2, header=True) == 2
    assert rows(text=1, label=2, header=False) == 3


# Data that comes with Headway, and data under HEADWAY_DATA


def test_python_modules_are_eight_classes_split_by_module():
    splits, held_out = read_rows("python-modules", None, Columns(), HeldOut(0.1))
    assert not held_out and list(splits) == ["train", "valid", "test"]
    counts = {split: Counter(row.label for row in rows) for split, rows in splits.items()}
    assert all(len(count) == 8 for count in counts.values())
    sizes = {split: sum(count.values()) for split, count in counts.items()}
    assert sizes["train"] > 700 and 0.1 < sizes["test"] / sum(sizes.values()) < 0.3
    assert max(counts["train"].values()) < 3 * min(counts["train"].values())
    texts = [normalised(row.text) for rows in splits.values() for row in rows]
    assert len(texts) == len(set(texts)) and all(len(text.split()) >= 5 for text in texts)


@DATA
@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sizes", "classes"),
    [
        ("cse256-speeches", {"train": 2092, "test": 750}, {"obama": 934, "wbush": 539, "hbush": 619}),
        ("sst2", {"train": 6920, "valid": 872, "test": 1821}, {"negative": 3310, "positive": 3610}),
        ("verbal-arithmetic", {"train": 640, "test": 160}, {"negative": 143, "zero": 19, "positive": 478}),
    ],
)
def test_known_data_sets_have_their_known_number_of_rows(name, sizes, classes):
    splits, _ = read_rows(name, None, Columns(), HeldOut(0.0))
    assert {split: len(rows) for split, rows in splits.items()} == sizes
    assert Counter(row.label for row in splits["train"]) == classes


@DATA
@pytest.mark.data
def test_most_test_speeches_are_in_train():
    made = load("cse256-speeches", None, Columns(), HeldOut(0.0), Word())
    assert made.split("test").seen.sum() == 551


def test_a_missing_known_data_set_names_its_expected_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    with pytest.raises(UserError, match="corpus 'sst2' is read from the folder named by the environment variable"):
        read_rows("sst2", None, Columns(), HeldOut(0.1))
