import math

import pytest

from headway.scoring.score import Score


def test_a_score_as_json_is_its_value_and_its_label():
    assert Score("valid.loss", 1.5, "nats per token").as_json() == {"value": 1.5, "label": "nats per token"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_number_for_is_null(value):
    assert Score("valid.loss", value, "x").as_json()["value"] is None
