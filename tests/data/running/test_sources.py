import gzip
import os
from pathlib import Path

import pytest

from headway.core.errors import UserError
from headway.data.running import sources
from headway.data.running.sources import CORPORA, KNOWN_SETS, read_splits

LINES = "".join(f"line {i} of the text\n" for i in range(100))


def from_files(path: Path, valid_fraction: float = 0.1) -> dict[str, str]:
    return read_splits("files", str(path), valid_fraction)


# One file


def test_the_end_of_a_file_is_valid_and_begins_at_a_line(tmp_path: Path):
    (tmp_path / "a.txt").write_text(LINES)
    splits = from_files(tmp_path / "a.txt")
    assert list(splits) == ["train", "valid"]
    assert splits["train"] + splits["valid"] == LINES
    assert splits["train"].endswith("\n")
    assert 0.09 < len(splits["valid"]) / len(LINES) < 0.12


def test_a_file_without_lines_is_cut_at_the_character(tmp_path: Path):
    (tmp_path / "a.txt").write_text("first line\n" + "x" * 989)
    assert [len(text) for text in from_files(tmp_path / "a.txt", 0.25).values()] == [750, 250]


def test_a_valid_fraction_of_zero_keeps_all_for_training(tmp_path: Path):
    (tmp_path / "a.txt").write_text(LINES)
    assert from_files(tmp_path / "a.txt", 0.0) == {"train": LINES}


def test_gzip_gives_the_same_text(tmp_path: Path):
    (tmp_path / "a.txt").write_text(LINES)
    (tmp_path / "b.gz").write_bytes(gzip.compress(LINES.encode()))
    assert from_files(tmp_path / "a.txt") == from_files(tmp_path / "b.gz")


def test_windows_line_ends_and_byte_order_mark_make_no_difference(tmp_path: Path):
    (tmp_path / "unix.txt").write_text(LINES)
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n").encode())
    assert from_files(tmp_path / "unix.txt") == from_files(tmp_path / "windows.txt")


# A folder


def test_a_folder_names_its_splits(tmp_path: Path):
    for name in ("test-b.txt", "test.txt", "dev.txt", "notes.md", "other.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(b"to learn from"))
    splits = from_files(tmp_path)
    assert list(splits.items()) == [
        ("train", "to learn from"),
        ("valid", "dev.txt"),
        ("test", "test.txt"),
        ("test-b", "test-b.txt"),
    ]


def test_two_files_for_one_split_are_refused(tmp_path: Path):
    for name in ("train.txt", "val.txt", "dev.txt"):
        (tmp_path / name).write_text("text")
    with pytest.raises(UserError, match=r"two files for split 'valid': dev\.txt and val\.txt"):
        from_files(tmp_path)


def test_a_folder_without_train_is_refused(tmp_path: Path):
    (tmp_path / "test.txt").write_text("text")
    with pytest.raises(UserError, match=r"no train file: expected train\.txt or train\.txt\.gz"):
        from_files(tmp_path)


def test_a_folder_where_a_file_should_be(tmp_path: Path):
    (tmp_path / "train.txt").mkdir()
    with pytest.raises(UserError, match=r"train\.txt' cannot be read: it is a folder"):
        from_files(tmp_path)


# What cannot be read


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.txt", b"", r"empty\.txt' is empty; expected text"),
        ("blank.txt", b" \n\t\r\n", r"has only white space in it"),
        ("bom.txt", b"\xef\xbb\xbf", r"is empty; expected text"),
        ("latin.txt", b"caf\xe9 au lait", r"not UTF-8 text: byte 0xe9 at offset 3, in line 1, cannot be decoded"),
        ("picture.txt", b"\x89PNG\r\n\x00\x1a", r"binary, not text: it has a zero byte at offset 6"),
        ("latin.gz", gzip.compress(b"caf\xe9 au lait", mtime=0), r"byte 0xe9 at offset 3, after decompression"),
        ("plain.gz", b"just text", r"not a complete gzip file"),
        ("cut.gz", gzip.compress(LINES.encode(), mtime=0)[:-9], r"not a complete gzip file"),
        ("damaged.gz", gzip.compress(LINES.encode(), mtime=0)[:40] + b"\xff" * 90, r"not a complete gzip file"),
    ],
)
def test_files_that_are_not_text(tmp_path: Path, name: str, content: bytes, sentence: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        from_files(tmp_path / name)


def test_a_file_may_be_too_short_to_hold_something_out(tmp_path: Path):
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(
        UserError, match=r"4 characters, and with valid_fraction 0\.1 there is no text left for .*'valid'"
    ):
        from_files(tmp_path / "a.txt")


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_valid_fraction_has_bounds(tmp_path: Path, fraction: float):
    (tmp_path / "a.txt").write_text(LINES)
    with pytest.raises(UserError, match="at least 0 and below 1"):
        from_files(tmp_path / "a.txt", fraction)


def test_missing_path(tmp_path: Path):
    with pytest.raises(UserError, match=r"no file or folder '.*nowhere\.txt'"):
        from_files(tmp_path / "nowhere.txt")


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.txt").write_text(LINES)

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=r"a\.txt' cannot be read: Permission denied"):
        from_files(tmp_path / "a.txt")


def test_permission_denied_for_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UserError, match=r"may not be read: permission denied"):
        from_files(tmp_path)


def test_files_need_a_path_and_others_take_none():
    with pytest.raises(UserError, match="needs a path"):
        read_splits("files", None, 0.1)
    with pytest.raises(UserError, match=r"'python-docs' takes no path \(given: 'x\.txt'\)"):
        read_splits("python-docs", "x.txt", 0.1)


def test_an_unknown_corpus_gets_the_nearest_name_or_the_list():
    with pytest.raises(UserError, match=r"no corpus called 'wikitext2'; did you mean 'wikitext-2'\?"):
        read_splits("wikitext2", None, 0.1)
    with pytest.raises(
        UserError,
        match="there are: arithmetic-in-words, cse256-speeches, files, hub, python-docs, tinysh",
    ):
        read_splits("qqq", None, 0.1)


# Known data sets


def test_known_data_sets_need_headway_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    with pytest.raises(UserError, match="HEADWAY_DATA, which is not set"):
        read_splits("wikitext-2", None, 0.1)
    monkeypatch.setenv("HEADWAY_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="nowhere' does not exist"):
        read_splits("wikitext-2", None, 0.1)
    (tmp_path / "file").write_text("text")
    monkeypatch.setenv("HEADWAY_DATA", str(tmp_path / "file"))
    with pytest.raises(UserError, match="file' is a file, not a folder"):
        read_splits("wikitext-2", None, 0.1)
    monkeypatch.setenv("HEADWAY_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"no split 'train' under HEADWAY_DATA: expected .*wikitext-2/train\.txt\.gz'"):
        read_splits("wikitext-2", None, 0.1)


def test_known_data_sets_may_be_compressed_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWAY_DATA", str(tmp_path))
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    (folder / "train.txt").write_text("not packed")
    (folder / "valid.txt.gz").write_bytes(gzip.compress(b"packed"))
    (folder / "test.txt").write_text("as expected")
    assert read_splits("wikitext-2", None, 0.1) == {"train": "not packed", "valid": "packed", "test": "as expected"}


def test_a_data_set_without_splits_is_split_by_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWAY_DATA", str(tmp_path))
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("0123456789abcdefghi")
    assert read_splits("tinyshakespeare", None, 0.5) == {"train": "0123456789abcdefg", "valid": "hi"}


def test_the_first_split_of_every_known_data_set_is_train():
    assert all(next(iter(known.files)) == "train" for known in KNOWN_SETS.values())
    assert set(CORPORA) == {*sources.EMBEDDED, *KNOWN_SETS, "files", "hub"}


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("wikitext-2", {"train": 10_780_437, "valid": 1_120_192, "test": 1_255_018}),
        ("tinyshakespeare", {"train": 1_003_854, "valid": 111_540}),
    ],
)
def test_known_data_sets_have_their_size(name: str, sizes: dict[str, int]):
    if not os.environ.get("HEADWAY_DATA"):
        pytest.skip("HEADWAY_DATA is not set")
    assert {split: len(text) for split, text in read_splits(name, None, 0.1).items()} == sizes


@pytest.mark.data
def test_speeches_have_their_splits():
    if not os.environ.get("HEADWAY_DATA"):
        pytest.skip("HEADWAY_DATA is not set")
    assert list(read_splits("cse256-speeches", None, 0.1)) == ["train", "test-obama", "test-wbush", "test-hbush"]


def test_devices_and_pipes_are_refused(tmp_path: Path):
    """Reading them would never end, or block."""
    os.mkfifo(tmp_path / "pipe.txt")
    for path, what in ((tmp_path / "pipe.txt", "a pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(UserError, match=f"cannot be read: it is {what}"):
            from_files(path)


def test_a_gzip_bomb_is_refused_early(tmp_path: Path):
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(bytes(100 << 20)))
    with pytest.raises(UserError, match="expands to more than 200 times its"):
        from_files(tmp_path / "bomb.txt.gz")
    text = "".join(f"line {k}\n" for k in range(5000)).encode()
    (tmp_path / "parts.txt.gz").write_bytes(gzip.compress(text) + gzip.compress(text))
    assert "".join(from_files(tmp_path / "parts.txt.gz").values()) == 2 * text.decode()
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(UserError, match="is not a complete gzip file"):
        from_files(tmp_path / "cut.txt.gz")
