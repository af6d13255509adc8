"""Retrieval scores, compared with all orders that ties allow, and with plain counts."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from captioned import class_folder, clip_recipe
from hypothesis import given
from hypothesis import strategies as st

from headway import tasks
from headway.data.images.dataset import CaptionedPictures
from headway.scoring.pictures.retrieval import chances, groups, hits_at, pair_groups, retrieve


def pairs(picture: list[int], caption: list[int]) -> CaptionedPictures:
    n, pictures = len(picture), max(picture) + 1
    return CaptionedPictures(
        np.zeros((pictures, 3, 4, 4), np.uint8),
        [str(k) for k in range(pictures)],
        None,
        np.array(picture),
        [str(k) for k in caption],
        np.array(caption),
        np.zeros(n, bool),
        np.zeros(n, np.int32),
        np.arange(1, n + 1),
    )


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6).filter(
        lambda c: any(b for _, b in c)
    ),
    st.integers(1, 4),
)
def test_ties_are_broken_at_random(candidates, k):
    """Over all orders of equal scores: how often is a right candidate among the first k?"""
    scores, right = (np.array(side) for side in zip(*candidates, strict=True))
    orders = [
        order
        for order in itertools.permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    expected = np.mean([any(right[at] for at in order[:k]) for order in orders])
    found = hits_at(k, scores[None].astype(float), right[None].astype(bool))
    assert found[0] == pytest.approx(expected)


def test_a_constant_model_is_at_chance():
    dealt = list(groups(pairs(list(range(20)), list(range(20))), 10))
    assert chances(dealt) == pytest.approx(
        {"captions_at_1": 0.1, "pictures_at_1": 0.1, "captions_at_5": 0.5, "pictures_at_5": 0.5}
    )


def test_every_picture_is_queried_once_among_equally_many_candidates():
    data = pairs(list(range(23)), [k % 7 for k in range(23)])
    dealt = list(groups(data, 10))
    asked = np.concatenate([one.pictures[: one.asked] for one in dealt])
    assert sorted(asked.tolist()) == list(range(23))
    assert [len(one.pictures) for one in dealt] == [10, 10, 10]
    for one in dealt:
        captions = data.caption[one.captions]
        assert len(set(captions.tolist())) == len(captions), "a caption is among the candidates once"
        assert all(
            one.belong[p, c] == (k % 7 == captions[c]) for p, k in enumerate(one.pictures) for c in range(len(captions))
        )
        assert one.belong.any(1).all()


def test_a_picture_with_several_captions_is_found_by_any_of_them():
    (only,) = groups(pairs([0, 0, 1, 2], [0, 1, 2, 3]), 10)
    first = only.belong[list(only.pictures).index(0)]
    assert first.sum() == 2
    said = np.zeros((3, 4))
    said[list(only.pictures).index(0), np.flatnonzero(first)[1]] = 1.0
    assert hits_at(1, said, only.belong)[list(only.pictures).index(0)] == 1.0


def test_groups_of_pairs_are_as_large_as_batches():
    dealt = pair_groups(1000, 128)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(1000))
    assert {len(one) for one in dealt} <= {125, 126}
    assert len(pair_groups(3, 128)) == 1


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("classes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWAY_CACHE", str(folder / "cache"))
        return tasks.load(clip_recipe(class_folder(folder / "set"), "data.prompts=['{}','{} here']"))


def test_scores_of_classes(task):
    model = task.build([0, 1], "cpu")
    for scores in task.score(model, ["valid"]):
        found = {score.name: score for score in scores}
        assert set(found) == {"valid.loss", "valid.accuracy", "valid.pictures_at_1", "valid.pictures_at_5"}
        accuracy = found["valid.accuracy"]
        assert accuracy.confusion is not None and accuracy.rows is not None and accuracy.interval is not None
        counts = np.array(accuracy.confusion.counts)
        assert counts.sum() == len(task.data.split("valid").names)
        assert accuracy.value == pytest.approx(counts.trace() / counts.sum())
        assert accuracy.rows.count("1") == counts.trace()


def test_the_loss_of_a_whole_group_does_not_depend_on_its_order(task):
    model, split = task.build([0], "cpu"), task.data.split("valid")
    turned = split.only(np.arange(len(split))[::-1])
    losses = [retrieve(model, one, 8, len(split))[0].nats.mean() for one in (split, turned)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_part_of_the_pairs_keeps_its_pictures(task):
    split = task.data.split("valid")
    part = split.only(np.array([1]))
    assert part.captions == [split.captions[1]] and part.pixels is split.pixels
    assert np.array_equal(part.padded(8, 99)[0][0], split.padded(8, 99)[0][1][: part.padded(8, 99)[1][0]])
    assert replace(part).lengths.tolist() == [split.lengths[1]]
