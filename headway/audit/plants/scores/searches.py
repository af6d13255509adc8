"""Faults of decoding: of the search, the hypotheses it keeps, and of sampling. With most of them, a confident model
still writes the same."""

import math

import torch

from headway.audit.plants.needs import BEAM, DRAWN, JUDGED_BY_BLEU, NO_RUN_TWICE, TRANSLATOR
from headway.audit.plants.planting import Bed, Patch
from headway.models.backbone import ModelState
from headway.models.encoder_decoder import EncoderDecoder
from headway.scoring import beam, decoding

_bed = Bed("searches", TRANSLATOR, JUDGED_BY_BLEU)
SEARCHED = "searched"
WRITES = ("scores-again", "decoded-alone", "length-ratio", "repetition-loops", "copied-sources")
"""Audits that may also fail: if the model is not confident, a wrong search gives other translations."""


# --- which finished hypothesis is best -----------------------------------------------------------------------------


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def worst_hypothesis_of_the_beam(patch):
    honest = decoding.Beam.search

    def search(self, *given):
        found = honest(self.model_copy(update={"nbest": self.size}), *given)
        return [[list(reversed(best))[: self.nbest] for best in rows] for rows in found]

    patch.setattr(decoding.Beam, "search", search)


def _scored(patch: Patch, score) -> None:
    patch.setattr(decoding.Beam, "score", score)


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def length_penalty_that_adds(patch):
    _scored(patch, lambda self, nats, length: -nats + math.sqrt(length))


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def length_penalty_that_is_not_used(patch):
    _scored(patch, lambda self, nats, length: -nats)


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def length_penalty_that_multiplies(patch):
    _scored(patch, lambda self, nats, length: -nats * length**self.length_penalty)


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def length_without_the_end(patch):
    """Although the log-probability of END is counted."""
    _scored(patch, lambda self, nats, length: -nats / max(1, length - 1) ** self.length_penalty)


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def search_that_stops_at_the_first_end(patch):
    def can_improve(self, r, b, nats):
        return math.isfinite(nats) and len(self.best[r][b]) < self.spec.nbest

    patch.setattr(beam.BeamSearch, "_can_improve", can_improve)


# --- what is kept ----------------------------------------------------------------------------------------------------


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def narrower_beam_than_asked_for(patch):
    honest = decoding.Beam.search

    def search(self, *given):
        return honest(self.model_copy(update={"size": max(1, self.size - 1)}), *given)

    patch.setattr(decoding.Beam, "search", search)


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def hypotheses_without_their_cached_state(patch):
    """The hypotheses are reordered, but their cached state is not."""
    honest = ModelState.branched

    def branched(self, parents):
        ways = 1 if self.branches is None else self.branches.sees.shape[2]
        return honest(self, torch.arange(parents.shape[2], device=parents.device).expand_as(parents) % ways)

    patch.setattr(ModelState, "branched", branched)


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def sources_read_without_their_end(patch):
    honest = EncoderDecoder.read_many

    def read_many(self, sources, source_mask=None):
        is_text = sources != self.source_vocabulary - 1
        return honest(self, sources, is_text if source_mask is None else source_mask & is_text)

    patch.setattr(EncoderDecoder, "read_many", read_many)


@_bed.plant(SEARCHED, NO_RUN_TWICE, also=WRITES)
def ngrams_that_may_repeat(patch):
    _runs(patch, lambda banned: torch.zeros_like(banned))


@_bed.plant(SEARCHED, NO_RUN_TWICE, also=WRITES)
def ngrams_banned_for_all_hypotheses(patch):
    _runs(patch, lambda banned: banned.any(1, keepdim=True).expand_as(banned))


@_bed.plant(SEARCHED, NO_RUN_TWICE, also=WRITES)
def ngrams_of_one_token_more(patch):
    _runs(patch, lambda banned: banned, longer=1)


def _runs(patch: Patch, change, longer: int = 0) -> None:
    honest = beam.repeated
    patch.setattr(beam, "repeated", lambda ids, n, vocabulary: change(honest(ids, n + longer, vocabulary)))


# --- what is drawn ---------------------------------------------------------------------------------------------------


def _drawn(patch: Patch, change) -> None:
    """Sample with another temperature, top-k and top-p than the recipe's."""
    honest = decoding.draw

    def draw(logits, temperature, top_k, top_p, noise):
        temperature, top_k, top_p = change(temperature, top_k, top_p)
        return honest(logits, temperature, top_k, top_p, noise)

    patch.setattr(decoding, "draw", draw)


@_bed.plant(SEARCHED, DRAWN, also=WRITES)
def temperature_inverted(patch):
    _drawn(patch, lambda temperature, top_k, top_p: (1 / temperature, top_k, top_p))


@_bed.plant(SEARCHED, DRAWN, also=WRITES)
def temperature_that_is_not_used(patch):
    _drawn(patch, lambda temperature, top_k, top_p: (1.0, top_k, top_p))


@_bed.plant(SEARCHED, DRAWN, also=WRITES)
def sampled_from_all_tokens(patch):
    _drawn(patch, lambda temperature, top_k, top_p: (temperature, None, None))


@_bed.plant(SEARCHED, DRAWN, also=WRITES)
def greedy_in_place_of_sampling(patch):
    _drawn(patch, lambda temperature, top_k, top_p: (0.0, top_k, top_p))
