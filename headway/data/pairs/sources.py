"""Where pairs come from: rules that are part of Headway, known sets under HEADWAY_DATA, files, tables, the hub.

Everything here ends in pairs by split, "train" first. A direction (`en-de`) says which side is the source: of parallel
files the endings (train.en, train.de), of a table the columns, by name or by number from 1 (`1-2`). A set without a
`valid` of its own gives up a share of train for it: all pairs of one source go to the same side.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headway.core.errors import UserError
from headway.core.progress import say_once
from headway.data.embedded import numbers_en_fr, pig_latin
from headway.data.running.sources import known_files, read_text, split_of_stem
from headway.data.tables import ENDINGS, JSON_LINES, PLAIN, WrittenAs, column_of, read_table


class TextPair(NamedTuple):
    source: str
    target: str


Splits = dict[str, list[TextPair]]


class KnownPairs(NamedTuple):
    """Parallel files in a folder under HEADWAY_DATA, `stem.language`; or one file with both sides on a line."""

    stems: dict[str, str]
    """Of each split, train first."""
    languages: tuple[str, str]
    """Source and target, unless the direction says the opposite."""


EMBEDDED: dict[str, Callable[[], Mapping[str, Sequence[tuple[str, str]]]]] = {
    "pig-latin": pig_latin.splits,
    "numbers-en-fr": numbers_en_fr.splits,
}
"""Made by rules: every source has one right translation."""

KNOWN_PAIRS = {
    "ted-en-fr": KnownPairs({"train": "train", "valid": "dev", "test": "test"}, ("en", "fr")),
    "multi30k": KnownPairs(
        {
            "train": "train",
            "valid": "val",
            "test_2016_flickr": "test_2016_flickr",
            "test_2017_flickr": "test_2017_flickr",
            "test_2017_mscoco": "test_2017_mscoco",
        },
        ("en", "de"),
    ),
}

PIG_LATIN_FILES = {"pig-latin-course": "pig_latin_data.txt", "pig-latin-large": "pig_latin_large_rebuilt.txt"}
"""Two words on a line, in the folder `pig-latin` under HEADWAY_DATA; words are held out as in the embedded set."""

FILES, HUB = "files", "hub"
PAIRED_SETS = (*EMBEDDED, *KNOWN_PAIRS, *PIG_LATIN_FILES, FILES, HUB)
"""Every valid `source` of pairs."""
BY_RULE = (*EMBEDDED, *PIG_LATIN_FILES)
"""Where every source has one right translation."""

_DIRECTION = re.compile(r"[^\s-]+-[^\s-]+")


@dataclass(frozen=True)
class Sides:
    """Which side of a set is the source and which the target."""

    direction: str | None = None
    header: bool | None = None
    """Of a table: whether the first line names the columns; None = it does, if a column is given by name."""
    format: WrittenAs = PLAIN

    @property
    def both(self) -> tuple[str, str]:
        source, _, target = (self.direction or "1-2").partition("-")
        return source, target


def is_direction(text: str) -> bool:
    return _DIRECTION.fullmatch(text) is not None


def read_pairs(source: str, path: str | None, sides: Sides) -> Splits:
    """Pairs by split, as the source has them."""
    if source in EMBEDDED:
        found = {split: [TextPair(*pair) for pair in pairs] for split, pairs in EMBEDDED[source]().items()}
    elif source in PIG_LATIN_FILES:
        found = _pig_latin_file(source)
    elif source in KNOWN_PAIRS:
        return _from_known(source, sides)
    elif source == HUB:
        from headway.data.pairs.hub import from_hub  # only where somebody asks for it

        assert path is not None
        return from_hub(path, sides)
    else:
        assert path is not None
        return _from_path(Path(path).expanduser(), sides)
    return found


def with_valid(splits: Splits, fraction: float, name: str) -> Splits:
    """A share of the sources of train, chosen by a hash of the text, so that the order of the rows has no say in it."""
    sources = sorted({normalised(pair.source) for pair in splits["train"]}, key=_hash)
    chosen = set(sources[: max(1, round(fraction * len(sources)))])
    sides: dict[bool, list[TextPair]] = {False: [], True: []}
    for pair in splits["train"]:
        sides[normalised(pair.source) in chosen].append(pair)
    if not sides[False]:
        there = "one source" if len(sources) == 1 else f"{len(sources)} different sources"
        raise UserError(f"'{name}' has {there}, too few to hold out {fraction:.0%} (data.valid_fraction)")
    rest = {split: pairs for split, pairs in splits.items() if split != "train"}
    return {"train": sides[False], "valid": sides[True], **rest}


def some_of(pairs: list[TextPair], rows: int, name: str) -> list[TextPair]:
    """So many of them, by a hash of the text: fewer are always among more, and the order of the file has no say."""
    if rows > len(pairs):
        raise UserError(f"data.rows={rows}: '{name}' has {len(pairs):,} pairs to train on")
    chosen = set(sorted(range(len(pairs)), key=lambda k: _hash(f"row {normalised(pairs[k].source)}"))[:rows])
    return [pair for k, pair in enumerate(pairs) if k in chosen]


def normalised(text: str) -> str:
    """Two texts are the same if they differ in nothing but white space."""
    return " ".join(text.split())


def lines_of(path: Path, encoding: str | None = None, key: str = "data.encoding=") -> list[str]:
    """Of a parallel file. `key`: where another encoding would be said."""
    return lines_in(read_text(path, encoding, key))


def lines_in(text: str) -> list[str]:
    """Every line is a text, empty ones too."""
    text = text if "\n" in text else text.replace("\r", "\n")  # as old Macs wrote it
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def joined(source: Path, target: Path, encoding: str | None = None) -> list[TextPair]:
    """Two files, line by line."""
    ours, theirs = lines_of(source, encoding), lines_of(target, encoding)
    if len(ours) != len(theirs):
        from headway.data.pairs.alignment import where_they_part  # only where something is wrong

        lines = f"{len(ours):,} line{'' if len(ours) == 1 else 's'}"
        what = f"'{source}' has {lines} and '{target.name}' has {len(theirs):,}"
        line = where_they_part(ours, theirs)
        told = f"; they seem to part at line {line:,}" if line else ""
        raise UserError(f"{what}: line n of one must be the translation of line n of the other{told}")
    return [TextPair(*pair) for pair in zip(ours, theirs, strict=True)]


def _from_known(name: str, sides: Sides) -> Splits:
    known = KNOWN_PAIRS[name]
    source, target = known.languages if sides.direction is None else sides.both
    if {source, target} != set(known.languages):
        one, other = known.languages
        raise UserError(f"data.direction={sides.direction}: '{name}' has {one}-{other} and {other}-{one}")
    ours, theirs = (
        known_files(name, {split: f"{stem}.{language}" for split, stem in known.stems.items()})
        for language in (source, target)
    )
    return {split: joined(ours[split], theirs[split]) for split in known.stems}


def _pig_latin_file(name: str) -> Splits:
    (file,) = known_files("pig-latin", {"train": PIG_LATIN_FILES[name]}).values()
    found: Splits = {"train": [], **{split: [] for split in pig_latin.HELD_OUT_PERCENT}}
    for line in lines_of(file):
        words = line.split()
        # What the course's own reader keeps: letters and hyphens alone.
        if len(words) == 2 and all(re.fullmatch(r"[a-z-]+", word) for word in words):
            found[pig_latin.split_of(words[0])].append(TextPair(*words))
    return found


def _from_path(path: Path, sides: Sides) -> Splits:
    try:
        if not path.exists():
            raise UserError(f"there is no file or folder '{path}'")
        if not path.is_dir():
            return {"train": _table(path, sides)}
        files = sorted(file for file in path.iterdir() if file.is_file())
    except PermissionError:
        raise UserError(f"'{path}' may not be read: permission denied") from None
    tables = _by_split(path, files, ENDINGS)
    parallel = sides.direction is not None and any(f".{sides.both[0]}" in file.name for file in files)
    if tables and not parallel:
        return {split: _table(file, sides) for split, file in tables.items()}
    if sides.direction is None:
        raise UserError(f"folder '{path}': which of its files are sources? say data.direction=en-de, for train.en …")
    ours, theirs = (_by_split(path, files, (f".{side}", f".{side}.gz")) for side in sides.both)
    for side, here in zip(sides.both, (ours, theirs), strict=True):
        if "train" not in here:
            names = ", ".join(file.name for file in files[:6]) or "nothing"
            raise UserError(f"folder '{path}' has no train.{side} or train.{side}.gz; it has {names}")
    if alone := [*(ours.keys() - theirs), *(theirs.keys() - ours)]:
        file = ours.get(alone[0]) or theirs[alone[0]]
        raise UserError(f"folder '{path}': '{file.name}' has no counterpart in the other language")
    return {split: joined(ours[split], theirs[split], sides.format.encoding) for split in ours}


def _by_split(folder: Path, files: Sequence[Path], endings: Sequence[str]) -> dict[str, Path]:
    """The files with one of these endings whose names say which split they are, train first."""
    found: dict[str, Path] = {}
    left: list[str] = []
    for file in files:
        ending = next((ending for ending in endings if file.name.endswith(ending)), None)
        stem = file.name.removesuffix(ending) if ending else None
        if stem is None:
            continue
        split = split_of_stem(stem) or (stem if stem.startswith("test") else None)
        if split is None:
            left.append(file.name)
        elif split in found:
            raise UserError(f"folder '{folder}' has two files for split '{split}': {found[split].name} and {file.name}")
        else:
            found[split] = file
    if left and found:
        splits = "train, valid (dev, val, validation) and test (test_2016 …)"
        say_once(
            f"folder '{folder.name}': {', '.join(left[:4])}: not read; what a file is called says its split: {splits}"
        )
    return {split: found[split] for split in sorted(found, key=lambda s: (s != "train", s != "valid", s))}


def _table(path: Path, sides: Sides) -> list[TextPair]:
    columns = list(map(column_of, sides.both))
    if sides.direction is not None and path.name.removesuffix(".gz").endswith(tuple(f".{side}" for side in sides.both)):
        one, other = sides.both
        reason = f"'{path}' is one of two parallel files, which are given by their folder"
        raise UserError(f"{reason}: data.path={path.parent}, with train.{one} and train.{other} in it")
    if path.name.removesuffix(".gz").endswith(JSON_LINES) and all(isinstance(column, str) for column in columns):
        from headway.data.pairs.hub import pairs_of  # both sides may be parts of one column, as datasets there have it

        return pairs_of(path, path.name, sides)
    table = read_table(path, columns, sides.header, sides.format)
    places = [table.place("data.direction=", column, "data.direction=1-2") for column in columns]
    return [TextPair(*(in_a_line(table.cell(line, place)) for place in places)) for line in table.lines]


def in_a_line(text: str) -> str:
    """A cell of a table may have several: a text is one."""
    return " ".join(text.splitlines()) if "\n" in text or "\r" in text else text


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
