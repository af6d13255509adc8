"""Unusual tables: delimiters, encodings, JSON lines, rows of the wrong width, missing headers."""

import json
import logging
from pathlib import Path

import pytest

from headway.core import progress
from headway.core.errors import UserError
from headway.data.labelled.spec import Labelled
from headway.data.labelled.tables import Row, labelled_rows
from headway.data.running.spec import Text
from headway.data.table_formats import TableFormat
from headway.data.tables import column_of, doubts_about_labels

ROWS = [Row("fine, really fine", "good"), Row("naïve; dull", "bad"), Row("so so", "good")]


@pytest.fixture(autouse=True)
def _anew():
    progress.say_once.cache_clear()


def csv_of(delimiter: str, header: bool = True) -> str:
    head = f"text{delimiter}label\n" if header else ""
    return head + "".join(f'"{row.text}"{delimiter}{row.label}\n' for row in ROWS)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("header", [True, False])
def test_delimiters_are_detected_and_reported(tmp_path: Path, delimiter, header, caplog):
    path = tmp_path / "t.csv"
    path.write_text(csv_of(delimiter, header), "utf-8")
    columns = ("text", "label") if header else (1, 2)
    assert labelled_rows(path, *columns) == ROWS
    assert bool(caplog.records) == (delimiter != ",")
    assert labelled_rows(path, *columns, format=TableFormat(delimiter=delimiter)) == ROWS


def test_excels_separator_line_and_old_mac_line_ends(tmp_path: Path):
    (tmp_path / "excel.csv").write_text("sep=;\n" + csv_of(";"), "utf-8")
    (tmp_path / "mac.csv").write_bytes(csv_of(",").replace("\n", "\r").encode())
    for name in ("excel.csv", "mac.csv"):
        assert labelled_rows(tmp_path / name, "text", "label") == ROWS
    (tmp_path / "excel.csv").write_text("sep=;\ntext;label\na;x\n;y\n", "utf-8")
    with pytest.raises(UserError, match="line 4: column 'text' is empty"):
        labelled_rows(tmp_path / "excel.csv", "text", "label")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_encodings_recognisable_by_their_first_bytes_are_read(tmp_path: Path, encoding, caplog):
    path = tmp_path / "t.csv"
    path.write_bytes(csv_of(",").encode(encoding))
    assert labelled_rows(path, "text", "label") == ROWS
    assert bool(caplog.records) == ("16" in encoding or "32" in encoding)


def test_other_encodings_are_refused_with_the_key_to_set(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_bytes(csv_of(",").encode("cp1252"))
    with pytest.raises(UserError, match=r"not UTF-8 text: byte 0xef at offset \d+.*data.encoding=cp1252"):
        labelled_rows(path, "text", "label")
    for encoding in ("cp1252", "latin-1"):
        assert labelled_rows(path, "text", "label", format=TableFormat(encoding)) == ROWS
    with pytest.raises(UserError, match="is not ascii text"):
        labelled_rows(path, "text", "label", format=TableFormat("ascii"))


@pytest.mark.parametrize("encoding", ["no-such", "rot13", "zip", "hex", ""])
def test_an_unknown_encoding_is_refused_before_anything_is_read(encoding):
    for spec in (
        Labelled(source="files", path="x", encoding=encoding),
        Text(source="files", path="x", encoding=encoding),
    ):
        assert any("no text encoding" in problem.reason for problem in spec.problems())


def test_json_lines_and_lists(tmp_path: Path):
    objects = [{"id": 7, "label": label, "text": text} for text, label in ROWS]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, objects)) + "\n\n", "utf-8")
    (tmp_path / "t.json").write_text(json.dumps(objects), "utf-8")
    for name in ("t.jsonl", "t.json"):
        assert labelled_rows(tmp_path / name, "text", "label") == ROWS
        assert labelled_rows(tmp_path / name, 3, 2) == ROWS
    numbers = "\n".join(json.dumps({"text": "a b", "label": k}) for k in (1, True, 0.5))
    (tmp_path / "n.jsonl").write_text(numbers, "utf-8")
    assert [row.label for row in labelled_rows(tmp_path / "n.jsonl", "text", "label")] == ["1", "true", "0.5"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"text": "a", "label": "x"}\n{"text": "b"}\n', "line 2: column 'label' is empty"),
        ('{"text": "a", "label": "x"}\n{"text": null, "label": "y"}\n', "line 2: column 'text' is empty"),
        ('{"text": "a"\n', "line 1: not a JSON object"),
        ("[1, 2]\n", "line 1: expected an object"),
        ('{"text": "a", "lable": "x"}\n', "did you mean 'lable'"),
        ("[" * 3000, "is not JSON"),
    ],
)
def test_json_that_is_no_table_is_refused_with_a_message(tmp_path: Path, content, words):
    (tmp_path / "t.jsonl").write_text(content, "utf-8")
    with pytest.raises(UserError, match=words):
        labelled_rows(tmp_path / "t.jsonl", "text", "label")


def test_a_row_wider_than_the_header_is_refused_with_its_line(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\nfine film,good\nHello, nice film,good\na,b,c,d\n", "utf-8")
    with pytest.raises(
        UserError, match=r"line 3: 3 cells \(Hello \| nice film \| good\), but the header names 2; .*2 of 3"
    ):
        labelled_rows(path, "text", "label")
    with pytest.raises(UserError, match=r"line 3: 3 cells .* quotes around a cell"):
        labelled_rows(path, 1, 2, True)
    path.write_text("fine film,good\nHello, nice film,good\nbad one,bad\n", "utf-8")
    with pytest.raises(UserError, match=r"line 2: 3 cells .* most rows have 2"):
        labelled_rows(path, 1, 2)
    path.write_text("text,label\nfine film,good,,\nbad one,bad,\n", "utf-8")  # spreadsheets fill rows with empty cells
    assert labelled_rows(path, "text", "label") == [Row("fine film", "good"), Row("bad one", "bad")]


def test_an_ambiguous_column_name_is_refused_if_it_is_used(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("text,text,label\na b,c d,x\ne f,g h,y\n", "utf-8")
    with pytest.raises(UserError, match=r"data.text=text: 2 columns .*\(1, 2\).*data.text=1 data.header=true"):
        labelled_rows(path, "text", "label")
    assert [row.text for row in labelled_rows(path, 2, "label", True)] == ["c d", "g h"]


def test_a_header_read_as_a_row_is_refused_and_a_row_read_as_a_header_is_reported(tmp_path: Path, caplog):
    path = tmp_path / "t.csv"
    path.write_text("text,label\na b,x\nc d,y\n", "utf-8")
    with pytest.raises(UserError, match=r"line 1 \(text \| label\) looks like a header.*data.header=true"):
        labelled_rows(path, 1, 2)
    assert len(labelled_rows(path, 1, 2, False)) == 3
    path.write_text("review;stars\na b;1\nc d;2\ne f;1\n", "utf-8")
    with pytest.raises(UserError, match="looks like a header"):
        labelled_rows(path, 1, 2)
    path.write_text("a b,x\nc d,y\ne f,x\ng h,x\n", "utf-8")
    caplog.clear()
    assert len(labelled_rows(path, 1, 2)) == 4 and not caplog.records
    assert len(labelled_rows(path, 1, 2, True)) == 3
    assert "read as a header (data.header=true), but 'x' also occurs below" in caplog.text


def test_empty_cells_are_counted_and_refused_or_dropped_if_set(tmp_path: Path, caplog):
    path = tmp_path / "t.csv"
    path.write_text("text,label\na b,x\n,y\nc d,\ne f,y\n", "utf-8")
    with pytest.raises(UserError, match=r"line 3: column 'text' is empty \(2 of 4 rows .*data.empty=drop"):
        labelled_rows(path, "text", "label")
    assert labelled_rows(path, "text", "label", empty="drop") == [Row("a b", "x"), Row("e f", "y")]
    assert "2 of 4 rows have an empty cell" in caplog.text
    path.write_text("text,label\n,x\n,y\n", "utf-8")
    with pytest.raises(UserError, match="drop leaves nothing"):
        labelled_rows(path, "text", "label", empty="drop")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f'{{"text": {"9" * 5000}, "label": "b"}}', "4300 digits"),
        (f'[{{"text": {"9" * 5000}, "label": "b"}}]', "4300 digits"),
        (r'{"text": "a \ud800 b", "label": "b"}', r"line 1: \\ud800 is half of a surrogate pair"),
        (r'{"text": "a", "label": "b", "\udfff": 1}', r"\\udfff is half of a surrogate pair"),
    ],
)
def test_json_values_that_python_cannot_read_or_write(tmp_path: Path, content: str, said: str):
    path = tmp_path / "t.json"
    path.write_text(content, "utf-8")
    with pytest.raises(UserError, match=said):
        labelled_rows(path, "text", "label")
    path.write_text(r'{"text": "\ud83d\ude00", "label": "b"}', "utf-8")
    assert labelled_rows(path, "text", "label") == [Row("\U0001f600", "b")]


def test_the_last_suffix_determines_the_format(tmp_path: Path):
    (tmp_path / "t.json.csv").write_text("text,label\na,b\n", "utf-8")
    assert labelled_rows(tmp_path / "t.json.csv", "text", "label") == [Row("a", "b")]


@pytest.mark.parametrize(("typed", "meant"), [("2", 2), ("text", "text"), ("²", "²"), ("9" * 5000, "9" * 5000)])
def test_columns_are_names_or_numbers(typed: str, meant: int | str):
    assert column_of(typed) == meant


def test_classes_that_may_be_the_same_are_reported():
    said = doubts_about_labels(["0", "0", "0.0", "1", "Good", "good", "nan"])
    assert len(said) == 3
    assert "'0' (2) and '0.0' (1) are the same number" in said[0]
    assert "'Good' (1) and 'good' (1) are the same except for case" in said[1]
    assert "'nan' (1) counts as a class" in said[2]
    assert not doubts_about_labels(["a", "b", "1", "2", "10", "inf"])


def test_messages_are_shown_once(caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            progress.say_once("only once")
    assert caplog.text.count("only once") == 1
