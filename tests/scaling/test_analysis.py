"""The analysis of scaling points: intervals, doubts, advice."""

import numpy as np
import pytest

from headway.scaling.analysis import ScalingAnalysis, analyse
from headway.scaling.points import PointTable
from headway.stats import scaling
from headway.stats.isoflop import budgets_of
from headway.stats.scaling import Cost, Law, Points, optimum

LAW = Law(E=1.7, A=400.0, B=410.0, alpha=0.34, beta=0.28)


@pytest.fixture(autouse=True)
def few_starts(monkeypatch):
    whole = scaling.grid_of_starts()
    for module in ("headway.stats.scaling", "headway.scaling.analysis"):
        monkeypatch.setattr(f"{module}.grid_of_starts", lambda: whole[::150])


def table(noise: float = 0.003, change=lambda n, d, loss: loss, **counted) -> PointTable:
    flops = np.repeat(np.geomspace(1e13, 1e15, 4), 12)
    n = optimum(LAW.row, Cost(), flops)[0] * np.tile(np.repeat(np.geomspace(0.2, 5, 6), 2), 4)
    d = flops / (6 * n)
    loss = LAW.loss(n, d) * np.exp(noise * np.random.default_rng(1).standard_normal(len(n)))
    points = Points(n, d, flops, change(n, d, loss))
    columns = {key: key for key in ("parameters", "tokens", "flops", "loss")}
    conventions = {name: of(n) for name, of in counted.items()}
    return PointTable(points, budgets_of(points), "points.csv", columns, 0, 0, conventions)


@pytest.fixture(scope="module")
def found() -> ScalingAnalysis:
    whole = scaling.grid_of_starts()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headway.stats.scaling.grid_of_starts", lambda: whole[::150])
        return analyse(table(), resamples=200)


def test_intervals_contain_the_true_law_and_exponents(found):
    for name, one in found.law.items():
        assert one.low <= one.value <= one.high, name
        assert one.low <= getattr(LAW, name) <= one.high, name
    true = LAW.beta / (LAW.alpha + LAW.beta)
    of_law, of_curves = found.exponents["parameters"], found.exponents["parameters_by_curves"]
    assert of_law.low <= true <= of_law.high
    assert abs(of_curves.value - of_law.value) < 0.05
    assert found.exponents["loss"].value == pytest.approx(
        found.law["alpha"].value * found.law["beta"].value / (found.law["alpha"].value + found.law["beta"].value)
    )


def test_advice_within_and_beyond_the_measured_range(found):
    inside, beyond, below = found.advise(3e14), found.advise(1e18), found.advise(1e12)
    true = optimum(LAW.row, Cost(), 3e14)
    for one, value in zip((inside.parameters, inside.tokens, inside.loss), true, strict=True):
        assert one.low < one.value < one.high and one.value == pytest.approx(value, rel=0.05)
    assert inside.beyond == 1 and not inside.notes
    assert beyond.beyond == pytest.approx(1000) and below.beyond == pytest.approx(10)
    assert "factor of 1e+03 beyond the largest budget" in beyond.notes[0]
    assert any("no model of that size was trained" in note for note in beyond.notes)
    assert "below the smallest" in below.notes[0]
    far, tiny = found.advise(1e20), found.advise(1e8)
    assert beyond.is_usable and not far.is_usable and not tiny.is_usable
    for one in (far, tiny):
        assert one.notes[0].startswith("not usable") and len(one.notes) == 1
        assert one.as_json()["parameters"] is one.as_json()["loss"] is None
    width = beyond.loss.high - beyond.loss.low
    assert width > inside.loss.high - inside.loss.low
    assert found.flops_for(float(true[2])).value == pytest.approx(3e14, rel=0.2)
    assert found.flops_for(0.1).value == np.inf


def test_notes_about_the_numbers():
    wrong = analyse(table(change=lambda n, d, loss: np.where(np.arange(len(n)) == 5, 0.5, loss)), 40)
    notes = " ".join(wrong.notes())
    assert "1 point lies below the floor" in notes and "1 point lies more than" in notes
    assert list(wrong.fit.outliers) == [5]
    endless = analyse(table(change=lambda n, d, loss: loss - LAW.E), 40)
    assert "cannot be distinguished from 0" in " ".join(endless.notes())


def test_a_budget_without_a_minimum_is_named():
    def tilted(n, d, loss):
        return np.where(d * n < 1e13 / 5, 3 + 0.2 * np.log(n / n.min()) ** 1.5, loss)

    found = analyse(table(change=tilted), 40)
    assert [curve.missing for curve in found.curves.curves] == ["smaller", "", "", ""]
    assert any("1e+13 FLOPs has no minimum" in note for note in found.notes())
    assert found.curves.parameters is not None


def test_the_convention_changes_the_exponents():
    found = analyse(table(without=lambda n: n - 0.9 * n.min()), 40)
    assert [one.name for one in found.conventions] == ["parameters", "without"]
    first, second = found.conventions
    assert second.parameters_exponent.value > first.parameters_exponent.value + 0.02
    assert second.curves_exponent is not None


def test_json_has_no_infinities(found):
    import json

    json.dumps([found.as_json(), found.advise(1e18).as_json()], allow_nan=False)


def test_every_chart_is_drawn_with_its_caption(found):
    import xml.etree.ElementTree as ElementTree

    from headway.scaling.figures import Traces, envelope, figures, page

    traces = Traces({"width 8": ([1e12, 1e13], [9.0, 8.0]), "width 16": ([2e12, 1e14], [8.5, 7.0])})
    drawn = figures(found, traces)
    assert len(drawn) == 5
    for figure in drawn:
        ElementTree.fromstring(figure.picture)
        assert figure.caption.endswith(".") and "nan" not in figure.picture
    assert drawn[1].picture.count("FLOPs") >= len(found.curves.found)
    assert envelope(traces) == ([1e12, 2e12, 1e13, 1e14], [9.0, 8.5, 8.0, 7.0])
    assert page(found).count("<svg") == 5


def test_charts_without_minima():
    from headway.scaling.figures import figures

    falling = analyse(table(change=lambda n, d, loss: 20 - np.log(n)), 40)
    assert falling.curves.parameters is None
    assert len(figures(falling)) == 4
