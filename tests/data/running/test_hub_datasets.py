"""Datasets by name: which files, which split, which column; also through the command line and HF_ENDPOINT."""

import gzip
import json
import sys
from pathlib import Path

import pytest
from crash import Ended
from hub_server import HubServer

from headway.core.errors import UserError
from headway.data.running.sources import read_splits
from headway.data.running.spec import Text

LINES = "".join(f"line {i} of the text\n" for i in range(100))


def read(hub: HubServer, files: dict[str, bytes], within: str = "", column: str | None = None) -> dict[str, str]:
    hub.add("dataset", "me/set", files)
    return read_splits("hub", f"me/set{within}" + (f"#{column}" if column else ""), 0.1)


def refusal(hub: HubServer, files: dict[str, bytes], within: str = "", column: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        read(hub, files, within, column)
    return str(caught.value)


def parquet(path: Path, **columns) -> bytes:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow, of the extra 'hub', is not installed")
    from pyarrow import parquet

    parquet.write_table(arrow.table(columns), path / "made.parquet")
    return (path / "made.parquet").read_bytes()


# --- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("txt", b"one\ntwo\n"),
        ("txt.gz", gzip.compress(b"one\ntwo\n", mtime=0)),
        ("csv", b"id,text\n1,one\n2,two\n"),
        ("csv.gz", gzip.compress(b"id,text\r\n1,one\r\n2,two\r\n", mtime=0)),
        ("tsv", b"text\tid\none\t1\ntwo\t2\n"),
        ("jsonl", b'{"text": "one", "id": 1}\n\n{"text": "two\\r\\n", "id": 2}\n'),
        ("jsonl.gz", gzip.compress(b'{"text": "one"}\n{"text": "two"}\n', mtime=0)),
        ("json", b'[{"text": "one"}, {"text": null}, {"text": "two"}]'),
        ("json", b'{"version": "1.0", "data": [{"text": "one"}, {"text": "two"}]}'),
        ("json", b'{"text": "one", "tags": ["a"]}\n{"text": "two", "tags": []}\n'),
    ],
)
def test_every_format_gives_the_same_text(hub: HubServer, ending: str, content: bytes):
    splits = read(hub, {f"train.{ending}": content, f"test.{ending}": content, f"validation.{ending}": content})
    assert splits == {"train": "one\ntwo\n", "valid": "one\ntwo\n", "test": "one\ntwo\n"}
    assert list(splits) == ["train", "valid", "test"]


def test_parquet(hub: HubServer, tmp_path: Path):
    content = parquet(tmp_path, text=["one\n", None, "two"], label=[0, 1, 2])
    assert read(hub, {"data/train-00000-of-00001.parquet": content, "data/validation-0.parquet": content}) == {
        "train": "one\ntwo\n",
        "valid": "one\ntwo\n",
    }


def test_documents_may_contain_commas_quotes_and_line_ends_and_be_long(hub: HubServer):
    long = "x" * 200_000
    row = f'text\n"He said ""no"", twice\nor more"\n{long}\n'.encode()
    assert read(hub, {"train.csv": row, "dev.csv": row})["train"] == f'He said "no", twice\nor more\n{long}\n'


# --- splits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("data/train-0-of-1.txt", "data/validation-0-of-1.txt", "data/test-0-of-1.txt"),
        ("train/0000.txt", "val/0000.txt", "test/0000.txt"),
        ("en/c4-train.0.txt", "en/c4-dev.0.txt", "en/c4-test.0.txt"),
        ("Training.txt", "DEV.txt", "My_Test.txt"),
    ],
)
def test_names_and_folders_determine_the_split(hub: HubServer, names: tuple[str, str, str]):
    files = {name: word.encode() for name, word in zip(names, ("learn", "watch", "judge"), strict=True)}
    others = {"README.md": b"x", "LICENSE.txt": b"x", "dataset_infos.json": b"{}", "vocabulary.txt": b"x"}
    assert read(hub, files | others) == {"train": "learn", "valid": "watch", "test": "judge"}


def test_shards_are_joined_in_the_order_of_their_names(hub: HubServer):
    files = {f"train-0000{k}.txt": f"{k}\n".encode() for k in (2, 0, 1)} | {"valid.txt": b"v"}
    assert read(hub, files)["train"] == "0\n1\n2\n"


def test_without_a_valid_split_the_end_of_train_is_held_out(hub: HubServer):
    splits = read(hub, {"train.txt": LINES.encode(), "test.txt": b"judge"})
    assert list(splits) == ["train", "valid", "test"]
    assert splits["train"] + splits["valid"] == LINES
    assert 0.09 < len(splits["valid"]) / len(LINES) < 0.12


def test_files_that_name_no_split_are_all_train(hub: HubServer):
    splits = read(hub, {"b.txt": LINES.encode(), "a.txt": b"first\n", "README.txt": b"no data"})
    assert splits["train"] + splits["valid"] == "first\n" + LINES


def test_one_of_several_data_sets_is_chosen_by_its_folder(hub: HubServer):
    files = {f"{name}/{split}.txt": f"{name} {split}\n".encode() for name in "ab" for split in ("train", "valid")}
    said = refusal(hub, files)
    assert said.startswith("dataset 'me/set' has 2 sets: a, b; choose one, as in data.path=me/set/a")
    assert not any("/resolve/" in line for line in hub.asked)
    assert read(hub, files, "/b") == {"train": "b train\n", "valid": "b valid\n"}
    assert read(hub, files, "@main/a")["train"] == "a train\n"
    assert read(hub, files, "/*")["train"] == "a train\nb train\n"


def test_one_of_several_formats_is_chosen_by_a_pattern(hub: HubServer):
    files = {"train.csv": b"text\ncsv\n", "train.jsonl": b'{"text": "json"}', "valid.csv": b"text\ncsv\n"}
    said = refusal(hub, files)
    assert "several formats: csv, jsonl; choose one with a pattern, as in data.path='me/set/*.csv'" in said
    assert read(hub, files, "/*.csv")["train"] == "csv\n"


# --- columns ---------------------------------------------------------------------------------------------------------

TABLES = {"train.jsonl": b'{"sentence": "yes", "label": 1, "tags": ["a"]}\n{"sentence": "no", "label": 0}\n'}
TWO = {"train.csv": b"title,body\na,one\nb,two\n", "valid.csv": b"title,body\na,one\n"}


def test_the_only_column_with_text_is_used(hub: HubServer):
    assert read(hub, {**TABLES, "valid.jsonl": TABLES["train.jsonl"]})["train"] == "yes\nno\n"


def test_a_column_by_name(hub: HubServer):
    assert read(hub, TWO, column="body")["train"] == "one\ntwo\n"
    assert read(hub, TWO, "@main/*.csv", column="title")["train"] == "a\nb\n"


@pytest.mark.parametrize(
    ("files", "column", "sentence"),
    [
        (
            TWO,
            None,
            "train.csv has several columns that could be the text: title, body; "
            "choose one, as in data.path=owner/name#body",
        ),
        (TWO, "bodi", "train.csv has no column 'bodi'; did you mean 'body'?"),
        (TABLES, "label", "column 'label' of train.jsonl does not hold text; these do: sentence"),
        ({"train.json": b'[{"a": 1, "b": 2}]'}, None, "train.json has no column that holds text: a, b"),
    ],
)
def test_columns_that_cannot_be_chosen(hub: HubServer, files: dict[str, bytes], column: str | None, sentence: str):
    assert refusal(hub, files, column=column) == sentence


def test_columns_of_parquet(hub: HubServer, tmp_path: Path):
    files = {"train.parquet": parquet(tmp_path, question=["q"], answer=["a"], n=[1])}
    assert "several columns that could be the text: question, answer" in refusal(hub, files)
    assert "column 'n' of train.parquet does not hold text" in refusal(hub, files, column="n")
    assert "no column 'anser'; did you mean 'answer'?" in refusal(hub, files, column="anser")


# --- what cannot be read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "within", "sentence"),
    [
        ({}, "", "there is no file in dataset 'me/set' that can be read: expected .parquet, .json"),
        ({"README.md": b"x", "a.arrow": b"x"}, "", "there are: README.md, a.arrow"),
        ({"train.txt": b"x"}, "/nowhere", "there is no file in 'nowhere' of dataset 'me/set' that can be read"),
        ({"test.txt": b"x"}, "", "has no train files, only test: test.txt"),
        ({"train.txt": b""}, "", "train.txt' is empty; expected text"),
        ({"train.csv": b"text\n"}, "", "there is no text in split 'train' (train.csv)"),
        ({"train.json": b"[]"}, "", "train.json has no column that holds text: none"),
        ({"train.csv": b'text\n"open'}, "", "train.csv is not a table of comma- or tab-separated values"),
        ({"train.jsonl": b'{"text": "a"}\n{"text": '}, "", "nor an object per line: line 2:"),
        ({"train.json": b"[1, 2]"}, "", "train.json is JSON, but not rows"),
        ({"train.txt": b"\x00\x01"}, "", "is binary, not text"),
    ],
)
def test_what_cannot_be_read(hub: HubServer, files: dict[str, bytes], within: str, sentence: str):
    assert sentence in refusal(hub, files, within)


def test_an_invalid_parquet_file(hub: HubServer):
    pytest.importorskip("pyarrow", reason="pyarrow, of the extra 'hub', is not installed")
    assert "train.parquet is not a complete parquet file" in refusal(hub, {"train.parquet": b"PAR1 nonsense"})


def test_parquet_without_its_library_is_refused_before_the_download(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = refusal(hub, {"train.parquet": b"PAR1"})
    assert said.endswith("needs the package pyarrow, which is not installed: pip install 'headway[hub]'")
    assert not any("/resolve/" in line for line in hub.asked)


@pytest.mark.parametrize("path", ["nobody", "me/set name", "../me/set"])
def test_a_path_that_is_no_dataset_name(hub: HubServer, path: str):
    with pytest.raises(UserError, match="is not the name of a dataset repository; expected owner/name"):
        read_splits("hub", path, 0.1)
    assert hub.asked == []


def test_the_hub_needs_a_path():
    with pytest.raises(UserError, match="source 'hub' needs a path: owner/name of a dataset"):
        read_splits("hub", None, 0.1)
    assert [p.reason for p in Text(source="hub").problems()] == [
        "source: hub needs a path, such as data.path=owner/name"
    ]
    assert list(Text(source="hub", path="me/set@v1/part#body").problems()) == []


# --- through the command line ----------------------------------------------------------------------------------------


def test_train_on_a_dataset_by_name_then_again_without_a_network(hub: HubServer, workshop, forge, tmp_path: Path):
    rows = "".join(json.dumps({"text": line}) + "\n" for line in workshop.text.read_text("utf-8").splitlines())
    hub.add("dataset", "me/foxes", {"train.jsonl": rows.encode()})

    def headway(name: str, run: str, **variables: str) -> Ended:
        words = ["data.source=hub", f"data.path={name}", "training.duration=2 steps", "--name", run, "--json"]
        here = forge.at(tmp_path, HEADWAY_CACHE=str(tmp_path / run), **variables)
        return here.run("train", str(workshop.recipe), *words)

    first = headway("me/foxes", "first")
    assert first.code == 0, first.err
    asked = len(hub.asked)
    assert asked > 0
    again = headway("me/foxes", "again", HF_HUB_OFFLINE="1")
    assert again.code == 0, again.err
    assert json.loads(again.out)["scores"] == json.loads(first.out)["scores"]
    other = headway("me/hares", "other", HF_HUB_OFFLINE="1")
    assert other.code == 2 and len(hub.asked) == asked
    assert other.err.count("\n") == 1 and other.err.startswith(
        "headway: dataset 'me/hares' is not (completely) in the hub's cache"
    )
    assert not (tmp_path / "runs" / "other").exists()
