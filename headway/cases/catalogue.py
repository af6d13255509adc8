"""The library of cases: reported experiments and exercises. A case is one file in `library/`.

`ID.yaml` is a study with the reported figures and one additional key, `quick`. Its keys replace the study's own for a
size that runs in two minutes on two cores, on text that comes with every Python. `headway case B7` runs the full size
on the data that HEADWAY_DATA names, `headway case B7 --quick` the quick one.

`ID.py` is an exercise, solved by hand and checked on random instances (`exercise.py`): thousands, or hundreds if quick.

The head of either file says how long each size takes:

    # quick:  2 CPU cores 1.6 minutes
    # full:   H200 9 minutes
"""

import ast
import re
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from headway.core.errors import UserError, did_you_mean
from headway.core.yaml import read_tree

if TYPE_CHECKING:
    from headway.cases.exercise import Exercise
    from headway.study.design.study import Study

CASE = re.compile(r"(?P<name>[A-Z]\d+)\.(?P<kind>yaml|py)")


@cache
def packaged() -> dict[str, str]:
    """The text of each case's file by name, in order."""
    found = {
        match["name"]: file.read_text("utf-8")
        for file in (files("headway.cases") / "library").iterdir()
        if (match := CASE.fullmatch(file.name))
    }
    return dict(sorted(found.items(), key=lambda case: (case[0][0], int(case[0][1:]))))


def load_case(name: str, quick: bool) -> "Study | Exercise":
    """Load a study in one of its two sizes, or an exercise, which is the same in both."""
    known = packaged()
    if name not in known:
        raise UserError(f"there is no case '{name}'{did_you_mean(name, known)}; headway cases lists them")
    if _is_exercise(name):
        return import_module(f"headway.cases.library.{name}").EXERCISE
    return _load_study(name, known[name], quick)


def folder_of(name: str, quick: bool) -> str:
    """The folder name of its study."""
    return f"{name}-quick" if quick else name


def title_of(name: str) -> str:
    """The title, parsed from the file: listing the cases must not import what they need."""
    text = packaged()[name]
    if not _is_exercise(name):
        title = re.search(r"^title:.*\n(?:[ ].*\n)*", text, re.MULTILINE)
        return str(read_tree(title[0], f"{name}.yaml")[0]["title"]) if title else ""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    made = next(call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Exercise")
    return str(ast.literal_eval(next(given.value for given in made.keywords if given.arg == "title")))


def conclusion_of(name: str) -> str:
    """The report's conclusion, parsed from the file as well: a case may need weights that are not installed here."""
    if _is_exercise(name):
        reported = import_module(f"headway.cases.library.{name}").EXERCISE.reported
        return reported.conclusion if reported else ""
    return str((read_tree(packaged()[name], f"{name}.yaml")[0].get("reported") or {}).get("conclusion", ""))


def takes(name: str, quick: bool) -> str:
    """Device and time, from the head of the file."""
    found = re.search(rf"^# {'quick' if quick else 'full'}:\s*(.*)$", packaged()[name], re.MULTILINE)
    return found[1] if found else "not measured"


def _load_study(name: str, text: str, quick: bool) -> "Study":
    from headway.core.validation import validated
    from headway.study.design.study import Study

    tree, lines = read_tree(text, f"{name}.yaml")
    small: dict[str, Any] = tree.pop("quick", {})
    if quick:
        tree |= small

    def place(key: tuple[str, ...]) -> str:
        if quick and key and key[0] in small:
            key = ("quick", *key)
        while key and key not in lines:
            key = key[:-1]
        return f"{name}.yaml:{lines[key]}" if key else ""

    return validated(Study, tree, f"case {name}", place)


def _is_exercise(name: str) -> bool:
    return (files("headway.cases") / "library" / f"{name}.py").is_file()
