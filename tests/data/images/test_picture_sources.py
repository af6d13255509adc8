"""Folders of pictures: what is read, what is held out, and what is refused with one message."""

from pathlib import Path

import numpy as np
import pytest
from captioned import captioned_folder, class_folder, painted
from PIL import Image

from headway.core.errors import UserError
from headway.data.images.batches import ShuffledPictures
from headway.data.images.dataset import load, with_end
from headway.data.images.sources import has_classes, read_pictures
from headway.data.vocabularies import Word


def folder_with(home: Path, table: str, *names: str) -> Path:
    home.mkdir(exist_ok=True)
    for k, name in enumerate(names):
        Image.fromarray(painted("red", "blue", True, seed=k)).save(home / name)
    (home / "captions.csv").write_text(table, "utf-8")
    return home


def test_captions_are_paired_with_their_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    data = load("files", str(captioned_folder(tmp_path / "set")), 12, "{}", None, 0.1, Word())
    train = data.split("train")
    assert [len(data.split(split)) for split in ("train", "valid", "test")] == [72, 12, 12] and data.classes is None
    for k in range(0, 72, 7):
        pixels = np.asarray(Image.open(tmp_path / "set" / "train" / train.names[train.picture[k]])).transpose(2, 0, 1)
        assert np.array_equal(train.pixels[train.picture[k]], pixels)
    again = load("files", str(tmp_path / "set"), 12, "{}", None, 0.1, Word())
    assert again.identity == data.identity
    assert load("files", str(tmp_path / "set"), 6, "{}", None, 0.1, Word()).identity != data.identity


def test_a_picture_may_have_several_captions(tmp_path):
    folder_with(tmp_path / "a", 'file,caption\nx.png,red\nx.png,"red, left"\ny.png,red\n', "x.png", "y.png", "z.png")
    (train,) = read_pictures("files", str(tmp_path / "a"), "{}", 0.0)[0].values()
    assert train.pairs == [(0, "red"), (0, "red, left"), (1, "red")] and train.classes is None
    assert any("1 pictures" in note and "z.png" in note for note in train.notes)


def test_classes_by_folders_and_what_is_held_out(tmp_path):
    splits, held_out = read_pictures("files", str(class_folder(tmp_path / "set")), "a photo of a {}", 0.2)
    assert held_out and [len(one.names) for one in splits.values()] == [24, 6]
    assert not set(splits["train"].names) & set(splits["valid"].names)
    for one in splits.values():
        assert all(caption == f"a photo of a {one.classes[k]}" for k, caption in one.pairs)
        assert all(name.startswith(kind.replace(" ", "_")) for name, kind in zip(one.names, one.classes, strict=True))
    assert has_classes("files", str(tmp_path / "set")) and not has_classes("scenes", None)
    fewer = read_pictures("files", str(tmp_path / "set"), "{}", 0.2, rows=10)[0]
    assert set(fewer["train"].names) < set(splits["train"].names) and fewer["valid"].names == splits["valid"].names


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("file,caption\nmissing.png,x\n", r"1 of 1 captions name pictures that do not exist.*missing\.png"),
        ("file,caption\na.png\n", "line 2: expected a file and its caption, found 1 column"),
        ("file,caption\na.png,x, y\n", "quoted"),
        ("file,caption\na.png,\n", "an empty one"),
        ("file,caption\n", "no rows"),
        ("file,caption\nb.png,x\n", "did you mean 'a.png'"),
    ],
)
def test_captions_that_do_not_fit(tmp_path, table, says):
    with pytest.raises(UserError, match=says):
        read_pictures("files", str(folder_with(tmp_path / "set", table, "a.png")), "{}", 0.0)


def test_folders_that_do_not_fit(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "loose").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "loose" / "a.png")
    (tmp_path / "one" / "cat").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "one" / "cat" / "a.png")
    for name, says in (
        ("none", "there is no folder"),
        ("empty", "has no pictures"),
        ("loose", "neither captions nor classes"),
        ("one", "have the same class, 'cat'"),
        ("one/cat/a.png", "is a file; expected a folder"),
    ):
        with pytest.raises(UserError, match=says):
            read_pictures("files", str(tmp_path / name), "{}", 0.0)


def test_a_class_that_is_not_in_train(tmp_path):
    for split, kinds in (("train", ("cat", "dog")), ("valid", ("cat", "dgo"))):
        for kind in kinds:
            (tmp_path / split / kind).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / split / kind / "a.png")
    with pytest.raises(UserError, match=r"'dgo' of 'valid' does not occur in train; did you mean 'dog'"):
        read_pictures("files", str(tmp_path), "{}", 0.1)


def test_a_broken_picture_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    folder = class_folder(tmp_path / "set")
    (folder / "red_half" / "0.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"red_half/0\.png' cannot be read as a picture"):
        load("files", str(folder), 12, "{}", None, 0.1, Word())


def test_truncated_captions_keep_their_end_token():
    table, lengths = with_end([np.arange(1, 9), np.array([5])], 4, 99)
    assert table.tolist() == [[1, 2, 3, 99], [5, 99, 0, 0]] and lengths.tolist() == [4, 2]


def test_pictures_are_shifted_and_mirrored_as_set(tmp_path, monkeypatch):
    """Every picture of a batch is one of train, shifted by at most this many pixels; each seed has its own shifts."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    train = load("files", str(class_folder(tmp_path / "set")), 12, "{}", None, 0.1, Word()).split("train")
    sampler = ShuffledPictures(flip=True, shift=2).build(train, 4, 9, 8, [0, 1], "cpu")
    batch, mirrored, moved = sampler.at(3), 0, 0
    for r in range(2):
        for row in range(8):
            original = train.pixels[batch.picture[r, row]]
            shown, found = batch.pictures[r, row].numpy(), []
            for flip in (False, True):
                source = original[:, :, ::-1] if flip else original
                for down in range(-2, 3):
                    for right in range(-2, 3):
                        at = [(np.arange(12) + by).clip(0, 11) for by in (down, -right if flip else right)]
                        if np.array_equal(source[:, at[0]][:, :, at[1]], shown):
                            found.append((flip, down, right))
            assert found, "this picture is not from train"
            mirrored, moved = mirrored + found[0][0], moved + (found[0][1:] != (0, 0))
    assert 0 < mirrored < 16 and moved > 8
    assert not np.array_equal(batch.picture[0], batch.picture[1])
    alone = ShuffledPictures(flip=True, shift=2).build(train, 4, 9, 8, [1], "cpu").at(3)
    assert np.array_equal(alone.pictures[0], batch.pictures[1])
