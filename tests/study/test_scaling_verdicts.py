"""Questions about ladders: simulated laws, and the answers that follow from them."""

import numpy as np
import pytest

from headway.core.errors import UserError
from headway.core.status import State, Status
from headway.scaling.analysis import analyse as fitted
from headway.scaling.points import PointTable
from headway.stats import scaling
from headway.stats.isoflop import budgets_of
from headway.stats.scaling import Cost, Law, Points, optimum
from headway.study.design.claims import Claim
from headway.study.design.questions import BestSize, NeedsCompute, Steeper
from headway.study.design.study import Study
from headway.study.results.evidence import Circumstances, Measured
from headway.study.verdicts.analyse import analyse
from headway.study.verdicts.judgement import within_margin
from headway.study.verdicts.scaling_laws import p_of

LAW = Law(E=1.7, A=400.0, B=410.0, alpha=0.34, beta=0.28)
STEEP = Law(E=1.7, A=4000.0, B=4100.0, alpha=0.5, beta=0.45)
FLOOR = Law(E=4.0, A=400.0, B=410.0, alpha=0.34, beta=0.28)


@pytest.fixture(scope="module")
def laws():
    whole = scaling.grid_of_starts()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headway.stats.scaling.grid_of_starts", lambda: whole[::150])
        yield {name: law_of(law, name, 10 + k) for k, (name, law) in enumerate(PLANTED.items())}


PLANTED = {"plain": LAW, "again": LAW, "steep": STEEP, "floor": FLOOR}


def law_of(law: Law, name: str, seed: int):
    flops = np.repeat(np.geomspace(1e13, 1e15, 4), 12)
    n = optimum(LAW.row, Cost(), flops)[0] * np.tile(np.repeat(np.geomspace(0.2, 5, 6), 2), 4)
    d = flops / (6 * n)
    loss = law.loss(n, d) * np.exp(0.003 * np.random.default_rng(seed).standard_normal(len(n)))
    points = Points(n, d, flops, loss)
    columns = {key: key for key in ("parameters", "tokens", "flops", "loss")}
    return fitted(PointTable(points, budgets_of(points), name, columns, 0, 0), 200)


def answer(question, laws, **more):
    scores = {"valid.loss": {f"{name}.1e13.8": {0: 3.0, 1: 3.1} for name in laws}}
    (found,) = analyse([question], Measured(scores, scaling=laws, **more))
    return found


def test_a_steeper_law_is_distinguished_and_a_law_is_not_from_itself(laws):
    found = answer(Steeper(family="steep", than="plain"), laws)
    true = 0.5 * 0.45 / 0.95 - 0.34 * 0.28 / 0.62
    assert found.outcome == "better" and found.interval is not None and found.p is not None
    assert found.interval[0] <= true <= found.interval[1] and found.p < 0.05
    assert answer(Steeper(family="plain", than="steep"), laws).outcome == "worse"
    assert answer(Steeper(family="plain", than="again"), laws).outcome == "not distinguishable"


def test_compute_for_the_same_loss(laws):
    asked = NeedsCompute(family="steep", than="plain", flops=1e15)
    found = answer(asked, laws)
    loss = optimum(STEEP.row, Cost(), 1e15)[2]
    true = np.log10(scaling.flops_for(LAW.row[None], Cost(), float(loss))[0] / 1e15)
    assert found.interval is not None and found.interval[0] <= true <= found.interval[1]
    assert found.outcome == ("better" if true > 0 else "worse")
    assert f"{loss:.2f}"[:3] in found.sentence and "times the compute" in found.sentence
    same = answer(NeedsCompute(family="plain", than="again"), laws)
    assert same.outcome == "not distinguishable" and abs(same.effect or 1) < 0.1
    never = answer(NeedsCompute(family="plain", than="floor", flops=1e20), laws)
    assert never.outcome == "cannot say" and "never gets there" in never.sentence


def test_the_optimal_size_given_in_a_claim(laws):
    true = float(optimum(LAW.row, Cost(), 3e14)[0])
    right, wrong = (BestSize(family="plain", flops=3e14, parameters=n) for n in (true, 2 * true))
    found = answer(right, laws)
    assert found.outcome == "not distinguishable" or abs(found.relative or 1) < 0.05
    other = answer(wrong, laws)
    assert other.outcome == "smaller" and other.relative == pytest.approx(-0.5, abs=0.05)
    claim = Claim(says="s", ask=right, answer="no difference", within=20)
    assert within_margin(claim, 20, found).status == "holds"
    assert within_margin(claim, 20, other).status == "does not hold"
    beyond = answer(BestSize(family="plain", flops=1e16, parameters=true), laws)
    assert beyond.outcome == "larger" and "extrapolated by a factor of 10 " in beyond.sentence
    far = answer(BestSize(family="plain", flops=1e19, parameters=true), laws)
    assert far.outcome == "cannot say" and "not usable: 1e+19 FLOPs are a factor of 1e+04 beyond" in far.sentence


def test_reasons_why_it_cannot_say(laws):
    seer = {"plain.1e13.8": Circumstances({"family": "plain"}, failed_audits={"causality": "it looks ahead"})}
    found = answer(Steeper(family="steep", than="plain"), laws, arms=seer)
    assert found.outcome == "not comparable" and "sees the future" in found.sentence
    assert any("fail the audit causality" in note for note in found.notes)
    lost = {"plain.1e13.8": Circumstances({"family": "plain"}, lost={2: Status(State.DIVERGED)})}
    assert answer(Steeper(family="steep", than="plain"), laws, arms=lost).outcome == "better"
    missing = answer(Steeper(family="steep", than="gone"), laws)
    assert missing.outcome == "cannot say" and "no finished run of gone" in missing.sentence


def test_p_values_count_resamples():
    assert p_of(np.ones(999)) == pytest.approx(2 / 1000)
    assert p_of(np.concatenate([np.ones(500), -np.ones(500)])) == 1.0
    assert p_of(np.array([np.nan])) == 1.0


LADDER = {"rungs": [{"flops": f, "widths": [8, 12, 16, 20]} for f in (1e9, 4e9)], "head_width": 4}


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"kind": "steeper", "family": "a", "than": "a"}, "compared with itself"),
        ({"kind": "steeper", "family": "a", "than": "c"}, "there is no family 'c'"),
        ({"kind": "compute", "family": "a", "than": "b", "on": "valid.perplexity"}, "a scaling law needs a loss"),
        ({"kind": "best-size", "flops": -1, "parameters": 1e6}, "flops"),
    ],
)
def test_impossible_questions(question, words):
    from headway.core.validation import validated

    families = {"a": [], "b": ["model.mixer.heads=1"]}
    tree = {"title": "t", "base": "demo", "ladder": {**LADDER, "families": families}, "questions": [question]}
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        validated(Study, tree, "study", lambda key: "")


def test_questions_about_laws_need_a_ladder():
    from headway.core.validation import validated

    question = {"kind": "best-size", "flops": 1e9, "parameters": 1e4}
    with pytest.raises(UserError, match="this study has none"):
        validated(
            Study, {"title": "t", "base": "demo", "arms": {"a": []}, "questions": [question]}, "s", lambda key: ""
        )
