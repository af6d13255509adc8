"""Audits of how a run was judged: a held-out loss that is too good to be true, and choices made on the test split."""

import math

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.training.curve import TrainingCurve
from headway.audit.training.trained import needs
from headway.scoring.metrics import is_test


@audit("training")
def too_good_to_be_true(curve: TrainingCurve) -> Outcome:
    """The held-out loss is not impossibly low compared with the 5-gram model and the train loss.

    First comparison: the 5-gram model on the same tokens. The best text models get to half of its loss. If a model gets
    to a third, some tokens are scored again with the text cut off right before them. If that costs far more (more than
    half-way up to the 5-gram), the target has reached the input: a failure. Otherwise the text is in train, or its
    context determines it (copies, sums, rules), and the score is right; it is a warning where the model cannot be asked
    this way. Second comparison: the train loss. It is a failure if the held-out loss is half or less of the lowest
    batch loss in the last tenth of the training, a quarter below the 5-gram's, and 0.2 nats below either, since no
    model does better on new text than on what it learns from; a warning if training uses dropout, label smoothing or a
    penalty, which raise its loss. Look for a mask that is missing at some lengths, for targets among the inputs, for
    train text in the held-out split, and for a score that is not the loss that was trained.
    """
    if curve.counting is None or (curve.scored is None and curve.held_out is None):
        raise DoesNotApply("there is no held-out loss with a 5-gram model to compare it with")
    needs(curve, 1)
    reached, counted = curve.reached, curve.counting
    lowest = float(curve.losses[-max(1, len(curve.losses) // 10) :].min())
    share = reached / max(counted, 1e-9)
    sentence = (
        f"held-out loss {reached:.3g} (perplexity {math.exp(min(reached, 700)):.4g}), 5-gram model {counted:.3g} "
        f"({math.exp(min(counted, 700)):.4g}), lowest of the last training batches {lowest:.3g}"
    )
    if reached <= min(lowest / 2, 0.75 * counted, lowest - 0.2, counted - 0.2):
        found = warned if curve.harder_in_training else failed
        return found(share, f"too good to be true: {sentence}; no model does better on new text than in training")
    if reached > counted / 3 or reached > counted - 0.2:
        return passed(share, sentence)
    unaided = curve.unaided()
    if unaided is None:
        what = "either the text is in train or determined by its context, or the answer has reached the input"
        return warned(share, f"too good to be true? {sentence}: {what}")
    sentence += f"; {unaided:.3g} where the text is cut off right before each scored token"
    if not unaided <= (reached + counted) / 2:
        return failed(share, f"too good to be true: {sentence}, so the answer has reached the input", "saw the answer")
    return passed(share, f"{sentence}, so the preceding text determines it")


@audit("training")
def selection_on_test(curve: TrainingCurve) -> Outcome:
    """No choice was made by looking at the test split.

    Fails if the best checkpoint or the end of the training was chosen by the loss on a split whose name begins with
    "test": its score is then the best of many, and too good. Warns if such a split is scored during training, because
    whoever sees the curve will choose by it. Set training.evaluate_on to valid; hold out some of train if there is no
    such split.
    """
    tests = [split for split in curve.evaluate_on if is_test(split)]
    if curve.selects and curve.evaluate_on and curve.evaluate_on[0] in tests:
        return failed(None, f"{' and '.join(curve.selects)} went by {curve.evaluate_on[0]}, the split that is scored")
    if tests:
        return warned(
            None, f"{', '.join(tests)} was scored during training, though nothing was chosen by it automatically"
        )
    return passed(None, f"scored during training: {', '.join(curve.evaluate_on) or 'nothing'}")


ABOUT_JUDGING = (too_good_to_be_true, selection_on_test)
