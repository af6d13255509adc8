"""The caption game of case D8 without its training: captions with less information, similar pictures, and who wins."""

import zlib
from dataclasses import replace

import pytest
import torch

from headway.cases.library import D8
from headway.data.embedded import scenes
from headway.scoring.pictures.matching import Matcher, Told

PAIRS = [one for number in range(60) if (one := scenes.scene(number)).second is not None]
ONES = [one for number in range(400) if (one := scenes.scene(number)).second is None]


class Reads(Matcher):
    """A matcher that is given some facts of each scene, and knows nothing else."""

    name, limit, scale = "reads", 16, 10.0

    def __init__(self, knows):
        self.knows, self.seen = knows, {}

    def _vector(self, what: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(what.encode()))
        return torch.nn.functional.normalize(torch.randn(32, generator=generator), dim=0)

    def see(self, pictures):
        return torch.stack([self._vector(self.seen[one.name]) for one in pictures])

    def tell(self, captions):
        vectors = torch.stack([self._vector(self.seen[caption]) for caption in captions])
        return Told(vectors, [4] * len(captions), [0] * len(captions))


@pytest.mark.parametrize("what", D8.NEAR)
def test_near_misses_differ_in_one_thing(what):
    change, others = D8.NEAR[what]
    for one in PAIRS:
        foils = [foil for k in range(others) if D8._is_drawable(foil := change(one, k))]
        assert (
            one.content not in [foil.content for foil in foils]
            and len({foil.content for foil in foils}) == len(foils) >= others - 1
        )
        for foil in foils:
            groups = {foil.first, foil.second}, {one.first, one.second}
            assert (len(groups[0] - groups[1]) == 1) != (what == "in who is where")
            if what != "in who is where":
                (new,), old = groups[0] - groups[1], one.first
                assert sum(getattr(new, key) != getattr(old, key) for key in ("count", "colour", "shape")) == 1


def test_information_is_removed_from_captions():
    one = next(one for one in PAIRS if one.first.count > 1)
    assert not set(D8.without_colours(one).split()) & set(scenes.COLOURS)
    assert not {"one", "two", "three", "four", "five", "a", *"12345"} & set(D8.without_numbers(one).split())
    assert all(shape not in D8.without_shapes(one) for shape in scenes.SHAPES)
    assert D8.the_first_group_alone(one) in (one.first.words(False),)


@pytest.mark.parametrize(("knows", "wins"), [(lambda one: one.content, True), (lambda one: one.first.colour, False)])
def test_a_model_that_reads_the_whole_caption_wins_and_one_that_reads_a_part_does_not(knows, wins, monkeypatch):
    """A model that only knows the colour of the first group cannot distinguish two pictures with the same one."""
    matcher = Reads(knows)
    change, others = D8.NEAR["in how many there are"]
    monkeypatch.setattr(D8, "_shown", lambda one: _named(matcher, one))
    for one in PAIRS[:20]:
        matcher.seen[one.caption] = knows(one)
    made = D8.Player(matcher, 1.0, "", PAIRS[:20], torch.zeros(0))
    hits, played = D8.near_misses(300, change, others, made)
    assert played == 20 and hits == (20 if wins else 0), "a tie does not count as a hit"


def _named(matcher, one):
    from headway.scoring.pictures.matching import Shown

    name = f"{one.number} {one.content}"
    matcher.seen[name] = matcher.knows(one)
    return Shown(name, None)


def test_a_scene_of_one_group_and_a_drawable_one():
    assert ONES and D8._is_drawable(ONES[0])
    two = PAIRS[0]
    assert not D8._is_drawable(replace(two, second=replace(two.first, count=two.first.count % 5 + 1)))
