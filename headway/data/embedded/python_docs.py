"""`python-docs`: English that every machine with Python already has, about 2 MB of it.

The text is that of the docstrings and help topics of the Python that is running, so it differs a little from one Python
version to the next and is always the same for one. Sources are parsed, not imported: importing all of the standard
library opens browsers (antigravity), prints poems (this) and needs a display. Only a few modules that are written in C,
and so have no source to parse, are imported; they are named below and do nothing when imported.

What is held out is whole documents (a module, a help topic), chosen by a hash of the name. Text is dropped where
it is said for the second time, paragraph by paragraph, so nothing in valid or test was read in training.
"""

import ast
import hashlib
import importlib
import inspect
import json
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from headway.data import cache

HELD_OUT_PERCENT = {"valid": 5, "test": 5}

# Tests are not documentation, installed packages are not the standard library, and turtledemo is hardly English.
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "turtledemo"}

# fmt: off
_WRITTEN_IN_C = (
    "_bisect", "_bz2", "_codecs", "_collections", "_csv", "_ctypes", "_curses", "_datetime", "_elementtree",
    "_functools", "_hashlib", "_heapq", "_io", "_json", "_locale", "_lsprof", "_lzma", "_operator", "_pickle",
    "_random", "_socket", "_sqlite3", "_sre", "_ssl", "_struct", "_thread", "_tracemalloc", "_weakref", "array",
    "atexit", "binascii", "builtins", "cmath", "errno", "fcntl", "gc", "grp", "itertools", "marshal", "math", "mmap",
    "nt", "posix", "pwd", "pyexpat", "resource", "select", "sys", "syslog", "termios", "time", "unicodedata", "zlib",
)
# fmt: on

# Typographers' signs have a plain equivalent; the few other letters beyond ASCII would each be seen once or twice.
_PLAIN = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "…": "...", "—": "--", "–": "-", "\xa0": " "})
_TYPEWRITTEN = re.compile(r"[ -~\n]*")
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


def splits() -> dict[str, str]:
    """Train, valid and test. Made once for each Python, which takes some seconds, and kept."""
    # Hashing this file makes an entry that an earlier Headway wrote count as absent.
    made_by = hashlib.sha256(f"{sys.version}\n{_library()}\n".encode() + Path(__file__).read_bytes()).hexdigest()
    name = f"python-docs-{made_by[:32]}"
    if kept := cache.fetch(name):
        return json.loads(kept)
    made = make_splits()
    cache.store(name, json.dumps(made).encode())
    return made


def make_splits() -> dict[str, str]:
    """The same without the cache."""
    documents: dict[str, list[str]] = {}
    for sourced in (_modules(), _modules_in_c(), _topics()):
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


def _new_paragraphs(texts: Iterable[str], already_said: set[str]) -> Iterator[str]:
    for text in texts:
        for paragraph in paragraphs_of(text.translate(_PLAIN).expandtabs()):
            content = " ".join(paragraph.split())  # the same words at another indent are the same paragraph
            if content and content not in already_said and _TYPEWRITTEN.fullmatch(paragraph):
                already_said.add(content)
                yield paragraph


def _modules() -> Iterator[tuple[str, list[str]]]:
    """Every module whose source is in the standard library, with its docstrings in the order of the source."""
    library = _library()
    for file in sorted(library.rglob("*.py")):
        parts = file.relative_to(library).with_suffix("").parts
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
    for name in _WRITTEN_IN_C:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(name)
        except ImportError:
            continue  # not on this platform, or built without
        yield name, list(_live_docstrings(module))


def _live_docstrings(module: ModuleType) -> Iterator[str]:
    """Docstrings of a module, its functions and types, and the types' methods, by name."""
    members = [value for name, value in sorted(vars(module).items()) if not name.startswith("__")]
    for member in [module, *members]:
        inside = [value for _, value in sorted(vars(member).items())] if isinstance(member, type) else []
        # An instance (say, errno's table) shows its type's docstring, which is about something else.
        documented = [value for value in (member, *inside) if isinstance(value, ModuleType | type) or callable(value)]
        for value in documented:
            docstring = getattr(value, "__doc__", None)
            if isinstance(docstring, str):
                yield inspect.cleandoc(docstring)


def _topics() -> Iterator[tuple[str, list[str]]]:
    """What `help("topics")` offers: chapters of the language reference."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return  # some distributions package it apart
    for name, text in topics.items():
        yield f"help on {name}", [text]


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))
