"""Claims of a report are judged by verdicts and audits alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small import small_study

from headway.audit.audit import Finding, Report
from headway.core.errors import UserError
from headway.scoring.score import Score
from headway.study.design.claims import Claim
from headway.study.design.questions import Better, Ordered
from headway.study.design.study import Study
from headway.study.results.evidence import Measured
from headway.study.results.results import Result, Results
from headway.study.verdicts.analyse import analyse
from headway.study.verdicts.judgement import Judgement, judge, overall, within_margin

PERPLEXITY = "valid.perplexity"


def asked(answer_of_report: str, **more) -> dict:
    ask = {"kind": "better", "arm": "learned", "than": "none", "on": PERPLEXITY}
    return {"says": "learned is it", "ask": {**ask, **more}, "answer": answer_of_report}


def results(study: Study, values: dict[str, list[float]], sees: str | None = None, audited: bool = True) -> Results:
    """Results as if these perplexities had been measured; `sees` is the arm that sees the future."""
    runs = []
    for arm, scores in values.items():
        for seed, value in enumerate(scores):
            verdict = "fail" if arm == sees else "pass"
            findings = (Finding("causality", verdict, 0.1, "sees the future: it does" if arm == sees else "fine"),)
            report = Report(findings) if audited else Report(not_run={"causality": "an encoder may look ahead"})
            score = {PERPLEXITY: Score(PERPLEXITY, value, "as made up")}
            runs.append(Result(arm, seed, Path(f"{arm}.seed-{seed}"), "finished", score, report, 10, 4, 40, 1.0, 0))
    return Results(study, Path("x"), runs, {})


def judged(study: Study, found: Results) -> list[Judgement]:
    return judge(found, analyse(study.asked, found))


BETTER = {"none": [30.0, 31.0, 29.0, 30.5], "learned": [20.0, 20.5, 19.5, 20.1]}
ALIKE = {"none": [30.0, 31.0, 29.0, 30.5], "learned": [30.2, 30.8, 29.1, 30.4]}


@pytest.mark.parametrize(
    ("said", "values", "status"),
    [
        ("better", BETTER, "holds"),
        ("worse", BETTER, "does not hold"),
        ("better", ALIKE, "not shown"),
    ],
)
def test_an_answer_is_compared_with_the_verdict(workshop, said, values, status):
    study = small_study(workshop.text, seeds=4, questions=[], claims=[asked(said)])
    (found,) = judged(study, results(study, values))
    assert found.status == status
    assert "4 seeds" in found.why


@pytest.mark.parametrize(
    ("values", "percent", "status"),
    [(ALIKE, 5, "holds"), (ALIKE, 0.1, "not shown"), (BETTER, 5, "does not hold"), (BETTER, 60, "holds")],
)
def test_no_difference_means_equivalence_within_the_margin(workshop, values, percent, status):
    claim = {**asked("no difference"), "within": percent}
    study = small_study(workshop.text, seeds=4, questions=[], claims=[claim])
    (found,) = judged(study, results(study, values))
    assert found.status == status and f"up to {percent:g} counts as no difference" in found.why


def test_a_significant_difference_within_the_margin_does_not_refute_equivalence():
    """The true effect is 0.6 of the margin, and significant in half of these studies."""
    question, random = Better(arm="a", than="b", on="valid.loss"), np.random.default_rng(6)
    claim = Claim.model_validate(
        {"says": "no difference", "ask": question.model_dump(), "answer": "no difference", "within": 1}
    )
    outcomes, stands = [], []
    for _ in range(400):
        differences = 0.6 + 0.7 * random.standard_normal(8)
        table = {"a": dict(enumerate((4 - differences).tolist())), "b": dict.fromkeys(range(8), 4.0)}
        (verdict,) = analyse([question], Measured({"valid.loss": table}))
        outcomes.append(verdict.outcome)
        stands.append(within_margin(claim, 1, verdict).status)
    assert outcomes.count("better") > 150
    assert stands.count("does not hold") <= 4 and stands.count("holds") > 40


def test_a_score_of_an_arm_that_sees_the_future_supports_no_claim_of_better(workshop):
    study = small_study(workshop.text, seeds=4, questions=[], claims=[asked("better"), asked("worse")])
    better, worse = judged(study, results(study, BETTER, sees="learned"))
    assert better.status == worse.status == "does not hold" and "sees the future" in better.why
    turned = {"none": BETTER["learned"], "learned": BETTER["none"]}
    better, worse = judged(study, results(study, turned, sees="learned"))
    assert (better.status, worse.status) == ("does not hold", "holds")  # it is worse although it sees the future
    _, worse = judged(study, results(study, turned, sees="none"))
    assert worse.status == "does not hold"  # worse than an invalid number


def test_one_seed_cannot_say(workshop):
    study = small_study(workshop.text, seeds=1, questions=[], claims=[asked("better")])
    (found,) = judged(study, results(study, {"none": [30.0], "learned": [20.0]}))
    assert found.status == "cannot say"


def test_an_audit_must_pass_in_every_run(workshop):
    claim = {"says": "it reads from left to right", "audit": "causality"}
    study = small_study(workshop.text, seeds=4, claims=[claim, {**claim, "arm": "none"}])
    everywhere, of_one = judged(study, results(study, BETTER, sees="learned"))
    assert everywhere.status == "does not hold" and everywhere.why.startswith("learned: sees the future")
    assert of_one.status == "holds"
    (unknown, _) = judged(study, results(study, BETTER, audited=False))
    assert unknown.status == "cannot say" and "an encoder may look ahead" in unknown.why


def test_a_conclusion_is_as_strong_as_its_weakest_claim(workshop):
    study = small_study(workshop.text, seeds=4, claims=[asked("better"), asked("worse")])
    good, bad = judged(study, results(study, BETTER))
    assert overall([good]) == "holds" and overall([good, bad]) == "does not hold"
    assert overall([good, replace(good, status="not shown")]) == "not shown"


def test_equal_questions_of_claims_are_asked_once(workshop):
    study = small_study(workshop.text, claims=[asked("better"), asked("worse"), asked("better", on="valid.loss")])
    assert study.asked == [
        Better(arm="learned", than="none", on=PERPLEXITY),
        Better(arm="learned", than="none", on="valid.loss"),
    ]


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"says": "x"}, "claims.0.ask, claims.0.audit: give one of them"),
        (asked("in order"), "claims.0.answer: the report's answer to a question of kind better is 'better' or 'worse'"),
        ({"says": "x", "audit": "causality", "answer": "better"}, "claims.0.answer: an audit passes or fails"),
        (asked("no difference"), "claims.0.within: needed with the answer 'no difference'"),
        ({**asked("better"), "within": 2}, "claims.0.within: needed with the answer 'no difference'"),
        (
            {"says": "x", "ask": {"kind": "best"}, "answer": "better"},
            "claims.0.ask: a claim cannot ask which arm is best",
        ),
        (asked("better", arm="learnd"), "there is no arm 'learnd'; did you mean 'learned'?"),
        (
            {"says": "x", "audit": "causality", "arm": "non"},
            "claims.0.arm: there is no arm 'non'; did you mean 'none'?",
        ),
    ],
)
def test_empty_claims(workshop, claim, message):
    with pytest.raises(UserError, match=message):
        small_study(workshop.text, claims=[claim])


def test_audits_that_do_not_exist(workshop):
    with pytest.raises(UserError, match=r"claims\.0\.audit: there is no audit 'causalty'; did you mean 'causality'"):
        small_study(workshop.text, claims=[{"says": "x", "audit": "causalty"}])


# --- questions that were added for cases -----------------------------------------------------------------------------


def splits(*means: float) -> Measured:
    """An arm whose perplexities on these splits have these means over seeds."""
    noise = [0.0, 0.1, -0.1, 0.05]
    return Measured({f"s{k}.perplexity": {"a": {s: m + e for s, e in enumerate(noise)}} for k, m in enumerate(means)})


@pytest.mark.parametrize(
    ("means", "outcome"),
    [((10, 20, 30), "in order"), ((10, 30, 20), "not in order"), ((10, 20, 20.001), "not distinguishable")],
)
def test_scores_in_order(means, outcome):
    order = Ordered(arm="a", scores=[f"s{k}.perplexity" for k in range(3)])
    shaky = splits(*means)
    shaky.scores["s2.perplexity"]["a"][0] += 0.4  # type: ignore[index]
    (found,) = analyse([order], shaky)
    assert found.outcome == outcome and found.sentence.startswith(outcome)
    assert "s0 10" in found.sentence


def test_orders_of_scores_where_higher_is_better():
    scores = {"train.accuracy": {"a": {0: 0.9, 1: 0.91}}, "test.accuracy": {"a": {0: 0.6, 1: 0.62}}}
    (found,) = analyse([Ordered(arm="a", scores=list(scores))], Measured(scores))
    assert found.outcome == "in order"
    assert "train is ahead of test by 29.5 [" in found.sentence


def test_what_is_behind_is_named_and_scores_of_one_split_have_their_full_names():
    scores = {"test.accuracy_unseen": {"a": {0: 0.5, 1: 0.51}}, "test.accuracy_seen": {"a": {0: 0.9, 1: 0.912}}}
    (found,) = analyse([Ordered(arm="a", scores=list(scores))], Measured(scores))
    assert found.sentence.startswith("not in order: test.accuracy_unseen 0.5050, test.accuracy_seen 0.9060; ")
    assert "test.accuracy_unseen is behind test.accuracy_seen by 40.1 [" in found.sentence
    assert "] points of accuracy, 2 seeds" in found.sentence


def test_an_order_not_significant_after_correction_is_reported_as_such():
    """On its own it would be significant: the interval excludes zero."""
    scores = {
        "train.accuracy": {"a": {0: 0.70, 1: 0.72, 2: 0.735}},
        "test.accuracy": {"a": {0: 0.6, 1: 0.665, 2: 0.62}},
    }
    order = Ordered(arm="a", scores=list(scores))
    (alone,) = analyse([order], Measured(scores))
    assert alone.outcome == "in order" and "correcting" not in alone.sentence
    among = analyse([order] * 4, Measured(scores))[0]
    assert among.outcome == "not distinguishable" and "after correcting for 4 questions" in among.sentence


def test_better_than_a_baseline():
    values = {"test.accuracy": {"a": {0: 0.70, 1: 0.72, 2: 0.71}}}
    cheap = {"test.accuracy": {"bag of words": 0.60, "majority": 0.711}}
    questions = [Better(arm="a", than=method, on="test.accuracy") for method in ("bag of words", "majority")]
    above, level = analyse(questions, Measured(values, cheap_methods=cheap))
    assert above.outcome == "better" and above.effect == pytest.approx(11.0)
    assert level.outcome == "not distinguishable"


def test_orders_of_different_metrics_are_refused(workshop):
    with pytest.raises(UserError, match="expected different scores of one kind"):
        order = {"kind": "ordered", "arm": "none", "scores": ["valid.loss", "valid.accuracy"]}
        small_study(workshop.text, questions=[order])
