"""Faults of recurrences: of the state that is passed from token to token."""

from typing import Any

import torch

from headway.audit.plants.needs import CLASSIFIER, LANGUAGE_MODEL, part, rows_of
from headway.audit.plants.planting import Bed, Need, Patch
from headway.nn import recurrence, scan
from headway.nn.mingru import MinGru
from headway.nn.recurrence import Recurrence, RecurrenceSpec

_bed = Bed("recurrence")


def with_recurrence(what: str, kinds: tuple[str, ...], mixer: str, **keys: Any) -> Need:
    """The need of at least one layer of these kinds with these settings."""

    def has(recipe: Any) -> bool:
        mixers = [one for one in part(recipe, "model.mixers") or () if isinstance(one, RecurrenceSpec)]
        return any(one.kind in kinds and all(getattr(one, k) == v for k, v in keys.items()) for one in mixers)

    return Need(what, has, (f"model.mixer={mixer}", "model.positions=none"))


ANY = with_recurrence("a recurrence", ("rnn", "gru", "lstm", "mingru"), "gru")
STEPS = with_recurrence("a recurrence of steps", ("rnn", "gru", "lstm"), "lstm")
GRU, LSTM, MINGRU = (with_recurrence(f"a {kind}", (kind,), kind) for kind in ("gru", "lstm", "mingru"))
TWO_WAYS = with_recurrence("a bidirectional lstm", ("lstm",), "{kind: lstm, bidirectional: true}", bidirectional=True)


OF_ORDER = ("causal-gradient", "cache", "carried-state", "padding", "loss", "targets")
"""Audits that may also fail if time runs the other way."""


def change_output(patch: Patch, change: Any) -> None:
    """Change what a recurrence returns: y and the state."""
    honest = Recurrence.forward
    patch.setattr(Recurrence, "forward", lambda self, x, context, state=None: change(*honest(self, x, context, state)))


@_bed.plant("batch-invariance", ANY, also=("causality", "causal-gradient", "padding", "carried-state"))
def state_leaks_between_rows(patch):
    change_output(patch, lambda y, state: (y + 0.1 * y.mean(1, keepdim=True), state))


@_bed.plant("determinism", ANY, also=("cache", "carried-state", "padding", "batch-invariance", "causality"))
def state_not_reset(patch):
    honest = Recurrence.forward

    def forward(self, x, context, state=None):
        left = vars(self).get("left")
        if state is None and left is not None and left["hidden"].shape[:2] == x.shape[:2]:
            state = {name: kept.detach() for name, kept in left.items()}
        y, after = honest(self, x, context, state)
        vars(self)["left"] = after
        return y, after

    patch.setattr(Recurrence, "forward", forward)


@_bed.plant("cache", LANGUAGE_MODEL, ANY, also=("carried-state",))
def state_lost_between_pieces(patch):
    change_output(patch, lambda y, state: (y, None))


@_bed.plant("cache", LANGUAGE_MODEL, ANY, also=("carried-state",))
def state_of_the_first_row_for_all(patch):
    change_output(patch, lambda y, state: (y, {name: kept[:, :1].expand_as(kept) for name, kept in state.items()}))


@_bed.plant("cache", LANGUAGE_MODEL, LSTM, also=("carried-state",))
def cell_left_behind(patch):
    change_output(patch, lambda y, state: (y, {**state, "cell": torch.zeros_like(state["cell"])}))


@_bed.plant("cache", LANGUAGE_MODEL, ANY, rows_of(32))
def state_no_longer_updated_after_24_single_tokens(patch):
    """Like a cache that was filled once and is never written again."""
    honest = Recurrence.forward

    def forward(self, x, context, state=None):
        y, after = honest(self, x, context, state)
        return y, state if state and x.shape[2] == 1 and int(context.queries[0]) >= 24 else after

    patch.setattr(Recurrence, "forward", forward)


@_bed.plant(
    "causality", LANGUAGE_MODEL, ANY, also=("causal-gradient", "cache", "carried-state", "padding", "loss", "targets")
)
def time_reversed(patch):
    honest = Recurrence.forward

    def forward(self, x, context, state=None):
        y, after = honest(self, x.flip(2), context, state)
        return y.flip(2), after

    patch.setattr(Recurrence, "forward", forward)


@_bed.plant("padding", STEPS)
def padding_changes_the_state(patch):
    honest = scan.scan
    patch.setattr(
        recurrence, "scan", lambda kind, given, matrix, bias, first, real=None: honest(kind, given, matrix, bias, first)
    )


@_bed.plant("padding", MINGRU)
def padding_changes_a_mingru(patch):
    honest = MinGru.forward
    patch.setattr(MinGru, "forward", lambda self, x, first, real: honest(self, x, first, None))


@_bed.plant("padding", CLASSIFIER, TWO_WAYS)
def padding_not_turned_with_the_row(patch):
    def forward(self, x, context, state=None):
        y, _ = self.along(x, self._first(x, state), context.padding_mask)
        back, _ = self.against(x.flip(2), self._first(x, None), context.padding_mask)
        both = self.hidden(torch.cat((y, back.flip(2)), -1))
        return both if self.output is None else self.output(both), None

    patch.setattr(Recurrence, "forward", forward)
