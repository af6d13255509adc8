import json
import math

import pytest

from headway.scoring.score import Confusion, Score, label_of_all


def test_a_score_as_json_is_its_value_and_its_label():
    assert Score("valid.loss", 1.5, "nats per token").as_json() == {"value": 1.5, "label": "nats per token"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_null_in_json(value):
    assert Score("valid.loss", value, "x").as_json()["value"] is None


def test_rows_are_stored_but_not_printed():
    """A line of JSON is meant for reading, and a split may have a hundred thousand rows."""
    score = Score("valid.accuracy", 0.5, "accuracy: 1 of 2", rows="10")
    assert "rows" not in score.as_json() and Score.from_json(score.name, score.to_keep()) == score


def test_a_confusion_matrix_of_many_classes_is_stored_sparsely():
    n = 4000
    found = Confusion.counted([f"c{k}" for k in range(n)], [0, 0, 3999], [1, 1, 3999])
    score = Score("test.accuracy", 1 / 3, "accuracy", (0.0, 1.0), found)
    stored = json.loads(json.dumps(score.to_keep()))
    assert len(json.dumps(stored)) < 20 * n and stored["confusion"]["cells"] == [[0, 1, 2], [3999, 3999, 1]]
    again = Score.from_json("test.accuracy", stored)
    assert again.confusion == found and again.confusion.totals[0][0] == 2 and again.confusion.totals[2][3999] == 1


def test_a_confusion_matrix_of_few_classes_is_stored_as_before():
    table = {"classes": ["a", "b"], "counts": [[3, 1], [0, 2]]}
    read = Confusion.from_json(table)
    assert read.counts == ((3, 1), (0, 2)) and read.cells == ((0, 0, 3), (0, 1, 1), (1, 1, 2))
    assert json.loads(json.dumps(read.as_json())) == table
    with pytest.raises(ValueError, match="a class that does not exist"):
        Confusion.from_json({"classes": ["a", "b"], "cells": [[0, 2, 1]]})


def test_arms_measured_differently_do_not_share_a_label():
    carried, fresh = (f"perplexity · test · {how} · 3 unknown" for how in ("state carried", "no state carried"))
    assert label_of_all({"lstm": [carried] * 2, "memory": [carried], "none": []}) == carried
    told = label_of_all({"lstm": [carried], "attention": [fresh, fresh], "memory": [carried]})
    assert told == "perplexity · test · 3 unknown; lstm, memory: state carried; attention: no state carried"
    assert label_of_all({"a": ["x"], "b": ["y"]}) == "a: x; b: y" and label_of_all({}) == ""


def test_facts_of_single_runs_are_not_in_the_label_of_their_arm():
    of_seeds = [f"accuracy: {hits} of 9 · test{ending}" for hits, ending in ((7, ""), (8, " · 1 cut"))]
    assert label_of_all({"a": of_seeds, "b": of_seeds}) == "test"
