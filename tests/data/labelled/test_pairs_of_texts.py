"""Rows of two texts: read from two columns, joined by the separator, truncated at the longer text, trained on and
classified."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import tasks
from headway.audit.labelled.recount import RowRecount
from headway.core.errors import UserError
from headway.data.labelled.dataset import Texts
from headway.data.labelled.tables import Row, labelled_rows
from headway.data.marks import BETWEEN, Marks, Template
from headway.experiment.audit import audit_run
from headway.experiment.evaluate import classify_text
from headway.experiment.train import train
from headway.recipe.recipe import from_tree

WORDS = "oak elm ash birch lime"


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """The label is whether both texts name the same tree."""
    home, draw = tmp_path_factory.mktemp("pairs"), random.Random(0)
    rows = []
    for _ in range(160):
        one, other = draw.choice(WORDS.split()), draw.choice(WORDS.split())
        other = one if draw.random() < 0.5 else other
        more = " indeed" * draw.randrange(4)
        rows.append(f"I see {one}{more}\tit is {other}\t{'same' if one == other else 'other'}")
    (home / "pairs.tsv").write_text("first\tsecond\tlabel\n" + "\n".join(rows) + "\n", "utf-8")
    return home / "pairs.tsv"


def recipe(table: Path, *changes: str):
    tree = {
        "data": {"kind": "labelled", "source": "files", "path": str(table), "text": ["first", "second"]},
        "model": {"kind": "classifier", "layers": 1, "width": 16, "context": 10, "mixer": {"heads": 2}},
        "training": {"batch": 16, "duration": "20 steps", "optimizer": {"learning_rate": 1e-2}},
    }
    return from_tree(tree, "pairs", overrides=changes)


def test_two_columns_become_one_row(table):
    rows = labelled_rows(table, ["first", "second"], "label", True)
    assert all(BETWEEN in row.text for row in rows) and rows == labelled_rows(table, [1, 2], 3, True)
    data = tasks.load(recipe(table)).data
    marks, texts = data.tokenizer.marks, data.split("train")
    first = texts.ids[: texts.ends[0]]
    assert marks is not None and first[0] == marks.cls and (first == marks.sep).sum() == 2
    one, other = (data.tokenizer.decode(part) for part in marks.taken_apart(first))
    assert f"{one}{BETWEEN}{other}" == texts.texts[0]


@pytest.mark.parametrize("marks", [Marks(90, 91, 92, 93), Template(90, 91, 92, 93, (90,), (91, 91), (91,))])
@given(st.lists(st.integers(0, 9), max_size=9), st.lists(st.integers(0, 9), max_size=9), st.integers(4, 24))
def test_batches_truncate_the_longer_text_like_the_recount(marks, first, second, context):
    parts = [np.array(part, dtype=np.int32) for part in (first, second)]
    row = marks.row(parts)
    assert [part.tolist() for part in marks.taken_apart(row)] == [first, second]
    texts = Texts([""], np.zeros(1, np.int64), np.zeros(1, np.bool_), row, np.array([len(row)]), marks.behind, marks)
    table, lengths = texts.padded(context)

    class Numbers:
        def __init__(self):
            self.marks = marks

        def encode_rows(self, given):
            return [np.array([int(x) for x in text.split()], dtype=np.int32) for text in given]

    text = BETWEEN.join(" ".join(map(str, part)) for part in (first, second))
    recount = RowRecount([Row(text, "a")], [], texts, ("a",), Numbers(), context)  # pyright: ignore[reportArgumentType]
    (again,) = recount._as_rows(recount.rows, context)
    assert table[0, : lengths[0]].tolist() == again.tolist()


def test_it_is_trained_audited_and_used(table, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    (run,) = train([recipe(table)], ["pairs"], tmp_path / "runs")
    report = audit_run(run)
    found = {f.audit: f.verdict for f in report.findings}
    assert all(found[name] == "pass" for name in ("scored-split", "scores-again", "batches", "labels", "padding"))
    told = classify_text(run, f"I see oak{BETWEEN}it is oak", "auto")
    assert told.tokens == 9 and set(told.chances) == {"same", "other"}
    with pytest.raises(UserError, match="several texts per row, but one was"):
        classify_text(run, "I see oak", "auto")


def test_impossible_settings(table, tmp_path):
    with pytest.raises(UserError, match="a list of 1 columns; give one column"):
        recipe(table, "data.text=[first]")
    for columns, said in ((["first", "first"], "both texts"), (["first", "label"], "the same column")):
        with pytest.raises(UserError, match=said):
            labelled_rows(table, columns, "label", True)
    (tmp_path / "odd.tsv").write_text("a\tb\tlabel\none ␞ two\tthree\tx\n", "utf-8")
    with pytest.raises(UserError, match="a text contains the separator"):
        labelled_rows(tmp_path / "odd.tsv", ["a", "b"], "label", True)
