"""Reading files: whatever is found in their place is read, or refused immediately with a message."""

import json
import os
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import UserError
from headway.core.files import holder, locked, write_whole
from headway.core.reading import MOST, UnreadableError, is_deeper, opened_to_append, parse_json, read_bytes, read_json

LAID = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a link to a file": lambda path: path.symlink_to(__file__),
    "a loop of links": lambda path: path.symlink_to(path),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("what", LAID)
def test_anything_but_a_regular_file_is_refused_at_once_and_never_written(tmp_path: Path, monkeypatch, what: str):
    monkeypatch.chdir(tmp_path)
    path = Path("expected")
    LAID[what](path)
    began = time.monotonic()
    with pytest.raises(UnreadableError, match="expected cannot be read: "):
        read_bytes(path)
    for mode in ("ab", "ab+"):
        with pytest.raises(UserError, match="expected cannot be written: "), opened_to_append(path, mode) as file:
            file.write(b"more")
    assert time.monotonic() - began < 1


def test_an_endless_device_is_refused_even_through_links():
    with pytest.raises(UnreadableError, match="/dev/zero cannot be read: it is a device, not a file"):
        read_bytes(Path("/dev/zero"), None, through_links=True)


def test_sizes_are_bounded(tmp_path: Path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # sparse: no byte is on the disk
    for most in (MOST, None):  # None: no fixed limit, for weights and long texts, but no more than fits into memory
        with pytest.raises(
            UnreadableError, match="large cannot be read: it has 1,099,511,627,776 bytes, more than the limit of"
        ):
            read_bytes(tmp_path / "large", most)


BOMBS = {
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep lists without an end": b"[" * 1_000_000,
    "deep keys": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "an integer of 5,000 digits": b'{"a": ' + b"9" * 5_000 + b"}",
    "a text without an end": b'{"a": "' + b"x" * 1_000_000,
    "quotes": b'"' * 1_000_001,
    "backslashes": b'"' + b"\\" * 1_000_001,
    "no text": b"\xff\xfe\x00",
    "nothing": b"",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_invalid_json_and_json_bombs_are_one_message(tmp_path: Path, bomb: str):
    (tmp_path / "a.json").write_bytes(BOMBS[bomb])
    began = time.monotonic()
    with pytest.raises(UnreadableError, match=r"a\.json cannot be read: "):
        read_json(tmp_path / "a.json")
    assert time.monotonic() - began < 2


_json = st.recursive(
    st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def depth(value) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(_json)
def test_depth_equals_that_found_by_recursion(value):
    text = json.dumps(value, ensure_ascii=False).encode()
    assert parse_json(text, Path("x")) == value
    for most in range(depth(value) + 2):
        assert is_deeper(text, most) == (depth(value) > most)


def test_locks_and_written_files_do_not_follow_links(tmp_path: Path):
    """As in a received folder whose lock file is a link to another file."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="lock cannot be written: it is a link"), locked(tmp_path / "run"):
        pass
    assert holder(tmp_path / "run") is None
    for name in ("a", f".a.{os.getpid()}.partial"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "precious")
    write_whole(tmp_path / "run" / "a", "theirs")
    assert (tmp_path / "precious").read_text() == "mine" and not (tmp_path / "run" / "a").is_symlink()
