"""The library of cases: studies that carry the figures somebody reported. A case is one file in `library/`.

It is a study with one key more, `quick`: keys that take the place of the study's own, for a size that runs in two
minutes on two cores, on text that every Python brings along. `headway case B7` runs the whole size, on the data that
HEADWAY_DATA names, `headway case B7 --quick` the quick one. The head of the file says what each takes:

    # quick:  2 CPU cores 1.6 minutes
    # full:   H200 9 minutes
"""

import re
from importlib.resources import files
from typing import Any

from headway.errors import UserError, did_you_mean
from headway.study.design import Study
from headway.validation import validated
from headway.yaml_tree import read_tree


def packaged() -> dict[str, str]:
    """Each case's file, by its name."""
    found = (file for file in (files("headway.study") / "library").iterdir() if file.name.endswith(".yaml"))
    return {file.name.removesuffix(".yaml"): file.read_text("utf-8") for file in sorted(found, key=lambda f: f.name)}


def load_case(name: str, quick: bool) -> Study:
    """The study of a case, in one of its two sizes."""
    tree, lines = _read(name)
    small = tree.pop("quick", {})
    if quick:
        tree |= small

    def place(key: tuple[str, ...]) -> str:
        if quick and key and key[0] in small:
            key = ("quick", *key)
        while key and key not in lines:
            key = key[:-1]
        return f"{name}.yaml:{lines[key]}" if key else ""

    return validated(Study, tree, f"case {name}", place)


def folder_of(name: str, quick: bool) -> str:
    """What its study is called among others."""
    return f"{name}-quick" if quick else name


def title_of(name: str) -> str:
    return str(_read(name)[0].get("title", ""))


def takes(name: str, quick: bool) -> str:
    """Device and minutes, as the head of the file says."""
    found = re.search(rf"^# {'quick' if quick else 'full'}:\s*(.*)$", packaged()[name], re.MULTILINE)
    return found[1] if found else "not measured"


def _read(name: str) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    known = packaged()
    if name not in known:
        raise UserError(f"there is no case '{name}'{did_you_mean(name, known)}; headway cases lists them")
    return read_tree(known[name], f"{name}.yaml")
