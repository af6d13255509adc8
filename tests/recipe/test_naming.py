"""Default names of runs."""

import hypothesis
import pytest
from hypothesis import strategies as st

from headway.core.files import check_names
from headway.recipe.naming import LONGEST, name_of_changed


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ([], "demo"),
        (["model.positions=alibi"], "demo-alibi"),
        (["model.positions.kind=alibi"], "demo-alibi"),
        (["model.positions=none"], "demo-positions-none"),
        (["model.layers=4", "seed=3"], "demo-layers-4-seed-3"),
        (["model.layers=4", "model.layers=2"], "demo-layers-2"),
        (["training.duration=500 steps"], "demo-duration-500-steps"),
        (["model.positions={kind: rotary, base: 500}"], "demo-rotary-base-500"),
        (["training.keep_best=true"], "demo-keep_best-true"),
        (["data.path=/home/somebody/../texts/corpus.txt"], "demo-corpus"),
        (["training.evaluate_on=[valid, test]"], "demo-evaluate_on-valid-test"),
    ],
)
def test_a_changed_recipe_is_named_after_its_changes(changes, name):
    assert name_of_changed("demo", changes, "0123456789ab") == name


@hypothesis.given(st.lists(st.text(max_size=400), max_size=5))
def test_every_name_can_be_that_of_a_folder(values):
    name = name_of_changed("a/demo.yaml", [f"model.k{k}='{value}'" for k, value in enumerate(values)], "0123456789ab")
    check_names([name])
    assert len(name.encode()) <= LONGEST


def test_long_names_end_with_a_distinguishing_hash():
    changes = [f"model.{'k' * 90}=1", "seed=1"]
    names = {name_of_changed("demo", changes, digest) for digest in ("111111111111", "222222222222")}
    assert len(names) == 2
