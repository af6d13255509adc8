"""Faults of recurrences: of the state that goes from token to token, and of the two ways to compute it."""

from typing import Any

import torch

from headway.audit.plants.needs import CLASSIFIER, LANGUAGE_MODEL, part
from headway.audit.plants.planting import Bed, Need, Patch
from headway.audit.plants.populations import ALSO, BESIDE
from headway.nn import recurrence, scan
from headway.nn.dropout import LockedDropout, WeightDropout
from headway.nn.recurrence import Cells, LstmSpec, MinGru, Recurrence, RecurrenceSpec
from headway.nn.replicated import Dropout

_bed = Bed("recurrence")


def _recurrent(what: str, kinds: tuple[str, ...], mixer: str, **keys: Any) -> Need:
    """A layer at least that is of one of these kinds, and has these keys."""

    def has(recipe: Any) -> bool:
        mixers = [one for one in part(recipe, "model.mixers") or () if isinstance(one, RecurrenceSpec)]
        return any(one.kind in kinds and all(getattr(one, k) == v for k, v in keys.items()) for one in mixers)

    return Need(what, has, (f"model.mixer={mixer}", "model.positions=none"))


ANY = _recurrent("a recurrence", ("rnn", "gru", "lstm", "mingru"), "gru")
STEPS = _recurrent("a recurrence of steps", ("rnn", "gru", "lstm"), "lstm")
GRU, LSTM, MINGRU = (_recurrent(f"a {kind}", (kind,), kind) for kind in ("gru", "lstm", "mingru"))
TWO_WAYS = _recurrent("a bidirectional lstm", ("lstm",), "{kind: lstm, bidirectional: true}", bidirectional=True)
DROPPED = _recurrent("weight dropout", ("lstm",), "{kind: lstm, weight_dropout: 0.3}", weight_dropout=0.3)
LOCKED = Need(
    "locked dropout",
    lambda recipe: part(recipe, "model.noise.kind") == "locked",
    ("model.noise=locked", "model.dropout=0.2"),
)


OF_ORDER = ("causal-gradient", "cache", "carried-state", "padding", "loss", "targets")
"""What else fails where time runs another way."""


# --- the state -------------------------------------------------------------------------------------------------------


def _after(patch: Patch, change: Any) -> None:
    """Of what a recurrence gives: y and the state."""
    honest = Recurrence.forward
    patch.setattr(Recurrence, "forward", lambda self, x, context, state=None: change(*honest(self, x, context, state)))


@_bed.plant("batch-invariance", ANY, also=("causality", "causal-gradient", "padding", "carried-state"))
def state_leaks_between_rows(patch):
    _after(patch, lambda y, state: (y + 0.1 * y.mean(1, keepdim=True), state))


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
    _after(patch, lambda y, state: (y, None))


@_bed.plant("cache", LANGUAGE_MODEL, ANY, also=("carried-state",))
def state_of_the_first_row_for_all(patch):
    _after(patch, lambda y, state: (y, {name: kept[:, :1].expand_as(kept) for name, kept in state.items()}))


@_bed.plant("cache", LANGUAGE_MODEL, LSTM, also=("carried-state",))
def cell_left_behind(patch):
    _after(patch, lambda y, state: (y, {**state, "cell": torch.zeros_like(state["cell"])}))


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


# --- the cells -------------------------------------------------------------------------------------------------------


def _cell(patch: Patch, cell: type[scan.Cell], change: Any) -> None:
    """Of what a step is given and of the product, in our own way to compute it."""
    honest = cell.forward

    def forward(self: Any, given: Any, product: Any, *rest: Any) -> None:
        honest(self, change(given), change(product), *rest)

    patch.setattr(cell, "forward", forward)


def _swapped(x: torch.Tensor) -> torch.Tensor:
    i, f, g, o = x.chunk(4, -1)
    return torch.cat((f, i, g, o), -1)


@_bed.plant("definition", LSTM, also=("padding",))
def gates_in_another_order_beside_padding(patch):
    _cell(patch, scan.LstmCell, _swapped)


@_bed.plant("definition", GRU, also=("padding",))
def reset_gate_that_is_always_open(patch):
    def cells(self, x, recurrent, first):
        third = len(recurrent[0]) // 3
        opened = torch.cat((self.input.bias[:, :third] + 30, self.input.bias[:, third:]), 1)
        other = torch.cat((torch.zeros_like(opened[0, : 2 * third]), self.reset_bias[0]))
        weights = [self.input.weight[0], recurrent[0], opened[0], other]
        y, last = torch.gru(x[0], first[0], weights, True, 1, 0.0, self.training, False, True)
        return y[None], last[None]

    patch.setattr(Cells, "_by_library", cells)


@_bed.plant("definition", LSTM)
def forget_gate_that_starts_with_the_other_sign(patch):
    honest = LstmSpec.bias_start
    patch.setattr(LstmSpec, "bias_start", lambda self, hidden: -honest(self, hidden))


@_bed.plant(
    "causality",
    LANGUAGE_MODEL,
    MINGRU,
    also=("causal-gradient", "cache", "carried-state", "padding", "loss", "targets"),
)
def scan_one_step_ahead(patch):
    honest = recurrence.linear_scan
    patch.setattr(recurrence, "linear_scan", lambda *given: honest(*given).roll(-1, 2))


@_bed.plant("definition", MINGRU, also=("cache", "carried-state", "padding"))
def scan_one_step_behind(patch):
    honest = recurrence.linear_scan

    def behind(keep, add, first):
        return torch.cat((first[:, :, None], honest(keep, add, first)[:, :, :-1]), 2)

    patch.setattr(recurrence, "linear_scan", behind)


@_bed.plant("moved", STEPS, trains=True, also=("gradient",))
def recurrent_matrix_without_a_gradient(patch):
    patch.setattr(WeightDropout, "forward", lambda self, x: x.detach() + 0 * x)


@_bed.plant("gradient", STEPS)
def state_cut_off_from_its_past_halfway(patch):
    """As a `detach` too many does: answers and losses are right, and less is learnt of the past."""
    honest = Cells.forward

    def forward(self, x, first, real):
        half, last, found = max(1, x.shape[2] // 2), first, []
        for some in (slice(half), slice(half, None)) if x.shape[2] > 1 else (slice(None),):
            y, last = honest(self, x[:, :, some], first, None if real is None else real[:, :, some])
            first = last.detach()
            found.append(y)
        return torch.cat(found, 2), last

    patch.setattr(Cells, "forward", forward)


@_bed.plant("gradient", MINGRU)
def gate_without_a_gradient(patch):
    honest = recurrence.linear_scan
    patch.setattr(recurrence, "linear_scan", lambda keep, add, first: honest(keep.detach(), add, first))


@_bed.plant("gradients-apart", LANGUAGE_MODEL, GRU, also=("steps-beside-others",))
def reset_gate_forgotten_on_the_way_back(patch):
    honest = scan.GruCell.backward

    def backward(self, slope, kept, before, after, d_given, d_product):
        passed = honest(self, slope, kept, before, after, d_given, d_product)
        d_product.copy_(d_given)
        return passed

    patch.setattr(scan.GruCell, "backward", backward)


# --- noise -----------------------------------------------------------------------------------------------------------


@_bed.plant("determinism", DROPPED)
def weights_dropped_in_evaluation(patch):
    patch.setattr(WeightDropout, "forward", lambda self, x: x * self.factors(x.shape, x.dtype))


@_bed.plant("determinism", LOCKED)
def locked_noise_of_the_clock_on_the_wall(patch):
    def forward(self, x):
        if not (self.training and self.active):
            return x
        R, B, _, D = x.shape
        return x * (torch.rand(R, B, 1, D, device=x.device) >= self.rates.view(-1, 1, 1, 1)) / (1 - self.rates.max())

    patch.setattr(LockedDropout, "forward", forward)


@_bed.plant("dropout", LOCKED)
def locked_noise_drawn_at_every_token(patch):
    patch.setattr(LockedDropout, "forward", Dropout.forward)


@_bed.plant("dropout", LOCKED)
def locked_noise_that_all_rows_share(patch):
    def forward(self, x):
        R, _, _, D = x.shape
        return x * self.factors((R, 1, 1, D), x.dtype) if self.drops else x

    patch.setattr(LockedDropout, "forward", forward)


@_bed.plant("dropout", LOCKED)
def locked_noise_that_all_layers_share(patch):
    honest = LockedDropout.factors

    def factors(self, *given):
        own = self.keys.clone()
        self.keys.fill_(1)
        found = honest(self, *given)
        self.keys.copy_(own)
        return found

    patch.setattr(LockedDropout, "factors", factors)


@_bed.plant("dropout", DROPPED)
def weights_never_dropped(patch):
    patch.setattr(WeightDropout, "forward", lambda self, x: x)


# --- beside others ---------------------------------------------------------------------------------------------------


@_bed.plant(BESIDE, LANGUAGE_MODEL, STEPS, also=ALSO)
def one_recurrent_matrix_for_all_replicas(patch):
    honest = scan.scan

    def shared(kind, products, recurrent, bias, first, real=None):
        return honest(kind, products, recurrent[:1].expand_as(recurrent), bias, first, real)

    patch.setattr(recurrence, "scan", shared)


@_bed.plant(BESIDE, LANGUAGE_MODEL, LSTM, also=ALSO)
def gates_in_another_order_beside_others(patch):
    _cell(patch, scan.LstmCell, _swapped)


@_bed.plant(BESIDE, LANGUAGE_MODEL, STEPS, also=ALSO)
def state_of_the_neighbour(patch):
    honest = scan.scan

    def mixed(*given):
        states, kept = honest(*given)
        return states + 0.1 * states.roll(1, 1), kept

    patch.setattr(recurrence, "scan", mixed)
