"""What tests of pictures stand on: a folder of small pictures with captions, a recipe for it."""

import copy
from pathlib import Path

import numpy as np
from PIL import Image

from headway.recipe.recipe import Recipe, from_tree

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 60, 230), "white": (240, 240, 240)}
SIDES = {"left": np.s_[:, :6], "right": np.s_[:, 6:], "top": np.s_[:6], "bottom": np.s_[6:]}
SIZE = 12

TREE = {
    "data": {"kind": "pictures", "source": "files", "size": SIZE, "among": 8},
    "model": {
        "kind": "clip",
        "layers": 1,
        "width": 16,
        "context": 8,
        "mixer": {"heads": 2},
        "shared": 8,
        "picture": {"patch": 6, "layers": 1, "width": 16, "mixer": {"heads": 2}},
    },
    "training": {
        "duration": "30 steps",
        "batch": 16,
        "optimizer": {"learning_rate": 1e-2},
        "schedule": {"warmup": "4 steps"},
        "evaluate_every": "15 steps",
        "checkpoint_every": "15 steps",
    },
}


def painted(colour: str, side: str, seed: int = 0) -> np.ndarray:
    """[12, 12, 3]: a half of it in this colour, the rest dark, and some noise."""
    picture = np.full((SIZE, SIZE, 3), 25.0)
    picture[SIDES[side]] = COLOURS[colour]
    picture += np.random.default_rng(seed).normal(0, 8, picture.shape)
    return picture.clip(0, 255).astype(np.uint8)


def captioned_folder(folder: Path, copies: int = 4) -> Path:
    """train, valid and test: in each, every colour on every side, several times."""
    for number, (split, times) in enumerate((("train", copies), ("valid", 1), ("test", 1))):
        (folder / split).mkdir(parents=True)
        lines = ["file,caption"]
        for k in range(times):
            for colour in COLOURS:
                for side in SIDES:
                    name = f"{colour}-{side}-{k}.png"
                    Image.fromarray(painted(colour, side, seed=1000 * number + k)).save(folder / split / name)
                    wording = "a {0} patch at the {1}" if k % 2 == 0 else "{1} half {0}"
                    lines.append(f"{name},{wording.format(colour, side)}")
        (folder / split / "captions.csv").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def class_folder(folder: Path, copies: int = 6) -> Path:
    """A folder for each colour."""
    for colour in COLOURS:
        (folder / f"{colour}_half").mkdir(parents=True)
        for k in range(copies):
            side = list(SIDES)[k % len(SIDES)]
            Image.fromarray(painted(colour, side, seed=k)).save(folder / f"{colour}_half" / f"{k}.png")
    return folder


def clip_recipe(folder: Path, *changes: str) -> Recipe:
    tree = copy.deepcopy(TREE)
    tree["data"]["path"] = str(folder)
    return from_tree(tree, "captioned", overrides=changes)
