"""Plots with logarithmic axes: points are where their numbers put them, and the SVG is valid."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from headway.draw.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from headway.draw.plots import Ink, Plot, PlottedLine, PlottedPoints, ramp


def circles(svg: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)]


def test_equal_factors_are_equal_distances():
    svg = Plot("x", "y", "l", points=[PlottedPoints([1.0, 10.0, 100.0], [1.0, 100.0, 10_000.0])]).svg()
    (x0, y0), (x1, y1), (x2, y2) = circles(svg)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert LEFT <= x0 < x2 <= WIDTH - RIGHT and TOP <= y2 < y0 <= HEIGHT - BOTTOM


def test_it_is_well_formed_and_shows_each_name_once():
    lines = [PlottedLine([1, 10], [1, 2], Ink(2), "a < b", [0.5, 1], [2, 3]), PlottedLine([1, 10], [2, 4], Ink(3))]
    bars = PlottedPoints([3.0], [1.5], Ink(3), "point", [2.0], [4.0], upright=False, hollow=True)
    svg = Plot("FLOPs & more", "loss", "what it is", lines, [bars]).svg()
    ElementTree.fromstring(svg)
    assert svg.count("a &lt; b") == 1 and "FLOPs &amp; more" in svg and 'aria-label="what it is"' in svg


def test_values_that_are_not_finite_are_left_out():
    nan = float("nan")
    svg = Plot("x", "y", "l", [PlottedLine([1, 2, 3], [1, nan, 3])], [PlottedPoints([1, nan], [2, 2])]).svg()
    assert "nan" not in svg and len(circles(svg)) == 1


def test_ordered_series_get_increasingly_strong_colours():
    assert [ink.strength for ink in ramp(3)] == sorted(ink.strength for ink in ramp(3))
    assert ramp(1)[0].strength > 0
