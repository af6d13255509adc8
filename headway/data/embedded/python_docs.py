"""`python-docs`: English that every machine with Python already has, about 2 MB of it.

The text is that of the docstrings and help topics of the Python that is running, so it differs a little from one Python
version to the next and is always the same for one. Sources are parsed, not imported: importing all of the standard
library opens browsers (antigravity), prints poems (this) and needs a display. Only modules that are written in C,
and so have no source, are imported: a list of harmless ones, in a process of its own (`live_docs.py`).

What is held out is whole documents (a module, a help topic), chosen by a hash of the name. Text is dropped where
it is said for the second time, paragraph by paragraph, so nothing in valid or test was read in training.
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

# Typographers' signs have a plain equivalent; the few other letters beyond ASCII would each be seen once or twice.
_PLAIN = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "…": "...", "—": "--", "–": "-", "\xa0": " "})
_TYPEWRITTEN = re.compile(r"[ -~\n]*")
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


def splits() -> dict[str, str]:
    """Train, valid and test. Made once for each Python, which takes some seconds, and kept."""
    made_by = hashlib.sha256(f"{sys.version}\n{library()}\n".encode())
    for program in (Path(__file__), _LIVE_DOCS):
        made_by.update(program.read_bytes())  # what an earlier Headway kept has another name
    name = f"python-docs-{made_by.hexdigest()[:32]}"
    if kept := cache.fetch(name):
        return json.loads(kept)
    made = make_splits()
    cache.store(name, json.dumps(made).encode())
    return made


def make_splits() -> dict[str, str]:
    """The same without the cache."""
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
    """Depends on the name alone, so a module stays where it is when others come and go."""
    percent = int.from_bytes(hashlib.blake2b(document.encode()).digest()[:8]) % 100
    for split, share in HELD_OUT_PERCENT.items():
        if percent < share:
            return split
        percent -= share
    return "train"


def paragraphs_of(text: str) -> list[str]:
    """What blank lines set apart. The first line keeps its indent, which is how examples are told from prose."""
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return [paragraph for part in _BLANK_LINES.split(lines) if (paragraph := part.strip("\n"))]


def plain(text: str) -> str:
    """Without typographers' signs and tabs."""
    return text.translate(_PLAIN).expandtabs()


def is_typewritten(text: str) -> bool:
    return _TYPEWRITTEN.fullmatch(text) is not None


def _new_paragraphs(texts: Iterable[str], already_said: set[str]) -> Iterator[str]:
    for text in texts:
        for paragraph in paragraphs_of(plain(text)):
            content = " ".join(paragraph.split())  # the same words at another indent are the same paragraph
            if content and content not in already_said and is_typewritten(paragraph):
                already_said.add(content)
                yield paragraph


def modules(within: Sequence[str] = ("",)) -> Iterator[tuple[str, list[str]]]:
    """Every module whose source is in the standard library, with its docstrings in the order of the source; or only
    those within some packages."""
    root = library()
    for file in sorted(file for package in within for file in (root / package).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if _SKIPPED.intersection(parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old sources have escapes that today's parser frowns at
                tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # templates and files for other versions lie among the sources
        yield ".".join(part for part in parts if part != "__init__"), list(_docstrings(tree))


def _docstrings(tree: ast.Module) -> Iterator[str]:
    can_have_one = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, can_have_one)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if docstring := ast.get_docstring(node):
            yield docstring


def _modules_in_c() -> Iterator[tuple[str, list[str]]]:
    """Modules without source, as far as this Python has them."""
    # Isolated and without site-packages: the standard library as it was installed.
    command = [sys.executable, "-I", "-S", str(_LIVE_DOCS)]
    try:
        printed = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.CalledProcessError) as problem:
        raise UserError(
            f"python-docs is made with the help of a second Python, which cannot be run: {problem}"
        ) from None
    yield from json.loads(printed).items()


def _topics() -> Iterator[tuple[str, list[str]]]:
    """What `help("topics")` offers: chapters of the language reference."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return  # some distributions package it apart
    for name, text in topics.items():
        yield f"help on {name}", [text]


def library() -> Path:
    """Where the sources are."""
    return Path(sysconfig.get_path("stdlib"))
