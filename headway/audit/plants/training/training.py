"""Faults of a whole training: useless learning rates, choices by the test split, scores that are impossibly good."""

from headway.audit.plants.needs import ADAM, LANGUAGE_MODEL
from headway.audit.plants.planting import Bed
from headway.models.language_model import LanguageModel
from headway.scoring import likelihood

_bed = Bed("training")
UNTRAINED = ("did-it-train", "diverged", "beats-chance", "beats-counting", "learning-rate-too-high", "plateaued")


_bed.settings(
    "learning_rate_zero_throughout", "learning-rate-zero", "training.optimizer.learning_rate=0", also=UNTRAINED
)
_bed.settings(
    "a_warm_up_that_never_ends",
    "learning-rate-zero",
    "training.schedule={kind: linear, warmup: 100000000 steps}",
    also=UNTRAINED,
)
_bed.settings(
    "a_rate_a_thousand_times_too_high",
    "diverged",
    "training.optimizer.learning_rate=3",
    "training.schedule={kind: constant}",
    "training.clip=null",
    needs=(ADAM,),
    also=UNTRAINED,
)
_bed.settings(
    "the_best_is_chosen_by_the_split_that_is_scored",
    "selection-on-test",
    "training.evaluate_on=[test]",
    "training.keep_best=true",
    "scoring.splits=[test]",
)
_bed.settings("the_test_split_is_watched", "selection-on-test", "training.evaluate_on=[valid, test]")


@_bed.plant("too-good-to-be-true", LANGUAGE_MODEL, also=("scores-again", "kept-checkpoint", "score-and-curve"))
def nats_spread_over_thrice_the_tokens(patch):
    """As if sums were divided by all slots of a padded batch."""
    original = likelihood.token_losses
    patch.setattr(likelihood, "token_losses", lambda *given: original(*given) / 3)


@_bed.plant("too-good-to-be-true", LANGUAGE_MODEL, also=("scores-again", "kept-checkpoint", "score-and-curve"))
def the_token_itself_among_what_it_is_predicted_from(patch):
    """The score measures how well a token is predicted from itself."""

    def losses(self, inputs, targets):
        logits, _ = self(inputs)
        logits = logits.scatter_add(-1, targets[..., None], logits.new_full((*targets.shape, 1), 4.0))
        return -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]

    patch.setattr(LanguageModel, "losses", losses)
