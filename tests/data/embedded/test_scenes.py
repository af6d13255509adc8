import numpy as np

from headway.data.embedded import scenes
from headway.data.embedded.scenes import Scene, ShapeGroup


def test_a_picture_is_a_function_of_its_number():
    assert scenes.scene(41) == scenes.scene(41)
    assert np.array_equal(scenes.draw(scenes.scene(41)), scenes.draw(scenes.scene(41)))
    assert scenes.draw(scenes.scene(41)).shape == (3, scenes.SIZE, scenes.SIZE)
    assert not np.array_equal(scenes.draw(scenes.scene(41)), scenes.draw(scenes.scene(42)))


def test_no_content_is_in_two_splits_and_held_out_ones_differ():
    found = scenes.splits({"train": 800, "valid": 60, "test": 60})
    contents = {split: [one.content for one in some] for split, some in found.items()}
    assert [len(some) for some in contents.values()] == [800, 60, 60]
    assert not set(contents["train"]) & {*contents["valid"], *contents["test"]}
    assert not set(contents["valid"]) & set(contents["test"])
    assert len(set(contents["test"])) == 60
    captions = {one.caption for one in found["train"]}
    assert not captions & {one.caption for split in ("valid", "test") for one in found[split]}


def test_captions_describe_the_picture():
    """Checked in the picture: where the pixels of each colour are."""
    for number in range(300):
        one = scenes.scene(number)
        if one.second is None or {one.first.colour, one.second.colour} != {"red", "green"}:
            continue
        picture = scenes.draw(one).astype(int)
        is_red, is_green = (picture[0] - picture[1] > 80), (picture[1] - picture[0] > 60)
        axis = 0 if one.relation == "above" else 1
        red, green = (np.argwhere(which)[:, axis].mean() for which in (is_red, is_green))
        assert (red < green) == (one.first.colour == "red"), one.caption


def test_the_area_of_a_colour_grows_with_the_count():
    areas = []
    for count in (1, 5):
        sizes = []
        for number in range(12):
            drawn = scenes.draw(Scene(number, ShapeGroup(count, "yellow", "square"), None, None)).astype(int)
            sizes.append(((drawn[0] - drawn[2]) > 100).sum())
        areas.append(np.mean(sizes))
    assert 4 < areas[1] / areas[0] < 6


def test_wordings():
    assert ShapeGroup(1, "orange", "ring").words(digits=False) == "an orange ring"
    assert ShapeGroup(3, "red", "cross").words(digits=False) == "three red crosses"
    assert ShapeGroup(2, "blue", "star").words(digits=True) == "2 blue stars"
    said = {scenes.scene(number).caption.split()[-2] for number in range(200)}
    assert said <= set(scenes.COLOURS)
