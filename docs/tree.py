"""The tree in architecture.md: every file of the package with the first sentence of its docstring, rooms in the order
in which they may import each other, lowest first.

`python docs/tree.py` writes it anew; a test finds out when that is due."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- the tree, by docs/tree.py -->\n", "<!-- end of the tree -->\n"
OTHERS = {
    "cases/library": "the cases, one file each: studies (YAML) and exercises (Python)",
    "draw/page.css": "how a page looks",
    "draw/page.js": "values under the pointer",
    "recipe/packaged": "the packaged recipes, one YAML each",
    "study/report/templates": "the pages of reports",
}
"""Files that cannot speak for themselves, and folders that are named without what is in them."""


def tree() -> str:
    package = ROOT / "headway"
    lines = ["headway/", _line("  __init__.py", _about(package / "__init__.py"))]
    for room in _rooms():
        lines += _room(package / room, "  ")
    return "```\n" + "\n".join(lines) + "\n```\n"


def _rooms() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [room.strip() for layer in reversed(layers) for room in layer.split("|")]


def _room(folder: Path, indent: str) -> list[str]:
    lines = [_line(f"{indent}{folder.name}/", _about(folder / "__init__.py"))]
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        name = path.relative_to(ROOT / "headway").as_posix()
        if name in OTHERS:
            lines.append(_line(f"{indent}  {path.name}{'/' * path.is_dir()}", OTHERS[name]))
        elif (path / "__init__.py").exists():  # else no room: what an earlier version left behind
            lines += _room(path, indent + "  ")
        elif path.is_file() and path.name != "__init__.py":
            lines.append(_line(f"{indent}  {path.name}", _about(path)))
    return lines


def _line(name: str, about: str) -> str:
    return f"{name:27} {about}".rstrip()


def _about(file: Path) -> str:
    """The first sentence, without its full stop."""
    paragraph = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").partition("\n\n")[0]
    return re.split(r"(?<=[.?!])\s", " ".join(paragraph.split()))[0].rstrip(".")


if __name__ == "__main__":
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + tree() + END + rest.partition(END)[2], "utf-8")
