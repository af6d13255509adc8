"""The tree in the README is the tree."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
IN_ONE_WORD = ("embedded", "library")
"""Folders that the tree names without what is in them."""


def test_the_tree_names_every_module_and_no_other():
    """As often as there are modules of a name: `search.py` is one of solve and one of study."""
    tree = (ROOT / "README.md").read_text("utf-8").partition("## The house")[2].partition("\ntests/")[0]
    named = Counter(re.findall(r"\b\w+\.py\b", tree))
    modules = (path for path in (ROOT / "headway").rglob("*.py") if path.parent.name not in IN_ONE_WORD)
    there = Counter(path.name for path in modules if path.name != "__init__.py" or path.parent.name == "headway")
    assert named - there == {}, "these are not there any more"
    assert there - named == {}, "these are not in the tree"
