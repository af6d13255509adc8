"""`scenes`: generated pictures of coloured shapes with captions.

    three red circles                           several of one colour and shape
    two green stars above a blue square         two such groups and their relation

Every picture and its caption are a pure function of a number. What the caption does not mention varies too: the shade
of the background, positions, sizes, shades of a colour, a little noise. Captions have several wordings (three or 3; A
above B, or B below A), and all pictures with the same content are in the same split: no caption of valid or test occurs
in train in any wording.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float, UInt8

VERSION = "scenes 1"
"""Change it whenever the same number gives another picture."""
SIZE = 48
"""Height and width in pixels."""
CELL = 12
"""Cell size of the grid in pixels; each cell holds at most one shape, not exactly centred."""
COUNTS = ("one", "two", "three", "four", "five")
COLOURS = {
    "red": (214, 48, 48),
    "green": (46, 160, 67),
    "blue": (52, 92, 220),
    "yellow": (240, 208, 40),
    "purple": (150, 70, 190),
    "orange": (244, 138, 32),
    "white": (250, 250, 250),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
RELATIONS = {"above": "below", "left of": "right of"}
"""Relations and their opposites."""
ROWS = {"train": 12_000, "valid": 1_000, "test": 1_000}
_SAMPLES = 4  # per pixel along each side, for anti-aliasing


@dataclass(frozen=True)
class ShapeGroup:
    count: int
    colour: str
    shape: str

    def words(self, digits: bool) -> str:
        if self.count == 1:
            article = "an" if self.colour[0] in "aeiou" else "a"
            return f"{'1' if digits else article} {self.colour} {self.shape}"
        plural = "crosses" if self.shape == "cross" else f"{self.shape}s"
        return f"{self.count if digits else COUNTS[self.count - 1]} {self.colour} {plural}"


@dataclass(frozen=True)
class Scene:
    number: int
    first: ShapeGroup
    relation: str | None
    """The relation of the first group to the second, above or left of; None = there is one group."""
    second: ShapeGroup | None

    @property
    def content(self) -> str:
        """The content of the picture, independent of the caption's wording."""
        groups = [f"{one.count} {one.colour} {one.shape}" for one in (self.first, self.second) if one is not None]
        return f" {self.relation} ".join(groups)

    @property
    def caption(self) -> str:
        digits, other_way = _Dice(f"words {self.number}").chances(0.3, 0.5)
        if self.second is None or self.relation is None:
            return self.first.words(digits)
        if other_way:
            return f"{self.second.words(digits)} {RELATIONS[self.relation]} {self.first.words(digits)}"
        return f"{self.first.words(digits)} {self.relation} {self.second.words(digits)}"

    @property
    def split(self) -> str:
        """The split, by a hash of the content."""
        drawn = hashlib.blake2b(self.content.encode(), digest_size=2).digest()
        share = int.from_bytes(drawn, "big") / 2**16
        return "train" if share < 0.8 else "valid" if share < 0.9 else "test"


def scene(number: int) -> Scene:
    """The scene with this number."""
    dice = _Dice(f"scene {number}")
    first = ShapeGroup(dice.below(len(COUNTS)) + 1, dice.of(list(COLOURS)), dice.of(SHAPES))
    (alone,) = dice.chances(0.1)
    if alone:
        return Scene(number, first, None, None)
    relation, second = dice.of(list(RELATIONS)), first
    while (second.colour, second.shape) == (first.colour, first.shape):  # groups must be distinguishable
        second = ShapeGroup(dice.below(len(COUNTS)) + 1, dice.of(list(COLOURS)), dice.of(SHAPES))
    return Scene(number, first, relation, second)


def draw(what: Scene) -> UInt8[np.ndarray, "3 S S"]:
    """Draw the picture of a scene."""
    dice = _Dice(f"picture {what.number}")
    shade = 16 + dice.below(96)
    tint = [dice.below(13) - 6 for _ in range(3)]
    picture = np.empty((3, SIZE, SIZE), dtype=np.float32)
    picture[:] = (shade + np.array(tint, dtype=np.float32))[:, None, None]
    cells = SIZE // CELL
    half = cells // 2
    everywhere = [(row, column) for row in range(cells) for column in range(cells)]
    groups = [(what.first, everywhere)]
    if what.second is not None:
        axis = 0 if what.relation == "above" else 1
        before, behind = ([at for at in everywhere if (at[axis] < half) == side] for side in (True, False))
        groups = [(what.first, before), (what.second, behind)]
    for group, free in groups:
        for row, column in dice.some(free, group.count):
            mask = _mask(group.shape, CELL - 3 + dice.below(3))
            room = CELL - len(mask)
            top, left = row * CELL + dice.below(room + 1), column * CELL + dice.below(room + 1)
            shades = [min(max(c + dice.below(29) - 14, 0), 255) for c in COLOURS[group.colour]]
            place = picture[:, top : top + len(mask), left : left + len(mask)]
            place += mask * (np.array(shades, dtype=np.float32)[:, None, None] - place)
    grain = np.frombuffer(hashlib.shake_128(f"grain {what.number}".encode()).digest(picture.size), np.uint8)
    picture += grain.reshape(picture.shape) * np.float32(8 / 255) - 4
    return picture.round().clip(0, 255).astype(np.uint8)


def splits(rows: dict[str, int] = ROWS) -> dict[str, list[Scene]]:
    """The first `rows` scenes of each split, by number. In valid and test no two have the same content."""
    found: dict[str, list[Scene]] = {split: [] for split in rows}
    seen: set[str] = set()
    for one in _all():
        there = found[one.split]
        if len(there) < rows[one.split] and (one.split == "train" or one.content not in seen):
            there.append(one)
            seen.add(one.content)
        if all(len(found[split]) == count for split, count in rows.items()):
            break
    return found


def _all() -> Iterator[Scene]:
    number = 0
    while True:
        yield scene(number)
        number += 1


@cache
def _mask(shape: str, size: int) -> Float[np.ndarray, "N N"]:
    """The share of each pixel that the shape covers, in a square of this size."""
    at = (np.arange(size * _SAMPLES) + 0.5) / (size * _SAMPLES) * 2 - 1
    x, y = at[None, :], at[:, None]
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    if shape == "circle":
        inside = radius <= 0.95
    elif shape == "ring":
        inside = (radius <= 0.95) & (radius >= 0.5)
    elif shape == "square":
        inside = (abs(x) <= 0.82) & (abs(y) <= 0.82)
    elif shape == "triangle":
        inside = (y <= 0.85) & (y >= 2 * abs(x) * 0.95 - 0.95)
    elif shape == "cross":
        inside = ((abs(x) <= 0.3) & (abs(y) <= 0.95)) | ((abs(y) <= 0.3) & (abs(x) <= 0.95))
    else:  # a star of five points: the edge runs from the tip to the notch and back
        turn = np.mod(angle + np.pi / 2, 2 * np.pi / 5)
        turn = np.minimum(turn, 2 * np.pi / 5 - turn)
        tip, notch = 1.0, 0.42
        a, b = np.array([tip, 0.0]), notch * np.array([np.cos(np.pi / 5), np.sin(np.pi / 5)])
        edge = (a[0] * b[1] - a[1] * b[0]) / ((b[1] - a[1]) * np.cos(turn) - (b[0] - a[0]) * np.sin(turn))
        inside = radius <= edge
    inside = np.broadcast_to(inside, (size * _SAMPLES, size * _SAMPLES))
    return inside.reshape(size, _SAMPLES, size, _SAMPLES).mean((1, 3)).astype(np.float32)


class _Dice:
    """Pseudo-random numbers from a name, independent of library versions."""

    def __init__(self, name: str):
        self._name, self._block, self._drawn = name, 0, b""

    def below(self, limit: int) -> int:
        if len(self._drawn) < 4:
            self._drawn = hashlib.blake2b(f"{self._block} {self._name}".encode()).digest()
            self._block += 1
        number, self._drawn = int.from_bytes(self._drawn[:4], "big"), self._drawn[4:]
        return number * limit >> 32

    def of(self, things):
        return things[self.below(len(things))]

    def some(self, things: list, count: int) -> list:
        left = list(things)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def chances(self, *shares: float) -> list[bool]:
        return [self.below(2**20) < share * 2**20 for share in shares]
