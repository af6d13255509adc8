"""Data for tests of picture models: a folder of small pictures with captions, and a recipe for it."""

import copy
from pathlib import Path

import numpy as np
from PIL import Image

from headway.recipe.recipe import Recipe, from_tree

COLOURS = {
    "red": (230, 30, 30),
    "green": (30, 200, 40),
    "blue": (30, 40, 240),
    "white": (245, 245, 245),
    "yellow": (240, 230, 20),
    "black": (10, 10, 10),
}
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


def painted(first: str, second: str, beside: bool, seed: int = 0) -> np.ndarray:
    """A picture [12, 12, 3] of two colours, side by side or one above the other, with some noise."""
    picture = np.empty((SIZE, SIZE, 3))
    picture[:], half = COLOURS[second], np.s_[:, : SIZE // 2] if beside else np.s_[: SIZE // 2]
    picture[half] = COLOURS[first]
    picture += np.random.default_rng(seed).normal(0, 12, picture.shape)
    return picture.clip(0, 255).astype(np.uint8)


def captioned_folder(folder: Path) -> Path:
    """Every pair of colours, side by side or one above the other, in exactly one of train, valid and test; in train
    twice."""
    contents = [(a, b, beside) for a in COLOURS for b in COLOURS if a != b for beside in (True, False)]
    order = np.random.default_rng(0).permutation(len(contents))
    parts = {"train": order[:36], "valid": order[36:48], "test": order[48:]}
    for split, places in parts.items():
        (folder / split).mkdir(parents=True)
        lines = ["file,caption"]
        for k in places.tolist():
            first, second, beside = contents[k]
            for again in range(2 if split == "train" else 1):
                name = f"{k}-{again}.png"
                Image.fromarray(painted(first, second, beside, seed=2 * k + again)).save(folder / split / name)
                lines.append(f"{name},{first} {'left of' if beside else 'above'} {second}")
        (folder / split / "captions.csv").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def class_folder(folder: Path, copies: int = 5) -> Path:
    """One class folder per colour."""
    for colour in COLOURS:
        (folder / f"{colour}_half").mkdir(parents=True)
        for k in range(copies):
            other = [one for one in COLOURS if one != colour][k % 5]
            drawn = painted(colour, other, k % 2 == 0, seed=k)
            Image.fromarray(drawn).save(folder / f"{colour}_half" / f"{k}.png")
    return folder


def clip_recipe(folder: Path, *changes: str) -> Recipe:
    tree = copy.deepcopy(TREE)
    tree["data"]["path"] = str(folder)
    return from_tree(tree, "captioned", overrides=changes)
