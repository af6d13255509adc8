import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import UserError
from headway.data.labelled.tables import Row, labelled_rows


@pytest.fixture
def table(tmp_path: Path):
    def write(content: str, name: str = "table.tsv") -> Path:
        path = tmp_path / name
        path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
        return path

    return write


def test_columns_by_name_and_by_number(table):
    path = table("id\tlabel\ttext\n1\tgood\tfine film\n2\tbad\tnot this\n")
    rows = [Row("fine film", "good"), Row("not this", "bad")]
    assert labelled_rows(path, "text", "label", header=True) == rows
    assert labelled_rows(path, 3, 2, header=True) == rows
    assert labelled_rows(path, "text", 2, header=True) == rows
    assert labelled_rows(table("fine film\tgood\nnot this\tbad"), 1, 2, header=False) == rows


def test_quotes_are_special_in_csv_and_not_in_tsv(table):
    quoted = table('text,label\n"a, ""b""\nc",x\nd,"y"\n', "table.csv")
    assert labelled_rows(quoted, "text", "label", True) == [Row('a, "b"\nc', "x"), Row("d", "y")]
    plain = table('"To be\tx\nor not"\ty\n')
    assert labelled_rows(plain, 1, 2, False) == [Row('"To be', "x"), Row('or not"', "y")]


def test_gzip_windows_line_ends_byte_order_marks_and_blank_lines(table):
    content = "\ufefftext,label\r\none,x\r\n\r\n , \r\ntwo,y\r\n\r\n"
    for name in ("t.csv", "t.csv.gz"):
        assert labelled_rows(table(content, name), "text", "label", True) == [Row("one", "x"), Row("two", "y")]
    assert labelled_rows(table("a b\tx\r\n\r\nc\ty\r\n"), 1, 2, False) == [Row("a b", "x"), Row("c", "y")]


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1).filter(
    lambda cell: cell.strip() and not cell.startswith("\ufeff")
)


@settings(max_examples=80, deadline=None)
@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6))
def test_what_pythons_csv_writes_is_read_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([["label", "text"], *[[label, f"w {text}"] for text, label in rows]])
    path.write_text(out.getvalue(), "utf-8", newline="")
    found = labelled_rows(path, "text", "label", True)
    assert found == [Row(f"w {text}".strip(), label.strip()) for text, label in rows]


BAD = {
    "a label column that does not exist": (
        "text\tlable\na b\tx\n",
        ("text", "label", True),
        r"data.label=label: 'table.tsv' has no column of that name; did you mean 'lable'\?",
    ),
    "no header where one is expected": (
        "a b\n",
        ("text", "label", True),
        "has no rows below its header",
    ),
    "a header of one column": (
        "whatever\na\n",
        ("text", "label", True),
        "if its first line is not a header, give numbers: data.text=1 data.label=2",
    ),
    "a number beyond the last column": ("a\tb\n", (3, 1, False), "data.text=3: 'table.tsv' has columns 1 to 2"),
    "column zero": ("a\tb\n", (0, 1, False), "data.text=0: 'table.tsv' has columns 1 to 2"),
    "the same column twice": ("a\tb\n", (1, 1, False), "data.text and data.label are the same column of 'table.tsv'"),
    "a text column with numbers": (
        "text\tscore\tbody\n1\tx\tgood one\n2.5\ty\tbad one\n",
        ("text", "score", True),
        r"data.text=text: in 'table.tsv' this column holds numbers \(1 …\), not text; did you mean data.text=score or "
        r"data.text=body\?",
    ),
    "numbered, a text column with numbers": ("0\tyes\n1\tno\n", (1, 2, False), r"did you mean data.text=2\?"),
    "a row that is too short": (
        "a\tx\nb\n",
        (1, 2, False),
        "line 2: column 2 is needed, but the line has only 1 column",
    ),
    "a row without a text": ("a\tx\n  \ty\n", (1, 2, False), "line 2: column 1 is empty; every row needs a text and"),
    "a row without a label": ("a\tx\nb\t\n", (1, 2, False), "line 2: column 2 is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_refused_with_a_message(table, case):
    content, asked, words = BAD[case]
    with pytest.raises(UserError, match=words):
        labelled_rows(table(content), *asked)


def test_lines_are_counted_across_quoted_line_ends(table):
    with pytest.raises(UserError, match="line 4: column 'l' is empty"):
        labelled_rows(table('t,l\n"a\nb",x\nc,\n', "table.csv"), 1, 2, True)


def test_an_unclosed_quotation_is_not_csv(table):
    with pytest.raises(UserError, match="line 2: this is not CSV"):
        labelled_rows(table('t,l\n"a,x\n', "table.csv"), 1, 2, True)
