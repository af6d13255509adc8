"""Sources of captioned pictures: scenes drawn by rule, a known set under HEADWAY_DATA, the user's folders.

A user's folder has pictures and a table of captions, or a folder of pictures for each class:

    flowers/captions.csv       file,caption            cats-and-dogs/cat/1.jpg
    flowers/a.jpg              a.jpg,a red tulip       cats-and-dogs/dog/7.jpg

Either may be inside folders train, valid and test. A picture may have several captions, and a caption several pictures.
If there is no `valid`, a share of the pictures of train is held out, chosen by a hash of their names.
"""

import hashlib
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from headway.core.errors import UserError, did_you_mean
from headway.data.embedded import scenes
from headway.data.images.pictures import decode_picture, is_picture, read_picture, squared
from headway.data.running.sources import known_files, split_of_stem
from headway.data.table_formats import fields_of

Pictures = UInt8[np.ndarray, "P 3 S S"]
EMBEDDED = ("scenes",)
KNOWN_SETS = {
    "tiny-imagenet-10": {"train": "train_images.tar.gz", "valid": "val_images.tar", "labels": "labels.csv"},
}
FILES = "files"
PICTURE_SETS = (*EMBEDDED, *KNOWN_SETS, FILES)
"""Every valid `source` of pictures."""
CAPTION_FILES = tuple(f"captions{ending}" for ending in (".csv", ".tsv", ".txt"))


@dataclass(frozen=True)
class RawPictures:
    """One split, before pictures are decoded and captions tokenised."""

    names: list[str]
    """The name of each picture."""
    pairs: list[tuple[int, str]]
    """(index of a picture, one of its captions)."""
    classes: list[str] | None
    """The class of each picture, if they have classes instead of captions."""
    digest: str
    """A hash of the pictures."""
    read: Callable[[int, int], np.ndarray]
    """Reads the picture at an index in a given size."""
    notes: tuple[str, ...] = ()

    def pixels(self, size: int) -> Pictures:
        return np.stack([self.read(k, size) for k in range(len(self.names))])

    def only(self, places: Sequence[int]) -> "RawPictures":
        """A subset of the pictures."""
        at = {k: new for new, k in enumerate(places)}
        digest = hashlib.sha256(f"{self.digest} {list(places)}".encode()).hexdigest()
        return replace(
            self,
            names=[self.names[k] for k in places],
            pairs=[(at[k], caption) for k, caption in self.pairs if k in at],
            classes=None if self.classes is None else [self.classes[k] for k in places],
            digest=digest,
            read=lambda k, size: self.read(places[k], size),
        )


Splits = dict[str, RawPictures]


def read_pictures(
    source: str, path: str | None, template: str, valid_fraction: float, rows: int | None = None
) -> tuple[Splits, bool]:
    """Pictures by split, "train" first, and whether `valid` was held out of train. `template` makes a caption of a
    class name. `rows`: keep only so many pictures of train."""
    if source == "scenes":
        splits = _scenes()
    elif source in KNOWN_SETS:
        splits = _tiny_imagenet(source, template)
    else:
        assert path is not None
        splits = _from_path(Path(path).expanduser(), template)
    held_out = "valid" not in splits and valid_fraction > 0
    if held_out:
        splits = _with_valid(splits, valid_fraction, path or source)
    _check_classes(splits, path or source)
    if rows is not None:
        train = splits["train"]
        if rows > len(train.names):
            raise UserError(f"data.rows={rows:,}: '{path or source}' has {len(train.names):,} pictures to train on")
        chosen = sorted(range(len(train.names)), key=lambda k: _hash(train.names[k]))[:rows]
        splits = {**splits, "train": train.only(sorted(chosen))}
    return splits, held_out


def has_classes(source: str, path: str | None) -> bool:
    """Whether these pictures have classes instead of captions, found without reading any."""
    if source != FILES or path is None:
        return source in KNOWN_SETS
    folder = Path(path).expanduser()
    return not any((inner / name).is_file() for inner in (folder, folder / "train") for name in CAPTION_FILES)


def _scenes() -> Splits:
    found: Splits = {}
    for split, some in scenes.splits().items():
        captions = [one.caption for one in some]

        def read(k: int, size: int, some: list[scenes.Scene] = some) -> np.ndarray:
            drawn = scenes.draw(some[k])
            return drawn if size == scenes.SIZE else _resized(drawn, size)

        digest = hashlib.sha256(f"{scenes.VERSION} {[one.number for one in some]}".encode()).hexdigest()
        names = [f"scene {one.number}" for one in some]
        found[split] = RawPictures(names, list(enumerate(captions)), None, digest, read)
    return found


def _tiny_imagenet(name: str, template: str) -> Splits:
    files = known_files(name, KNOWN_SETS[name])
    header, *lines = (fields for _, fields in fields_of(files["labels"]))
    wanted = ("split", "file", "name")
    if missing := [column for column in wanted if column not in header]:
        raise UserError(f"'{files['labels']}' has no column '{missing[0]}'{did_you_mean(missing[0], header)}")
    split_at, file_at, name_at = (header.index(column) for column in wanted)
    found: Splits = {}
    for split in ("train", "valid"):
        labels = {Path(one[file_at]).name: one[name_at] for one in lines if split_of_stem(one[split_at]) == split}
        contents = _in_archive(files[split])
        if missing := sorted(set(labels) - set(contents)):
            raise UserError(f"'{files[split]}' has no picture {missing[0]}, which labels.csv names")
        names = sorted(labels)
        some = [contents[one] for one in names]
        classes = [_class_name(labels[one]) for one in names]

        def read(k: int, size: int, some: list[bytes] = some, names: list[str] = names) -> np.ndarray:
            return decode_picture(some[k], size, names[k]).pixels

        pairs = [(k, template.replace("{}", one)) for k, one in enumerate(classes)]
        found[split] = RawPictures(names, pairs, classes, _digest(some), read)
    return found


def _in_archive(path: Path) -> dict[str, bytes]:
    """Read the pictures in a tar file, by name."""
    try:
        with tarfile.open(path) as archive:
            members = [one for one in archive if one.isfile() and is_picture(Path(one.name))]
            return {Path(one.name).name: archive.extractfile(one).read() for one in members}  # pyright: ignore[reportOptionalMemberAccess]
    except (tarfile.TarError, OSError, EOFError) as problem:
        raise UserError(f"'{path}' is not a complete tar file ({problem})") from None


def _from_path(path: Path, template: str) -> Splits:
    if not path.exists():
        raise UserError(f"there is no folder '{path}'")
    if not path.is_dir():
        raise UserError(f"'{path}' is a file; expected a folder of pictures, with captions.csv or a folder per class")
    parts = {split: one for one in sorted(path.iterdir()) if one.is_dir() and (split := split_of_stem(one.name))}
    if "train" not in parts:
        return {"train": _folder(path, template)}
    in_order = sorted(parts, key=lambda split: (split != "train", split != "valid", split))
    return {split: _folder(parts[split], template) for split in in_order}


def _folder(folder: Path, template: str) -> RawPictures:
    try:
        table = next((folder / name for name in CAPTION_FILES if (folder / name).is_file()), None)
        if table is not None:
            return _captioned(folder, table)
        return _by_class(folder, template)
    except PermissionError:
        raise UserError(f"'{folder}' may not be read: permission denied") from None


def _captioned(folder: Path, table: Path) -> RawPictures:
    lines = fields_of(table)
    if [field.strip().lower() for field in lines[0][1][:2]] in (["file", "caption"], ["image", "caption"]):
        lines = lines[1:]
    if not lines:
        raise UserError(f"'{table}' has no rows below its header")
    at: dict[str, int] = {}
    pairs: list[tuple[int, str]] = []
    missing: list[str] = []
    for number, fields in lines:
        if len(fields) != 2 or not all(field.strip() for field in fields):
            what = f"{len(fields)} column{'s' if len(fields) != 1 else ''}" if len(fields) != 2 else "an empty one"
            hint = "; a caption with a comma is quoted in .csv" if table.suffix == ".csv" and len(fields) > 2 else ""
            raise UserError(f"'{table}', line {number}: expected a file and its caption, found {what}{hint}")
        file, caption = (field.strip() for field in fields)
        if not (folder / file).is_file():
            missing.append(file)
        pairs.append((at.setdefault(file, len(at)), caption))
    there = [str(one.relative_to(folder)) for one in sorted(folder.rglob("*")) if is_picture(one)]
    if missing:
        few = f"{len(missing):,} of {len(pairs):,} captions name pictures that do not exist"
        raise UserError(f"'{table}': {few}, the first '{missing[0]}'{did_you_mean(missing[0], there)}")
    notes = ()
    if silent := sorted(set(there) - set(at)):
        notes = (f"{len(silent):,} pictures of '{folder.name}' have no caption and are left out ({silent[0]} …)",)
    return _of_files(folder, list(at), pairs, None, notes)


def _by_class(folder: Path, template: str) -> RawPictures:
    found = [
        (str(file.relative_to(folder)), _class_name(inner.name))
        for inner in sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
        for file in sorted(inner.rglob("*"))
        if is_picture(file)
    ]
    if not found:
        loose = sum(is_picture(one) for one in folder.iterdir())
        what = f"{loose:,} pictures, but neither captions nor classes" if loose else "no pictures"
        expected = f"{CAPTION_FILES[0]} with the columns file and caption, or a folder of pictures for each class"
        raise UserError(f"folder '{folder}' has {what}: expected {expected}")
    names, classes = [file for file, _ in found], [one for _, one in found]
    if len(set(classes)) == 1:
        raise UserError(f"all {len(names):,} pictures in '{folder}' have the same class, '{classes[0]}'")
    pairs = [(k, template.replace("{}", one)) for k, one in enumerate(classes)]
    return _of_files(folder, names, pairs, classes)


def _of_files(
    folder: Path, names: list[str], pairs: list[tuple[int, str]], classes: list[str] | None, notes: tuple[str, ...] = ()
) -> RawPictures:
    digest = _digest([(folder / name).read_bytes() for name in names])
    return RawPictures(
        names, pairs, classes, digest, lambda k, size: read_picture(folder / names[k], size).pixels, notes
    )


def _with_valid(splits: Splits, fraction: float, name: str) -> Splits:
    train = splits["train"]
    places = sorted(range(len(train.names)), key=lambda k: _hash(train.names[k]))
    count = max(1, round(fraction * len(places)))
    if count >= len(places):
        raise UserError(f"'{name}' has {len(places):,} pictures, too few to hold out {fraction:.0%} of them")
    rest = {split: one for split, one in splits.items() if split != "train"}
    valid, left = sorted(places[:count]), sorted(places[count:])
    return {"train": train.only(left), "valid": train.only(valid), **rest}


def _check_classes(splits: Splits, name: str) -> None:
    train = splits["train"].classes
    for split, pictures in splits.items():
        if (pictures.classes is None) != (train is None):
            raise UserError(f"'{name}': one of train and {split} has captions, the other classes; both need the same")
        if strange := sorted(set(pictures.classes or ()) - set(train or ())):
            hint = did_you_mean(strange[0], train or ())
            raise UserError(f"'{name}': class '{strange[0]}' of '{split}' does not occur in train{hint}")


def _class_name(name: str) -> str:
    """A class name from a folder name: golden_retriever becomes golden retriever."""
    return " ".join(name.replace("_", " ").split())


def _resized(pixels: np.ndarray, size: int) -> np.ndarray:
    from PIL import Image

    return squared(Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))), size)


def _digest(contents: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in contents)).hexdigest()


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=8).digest()
