"""Which rows of a table are held out for valid and test: a pure function of the rows and a seed, stratified by
class."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import tasks
from headway.core.errors import UserError
from headway.data.labelled.dataset import load
from headway.data.labelled.held_out import HeldOut, normalised
from headway.data.labelled.sources import Columns, read_rows
from headway.data.labelled.tables import Row
from headway.data.vocabularies import Word
from headway.experiment.audit import audit_run
from headway.experiment.train import train
from headway.recipe.recipe import from_tree

ROWS = [
    Row(f"text {k} of {label}", label) for label, n in {"a": 60, "b": 30, "c": 10, "d": 1}.items() for k in range(n)
]


def split(rows: list[Row], valid: float = 0.1, test: float | None = None, seed: int = 0):
    return HeldOut(valid, test, seed).by_class({"train": list(rows)}, "t", single=True)


def test_every_class_gives_its_share_and_a_single_text_stays_in_train():
    found, told = split(ROWS)
    counts = {name: Counter(row.label for row in rows) for name, rows in found.items()}
    assert list(found) == ["train", "valid", "test"]
    assert counts["valid"] == counts["test"] == {"a": 6, "b": 3, "c": 1}
    assert counts["train"] == {"a": 48, "b": 24, "c": 8, "d": 1}
    assert "10 texts for valid and 10 texts for test held out of 101" in told
    assert "1 class has a single text ('d'): it stays in train" in told


ROW = st.builds(Row, st.sampled_from([f"t{k}" for k in range(12)]), st.sampled_from("xyz"))


@settings(max_examples=40, deadline=None)
@given(st.lists(ROW, min_size=6, max_size=40), st.integers(0, 3), st.randoms())
def test_the_split_ignores_the_order_of_rows_and_no_text_is_in_two_splits(rows, seed, random):
    try:
        found, _ = split(rows, seed=seed)
    except UserError as problem:
        assert "too few" in str(problem)
        return
    other = list(rows)
    random.shuffle(other)
    again, _ = split(other, seed=seed)
    assert {name: Counter(some) for name, some in found.items()} == {
        name: Counter(some) for name, some in again.items()
    }
    texts = [{normalised(row.text) for row in some} for some in found.values()]
    assert sum(map(len, texts)) == len(set.union(*texts)) and all(texts)
    assert Counter(row for some in found.values() for row in some) == Counter(rows)


def test_seeds_give_different_splits_and_many_small_classes_give_as_much_as_a_large_one():
    one, other = (split(ROWS, seed=seed)[0]["test"] for seed in (0, 1))
    assert one != other
    small = [Row(f"text {k} {c}", f"class {c}") for c in range(200) for k in range(4)]
    found, _ = split(small)
    assert len(found["valid"]) == len(found["test"]) == 80
    assert {row.label for row in found["train"]} == {row.label for row in small}


def test_a_table_is_split_in_three_and_a_folder_by_its_files(tmp_path: Path):
    table = tmp_path / "t.tsv"
    table.write_text("text\tlabel\n" + "".join(f"{row.text}\t{row.label}\n" for row in ROWS), "utf-8")
    splits, told = read_rows("files", str(table), Columns(), HeldOut(0.1))
    assert list(splits) == ["train", "valid", "test"] and "stays in train" in told
    (tmp_path / "set").mkdir()
    table.rename(tmp_path / "set" / "train.tsv")
    splits, _ = read_rows("files", str(tmp_path / "set"), Columns(), HeldOut(0.1))
    assert list(splits) == ["train", "valid"]
    splits, _ = read_rows("files", str(tmp_path / "set"), Columns(), HeldOut(0.1, 0.2))
    assert list(splits) == ["train", "valid", "test"] and len(splits["test"]) == 20


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{row.text}\t{row.label}\n" for row in ROWS), "utf-8")
    return path


def test_a_run_made_before_test_was_held_out_keeps_its_splits(table: Path):
    before = load("files", str(table), Columns(), HeldOut(0.1, seed=None), Word())
    assert list(before.splits) == ["train", "valid"]
    again = load("files", str(table), Columns(), HeldOut(0.1), Word(), known_as=before.identity)
    assert again.identity == before.identity and list(again.splits) == ["train", "valid"]
    now = load("files", str(table), Columns(), HeldOut(0.1), Word(), known_as="0" * 32)
    assert list(now.splits) == ["train", "valid", "test"]


def test_held_out_rows_are_scored_and_audited(table: Path, tmp_path: Path):
    tree = {
        "data": {"kind": "labelled", "source": "files", "path": str(table)},
        "model": {"kind": "classifier", "layers": 1, "width": 8, "context": 8, "mixer": {"heads": 2}},
        "training": {"batch": 8, "duration": "3 steps"},
    }
    recipe = from_tree(tree, "t")
    (run,) = train([recipe], ["t"], tmp_path / "runs")
    assert {"valid.accuracy", "test.accuracy"} <= {score.name for score in run.scores()}
    assert "held out of 101" in tasks.load_for(run).data.held_out
    found = {finding.audit: finding.verdict for finding in audit_run(run).findings}
    assert found["scored-split"] == found["scores-again"] == "pass"
