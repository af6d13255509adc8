"""Corpora of any size: the same tokens however they are split into pieces, stored compactly, with progress, and
cleared."""

import os
import random
import resource
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core import progress
from headway.core.errors import UserError
from headway.data import cache, letters, memo, tokenizer_kinds, tokenizers
from headway.data.running.corpus import load
from headway.data.running.sources import hold_out
from headway.data.tokenizers import Tokenizer
from headway.data.tokens import KeptTokens, Tokens
from headway.data.vocabularies import Bpe, Byte, Char, Word

LEARNT = "It is what it is; don't <unk> me.\n\n  A naïve word\u3000or\xa0two, 12 34!\nß İ ẞ end"
SPECS = [Char(unknown=True), Byte(), Word(), Word(size=6), Word(lower=True, punctuation="apart"), Bpe(size=300)]
SPECS.append(Bpe(size=280, lower=True))
TEXTS = st.text(
    st.sampled_from(sorted({*LEARNT, "\t", "\r", "\x0b", "\x1c", "\x1f", "\x85", "é", "漢", "😀"})), max_size=60
)


def by_the_library(tokenizer: Tokenizer, text: str) -> Tokens:
    nothing = Tokens(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.bool_))
    return next(iter(tokenizer._whole(text)), nothing)


@pytest.mark.parametrize("spec", [*SPECS, Char()], ids=repr)
@settings(max_examples=40, deadline=None)
@given(text=TEXTS)
def test_memoised_tokens_equal_those_of_the_library(spec, text):
    tokenizer = spec.learn(LEARNT)
    if isinstance(spec, Char) and not spec.unknown:
        text = "".join(letter for letter in text if letter in LEARNT)
    ours, theirs = tokenizer.encode(text), by_the_library(tokenizer, text)
    if isinstance(spec, Char) and spec.unknown:  # the library reads <unk> as five characters
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.bytes.tolist() == [len(letter.encode()) for letter in text]
        return
    for what in ("ids", "bytes", "starts"):
        assert getattr(ours, what).tolist() == getattr(theirs, what).tolist(), what


@pytest.mark.parametrize("spec", [*SPECS, Char()], ids=repr)
def test_cached_tokens_do_not_depend_on_the_pieces(spec, monkeypatch: pytest.MonkeyPatch):
    draw = random.Random(0)
    text = "".join(draw.choice(LEARNT) for _ in range(3000)) + " " + "w" * 700 + "  \n "
    tokenizer = spec.learn(LEARNT + "w")
    whole = tokenizer.encode(text)
    for module in (letters, tokenizers, tokenizer_kinds):
        monkeypatch.setattr(module, "PIECE", 64)
    monkeypatch.setattr(memo, "MAX_UNITS", 20)
    arrays: dict[str, list[np.ndarray]] = {}
    for name, piece in KeptTokens.stored(tokenizer, text):
        arrays.setdefault(name, []).append(piece)
    kept = KeptTokens(tokenizer, {name: np.concatenate(some) for name, some in arrays.items()})
    assert kept.ids.dtype == tokenizer.id_type and len(kept) == len(whole)
    for what in ("ids", "bytes", "starts"):
        assert np.array_equal(getattr(kept, what), getattr(whole, what)), what
    assert int(kept.bytes.sum()) == len(text.encode()) and int(kept.starts.sum()) == len(text.split())


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    return tmp_path


def words(count: int) -> str:
    draw = random.Random(1)
    some = ["".join(draw.choice("etaoin") for _ in range(draw.randrange(1, 9))) for _ in range(500)]
    return " ".join(draw.choice(some) + "\n" * (k % 12 == 0) for k in range(count))


@pytest.mark.parametrize(
    ("spec", "most"), [(Char(), 1.2), (Byte(), 1.2), (Word(), 1.0), (Bpe(size=400), 1.2)], ids=repr
)
def test_a_corpus_is_stored_in_about_a_byte_per_character_and_mapped_if_it_is_large(kept, spec, most, monkeypatch):
    (kept / "t.txt").write_text(words(8000))
    monkeypatch.setattr(cache, "MIN_MAPPED", 1 << 10)
    for _ in range(2):
        made = load("files", str(kept / "t.txt"), 0.1, spec)
        assert made.split("train").ids.base is not None and made.split("train").ids.flags.writeable
    (entry,) = cache.entries()
    assert entry.is_current and entry.size < most * (kept / "t.txt").stat().st_size + 30_000
    assert made.tokenizer.decode(made.split("valid").ids).split() == made.texts["valid"].split()
    assert cache.clear(cache.entries()) == entry.size and not cache.entries()
    assert int(made.split("train").ids.sum()) > 0  # mapped files stay readable after they are removed


def test_clearing_the_cache_removes_only_headways_files(kept: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(kept))
    (kept / "thesis-2024").mkdir()
    for name in ("t.txt", "thesis-2024/chapter.tex", "runs/demo/run.json", "trained/notes.txt"):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).write_text(words(100))
    (kept / "runs" / f"{'0a' * 12}.json").write_text("{}")
    load("files", str(kept / "t.txt"), 0.1, Word())
    before = set(kept.rglob("*"))
    assert len(cache.entries()) == 2 and cache.clear(cache.entries()) and not cache.entries()
    gone = {path.relative_to(kept).parts[0] for path in before - set(kept.rglob("*"))}
    assert len(gone) == 2 and gone > {"runs"} and (kept / "runs/demo/run.json").exists()


def test_the_progress_of_tokenising_is_reported(kept: Path, monkeypatch: pytest.MonkeyPatch):
    (kept / "t.txt").write_text(words(2000))
    for module in (letters, tokenizers, tokenizer_kinds):
        monkeypatch.setattr(module, "PIECE", 1000)
    for spec in (Char(), Word()):
        told: list[tuple[str, int, int]] = []
        with progress.listening(lambda *one, told=told: told.append(one)):
            load("files", str(kept / "t.txt"), 0.1, spec)
        of_train = [one for one in told if "train" in one[0]]
        assert len(of_train) > 3 and all(of_train[k][1] < of_train[k + 1][1] for k in range(len(of_train) - 1))
        assert of_train[-1][1] == of_train[-1][2]


@pytest.mark.parametrize("spec", [Word(), Bpe(size=300)], ids=repr)
def test_the_progress_of_learning_a_vocabulary_is_reported(spec):
    told: list[tuple[str, int, int]] = []
    with progress.listening(lambda *one: told.append(one)):
        spec.learn(text := words(2000))
    assert told and told[-1][1:] == (len(text), len(text)) and "counting" in told[0][0]


def test_a_corpus_is_split_without_a_copy_of_it():
    text = "x" * 4_000_000 + "\n"
    tracemalloc.start()
    try:
        splits = hold_out(text, 0.1, "t.txt")
        assert tracemalloc.get_traced_memory()[1] < 1.1 * len(text)
    finally:
        tracemalloc.stop()
    assert "".join(splits.values()) == text


def test_the_error_for_a_character_missing_in_train_names_a_remedy(kept: Path):
    (kept / "set").mkdir()
    (kept / "set" / "train.txt").write_text("plain words\n" * 20)
    (kept / "set" / "valid.txt").write_text("plain\nwörds ☃\n")
    with pytest.raises(UserError, match=r"lacks 'ö' .*'☃'.* line 2, column 2.*=bpe .*=byte.*unknown=true"):
        load("files", str(kept / "set"), 0.1, Char())
    made = load("files", str(kept / "set"), 0.1, Char(unknown=True))
    valid = made.split("valid")
    assert int((valid.ids == made.tokenizer.unknown).sum()) == 2 and int(valid.bytes.sum()) == len(
        "plain\nwörds ☃\n".encode()
    )
    bytes_ = load("files", str(kept / "set"), 0.1, Byte())
    assert bytes_.tokenizer.size == 256 and bytes_.tokenizer.decode(bytes_.split("valid").ids) == made.texts["valid"]
    again = Tokenizer.from_json(bytes_.tokenizer.to_json())
    assert again.kind == "byte" and again.encode("ö").ids.tolist() == list("ö".encode())


@pytest.mark.parametrize(("spec", "encoding"), [(Word(), "utf-16"), (Char(), "cp1252")])
def test_encodings_of_running_text(kept: Path, spec, encoding):
    (kept / "t.txt").write_bytes(("schöne Wörter\n" * 30).encode(encoding))
    said = None if "16" in encoding else encoding
    assert "ö" in load("files", str(kept / "t.txt"), 0.1, spec, said).texts["train"]
    if said:
        with pytest.raises(UserError, match=r"data.encoding=cp1252"):
            load("files", str(kept / "t.txt"), 0.1, spec)


def test_a_large_vocabulary_of_words_is_learnt_as_before():
    text = words(3000) + "\n" + LEARNT
    for spec in (Word(), Word(lower=True), Word(punctuation="apart"), Word(size=9)):
        from tokenizers import trainers

        counted = spec._library({})
        trainer = trainers.WordLevelTrainer(vocab_size=len(text) + 1, min_frequency=0, show_progress=False)
        counted.train_from_iterator(tokenizers.chunks(text), trainer)
        by_count = counted.get_vocab()
        expected = ["<unk>", "\n"] + [w for w in sorted(by_count, key=by_count.__getitem__) if w not in ("<unk>", "\n")]
        assert spec.learn(text)._meaning == [word.encode() for word in expected[: spec.size]]


def test_the_cache_is_listed_by_kind(kept: Path, command_line):
    where = kept / "cache"
    sizes = {f"text-{'0a' * 16}": 3000, f"text-{'0b' * 16}": 2000, f"evidence-{'0c' * 16}": 10}
    sizes |= {f"runs/{'0d' * 12}.json": 20, f"corpus-{'0e' * 16}": 30, "trained/small-bert-8b811ab4a1a7-0.1.0/w": 40}
    for name, size in sizes.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_bytes(b"." * size)
    rows = [line.split("  ") for line in command_line("cache").out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows[1:-1]]
    assert [row[:3] for row in cells] == [
        ["tokenised text", "2", "5.0 kB"],
        ["model small-bert", "1", "40 bytes"],
        ["outdated", "1", "30 bytes"],
        ["index of runs", "1", "20 bytes"],
        ["results of data audits", "1", "10 bytes"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "seconds"), [("Char()", 60), ("Word()", 150), ("Byte()", 60)])
def test_three_hundred_megabytes(tmp_path: Path, spec, seconds):
    line = words(150_000)
    with (tmp_path / "t.txt").open("w") as file:
        for k in range(300_000_000 // len(line)):
            file.write(f"{line}{k}\n")
    program = (
        "import sys, resource; from headway.data.running.corpus import load\n"
        "from headway.data.vocabularies import *\n"
        f"load('files', sys.argv[1], 0.01, {spec})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    began = time.monotonic()
    given = [sys.executable, "-c", program, str(tmp_path / "t.txt")]
    told = subprocess.run(
        given, capture_output=True, text=True, check=True, env={**os.environ, "HEADWAY_CACHE": str(tmp_path / "c")}
    )
    assert time.monotonic() - began < seconds
    assert int(told.stdout) < 1_600_000  # kB: the text, its two parts, and mapped tokens
    assert sum(path.stat().st_size for path in (tmp_path / "c").iterdir()) < 400_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
