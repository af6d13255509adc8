"""The sentences and numbers of verdicts: complete, and no stronger than the evidence."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from asked import ACCURACY, PERPLEXITY, arm, ask, draw_anew, grid
from pydantic import TypeAdapter, ValidationError

from headway.audit.audit import NOT_CARRIED_OUT
from headway.core.errors import UserError
from headway.core.status import State, Status
from headway.scoring.metrics import metric_of
from headway.study.design.questions import Best, Better, Depends, Question
from headway.study.results.evidence import Circumstances, EarlierLook, Measured
from headway.study.verdicts.analyse import analyse


@pytest.fixture(autouse=True)
def the_same_draws_in_any_order():
    draw_anew()


def is_better(table, about=None):
    return ask(Better(arm="new", than="old"), table, about)


def test_better_by_how_much_in_units_and_percent():
    verdict = is_better({"new": arm(0.05), "old": arm()})
    assert verdict.outcome == "better" and verdict.seeds == 8
    assert verdict.interval[0] < verdict.effect < verdict.interval[1]
    assert verdict.relative == pytest.approx(0.05, abs=0.015) and 5 < verdict.effect < 10
    low, high = verdict.interval
    assert f"[{low:.1f}, {high:.1f}] perplexity" in verdict.sentence and verdict.sentence.endswith("8 seeds")
    assert verdict.sentence.startswith("new is better than old by ")


def test_worse_is_stated_with_positive_numbers():
    verdict = is_better({"new": arm(), "old": arm(0.05)})
    assert verdict.outcome == "worse" and verdict.effect < 0
    assert "-" not in verdict.sentence and "worse than old by" in verdict.sentence


def test_higher_is_better_for_accuracy_and_differences_are_points():
    table = {"new": {0: 0.91, 1: 0.90, 2: 0.92, 3: 0.91}, "old": {0: 0.81, 1: 0.80, 2: 0.82, 3: 0.80}}
    verdict = ask(Better(arm="new", than="old", on=ACCURACY), table)
    assert verdict.outcome == "better" and verdict.effect == pytest.approx(10.25) and verdict.relative is None
    assert "points of accuracy" in verdict.sentence


def test_not_distinguishable_names_the_smallest_detectable_effect():
    verdict = is_better({"new": arm(0.0005), "old": arm()})
    assert verdict.outcome == "not distinguishable"
    low, high = verdict.smallest_visible_interval
    assert (
        "the smallest difference these seeds could detect is" in verdict.sentence
        and 0 < low < verdict.smallest_visible < high
    )
    assert verdict.interval[0] < 0 < verdict.interval[1]


def test_an_arm_that_did_not_train_differs_by_a_factor_in_either_direction():
    trained, lost = {0: 80.0, 1: 82.0, 2: 79.0, 3: 81.0}, {0: 9e3, 1: 4e8, 2: 7e4, 3: 3e3}
    ahead = ask(Better(arm="new", than="old"), {"new": trained, "old": lost})
    behind = ask(Better(arm="new", than="old"), {"new": lost, "old": trained})
    ratios = np.log([lost[seed] / trained[seed] for seed in trained])
    assert ahead.factor == pytest.approx(math.exp(ratios.mean())) and behind.factor == pytest.approx(1 / ahead.factor)
    low, high = ahead.factor_interval
    assert low < 1 < high and behind.factor_interval == pytest.approx((1 / high, 1 / low))
    told = ahead.sentence[ahead.sentence.index("a factor of") : ahead.sentence.index(", 4 seeds")]
    assert told in behind.sentence and "in perplexity" in told and "the smallest factor" in ahead.sentence
    assert ahead.smallest_visible_factor == pytest.approx(behind.smallest_visible_factor)
    best = ask(Best(), {"new": trained, "old": lost})
    assert "a factor of" in best.sentence


def test_half_is_stated_in_units_and_an_eighth_as_a_factor():
    old = {0: 160.0, 1: 158.0, 2: 163.0, 3: 161.0}
    half, eighth = ({seed: value / times + seed % 2 for seed, value in old.items()} for times in (2, 8))
    assert "%" in is_better({"new": half, "old": old}).sentence
    verdict = is_better({"new": eighth, "old": old})
    assert "better than old by a factor of 7.8" in verdict.sentence and "%" not in verdict.sentence


def test_three_seeds_give_no_smallest_detectable_effect():
    verdict = is_better({"new": arm(0.0005, n=3), "old": arm(n=3)})
    assert verdict.outcome == "not distinguishable" and "from 4 seeds or more" in verdict.sentence
    assert verdict.smallest_visible is None and verdict.as_json()["smallest_visible_interval"] is None


def test_the_arm_ahead_is_named_without_negative_numbers():
    table = {"one": {0: 1.00, 1: 1.10, 2: 0.90}, "other": {0: 1.05, 1: 1.02, 2: 0.97}}
    said = [
        ask(Better(arm=a, than=b, on="valid.loss"), table).sentence for a, b in (("one", "other"), ("other", "one"))
    ]
    assert "one is ahead of other by 0.01" in said[0] and "other is behind one by 0.01" in said[1]


def test_more_questions_need_more_evidence():
    table = {"new": {0: 1.0, 1: 1.1, 2: 0.9, 3: 1.15}, "old": {0: 1.2, 1: 1.42, 2: 1.0, 3: 1.5}}
    question = Better(arm="new", than="old", on="valid.loss")
    alone = ask(question, table)
    many = analyse([question] * 6, Measured({question.on: table}))[0]
    assert alone.outcome == "better" and many.outcome == "not distinguishable"
    assert many.p == alone.p and many.p_corrected == pytest.approx(6 * alone.p)
    assert many.interval == alone.interval and many.smallest_visible > alone.smallest_visible
    assert "after correcting for 6 questions" in many.sentence


def test_one_seed_cannot_say():
    verdict = is_better({"new": arm(0.5, n=1), "old": arm(n=1)})
    assert verdict.outcome == "cannot say" and verdict.effect is None and verdict.p is None
    assert (
        verdict.sentence.startswith("cannot say: new has 1 seed and old has 1 seed") and "5 seeds" in verdict.sentence
    )


def test_a_question_without_an_answer_does_not_count_in_the_correction():
    table = {"new": arm(0.05), "old": arm(), "single": arm(n=1)}
    questions = [Better(arm="new", than="old"), Better(arm="single", than="old")]
    first, _ = analyse(questions, Measured({PERPLEXITY: table}))
    assert first.p_corrected == first.p


def test_two_seeds_are_enough_for_an_interval_and_too_few_for_use():
    verdict = is_better({"new": arm(0.05, n=2), "old": arm(n=2)})
    assert verdict.interval is not None and any("one degree of freedom" in note for note in verdict.notes)


def test_identical_scores_are_called_identical():
    same = arm()
    assert "identical at all 8 seeds" in is_better({"new": same, "old": dict(same)}).sentence


def test_scores_that_no_seed_changes_are_one_measurement():
    verdict = is_better({"new": dict.fromkeys(range(5), 10.0), "old": dict.fromkeys(range(5), 12.0)})
    assert verdict.outcome == "cannot say" and "one measurement, not 5" in verdict.sentence


def test_different_seeds_are_compared_unpaired_which_is_stated():
    verdict = is_better({"new": arm(0.5), "old": arm(first=20)})
    assert verdict.method.startswith("Welch") and any("unpaired" in note for note in verdict.notes)
    assert verdict.outcome == "better" and verdict.bootstrap is None


def test_seeds_left_out_are_counted():
    verdict = is_better({"new": arm(0.05, n=6), "old": arm()})
    assert verdict.seeds == 6 and any("6 seeds that all arms have" in note for note in verdict.notes)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -1.0, 0.0])
def test_a_winner_that_diverged_is_not_simply_better(broken):
    verdict = is_better({"new": arm(0.05) | {3: broken}, "old": arm()})
    assert verdict.outcome == "not comparable" and verdict.seeds == 7
    assert "new diverged at 1 of 8 seeds" in verdict.sentence


def test_a_diverged_run_does_not_count_although_its_last_weights_have_a_score():
    nan = Status(State.DIVERGED, 40, "the loss is no longer a finite number")
    about = {"old": Circumstances(lost={2: nan, 5: Status(State.STARTED)})}
    verdict = is_better({"new": arm(0.05), "old": arm()}, about)
    assert verdict.seeds == 6 and verdict.outcome == "better"
    assert "old diverged at 1 of 8 seeds" in verdict.sentence
    assert "old, seed 2: diverged at step 40: the loss is no longer a finite number" in verdict.notes
    assert "old, seed 5: not finished" in verdict.notes


def test_an_arm_that_always_diverged_has_no_number():
    verdict = is_better({"new": dict.fromkeys(range(4), math.nan), "old": arm()})
    assert verdict.outcome == "cannot say" and "new diverged at every seed" in verdict.sentence


def test_an_arm_that_was_never_finished_has_no_number():
    about = {"new": Circumstances(lost={0: Status(State.FAILED, reason="out of memory")}), "old": Circumstances()}
    verdict = is_better({"old": arm()}, about)
    assert "no finished run of new" in verdict.sentence and "new, seed 0: out of memory" in verdict.notes


def test_a_model_that_sees_the_future_has_no_perplexity():
    about = {
        "new": Circumstances(failed_audits={"causality": "later tokens moved earlier outputs"}),
        "old": Circumstances(),
    }
    verdict = is_better({"new": arm(0.3), "old": arm()}, about)
    assert verdict.outcome == "not comparable"
    assert verdict.sentence.startswith(
        "new sees the future, so its number is not the perplexity of a left-to-right model."
    )


def test_a_causality_audit_that_broke_is_no_evidence_of_a_leak():
    broken = Circumstances(failed_audits={"causal-gradient": f"{NOT_CARRIED_OUT}: RuntimeError: no memory"})
    verdict = is_better({"new": arm(0.3), "old": arm()}, {"new": broken})
    assert verdict.outcome == "better" and "sees the future" not in verdict.sentence
    assert verdict.sentence.endswith("new fails the audit causal-gradient")


def test_other_failed_audits_are_named_in_the_sentence():
    about = {"old": Circumstances(failed_audits={"did-it-train": "the loss did not fall"})}
    verdict = is_better({"new": arm(0.3), "old": arm()}, about)
    assert verdict.outcome == "better" and verdict.sentence.endswith("old fails the audit did-it-train")
    assert "old fails did-it-train: the loss did not fall" in verdict.notes


def test_audits_that_all_arms_fail_are_stated_once():
    failed = Circumstances(failed_audits={"seen-rows": "3 % of valid is in train"})
    verdict = is_better({"new": arm(0.3), "old": arm()}, {"new": failed, "old": failed})
    assert verdict.sentence.endswith("8 seeds; all arms fail the audit seen-rows")
    assert verdict.notes == ("all arms fail seen-rows: 3 % of valid is in train",)


def test_accuracies_are_compared_row_by_row_if_rows_are_known():
    """Every seed of `new` gets the same one of ten rows right in addition: certain for these rows, and no evidence for
    others."""
    random = np.random.default_rng(0)
    rows = {"old": {}, "new": {}}
    for seed in range(6):
        rows["old"][seed] = np.array([True] * 5 + [False] * 5) ^ (random.random(10) < 0.02)
        rows["new"][seed] = rows["old"][seed].copy()
        rows["new"][seed][[7, 8] if seed == 3 else [7]] = True
    table = {name: {seed: float(right.mean()) for seed, right in found.items()} for name, found in rows.items()}
    question = Better(arm="new", than="old", on=ACCURACY)
    evidence = Measured({ACCURACY: table})
    (verdict,) = analyse([question], evidence, lambda arm, score: rows[arm] if score == ACCURACY else {})
    assert verdict.outcome == "better" and verdict.sentence.endswith(
        "this holds for the rows of this split, and may not hold for other rows"
    )
    assert any("McNemar" in note and "0 of 6 seeds" in note for note in verdict.notes)
    assert not any("McNemar" in note for note in analyse([question], evidence)[0].notes)


def test_unequal_costs_of_arms_are_stated():
    about = {"new": Circumstances(parameters=1.3e6, flops=4e15, seconds=61), "old": Circumstances({}, 1.2e6, 4e15, 60)}
    notes = is_better({"new": arm(), "old": arm()}, about).notes
    assert notes == ("unequal parameters: new has 1.3M, old 1.2M (8 % more)",)


def test_weights_that_all_seeds_start_from_are_named_where_arms_differ_in_them():
    """A pretrained model is a sample of one: seeds of fine-tuning do not show how much another would differ."""
    table = {"new": arm(), "old": arm()}
    bert, other = Circumstances(pretrained_as="docs-bert"), Circumstances(pretrained_as="minilm")
    (note,) = is_better(table, {"new": bert, "old": Circumstances()}).notes
    assert note.startswith("all seeds of new start from 'docs-bert': how much another pretraining")
    (note,) = is_better(table, {"new": bert, "old": other}).notes
    assert note.startswith("all seeds of new start from 'docs-bert', those of old start from 'minilm':")
    assert is_better(table, {"new": bert, "old": bert}).notes == ()
    assert is_better(table, {"new": Circumstances(), "old": Circumstances()}).notes == ()


def test_looks_at_test_are_counted():
    table = {"new": arm(), "old": arm()}
    question = Better(arm="new", than="old", on="test.perplexity")
    assert any("scored 3 times" in note for note in ask(question, table, test_scored=3).notes)
    assert any("scored once" in note for note in ask(question, table, test_scored=1).notes)
    assert any("pick on valid" in note for note in ask(Best(on="test.perplexity"), table, test_scored=1).notes)


HUGE = {"a": {0: 50.0, 1: 1e300, 2: 3.0}, "b": {0: 40.0, 1: 41.0, 2: 1e-300}}


@pytest.mark.parametrize("question", [Better(arm="a", than="b"), Best()])
@pytest.mark.parametrize("seeds", [2, 3])
def test_huge_and_infinite_numbers_are_short_and_valid_json(question, seeds):
    """An arm that exploded with one seed has an interval with infinite bounds."""
    verdict = ask(question, {name: {s: v for s, v in arm.items() if s < seeds} for name, arm in HUGE.items()})
    assert verdict.outcome == "not distinguishable" and max(map(len, verdict.sentence.split())) < 25
    json.dumps(verdict.as_json(), allow_nan=False)
    assert math.isinf(verdict.interval[0]) or math.isinf(verdict.interval[1]) or seeds == 2


def test_unknown_names():
    table, about = grid([[0, 0], [0.1, 0.2]])
    with pytest.raises(UserError, match=r"no factor 'position'.*did you mean 'positions'"):
        ask(Depends(effect="position", on_factor="size"), table, about)
    with pytest.raises(UserError, match=r"no arm 'p0-s'.*did you mean"):
        ask(Better(arm="p0-s", than="p0-s1"), table, about)
    with pytest.raises(UserError, match="no arm has the score"):
        analyse([Best(on="valid.loss")], Measured({PERPLEXITY: table}))


def test_which_way_is_better_follows_from_the_name():
    assert metric_of("valid.loss").lower_is_better and metric_of("test.perplexity_per_word").lower_is_better
    assert metric_of("valid.bits_per_byte").lower_is_better and not metric_of("valid.f1.politics").lower_is_better
    with pytest.raises(UserError, match=r"did you mean 'valid\.perplexity'"):
        metric_of("valid.perplexty")
    with pytest.raises(UserError, match=r"split\.metric"):
        metric_of("speed")
    assert metric_of(PERPLEXITY).relative(math.log(1.25)) == pytest.approx(0.2)


def test_questions_are_parsed_strictly():
    read = TypeAdapter(Question).validate_python
    assert read({"kind": "better", "arm": "a", "than": "b", "on": ACCURACY}) == Better(arm="a", than="b", on=ACCURACY)
    assert read({"kind": "depends", "effect": "x", "on_factor": "y"}).on == PERPLEXITY
    with pytest.raises(ValidationError):
        read({"kind": "better", "arm": "a", "then": "b"})
    assert [p.keys for p in Better(arm="a", than="a", on="valid.acuracy").problems()] == [("on",), ("arm", "than")]


# --- seeds added after a look ----------------------------------------------------------------------------------------


def test_seeds_added_after_a_look_are_stated_and_corrected_for():
    question, table = Better(arm="new", than="old", on=PERPLEXITY), {"new": arm(0.05), "old": arm()}
    look = EarlierLook("first", "2026-01-01", (0, 1, 2), {str(question): "not distinguishable"})
    (planned,) = analyse([question], Measured({PERPLEXITY: table}))
    (added,) = analyse([question], Measured({PERPLEXITY: table}, earlier_looks=[look]))
    (other,) = analyse(
        [question], Measured({PERPLEXITY: table}, earlier_looks=[replace(look, outcomes={"x": "better"})])
    )
    assert other == planned and planned.earlier_looks == ()
    assert added.interval[0] < planned.interval[0] < planned.interval[1] < added.interval[1]
    assert "seeds were added after a verdict had been seen" in added.sentence and "confidence sequence" in added.method
    assert added.as_json()["earlier_looks"] == ["first, 3 seeds, 2026-01-01: not distinguishable"]


@pytest.mark.parametrize("n", [2, 3, 4])
def test_optional_stopping_is_stated_even_with_few_seeds(n):
    table = {name: arm(gain, n) for name, gain in (("new", 0.3), ("old", 0.0), ("third", 0.01))}
    for question in (Better(arm="new", than="old"), Best()):
        (verdict,) = analyse([question], Measured({PERPLEXITY: table}, looks="any"))
        assert verdict.outcome in ("better", "best", "not distinguishable") and "nan" not in verdict.sentence
        assert any("looks: any" in note for note in verdict.notes)
        json.dumps(verdict.as_json(), allow_nan=False)


def test_skewed_scores_are_reported_and_also_tested_without_t():
    random = np.random.default_rng(7)
    table = {
        name: dict(enumerate((1 + np.exp(1.5 * random.standard_normal(8))).tolist())) for name in ("new", "old", "c")
    }
    verdict = ask(Better(arm="new", than="old", on="valid.loss"), table)
    assert verdict.p_permutation is not None and any("are skewed" in note for note in verdict.notes)
    assert is_better({"new": arm(0.05), "old": arm()}).p_permutation is None
