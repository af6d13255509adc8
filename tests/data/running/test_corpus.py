import errno
import logging
from pathlib import Path

import numpy as np
import pytest

from headway.core.errors import UserError
from headway.data import cache
from headway.data.running import corpus, sources
from headway.data.running.corpus import load
from headway.data.vocabularies import Bpe, Char, TokenizerSpec, Word

LINES = "".join(f"line {i} of the text, naïve and long\n" for i in range(200))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, which does not exist yet."""
    folder = tmp_path / "some" / "cache"
    monkeypatch.setenv("HEADWAY_CACHE", str(folder))
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.txt"
    path.write_text(LINES)
    return path


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows when a corpus is tokenised instead of read from the cache."""
    made: list[str] = []
    make = corpus._tokenise

    def noted(name: str, texts: dict[str, str], spec: TokenizerSpec):
        made.append(name)
        return make(name, texts, spec)

    monkeypatch.setattr(corpus, "_tokenise", noted)
    return made


def same(a: corpus.Corpus, b: corpus.Corpus) -> bool:
    return (
        list(a.splits) == list(b.splits)
        and a.tokenizer.to_json() == b.tokenizer.to_json()
        and all(
            np.array_equal(getattr(a.splits[split], part), getattr(b.splits[split], part))
            for split in a.splits
            for part in ("ids", "bytes", "starts")
        )
    )


@pytest.mark.parametrize("spec", [Char(), Word(size=20), Bpe(size=300)], ids=repr)
def test_the_second_time_it_is_read_from_the_cache(kept: Path, file: Path, tokenised: list[str], spec: TokenizerSpec):
    first = load("files", str(file), 0.1, spec)
    second = load("files", str(file), 0.1, spec)
    assert tokenised == ["mine.txt"]
    assert same(first, second)
    assert first.name == second.name == "mine.txt"
    assert all(array.flags.writeable for tokens in second.splits.values() for array in (tokens.ids, tokens.bytes))
    assert [path.name.split("-")[0] for path in kept.iterdir()] == ["text"]  # no partial file is left


def test_found_by_content_not_by_name(kept: Path, file: Path, tokenised: list[str], tmp_path: Path):
    load("files", str(file), 0.1, Char())
    (tmp_path / "copy.txt").write_text(LINES)
    assert load("files", str(tmp_path / "copy.txt"), 0.1, Char()).name == "copy.txt"
    assert len(tokenised) == 1
    load("files", str(file), 0.2, Char())
    load("files", str(file), 0.1, Word())
    load("files", str(file), 0.1, Word(lower=True))
    assert len(tokenised) == 4
    file.write_text(LINES + "and of the text\n")
    load("files", str(file), 0.1, Char())
    assert len(tokenised) == 5


def test_vocabularies_are_learnt_from_train_only(kept: Path, tmp_path: Path):
    (tmp_path / "train.txt").write_text("a b c")
    (tmp_path / "valid.txt").write_text("a d")
    loaded = load("files", str(tmp_path), 0.1, Word())
    assert loaded.tokenizer.pieces(loaded.split("valid").ids) == ["a", "<unk>"]
    with pytest.raises(UserError, match=r"split 'valid': the vocabulary, .* lacks 'd' \(U\+0064\)"):
        load("files", str(tmp_path), 0.1, Char())


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_entry_is_computed_again(
    kept: Path, file: Path, tokenised: list[str], damage: str, caplog: pytest.LogCaptureFixture
):
    first = load("files", str(file), 0.1, Char())
    (entry,) = kept.iterdir()
    content = bytearray(entry.read_bytes())
    if damage == "cut":
        entry.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[-5] ^= 1
        entry.write_bytes(content)
    elif damage == "empty":
        entry.write_bytes(b"")
    else:
        cache.store(entry.name, b"whole, but nothing that can be understood")
    assert same(first, load("files", str(file), 0.1, Char()))
    assert len(tokenised) == 2
    assert same(first, load("files", str(file), 0.1, Char()))
    assert len(tokenised) == 2
    assert not caplog.records


def test_a_cache_that_cannot_be_written_is_one_warning(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "blocked").write_text("a file where the folder should be")
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "blocked"))
    with caplog.at_level(logging.WARNING, logger="headway"):
        first = load("files", str(file), 0.1, Char())
        second = load("files", str(file), 0.1, Char())
    assert same(first, second)
    assert [record.name for record in caplog.records] == ["headway"]
    assert "set HEADWAY_CACHE" in caplog.text


def test_a_full_disk_leaves_nothing_behind(
    kept: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, f"No space left on device {kept}")

    monkeypatch.setattr(Path, "replace", full)
    assert len(load("files", str(file), 0.1, Char()).split("train")) > 0
    assert list(kept.iterdir()) == []
    assert "No space left" in caplog.text


def test_the_place_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HEADWAY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "headway"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "headway"
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "own"))
    assert cache.folder() == tmp_path / "own"


def test_an_unknown_split_gets_the_nearest_name(kept: Path, file: Path):
    loaded = load("files", str(file), 0.1, Char())
    with pytest.raises(UserError, match=r"'mine\.txt' has no split 'vaild'; did you mean 'valid'\?"):
        loaded.split("vaild")
    with pytest.raises(UserError, match="no split 'test'; there are: train, valid"):
        loaded.split("test")


def test_an_embedded_corpus_is_identified_by_its_name(kept: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sources.EMBEDDED, "python-docs", lambda: {"train": LINES, "valid": "text\n", "test": "long\n"})
    loaded = load("python-docs", None, 0.1, Bpe(size=300))
    assert loaded.name == "python-docs"
    assert list(loaded.splits) == ["train", "valid", "test"]
