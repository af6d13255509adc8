import math

import pytest

from headway.scoring.score import Score


def test_a_score_as_json_is_its_value_and_its_label():
    assert Score("valid.loss", 1.5, "nats per token").as_json() == {"value": 1.5, "label": "nats per token"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_number_for_is_null(value):
    assert Score("valid.loss", value, "x").as_json()["value"] is None


def test_rows_are_kept_but_not_told():
    """A line of JSON is for reading; a split may have a hundred thousand rows."""
    score = Score("valid.accuracy", 0.5, "accuracy: 1 of 2", rows="10")
    assert "rows" not in score.as_json() and Score.from_json(score.name, score.to_keep()) == score
