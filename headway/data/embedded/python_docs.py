"""`python-docs`: about 2 MB of English that comes with Python.

The text is the docstrings and help topics of the running Python, so it differs a little between Python versions and is
always the same for one. Sources are parsed, not imported, because importing all of the standard library opens browsers
(antigravity), prints poems (this) and needs a display. Only modules written in C, which have no Python source, are
imported: a list of harmless ones, in a separate process (`live_docs.py`).

Whole documents (a module, a help topic) are held out, chosen by a hash of the name. Repeated paragraphs are dropped, so
nothing in valid or test occurs in train.
"""

import ast
import hashlib
import json
import re
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headway.core.errors import UserError
from headway.data import cache

HELD_OUT_PERCENT = {"valid": 5, "test": 5}

_LIVE_DOCS = Path(__file__).with_name("live_docs.py")

# Tests are not documentation, installed packages are not the standard library, and turtledemo is hardly English.
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "turtledemo"}

# Typographic characters get an ASCII equivalent; the few others beyond ASCII would each occur once or twice.
_PLAIN = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "…": "...", "—": "--", "–": "-", "\xa0": " "})
_TYPEWRITTEN = re.compile(r"[ -~\n]*")
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


def splits() -> dict[str, str]:
    """Train, valid and test. Made once for each Python, which takes some seconds, and cached."""
    made_by = hashlib.sha256(f"{sys.version}\n{library()}\n".encode())
    for program in (Path(__file__), _LIVE_DOCS):
        made_by.update(program.read_bytes())  # so a cache of an older Headway has another name
    name = f"python-docs-{made_by.hexdigest()[:32]}"
    if kept := cache.fetch(name):
        return json.loads(kept)
    made = make_splits()
    cache.store(name, json.dumps(made).encode())
    return made


def make_splits() -> dict[str, str]:
    """Train, valid and test, made without the cache."""
    documents: dict[str, list[str]] = {}
    for sourced in (modules(), _modules_in_c(), _topics()):
        for name, texts in sourced:
            documents.setdefault(name, []).extend(texts)
    by_split: dict[str, list[str]] = {"train": [], **{split: [] for split in HELD_OUT_PERCENT}}
    already_said: set[str] = set()
    for name in sorted(documents):
        by_split[split_of(name)] += _new_paragraphs(documents[name], already_said)
    return {split: "\n\n".join(paragraphs) + "\n" for split, paragraphs in by_split.items()}


def split_of(document: str) -> str:
    """The split of a document. It depends on the name alone, so it stays the same when other modules come and go."""
    percent = int.from_bytes(hashlib.blake2b(document.encode()).digest()[:8]) % 100
    for split, share in HELD_OUT_PERCENT.items():
        if percent < share:
            return split
        percent -= share
    return "train"


def paragraphs_of(text: str) -> list[str]:
    """Split at blank lines. The first line keeps its indent, which distinguishes examples from prose."""
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return [paragraph for part in _BLANK_LINES.split(lines) if (paragraph := part.strip("\n"))]


def plain(text: str) -> str:
    """Replace typographic characters and tabs."""
    return text.translate(_PLAIN).expandtabs()


def is_typewritten(text: str) -> bool:
    return _TYPEWRITTEN.fullmatch(text) is not None


def _new_paragraphs(texts: Iterable[str], already_said: set[str]) -> Iterator[str]:
    for text in texts:
        for paragraph in paragraphs_of(plain(text)):
            content = " ".join(paragraph.split())  # the same words with another indent are the same paragraph
            if content and content not in already_said and is_typewritten(paragraph):
                already_said.add(content)
                yield paragraph


def modules(within: Sequence[str] = ("",)) -> Iterator[tuple[str, list[str]]]:
    """Every module with source in the standard library, or in these packages of it, with its docstrings in source
    order."""
    root = library()
    for file in sorted(file for package in within for file in (root / package).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if _SKIPPED.intersection(parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old sources have escapes that today's parser warns about
                tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # the sources include templates and files for other versions
        yield ".".join(part for part in parts if part != "__init__"), list(_docstrings(tree))


def _docstrings(tree: ast.Module) -> Iterator[str]:
    can_have_one = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, can_have_one)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if docstring := ast.get_docstring(node):
            yield docstring


def _modules_in_c() -> Iterator[tuple[str, list[str]]]:
    """Modules written in C, as far as this Python has them."""
    # Isolated and without site-packages: the standard library as it was installed.
    command = [sys.executable, "-I", "-S", str(_LIVE_DOCS)]
    try:
        printed = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.CalledProcessError) as problem:
        raise UserError(f"making python-docs needs a second Python process, which failed: {problem}") from None
    yield from json.loads(printed).items()


def _topics() -> Iterator[tuple[str, list[str]]]:
    """The topics of `help("topics")`: chapters of the language reference."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return  # some distributions package it separately
    for name, text in topics.items():
        yield f"help on {name}", [text]


def library() -> Path:
    """The folder of the standard library."""
    return Path(sysconfig.get_path("stdlib"))
