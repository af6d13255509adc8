"""Faults of decoding: what is looked for, what is kept of it, and what is drawn. A model that is sure of its words
writes the same with most of them."""

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
"""Where a model is not sure, what is searched for wrongly is written."""


# --- which end is the best -------------------------------------------------------------------------------------------


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def worst_of_the_beam(patch):
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
    """Though its chance is counted."""
    _scored(patch, lambda self, nats, length: -nats / max(1, length - 1) ** self.length_penalty)


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def search_that_stops_at_the_first_end(patch):
    def can_improve(self, r, b, nats):
        return math.isfinite(nats) and len(self.best[r][b]) < self.spec.nbest

    patch.setattr(beam.BeamSearch, "_can_improve", can_improve)


# --- what is kept ----------------------------------------------------------------------------------------------------


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def fewer_beginnings_than_asked_for(patch):
    honest = decoding.Beam.search

    def search(self, *given):
        return honest(self.model_copy(update={"size": max(1, self.size - 1)}), *given)

    patch.setattr(decoding.Beam, "search", search)


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def beginnings_that_do_not_take_their_past_along(patch):
    """What was written changes places, and what was read of it does not."""
    honest = ModelState.branched

    def branched(self, parents):
        ways = 1 if self.branches is None else self.branches.sees.shape[2]
        return honest(self, torch.arange(parents.shape[2], device=parents.device).expand_as(parents) % ways)

    patch.setattr(ModelState, "branched", branched)


@_bed.plant(SEARCHED, BEAM, also=WRITES)
def sources_read_without_their_end(patch):
    honest = EncoderDecoder.read_many

    def read_many(self, sources, source_mask=None):
        told = sources != self.source_vocabulary - 1
        return honest(self, sources, told if source_mask is None else source_mask & told)

    patch.setattr(EncoderDecoder, "read_many", read_many)


@_bed.plant(SEARCHED, NO_RUN_TWICE, also=WRITES)
def runs_that_may_come_twice(patch):
    _runs(patch, lambda banned: torch.zeros_like(banned))


@_bed.plant(SEARCHED, NO_RUN_TWICE, also=WRITES)
def runs_that_no_neighbour_may_have(patch):
    _runs(patch, lambda banned: banned.any(1, keepdim=True).expand_as(banned))


@_bed.plant(SEARCHED, NO_RUN_TWICE, also=WRITES)
def runs_of_one_token_more(patch):
    _runs(patch, lambda banned: banned, longer=1)


def _runs(patch: Patch, change, longer: int = 0) -> None:
    honest = beam.repeated
    patch.setattr(beam, "repeated", lambda ids, n, vocabulary: change(honest(ids, n + longer, vocabulary)))


# --- what is drawn ---------------------------------------------------------------------------------------------------


def _drawn(patch: Patch, change) -> None:
    """By another temperature, top-k and top-p than the recipe's."""
    honest = decoding.draw

    def draw(logits, temperature, top_k, top_p, noise):
        temperature, top_k, top_p = change(temperature, top_k, top_p)
        return honest(logits, temperature, top_k, top_p, noise)

    patch.setattr(decoding, "draw", draw)


@_bed.plant(SEARCHED, DRAWN, also=WRITES)
def temperature_turned_round(patch):
    _drawn(patch, lambda temperature, top_k, top_p: (1 / temperature, top_k, top_p))


@_bed.plant(SEARCHED, DRAWN, also=WRITES)
def temperature_that_is_not_used(patch):
    _drawn(patch, lambda temperature, top_k, top_p: (1.0, top_k, top_p))


@_bed.plant(SEARCHED, DRAWN, also=WRITES)
def drawn_among_all_tokens(patch):
    _drawn(patch, lambda temperature, top_k, top_p: (temperature, None, None))


@_bed.plant(SEARCHED, DRAWN, also=WRITES)
def the_likeliest_in_place_of_a_draw(patch):
    _drawn(patch, lambda temperature, top_k, top_p: (0.0, top_k, top_p))


@_bed.plant(SEARCHED, DRAWN, also=WRITES)
def rows_that_share_their_random_numbers(patch):
    honest = decoding.Sampled.search

    def search(self, text, end, limits, numbers):
        return honest(self, text, end, limits, [0 for _ in numbers])

    patch.setattr(decoding.Sampled, "search", search)
