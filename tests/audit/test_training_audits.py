"""Each training audit on synthetic noisy curves: what must be reported, and what must not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.audit.audit import DoesNotApply, run_audits
from headway.audit.models.heads import HeadEntropies, collapsed_heads
from headway.audit.training import TRAINING_AUDITS
from headway.audit.training.curve import TrainingCurve
from headway.audit.training.fit import overfitted, plateaued, still_improving, underfitted
from headway.audit.training.judged import selection_on_test, too_good_to_be_true
from headway.audit.training.rate import _around, clipped, learning_rate_too_high
from headway.audit.training.trained import did_it_train, diverged, learning_rate_zero
from headway.recipe.recipe import load

STEPS = np.arange(1, 1001)


def lines(losses, valid=None, every=100, norms=None, rates=None, noise=0.05):
    """The lines of a metrics.jsonl."""
    losses = np.asarray(losses, float)
    count = len(losses)
    norms = np.full(count, 0.5) if norms is None else norms
    rates = 1e-3 * (0.55 + 0.45 * np.cos(np.pi * np.arange(count) / count)) if rates is None else rates
    made = []
    for k, loss in enumerate(losses + noise * np.random.default_rng(0).normal(size=count)):
        made.append({"step": k + 1, "loss": loss, "norm": float(norms[k]), "rate": float(rates[k])})
        if valid is not None and (k + 1) % every == 0:
            made.append({"step": k + 1, "scores": {"valid.loss": float(valid[k]), "valid.perplexity": 1.0}})
    return made


def falling(bottom=2.0, top=4.5, speed=6.0):
    """Falls fast, then stays flat, as in a finished training."""
    return bottom + (top - bottom) * np.exp(-speed * STEPS / 1000)


def curve(losses, valid=None, chance=3.2, counting=1.9, **facts):
    drawn = {key: facts.pop(key) for key in ("norms", "rates", "noise", "every") if key in facts}
    return TrainingCurve.of(lines(losses, valid, **drawn), chance=chance, counting=counting, clip=1.0, **facts)


def verdicts(given: TrainingCurve) -> dict[str, str]:
    return {finding.audit: finding.verdict for finding in run_audits(TRAINING_AUDITS, given).findings}


def test_a_good_training_raises_no_alarm():
    good = curve(falling(), falling() + 0.1, evaluate_on=["valid"])
    assert set(verdicts(good)) == {one.name for one in TRAINING_AUDITS} - {"schedule"}  # no schedule is given
    assert set(verdicts(good).values()) == {"pass"}


def test_learning_rates_that_do_not_follow_the_schedule():
    good = curve(falling(), falling() + 0.1)
    planned = dict(zip(good.steps.tolist(), good.rates.tolist(), strict=True))
    assert verdicts(replace(good, planned=planned.get))["schedule"] == "pass"
    assert verdicts(replace(good, planned=lambda step: planned[step] + 1e-5))["schedule"] == "fail"


def test_metrics_are_read_from_any_kind_of_lines():
    made = TrainingCurve.of(
        [*lines([3.0, 2.0], [3.1, 2.1], every=1), {"step": 2, "ended": "stopped at step 2: patience"}]
    )
    assert made.steps.tolist() == [1, 2] and made.evaluations["valid"][1].tolist() == [3.1, 2.1]
    assert made.ended and made.held_out == "valid" and made.reached == 2.1
    nothing = TrainingCurve.of([])
    report = run_audits(TRAINING_AUDITS, nothing)
    assert [f.audit for f in report.findings] == ["selection-on-test"]
    assert "0 steps are too few" in report.not_run["did-it-train"]


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_running_quantiles_equal_numpys(data):
    numbers = st.floats(width=64) if data.draw(st.booleans()) else st.floats(0, 20)
    values = np.array(data.draw(st.lists(numbers, min_size=2, max_size=130)))
    quantile, width = data.draw(st.sampled_from([0.5, 0.9])), data.draw(st.sampled_from([51, 7]))
    half = min(width, len(values)) // 2
    mirrored = np.pad(values, half, mode="reflect")
    windows = [mirrored[at : at + 2 * half + 1] for at in range(len(values))]
    with np.errstate(all="ignore"):
        expected = [np.quantile(window, quantile) for window in windows]
        assert np.array_equal(_around(values, quantile, width), expected, equal_nan=True)


def test_a_single_odd_batch_changes_nothing():
    odd = falling()
    odd[-1] = 100
    assert curve(odd).last == pytest.approx(2.0, abs=0.1)


def test_learning_rate_zero():
    flat = np.full(1000, 4.5)
    zero = curve(flat, flat, rates=np.zeros(1000))
    assert learning_rate_zero.check(zero).verdict == "fail"
    assert "overfitted" not in verdicts(zero) and "plateaued" not in verdicts(zero)
    assert learning_rate_zero.check(curve(flat, rates=np.full(1000, 1e-9))).verdict == "fail"
    assert (
        learning_rate_zero.check(curve(falling(), rates=np.full(1000, 1e-9))).verdict == "pass"
    )  # with SGD this can be normal


def test_clipping_every_step_is_a_warning_only_if_training_failed():
    long, flat = np.full(1000, 9.0), np.full(1000, 3.3)
    failing = clipped.check(curve(flat, flat, norms=long, rates=np.full(1000, 20.0), by_length=True))
    assert failing.verdict == "warn" and failing.value == 1
    assert "every step was clipped" in failing.sentence and "length 20" in failing.sentence
    # AdamW's steps do not depend on the length of the gradient
    assert clipped.check(curve(flat, flat, norms=long)).verdict == "pass"
    trained = clipped.check(curve(falling(), falling(), norms=long, by_length=True))
    assert trained.verdict == "pass" and "to 11% or less" in trained.sentence
    half = clipped.check(curve(flat, flat, norms=np.where(STEPS % 2, 9.0, 0.5), by_length=True))
    assert half.verdict == "pass" and half.value == 0.5
    with pytest.raises(DoesNotApply, match="not clipped"):
        clipped.check(TrainingCurve.of(lines(flat)))


def test_a_translator_that_is_a_language_model_of_its_targets():
    """Token frequencies give 3.2, and 5-grams of targets alone give 2.0."""
    flat, high = falling(2.1, speed=15), np.full(1000, 1e-3)
    stays = did_it_train.check(curve(flat, flat, counting=None, unread=2.0, rates=high, noise=0.0))
    assert (
        stays.verdict == "fail" and "failed to train" in stays.sentence and "without reading a source" in stays.sentence
    )
    told = did_it_train.check(curve(flat, flat, unread=2.0, rates=high, noise=0.0, post_norm=True)).sentence
    assert "post-norm without a warm-up" in told
    still = np.linspace(4.5, 2.1, 1000)
    assert did_it_train.check(curve(still, still, unread=2.0, rates=high)).verdict == "warn"
    assert did_it_train.check(curve(flat, flat, unread=2.0)).verdict == "warn"  # its learning rate had decayed
    assert did_it_train.check(curve(falling(1.2), falling(1.2), unread=2.0, rates=high)).verdict == "pass"
    by_heart = curve(falling(0.3), falling(2.4), unread=2.0, rates=high)
    assert did_it_train.check(by_heart).verdict == "pass"  # it is overfitted, which another audit reports
    assert did_it_train.check(curve(flat, flat, unread=None, rates=high)).verdict == "pass"


def test_divergence_is_distinguished_from_a_spike():
    back = np.concatenate([falling()[:500], np.linspace(2.1, 4.4, 500)])
    assert diverged.check(curve(back)).verdict == "fail"
    assert diverged.check(curve(np.linspace(4.5, 6, 1000))).verdict == "fail"
    at_once = np.concatenate([[4.5], 75 - 8 * np.sin(STEPS[1:] / 200)])  # the loss jumps at the first step
    assert diverged.check(curve(at_once)).verdict == "fail"
    assert diverged.check(curve(falling(60.0, 75.0))).verdict == "pass"  # far above chance, but falling
    spike = falling()
    spike[500:510] += 5
    assert diverged.check(curve(spike)).verdict == "pass"
    ended = TrainingCurve.of(
        [*lines(falling()[:50]), {"step": 51, "ended": "diverged at step 51: the loss is no longer finite"}]
    )
    assert diverged.check(ended) == ("fail", None, "diverged at step 51: the loss is no longer finite", "diverged")


def test_a_run_that_starts_at_its_final_loss_has_not_diverged():
    """As in fine-tuning or continuing on the same data: three noisy steps say little about the initial loss."""
    noises = [np.random.default_rng(seed).normal(size=200) for seed in range(100)]
    for level, std in ((3.0, 0.05), (0.3, 0.08), (2.0, 0.1)):
        drawn = [curve(np.abs(level + std * one), noise=0.0, chance=max(0.69, level)) for one in noises]
        assert sum(diverged.check(one).verdict == "fail" for one in drawn) <= 3
    worse = [np.where(STEPS[:200] < 40, 0.05, 0.3) + 0.04 * np.abs(one) for one in noises[:10]]
    assert all(diverged.check(curve(one, noise=0.0, chance=0.69)).verdict == "fail" for one in worse)
    # Few rows far from chance: single steps say nothing.
    few = [np.abs(0.9 + 0.6 * one) for one in noises]
    fell = np.linspace(0.85, 0.5, 200)
    assert sum(diverged.check(curve(one, fell, noise=0.0, chance=0.5)).verdict == "fail" for one in few) <= 3
    # Thrown far away by the first step, and falling since.
    thrown = np.r_[2.2, np.linspace(60, 40, 199)]
    assert diverged.check(curve(thrown, thrown, noise=0.0, chance=2.2)).verdict == "fail"
    # noisy, because the learning rate is too high
    jumps = [np.where(STEPS[:200] < 4, 2.2, 4 + 2 * one) for one in noises[:10]]
    assert all(diverged.check(curve(one, noise=0.0, chance=2.2)).verdict == "fail" for one in jumps)


def test_a_model_at_the_level_of_frequencies_has_failed_to_train_and_did_not_overfit():
    """Case C4: it was called overfitted although its train loss never fell."""
    stuck = curve(falling(3.2), falling(3.2) + 0.02, post_norm=True, warms_up=False)
    outcome = did_it_train.check(stuck)
    assert outcome.verdict == "fail" and "failed to train" in outcome.sentence
    assert "post-norm without a warm-up" in outcome.sentence
    assert "overfitted" not in verdicts(stuck)
    warmed = did_it_train.check(curve(falling(3.2), falling(3.2), post_norm=True, warms_up=True))
    assert warmed.verdict == "fail" and "post-norm" not in warmed.sentence


def test_memorising_train_is_distinguished_from_learning_nothing():
    outcome = did_it_train.check(curve(falling(0.1), falling(3.2) + 1))
    assert outcome.verdict == "fail" and "by heart" in outcome.sentence


def test_a_loss_that_was_still_falling_is_reported_as_such():
    outcome = did_it_train.check(curve(np.linspace(4.5, 3.6, 1000)))
    assert outcome.verdict == "fail" and "still falling" in outcome.sentence


def test_without_a_baseline_the_initial_loss_is_used():
    assert did_it_train.check(curve(falling(), chance=None)).verdict == "pass"
    assert did_it_train.check(curve(falling(4.2), chance=None)).verdict == "fail"


def test_the_score_of_the_whole_split_is_used_if_there_is_one():
    assert did_it_train.check(curve(falling(), falling(), scored=3.19)).verdict == "fail"


def test_jumps_of_loss_and_gradient():
    jumpy = falling()
    jumpy[200::60] *= 2
    outcome = learning_rate_too_high.check(curve(jumpy))
    assert outcome.verdict == "warn" and "the loss jumps" in outcome.sentence
    norms = np.full(1000, 0.5)
    norms[200::60] = 4
    assert "the gradient jumps" in learning_rate_too_high.check(curve(falling(), norms=norms)).sentence
    rare = falling()
    rare[500:505] *= 2
    assert learning_rate_too_high.check(curve(rare)).verdict == "pass"


def test_gradients_that_are_always_clipped():
    always = learning_rate_too_high.check(curve(falling(), norms=np.full(1000, 20.0)))
    assert (
        always.verdict == "warn"
        and "100% of the gradients were clipped, half of them to less than 1/20" in always.sentence
    )
    assert learning_rate_too_high.check(curve(falling(), norms=np.full(1000, 1.3))).verdict == "pass"


def test_a_loss_that_only_falls_at_a_lower_rate():
    late = np.concatenate([falling()[:50], np.full(600, 3.0), np.linspace(3.0, 2.5, 350)])
    outcome = learning_rate_too_high.check(curve(late, noise=0.01))
    assert outcome.verdict == "warn" and "only afterwards" in outcome.sentence


def test_a_plateau_counts_at_a_high_rate_and_above_the_baseline():
    flat, high = falling(2.5, speed=40), np.full(1000, 1e-3)
    assert plateaued.check(curve(flat, rates=high, noise=0.01)).verdict == "warn"
    assert plateaued.check(curve(flat, noise=0.01)).verdict == "pass"  # the learning rate had decayed
    # it has reached the baseline
    assert plateaued.check(curve(flat, rates=high, noise=0.01, counting=2.6)).verdict == "pass"
    assert plateaued.check(curve(falling(speed=2), rates=high, noise=0.01)).verdict == "pass"


def test_still_improving_predicts_the_gain_of_more_steps():
    logarithm = 5 - 0.4 * np.log(STEPS)
    outcome = still_improving.check(curve(logarithm, logarithm))
    assert outcome.verdict == "warn"
    assert outcome.value == pytest.approx(0.4 * np.log(1.5) / logarithm[-1], rel=0.01)
    by_train = still_improving.check(curve(logarithm))
    assert by_train.verdict == "warn" and "train loss" in by_train.sentence
    assert still_improving.check(curve(falling(), falling())).verdict == "pass"


def test_underfitted_is_less_than_half_the_gain_of_the_n_gram_model():
    slow = falling(2.8, speed=30)
    assert underfitted.check(curve(slow, slow)).verdict == "warn"
    assert underfitted.check(curve(falling(2.2), falling(2.2))).verdict == "pass"
    # the train loss is far lower: another audit's subject
    assert underfitted.check(curve(falling(1.0), slow)).verdict == "pass"
    with pytest.raises(DoesNotApply, match="5-gram"):
        underfitted.check(curve(slow, slow, counting=None))


@pytest.mark.parametrize(("rise", "verdict"), [(0.01, "pass"), (0.05, "warn"), (0.2, "fail")])
def test_overfitting_is_judged_by_the_rise_of_the_loss(rise, verdict):
    valid = np.maximum(falling(2.0), 2.0)
    valid[400:] = valid[399] * (1 + np.linspace(0, rise, 600))
    outcome = overfitted.check(curve(falling(0.5, speed=3), valid))
    assert outcome.verdict == verdict and "step 400" in outcome.sentence
    kept = curve(falling(0.5, speed=3), valid, selects=["keep_best"], evaluate_on=["valid"])
    assert overfitted.check(kept).verdict == "pass"


def test_a_loss_close_to_zero_may_rise_by_half():
    """A translator of words that gets 99 of 100 right: a loss that rises from 0.006 to 0.009 is no worse model."""
    valid = falling(0.006, speed=12) + np.linspace(0, 0.003, 1000)
    outcome = overfitted.check(curve(falling(0.0001, speed=12), valid, noise=0.0))
    assert outcome.verdict != "fail" and 0 < (outcome.value or 0) < 0.1
    moved = falling(0.05, speed=12) + np.linspace(0, 0.03, 1000)  # 99 of 100 right, with a constant learning rate
    assert overfitted.check(curve(falling(0.0001, speed=12), moved, noise=0.0)).verdict == "warn"


def test_a_rise_with_the_train_loss_is_not_overfitting():
    up = np.concatenate([falling()[:500], np.linspace(falling()[499], 2.6, 500)])
    assert overfitted.check(curve(up, up)).verdict == "pass"


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({"evaluate_on": ["valid"], "selects": ["keep_best"]}, "pass"),
        ({"evaluate_on": ["valid", "test"], "selects": ["keep_best"]}, "warn"),
        ({"evaluate_on": ["train", "test-obama"]}, "warn"),
        ({"evaluate_on": ["test"], "selects": ["keep_best", "patience"]}, "fail"),
        ({"evaluate_on": []}, "pass"),
    ],
)
def test_selection_on_test(facts, verdict):
    outcome = selection_on_test.check(curve(falling(), **facts))
    assert outcome.verdict == verdict
    assert ("keep_best and patience went by test" in outcome.sentence) == (verdict == "fail")


def test_collapsed_heads():
    alive = np.random.default_rng(0).uniform(0.2, 0.8, size=(4, 4, 5))
    assert collapsed_heads.check(HeadEntropies(alive)).verdict == "pass"
    one = alive.copy()
    one[2, 1] = 0.001
    assert collapsed_heads.check(HeadEntropies(one)).verdict == "pass"
    assert "layer 2, head 1" in collapsed_heads.check(HeadEntropies(one)).sentence
    layer = alive.copy()
    layer[3] = 0.999
    assert collapsed_heads.check(HeadEntropies(layer)).verdict == "warn"
    same = alive.copy()
    same[0] = same[0, :1]
    assert "4 doing what their neighbours do" in collapsed_heads.check(HeadEntropies(same)).sentence
    assert collapsed_heads.check(HeadEntropies(np.full((4, 4, 5), 0.9999))).verdict == "fail"
    with pytest.raises(DoesNotApply, match="no heads"):
        collapsed_heads.check(HeadEntropies(np.zeros((0, 0, 0))))


# --- impossible scores -------------------------------------------------------------------------------------------


def test_a_score_far_below_the_train_loss_and_the_n_gram_model_fails():
    by_scoring_alone = curve(falling(), scored=0.06)
    outcome = too_good_to_be_true.check(by_scoring_alone)
    assert outcome.verdict == "fail" and "perplexity 1.06" in outcome.sentence
    assert too_good_to_be_true.check(curve(falling(), scored=0.06, harder_in_training=True)).verdict == "warn"


@pytest.mark.parametrize(
    ("name", "change", "harder"),
    [
        ("demo", "model.penalty=null", False),
        ("demo", "model.dropout=0.1", True),
        ("demo", "model.penalty.size=1", True),
        ("pig-latin", "model.label_smoothing=0", False),
        ("pig-latin", "model.label_smoothing=0.1", True),
    ],
)
def test_settings_that_raise_the_train_loss_are_known(name: str, change: str, harder: bool):
    assert load(name, ["model.dropout=0", change]).model.harder_in_training == harder


def test_a_score_far_below_the_n_gram_model_warns_whatever_the_train_loss():
    """A leak lowers the train loss too, and so does predictable text."""
    assert too_good_to_be_true.check(curve(falling(0.05), scored=0.058)).verdict == "warn"


@pytest.mark.parametrize(
    ("bottom", "scored", "counting"),
    [
        (1.4, 1.5, 1.9),  # a good model of characters
        (3.0, 3.4, 5.3),  # a good model of words
        (1.0, 0.9, 1.9),  # a train loss raised by dropout
        (0.05, 0.06, 0.1),  # predictable text, also for n-grams
        (0.05, 0.7, 1.9),  # half of the text is predictable: sums, copies and the like
    ],
)
def test_plausible_scores_raise_no_alarm(bottom: float, scored: float, counting: float):
    assert too_good_to_be_true.check(curve(falling(bottom), scored=scored, counting=counting)).verdict == "pass"


def test_no_loss_below_zero_is_predicted():
    """Extrapolating a loss close to zero gives negative values."""
    nearly = np.maximum(4.5 * np.exp(-10 * STEPS / 1000), 1.8e-4)
    outcome = still_improving.check(curve(nearly, noise=0.0, chance=None, counting=None))
    assert outcome.verdict == "pass"


def test_the_last_steps_of_a_short_noisy_run_are_no_jumps():
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(size=100)
        noisy = curve(falling()[::10] * np.exp(0.2 * noise), noise=0.0)
        assert learning_rate_too_high.check(noisy).verdict == "pass"


def test_batches_of_harder_pairs_are_no_jumps():
    kinds = np.random.default_rng(0).choice([1.0, 1.5, 2.2], size=1000, p=[0.8, 0.15, 0.05])
    assert learning_rate_too_high.check(curve(falling() * kinds, noise=0.02)).verdict == "pass"


def test_no_other_rate_is_recommended_where_nothing_is_left_to_gain():
    solved = falling(0.01)
    solved[200::40] += 2.0
    norms = np.where(np.arange(1000) % 40 == 0, 20.0, 0.5)
    assert learning_rate_too_high.check(curve(solved, norms=norms, noise=0.001, scored=0.005)).verdict == "pass"
    assert learning_rate_too_high.check(curve(falling(1.0), norms=norms, noise=0.001, scored=1.0)).verdict == "warn"


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_a_training_of_a_few_steps_can_be_judged_and_is_not_too_good(steps):
    few = falling()[:steps]
    assert too_good_to_be_true.check(curve(few, few, every=1)).verdict == "pass"


def test_no_gain_is_predicted_near_zero_or_once_the_valid_loss_has_stopped_falling():
    steep = falling(bottom=0.001, top=4.5, speed=6.0)
    assert verdicts(curve(steep, chance=3.2))["still-improving"] == "pass"
