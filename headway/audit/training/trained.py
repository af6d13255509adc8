"""Did it train at all? The learning rate was as planned, the loss stayed finite, and it fell well below the baseline
that ignores the input. The other audits of a training rest on these."""

import numpy as np

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.training.curve import FAR, TrainingCurve

LITTLE = 0.02
FEWEST_STEPS = 30
TRAINED = ("learning-rate-zero", "did-it-train")
"""Audits that must have passed for finer ones to mean anything."""
NO_WARMUP = "; post-norm without a warm-up is the likely cause: set training.schedule.warmup, or use pre-norm"


def needs(curve: TrainingCurve, steps: int) -> None:
    if len(curve.steps) < steps:
        raise DoesNotApply(f"{len(curve.steps)} steps are too few to tell; {steps} are needed")


@audit("training")
def learning_rate_zero(curve: TrainingCurve) -> Outcome:
    """The learning rate is not zero, nor practically zero.

    Fails if the rate was zero at every step; or if it was below 1e-6 throughout and the train loss fell by less than 2
    %. (At a rate of 1e-5 a small model still gets a quarter of the way down.) Look at training.optimizer.learning_rate,
    and for a warm-up that is longer than the training.
    """
    needs(curve, 1)
    highest = float(curve.rates.max())
    if highest == 0:
        return failed(0.0, "the learning rate was zero at every step: nothing was trained", "learning rate zero")
    if highest < 1e-6 and curve.first - curve.last < LITTLE * curve.first:
        return failed(highest, f"the learning rate was {highest:.1g} at most, and the loss has not fallen")
    return passed(highest, f"the learning rate was {highest:.3g} at most")


@audit("training")
def schedule(curve: TrainingCurve) -> Outcome:
    """The learning rate of every step is the one that the schedule says.

    The learning rates in metrics.jsonl are compared with the schedule's plain definition (a linear warm-up, then
    constant, linear, or half a cosine down to `final` at the last step), and may differ by a thousandth of the highest.
    A schedule that ends early trains at a rate of nearly zero, and one that is too long never anneals; both look like a
    worse model. If it fails, look at what counts as a step (an epoch, a part of a batch, a step since the run was
    resumed), and at what the warm-up is counted from.
    """
    needs(curve, 1)
    planned = [curve.planned(int(step)) for step in curve.steps]
    known = [(step, rate, plan) for step, rate, plan in zip(curve.steps, curve.rates, planned, strict=True) if plan]
    if not known:
        raise DoesNotApply("this schedule has no definition to compare with")
    highest = max(plan for _, _, plan in known)
    step, rate, plan = max(known, key=lambda one: abs(one[1] - one[2]))
    off = float(abs(rate - plan) / highest)
    if not off <= 1e-3:
        return failed(off, f"the learning rate of step {step:,} was {rate:.3g}; its schedule says {plan:.3g}")
    return passed(off, f"the learning rates of {len(known):,} steps are those of the schedule")


@audit("training")
def diverged(curve: TrainingCurve) -> Outcome:
    """The loss stayed finite, and did not climb back to where it began.

    Fails if the training ended because a loss or a gradient was no longer finite; or if at the end the train loss had
    lost more than half of what it had gained; or if it ended more than 5 % above the loss of the first three steps; or
    if it ended above that of the very first step, and above twice the loss of the baseline that ignores the input (with
    a rate far too high, the second step is already far above the first). The lowest and the last loss are medians over
    a tenth of the training, so a spike does not count, and the rise must exceed four times the scatter of the medians
    over a thirtieth, because few rows and few steps are noisy. The loss must also end two standard deviations of a
    single step above the first three, or half of one if it is 50 % above the baseline: a run that starts from trained
    weights may have nothing left to gain. Where the held-out loss fell meanwhile (by 5 % or more, to less than
    50 % above the baseline), only a lost gain counts: of few rows, the first and the last steps say little. Lower the
    learning rate, or lengthen the warm-up.
    """
    if curve.ended and curve.ended.is_diverged:
        return failed(None, str(curve.ended), "diverged")
    needs(curve, FEWEST_STEPS)
    lowest = float(np.median(np.lib.stride_tricks.sliding_window_view(curve.parts, 3), axis=1).min())
    gained, given_back = curve.first - lowest, curve.last - lowest
    scatter = 1.05 * float(np.median(np.abs(np.diff(curve.parts))))  # the standard deviation of a part, if it is noise
    sentence = (
        f"the train loss began at {curve.first:.3g}, was {lowest:.3g} at its lowest, and ended at {curve.last:.3g}"
    )
    of_a_step = 1.05 * float(np.median(np.abs(np.diff(curve.losses))))  # the first loss is that of three single steps
    is_far_from_chance = curve.chance is not None and curve.last > FAR * curve.chance
    by_chance = (0.5 if is_far_from_chance else 2) * of_a_step
    rose = curve.last > 1.05 * curve.first and curve.last - curve.first > by_chance
    at_first = float(curve.losses[0])
    rose_at_once = curve.chance is not None and curve.last > max(2 * curve.chance, at_first)
    if rose and not curve.held_out_fell:
        return failed(curve.last - curve.first, f"{sentence}: it ended above where it began")
    if rose_at_once and not curve.held_out_fell:
        return failed(curve.last - at_first, f"{sentence}: it ended above the {at_first:.3g} of its first batch")
    if given_back > gained / 2 and given_back > max(LITTLE * lowest, 4 * scatter):
        return failed(given_back, f"{sentence}: more than half of the gain was lost again")
    return passed(given_back, sentence)


@audit("training")
def did_it_train(curve: TrainingCurve) -> Outcome:
    """The loss fell well below the baseline that ignores the input: token frequencies, or class frequencies.

    A model reaches the unigram loss (for a classifier, the entropy of the classes) by its output bias alone. Fails if
    the loss at the end (held-out if it was scored, else train) is not more than 2 % below it, or, where that loss is
    not known, if the train loss fell by less than 10 %. Such a model has failed to train, whatever else its curves look
    like: it did not overfit, and it needs no regularisation. Usual causes: a learning rate that is too high or too low
    by factors, post-norm without a warm-up, labels that do not belong to the inputs.

    A translator can get far below token frequencies as a language model of its targets. If its loss is not below that
    of a 5-gram model of the targets, which reads no source, and its train loss is not far below either, that is a
    warning; and a failure if the train loss had stopped falling at a learning rate that was not low, since it will then
    not learn to translate.
    """
    needs(curve, 1)
    reached, fell = curve.reached, curve.first - curve.last
    if curve.best_by != "loss" and curve.held_out:
        # Weights chosen by another metric may be overconfident and have a high loss, which had been lower before.
        reached = min(reached, float(curve.evaluations[curve.held_out][1].min()))
    if curve.chance is None:
        share = fell / curve.first
        sentence = f"the train loss went from {curve.first:.3g} to {curve.last:.3g}"
        return (
            passed(share, sentence)
            if share >= 0.1
            else failed(share, f"it failed to train: {sentence}", "failed to train")
        )
    below = 1 - reached / curve.chance
    sentence = f"the loss ended at {reached:.3g}; {curve.chance_is} alone give {curve.chance:.3g}"
    if below > LITTLE:
        return _of_translator(curve, below, sentence)
    where = f"less than {LITTLE:.0%} below" if below > 0 else "no lower than"
    short, more = "failed to train", ""
    if curve.post_norm and not curve.warms_up:
        more = NO_WARMUP
    elif curve.parts[-1] < 0.8 * curve.chance:
        short = "learnt train by heart and nothing else"
    elif len(curve.parts) >= 3 and curve.parts[-1] < 0.99 * curve.parts[-len(curve.parts) // 3]:
        more = "; the train loss was still falling: too few steps, or too low a rate"
    loss = f"the loss ended at {reached:.3g}, {where} the {curve.chance:.3g} of {curve.chance_is}"
    return failed(below, f"it {short}: {loss}{more}", short)


def _of_translator(curve: TrainingCurve, below: float, sentence: str) -> Outcome:
    """The outcome for a loss below token frequencies: for a translator, whether it does more than model its targets."""
    if curve.unread is None or min(curve.reached / (1 - LITTLE), curve.last / 0.8) <= curve.unread:
        return passed(below, sentence)
    comparison = f"{sentence}, and a 5-gram model of the targets {curve.unread:.3g}, without reading a source"
    if len(curve.steps) < FEWEST_STEPS or not curve.is_stuck:
        return warned(below, f"it may not have learnt to translate yet: {comparison}")
    more = NO_WARMUP if curve.post_norm and not curve.warms_up else ""
    return failed(
        below, f"it failed to train: {comparison}, and the train loss no longer fell{more}", "failed to train"
    )


ABOUT_TRAINING = (learning_rate_zero, schedule, diverged, did_it_train)
