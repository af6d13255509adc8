"""What docs/architecture.md says is true."""

import pkgutil
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_the_tree_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from tree import BEGIN, END, tree

    sys.modules.pop("tree")
    written = PAGE.partition(BEGIN)[2].partition(END)[0]
    assert written.splitlines() == tree().splitlines(), "to update it: python docs/tree.py"


def test_every_package_and_module_has_a_docstring():
    tree = PAGE.partition("## The tree")[2].partition("### ")[0]
    silent = [line for line in tree.splitlines() if re.fullmatch(r"\s+\S+", line)]
    assert silent == [], "these have no docstring"


def test_files_named_in_the_documents_exist():
    """Paths from the root or from the package: `docs/tree.py`, `nn/positions.py`. (ID stands for the name of a
    case.)"""
    lost = {}
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        named = re.findall(r"`((?:[\w.]+/)+[\w.]+\.(?:py|toml|yaml|svg|png))`", text)
        homes = (ROOT, ROOT / "headway")
        lost[page.name] = [
            name for name in named if "ID." not in name and not any((home / name).exists() for home in homes)
        ]
    assert {page: names for page, names in lost.items() if names} == {}


def test_names_in_the_documents_can_be_imported():
    """Names such as `headway.look.maps.maps_of(…)`, in prose and examples."""
    lost = {}
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for name in re.findall(r"(?<![\w\".])headway(?:\.[a-zA-Z_]\w*)+", page.read_text("utf-8")):
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError):
                lost[name] = page.name
    assert lost == {}


def test_links_between_the_documents_work():
    lost = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                lost.append(f"{page.name}: {target}")
    assert lost == []


def test_a_wheel_has_every_file():
    """Modules are found automatically; other files have to be listed in pyproject.toml."""
    package = ROOT / "headway"
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    taken = {path for pattern in patterns["headway"] for path in package.glob(pattern)}
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    left = [path for path in files if path.suffix != ".py" and path not in taken]
    assert left == [], "name them in [tool.setuptools.package-data]"
    homeless = [path for path in files if path.suffix == ".py" and not (path.parent / "__init__.py").exists()]
    assert homeless == [], "their folders need an __init__.py"
