"""`headway scaling` on the command line."""

import json

import numpy as np
import pytest

from headway.stats import scaling
from headway.stats.scaling import Cost, Law, optimum

LAW = Law(E=1.7, A=400.0, B=410.0, alpha=0.34, beta=0.28)


@pytest.fixture
def points(tmp_path, monkeypatch):
    whole = scaling.grid_of_starts()
    for module in ("headway.stats.scaling", "headway.scaling.analysis"):
        monkeypatch.setattr(f"{module}.grid_of_starts", lambda: whole[::450])
    rng, lines = np.random.default_rng(0), ["N,D,val_loss"]
    for flops in (1e13, 1e14, 1e15):
        best = optimum(LAW.row, Cost(), flops)[0]
        for n in best * np.geomspace(0.2, 5, 6):
            d = flops / 6 / n
            lines.append(f"{n},{d},{LAW.loss(n, d) * np.exp(0.002 * rng.standard_normal())}")
    path = tmp_path / "points.csv"
    path.write_text("\n".join([*lines, lines[-1], "1e6,1e8,nan"]))
    return path


def test_fit_and_advise(points, command_line, tmp_path):
    shown = command_line("scaling", "fit", str(points), "--resamples", "100", "-o", str(tmp_path / "law.html"))
    assert (
        "18 points, 3 budgets" in shown.out and "1 row is an exact" in shown.out and "1 row has no finite" in shown.out
    )
    assert (tmp_path / "law.html").read_text("utf-8").count("<svg") == 5
    told = json.loads(command_line("scaling", "fit", str(points), "--resamples", "100", "--json").out)
    assert (told["points"], told["not_finite"], told["repeated"]) == (18, 1, 1)
    assert told["law"]["alpha"]["low"] < LAW.alpha < told["law"]["alpha"]["high"]
    asked = ("scaling", "advise", str(points), "--flops", "1e14", "--flops", "1e17", "--resamples", "100", "--json")
    inside, beyond = json.loads(command_line(*asked).out)["advice"]
    assert inside["beyond"] == 1 and beyond["beyond"] == pytest.approx(100, rel=0.01)
    assert inside["parameters"]["value"] == pytest.approx(float(optimum(LAW.row, Cost(), 1e14)[0]), rel=0.1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fit", "{points}", "--loss", "los"), "no column 'los' (--loss)"),
        (("fit", "{points}", "--unit", "tokens=many"), "expected NAME=NUMBER"),
        (("fit", "{points}", "-o", "law.png"), "end in .html"),
        (("fit", "nowhere"), "there is no study 'nowhere'"),
        (("fit", "nowhere.csv"), "cannot read nowhere.csv"),
        (("advise", "{points}", "--flops", "-1"), "expected a number above 0"),
        (("plan", "demo"), "give either --flops"),
        (("plan", "demo", "--flops", "1e12..1e11:3"), "the smallest first"),
        (("plan", "demo", "--flops", "1e12..x"), "expected LOW..HIGH:COUNT"),
        (("plan", "demo", "--flops", "nan,1e12"), "expected finite numbers"),
        (("plan", "demo", "--flops", "1e30..1e33:3"), "take a smaller budget"),
        (("plan", "demo", "--minutes", "inf"), "expected a finite number"),
        (("plan", "demo", "--flops", "1e7..1e8:2"), "too few sizes around the best one"),
        (("plan", "demo", "--flops", "1e9,1e10", "--tokens-per-parameter", "5", "--from", "x"), "give only one"),
    ],
)
def test_mistakes(words, said, points, command_line):
    found = command_line("scaling", *(word.format(points=points) for word in words))
    assert found.code == 2 and said in found.err
