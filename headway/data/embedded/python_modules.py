"""`python-modules`: docstrings of the running Python's standard library, labelled with their package.

Eight packages, one row per docstring of five words or more. Whole modules of each package are held out, so that no
docstring of valid or test has neighbours in train; repeated texts are dropped. The rows depend only on the Python
version; for 3.11 there are 1,797 (1,109 train, 357 valid, 331 test).
"""

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from headway.data import cache
from headway.data.embedded import python_docs

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
HELD_OUT_SHARE = {"valid": 0.15, "test": 0.2}
FEWEST_WORDS = 5

Rows = list[tuple[str, str]]
"""(text, label) of each row."""


def labelled_splits() -> dict[str, Rows]:
    """Train, valid and test. Made once for each Python, which takes some seconds, and cached."""
    made_by = hashlib.sha256(f"{sys.version}\n{python_docs.library()}\n".encode())
    for program in (__file__, python_docs.__file__):
        made_by.update(Path(program).read_bytes())  # so a cache of an older Headway has another name
    name = f"python-modules-{made_by.hexdigest()[:32]}"
    if kept := cache.fetch(name):
        return {split: [(text, label) for text, label in rows] for split, rows in json.loads(kept).items()}
    made = make_splits()
    cache.store(name, json.dumps(made).encode())
    return made


def make_splits() -> dict[str, Rows]:
    """Train, valid and test, made without the cache."""
    by_package: dict[str, dict[str, list[str]]] = {package: {} for package in PACKAGES}
    already_said: set[str] = set()
    for module, docstrings in sorted(python_docs.modules(within=PACKAGES)):
        by_package[module.partition(".")[0]][module] = _new(docstrings, already_said)
    found: dict[str, Rows] = {"train": [], "valid": [], "test": []}
    for package, modules in by_package.items():
        for module, split in place_modules({module: len(texts) for module, texts in modules.items()}).items():
            found[split] += [(text, package) for text in modules[module]]
    return found


def place_modules(sizes: dict[str, int]) -> dict[str, str]:
    """The split of each module of one package. Modules, ordered by a hash of their names, go to the split that lacks
    most, unless they are much too large for it; a split without any gets the smallest module."""
    missing = {split: share * sum(sizes.values()) for split, share in HELD_OUT_SHARE.items()}
    placed = dict.fromkeys(sorted((module for module in sizes if sizes[module]), key=_hash), "train")
    for module in placed:
        split = max(missing, key=lambda split: missing[split])
        if sizes[module] <= 2 * missing[split]:
            placed[module] = split
            missing[split] -= sizes[module]
    for split in HELD_OUT_SHARE:
        if split not in placed.values():
            placed[min((m for m in placed if placed[m] == "train"), key=lambda m: sizes[m])] = split
    return placed


def _new(docstrings: Iterable[str], already_said: set[str]) -> list[str]:
    found = []
    for docstring in docstrings:
        text = python_docs.plain(docstring)
        content = " ".join(text.split())
        if len(content.split()) >= FEWEST_WORDS and content not in already_said and python_docs.is_typewritten(text):
            already_said.add(content)
            found.append(text)
    return found


def _hash(module: str) -> bytes:
    return hashlib.blake2b(module.encode(), digest_size=8).digest()
