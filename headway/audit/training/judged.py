"""Audits of how a run was judged: a held-out loss that is too good to be true, and choices made on the test split."""

import math

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.training.curve import TrainingCurve
from headway.audit.training.trained import needs
from headway.scoring.metrics import is_test


@audit("training")
def too_good_to_be_true(curve: TrainingCurve) -> Outcome:
    """The held-out loss is not far below what counting and the curve of training allow.

    Whatever other audits say: two things are compared. The 5-gram model, on the same tokens: the best models of text
    take away half of its nats. Of one that takes away two thirds, some tokens are asked for again, with text that ends
    before them. Where that costs far more (more than half-way up to the 5-gram), the answer has reached the input: a
    failure. Else the text is in train, or its context determines it (copies, sums, rules), and the score is right; it
    is a warning where the model cannot be asked. And the train loss: a held-out loss that is half or less of that of
    every single batch in the last tenth of the training, and also a quarter below the 5-gram's and 0.2 nats below
    either, is a failure, for no model does better on new text than on what it learns from; a warning where training
    drops something out, smooths labels or adds a penalty, which raises its loss. Look for a mask that is missing at
    some lengths, targets among the inputs, train text in the held-out split; and for a score that is not the loss that
    was trained.
    """
    if curve.counting is None or (curve.scored is None and curve.held_out is None):
        raise DoesNotApply("there is no held-out loss with that of a 5-gram model beside it")
    needs(curve, 1)
    reached, counted = curve.reached, curve.counting
    lowest = float(curve.losses[-max(1, len(curve.losses) // 10) :].min())
    share = reached / max(counted, 1e-9)
    sentence = (
        f"held-out loss {reached:.3g} (perplexity {math.exp(min(reached, 700)):.4g}), of a 5-gram model {counted:.3g} "
        f"({math.exp(min(counted, 700)):.4g}); the lowest of the last training batches {lowest:.3g}"
    )
    if reached <= min(lowest / 2, 0.75 * counted, lowest - 0.2, counted - 0.2):
        found = warned if curve.harder_in_training else failed
        return found(share, f"too good to be true: {sentence}; nothing does better on new text than in training")
    if reached > counted / 3 or reached > counted - 0.2:
        return passed(share, sentence)
    unaided = curve.unaided()
    if unaided is None:
        what = "either the text is in train or determined by its context, or the answer has reached the input"
        return warned(share, f"too good to be true? {sentence}: {what}")
    sentence += f"; {unaided:.3g} where the text ends before the token that is asked for"
    if not unaided <= (reached + counted) / 2:
        return failed(share, f"too good to be true: {sentence}, so the answer has reached the input", "saw the answer")
    return passed(share, f"{sentence}, so that what comes before determines it")


@audit("training")
def selection_on_test(curve: TrainingCurve) -> Outcome:
    """No choice was made by looking at the test split.

    Fails if the best checkpoint or the end of the training was chosen by the loss on a split whose name begins with
    "test": its score is then the best of many, and too good. Warns if such a split is scored during training, for who
    sees the curve will choose by it. Let training.evaluate_on name valid; hold some of train out where there is none.
    """
    tests = [split for split in curve.evaluate_on if is_test(split)]
    if curve.selects and curve.evaluate_on and curve.evaluate_on[0] in tests:
        return failed(None, f"{' and '.join(curve.selects)} went by {curve.evaluate_on[0]}, the split that is scored")
    if tests:
        return warned(None, f"{', '.join(tests)} was scored during training; nothing was chosen by it automatically")
    return passed(None, f"scored during training: {', '.join(curve.evaluate_on) or 'nothing'}")


ABOUT_JUDGING = (too_good_to_be_true, selection_on_test)
