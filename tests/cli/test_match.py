"""`headway match` on the command line: what it ranks, plays, draws and refuses."""

import math
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from captioned import captioned_folder, clip_recipe, painted
from PIL import Image
from tiny import cache_in

from headway.audit.audit import Report
from headway.experiment.train import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    home = tmp_path_factory.mktemp("matching")
    captioned_folder(home / "set")
    with cache_in(home / "cache"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway.experiment.train.audit_runs", lambda runs, task: [Report()] * len(runs))
        train([clip_recipe(home / "set", "training.duration=60 steps")], ["clip"], home / "runs")
    return home


@pytest.fixture
def home(trained, tmp_path, monkeypatch, workshop) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_CACHE", str(trained / "cache"))
    shutil.copytree(trained / "runs", tmp_path / "runs")
    shutil.copytree(workshop.run.folder, tmp_path / "runs" / "tiny")
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for k, (first, second, beside) in enumerate(
        [("red", "blue", True), ("green", "white", False), ("blue", "red", True)]
    ):
        Image.fromarray(painted(first, second, beside, seed=90 + k)).save(pictures / f"{first}-{second}.png")
    return tmp_path


@pytest.fixture
def headway(home, command_line):
    return command_line


def test_pictures_and_captions_are_matched(headway):
    captions = ["red left of blue", "green above white", "blue left of red"]
    said = headway("match", "clip", "--images", "pictures", *(x for c in captions for x in ("--captions", c)), "--json")
    found = said.json
    names = [one["name"] for one in found["pictures"]]
    assert names == ["pictures/blue-red.png", "pictures/green-white.png", "pictures/red-blue.png"]
    best = {names[p]: captions[max(range(3), key=row.__getitem__)] for p, row in enumerate(found["cosine"])}
    assert best["pictures/green-white.png"] == "green above white"
    for p in range(3):
        assert sum(found["of_captions"][p]) == pytest.approx(1) and len(found["cosine"][p]) == 3
        assert sum(row[p] for row in found["of_pictures"]) == pytest.approx(1)
        assert found["clip_score"][p] == pytest.approx([2.5 * max(x, 0) for x in found["cosine"][p]])
    plain = headway("match", "clip", "--images", "pictures", "--captions", "red left of blue")
    assert plain.code == 0 and "red left of blue" in plain.out and "CLIPScore" in plain.out


def test_the_game_shows_the_share_of_each_word(headway):
    said = headway(
        "match", "clip", "--images", "test:0..5", "--target", "test:2", "--captions", "red above blue", "--json"
    )
    (turn,) = said.json["game"]["turns"]
    assert [word["word"] for word in turn["words"]] == ["red", "above", "blue"]
    assert turn["wins"] == (turn["rank"] == 1) == (turn["ahead"] > 0) and 0 < turn["chance"] < 1
    without = headway("match", "clip", "--images", "test:0..5", "--target", "3", "--captions", "above blue", "--json")
    (other,) = without.json["game"]["turns"]

    assert turn["words"][0]["share"] == pytest.approx(math.log(turn["chance"] / other["chance"]), abs=1e-4)


def test_classes_by_prompts(headway):
    said = headway(
        *("match", "clip", "--images", "pictures", "--classes", "green, red", "--classes", "white"),
        *("--prompt", "{} above white", "--prompt", "{} left of blue", "--json"),
    )
    found = said.json
    assert found["classes"] == ["green", "red", "white"] and len(found["of_classes"]) == 3
    assert all(sum(row) == pytest.approx(1) for row in found["of_classes"])


class _Checks(HTMLParser):
    def __init__(self):
        super().__init__()
        self.images, self.fetched = 0, []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.images += tag == "img"
        address = given.get("src") or given.get("href") or ""
        if tag in ("script", "link") or (address and not address.startswith("data:")):
            self.fetched.append((tag, address[:40]))


@pytest.mark.parametrize("more", [["--captions", "red <b> & blue"], ["--classes", "red,blue"]])
def test_a_page_is_one_file(headway, home, more):
    given = ["--target", "pictures/red-blue.png"] if "--captions" in more else []
    said = headway("match", "clip", "--images", "pictures", *more, *given, "--page", "match.html")
    assert said.code == 0, said.err
    page, checks = (home / "match.html").read_text("utf-8"), _Checks()
    checks.feed(page)
    assert checks.images >= 3 and checks.fetched == [] and "<b> &" not in page
    assert "prefers-color-scheme: dark" in page


def test_captions_from_a_file_and_long_ones_are_counted(headway, home):
    (home / "captions.txt").write_text("red left of blue\n\n" + "blue " * 30 + "\nno such words\n", "utf-8")
    said = headway("match", "clip", "--images", "test:0", "--captions", "captions.txt", "--json")
    found = said.json
    assert [one["cut"] for one in found["captions"]] == [0, 23, 0] and found["captions"][2]["unknown"] == 3
    assert any("END is kept" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--captions", "x"], "no pictures given"),
        (["--images", "pictures"], "give either --captions or --classes"),
        (["--images", "none.png", "--captions", "x"], "there is no picture 'none.png'"),
        (["--images", "runs", "--captions", "x"], "no pictures in the folder"),
        (["--images", "bad.png", "--captions", "x"], "cannot be read as a picture"),
        (["--images", "test:99", "--captions", "x"], "test:0 to test:11"),
        (["--images", "tset:1", "--captions", "x"], "no split 'tset'; did you mean 'test'"),
        (["--images", "test:5..2", "--captions", "x"], "is empty"),
        (["--images", "pictures", "--captions", "  "], "caption 1 is empty"),
        (["--images", "pictures", "--captions", "x", "--target", "red-blu.png"], "none of the 3 pictures"),
        (["--images", "test:1", "--captions", "x", "--target", "1"], "at least two pictures"),
        (["--images", "pictures", "--classes", "cat"], "at least two classes"),
        (["--images", "pictures", "--classes", "cat,dog,cat"], "given twice"),
        (["--images", "pictures", "--classes", "cat,dog", "--prompt", "a photo"], "must contain {} exactly once"),
        (["--images", "pictures", "--captions", "x", "--page", "x.pdf"], ".html"),
        (["--images", "pictures", "--captions", "absent.txt"], "no caption file"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
def test_a_mistake_is_one_message(headway, home, asked, says):
    (home / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    said = headway("match", "clip", *asked)
    assert said.code == 2 and says in said.err and said.err.count("\n") == 1, said.err


def test_other_kinds_of_models_and_missing_ones(headway):
    said = headway("match", "tiny", "--images", "pictures", "--captions", "x")
    assert said.code == 2 and "match pictures and captions" in said.err
    assert "did you mean 'clip'" in headway("match", "clpi", "--images", "pictures", "--captions", "x").err
    assert "config.json" in headway("match", "pictures", "--images", "pictures", "--captions", "x").err
    assert "headway match clip" in headway("classify", "clip", "x").err


# --- headway look --image --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("show", ["heads", "gradients"])
def test_the_maps_of_a_picture(headway, home, show):
    asked = ("look", "clip", "red above blue", "--image", "pictures/red-blue.png", "--show", show)
    found = headway(*asked, "--json", "-o", "look.svg").json
    assert found["tokens"] == ["red", "above", "blue", "END"] and len(found["attention"]) == 4
    for of, size in (("patches", 2), ("words", 4)):
        one = next(one for one in found["attention"] if one["of"] == of)
        assert len(one["shares"]) == size and np.sum(one["shares"]) == pytest.approx(1)
    assert np.sum(found["gradient_by_patch"]) == pytest.approx(1) == np.sum(found["gradient_by_word"])
    assert "data:image/png" in (home / "look.svg").read_text("utf-8")
    told = headway("match", "clip", "--images", "pictures/red-blue.png", "--captions", "red above blue", "--json").json
    assert found["cosine"] == pytest.approx(told["cosine"][0][0], abs=1e-5)
    assert "END" in headway(*asked).out


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["red"], "headway look clip --image"),
        (["red", "--show", "gradients"], "headway look clip --image"),
        (["red", "--image", "test:0", "--show", "rollout"], "heads and gradients"),
        (["red", "--image", "test:0..3"], "one picture"),
        (["red", "--image", "test:0", "--layer", "7"], "layers are 0 to 0"),
        (["red " * 20, "--image", "test:0"], "the model reads 7"),
        (["red", "--image", "test:0", "--beside", "clip"], "leave out --beside"),
    ],
    ids=lambda given: " ".join(given)[:40] if isinstance(given, list) else None,
)
def test_a_mistake_with_a_picture_is_one_message(headway, asked, says):
    said = headway("look", "clip", *asked)
    assert said.code == 2 and says in said.err and said.err.count("\n") == 1, said.err
