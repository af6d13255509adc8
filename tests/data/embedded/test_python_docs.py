import hashlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headway.core.errors import UserError
from headway.data import cache
from headway.data.embedded import python_docs


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return python_docs.make_splits()


def test_about_two_megabytes_split_ninety_five_five(made: dict[str, str]):
    assert list(made) == ["train", "valid", "test"]
    sizes = {split: len(text.encode()) for split, text in made.items()}
    total = sum(sizes.values())
    assert 1_700_000 < total < 2_700_000
    assert 0.85 < sizes["train"] / total < 0.95
    assert all(0.02 < sizes[split] / total < 0.10 for split in ("valid", "test"))


def test_no_paragraph_occurs_twice_within_or_across_splits(made: dict[str, str]):
    seen = Counter(
        " ".join(paragraph.split()) for text in made.values() for paragraph in python_docs.paragraphs_of(text)
    )
    assert seen.most_common(1)[0][1] == 1
    assert len(seen) > 15_000


def test_held_out_text_has_no_character_that_train_lacks(made: dict[str, str]):
    assert set(made["valid"] + made["test"]) <= set(made["train"])
    assert set(made["train"]) <= {"\n", *map(chr, range(32, 127))}


def test_it_reads_like_documentation(made: dict[str, str]):
    words = Counter(made["train"].lower().split())
    assert words.most_common(1)[0][0] == "the"
    assert "Heap queue algorithm" in "".join(made.values())
    assert all(not line.endswith(" ") for line in made["valid"].split("\n"))


def test_another_process_generates_the_same(made: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    # With another hash seed, because sets of strings are where an order could leak in. The list of modules shows what
    # was imported.
    program = (
        "import hashlib, sys; from headway.data.embedded import python_docs as p; "
        "print(hashlib.sha256(repr(p.make_splits()).encode()).hexdigest(), 'antigravity' in sys.modules)"
    )
    monkeypatch.setenv("PYTHONHASHSEED", "12345")
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout.split() == [hashlib.sha256(repr(made).encode()).hexdigest(), "False"]


def test_a_document_stays_in_its_split():
    chosen = Counter(python_docs.split_of(f"module{i}") for i in range(10_000))
    assert 400 < chosen["valid"] < 600
    assert 400 < chosen["test"] < 600
    assert python_docs.split_of("json") == python_docs.split_of("json")


def test_sources_that_do_not_parse_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "good.py").write_text(
        '"""Says something."""\ndef f():\n    """Says more.\n\n    So::\n\n        indented()\n    """\n'
    )
    (tmp_path / "bad.py").write_text("def (:\n")
    (tmp_path / "null.py").write_bytes(b"\0")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "ignored.py").write_text('"""Not documentation."""')
    monkeypatch.setattr(python_docs, "library", lambda: tmp_path)
    assert list(python_docs.modules()) == [("good", ["Says something.", "Says more.\n\nSo::\n\n    indented()"])]


def test_a_second_python_that_cannot_be_run_is_a_clear_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "no-such-python")
    with pytest.raises(UserError, match="a second Python process, which failed"):
        list(python_docs._modules_in_c())


def test_objects_replaced_in_this_process_do_not_matter(monkeypatch: pytest.MonkeyPatch):
    before = dict(python_docs._modules_in_c())
    monkeypatch.setattr(sys, "excepthook", print)
    monkeypatch.setattr("builtins.input", print)
    assert dict(python_docs._modules_in_c()) == before
    assert any(
        "Forward raw_input" in text or "Read a string from standard input" in text for text in before["builtins"]
    )


def test_generated_once_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    calls = []
    monkeypatch.setattr(python_docs, "make_splits", lambda: calls.append(1) or {"train": "a", "valid": "b"})
    assert python_docs.splits() == python_docs.splits() == {"train": "a", "valid": "b"}
    assert len(calls) == 1
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert cache.fetch(kept.name) is None
    assert python_docs.splits() == {"train": "a", "valid": "b"}
    assert len(calls) == 2
