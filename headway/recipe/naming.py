"""Default names of runs: the recipe and what was changed in it, such as `demo-alibi-layers-4`.

Training again with one change should give a second run with a telling name, not an error. Nothing here needs torch.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headway.core.yaml import read_value

LONGEST = 100
"""Longest name in bytes. File systems allow 255, and suffixes are added (`-seed-3`, `.partial`)."""
_SAY_LITTLE = {"none", "auto", "on", "off", "null", "full", "yes", "no"}
"""Values that need their key beside them, since many keys have them."""


def label(value: Any) -> str:
    """A value as part of a folder name."""
    if isinstance(value, list):
        text = "-".join(map(label, value))
    elif isinstance(value, dict):  # {kind: rotary, base: 500} → rotary-base-500
        kind, rest = value.get("kind"), [f"{key}-{label(inner)}" for key, inner in value.items() if key != "kind"]
        text = "-".join([*([label(kind)] if kind else []), *rest])
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^\w.+=-]+", "-", text).strip(".-") or "empty"


def name_of_changed(recipe: str, changes: Iterable[str], digest: str) -> str:
    """The name for `recipe` as typed with `key.path=value` changes; the last change of each key counts. A long name is
    cut and ends in `digest`, to keep it unique."""
    last = {key.strip(): value for key, _, value in (change.partition("=") for change in changes)}
    name = "-".join([Path(recipe).stem, *(_said(key, value) for key, value in last.items())])
    if len(name.encode()) <= LONGEST:
        return name
    kept = name.encode()[: LONGEST - 9].decode(errors="ignore")
    return f"{kept.rstrip('.-')}-{digest[:8]}"


def _said(key: str, text: str) -> str:
    """A change as part of a name: the value alone if it is a telling word, else with the last part of its key."""
    value = read_value(text)
    if isinstance(value, str) and key.rsplit(".", 1)[-1] in ("path", "from", "recipe"):
        value = Path(value).stem
    part = label(value)
    names_itself = isinstance(value, str | dict) and part[:1].isalpha() and part.lower() not in _SAY_LITTLE
    return part if names_itself else f"{label(key.removesuffix('.kind').rsplit('.', 1)[-1])}-{part}"
