"""Faults of recurrences: of their cells, scans and gradients, alone and in a population."""

import re
from typing import Any

import torch
import torch.nn.functional as F

from headway.audit.plants.models.recurrence import ANY, GRU, LSTM, MINGRU, STEPS, TWO_WAYS, change_output
from headway.audit.plants.needs import CLASSIFIER, LANGUAGE_MODEL, part, rows_of
from headway.audit.plants.planting import Bed, Need, Patch
from headway.audit.plants.populations import ALSO, BESIDE
from headway.nn import mingru, recurrence, scan, seeding
from headway.nn.dropout import WeightDropout
from headway.nn.recurrence import Cells, LstmSpec, Recurrence
from headway.nn.replicated import parameter

_bed = Bed("recurrence")
SEVERAL_LAYERS = Need("several layers", lambda recipe: (part(recipe, "model.layers") or 0) > 1, ("model.layers=2",))


def _cell(patch: Patch, cell: type[scan.Cell], change: Any) -> None:
    """Change the inputs of our own implementation of a cell."""
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


@_bed.plant("definition", STEPS)
def recurrent_matrix_that_starts_at_zero(patch):
    honest = Cells.__init__

    def init(self, *given):
        honest(self, *given)
        self.recurrent = parameter(*self.recurrent.shape)

    patch.setattr(Cells, "__init__", init)


@_bed.plant("definition", ANY)
def clamped_output(patch):
    """The state passed from token to token is correct."""
    change_output(patch, lambda y, state: (y.clamp(-0.05, 0.05), state))


@_bed.plant("definition", ANY)
def input_added_to_the_output(patch):
    honest = Recurrence.forward

    def forward(self, x, context, state=None):
        y, after = honest(self, x, context, state)
        return y + x, after

    patch.setattr(Recurrence, "forward", forward)


@_bed.plant("definition", CLASSIFIER, TWO_WAYS)
def forget_gate_that_starts_at_zero_on_the_way_back(patch):
    honest = Recurrence.__init__

    def init(self, *given):
        honest(self, *given)
        if self.against is not None:
            self.against.input.bias = parameter(*self.against.input.bias.shape)

    patch.setattr(Recurrence, "__init__", init)


@_bed.plant(
    "causality",
    LANGUAGE_MODEL,
    MINGRU,
    also=("causal-gradient", "cache", "carried-state", "padding", "loss", "targets"),
)
def scan_one_step_ahead(patch):
    honest = mingru.linear_scan
    patch.setattr(mingru, "linear_scan", lambda *given: honest(*given).roll(-1, 2))


@_bed.plant("definition", MINGRU, also=("cache", "carried-state", "padding"))
def scan_one_step_behind(patch):
    honest = mingru.linear_scan

    def behind(keep, add, first):
        return torch.cat((first[:, :, None], honest(keep, add, first)[:, :, :-1]), 2)

    patch.setattr(mingru, "linear_scan", behind)


@_bed.plant("definition", MINGRU, rows_of(32), also=("cache", "carried-state", "padding"))
def scan_that_remembers_sixteen_steps(patch):
    def doubling(keep, add):
        for steps in (1, 2, 4, 8):
            add = add + keep * F.pad(add, (0, 0, steps, 0))[:, :, : add.shape[2]]
            keep = keep * F.pad(keep, (0, 0, steps, 0))[:, :, : add.shape[2]]
        return add

    patch.setattr(mingru, "_doubling", doubling)


@_bed.plant("definition", MINGRU)
def scan_by_a_product_that_is_divided_by(patch):
    """It works as long as gates are half open and rows are short."""

    def by_division(keep, add, first):
        through = keep.clamp(min=1e-6).log().cumsum(2).exp()
        return through * (first[:, :, None] + (add / through.clamp(min=1e-30)).cumsum(2))

    patch.setattr(mingru, "linear_scan", by_division)


@_bed.plant("moved", STEPS, trains=True, also=("gradient",))
def recurrent_matrix_without_a_gradient(patch):
    patch.setattr(WeightDropout, "forward", lambda self, x: x.detach() + 0 * x)


@_bed.plant("gradient", STEPS)
def state_cut_off_from_its_past_halfway(patch):
    """As with one `detach` too many: outputs and losses are right, but less is learnt about the past."""
    honest = Cells.forward

    def forward(self, x, first, real):
        half, last, found = max(1, x.shape[2] // 2), first, []
        for some in (slice(half), slice(half, None)) if x.shape[2] > 1 else (slice(None),):
            y, last = honest(self, x[:, :, some], first, None if real is None else real[:, :, some])
            first = last.detach()
            found.append(y)
        return torch.cat(found, 2), last

    patch.setattr(Cells, "forward", forward)


@_bed.plant("gradient", STEPS, rows_of(32))
def state_cut_off_from_its_past_behind_28_tokens(patch):
    """Few tokens are that far from the beginning of their row, so most of the gradient is right."""
    honest = Cells.forward

    def forward(self, x, first, real):
        found, last = [], first
        for start in range(0, x.shape[2], 28):
            some = slice(start, start + 28)
            y, last = honest(self, x[:, :, some], last.detach(), None if real is None else real[:, :, some])
            found.append(y)
        return torch.cat(found, 2), last

    patch.setattr(Cells, "forward", forward)


@_bed.plant("gradient", MINGRU)
def gate_without_a_gradient(patch):
    honest = mingru.linear_scan
    patch.setattr(mingru, "linear_scan", lambda keep, add, first: honest(keep.detach(), add, first))


@_bed.plant("gradients-apart", LANGUAGE_MODEL, GRU, also=("steps-beside-others",))
def reset_gate_forgotten_on_the_way_back(patch):
    honest = scan.GruCell.backward

    def backward(self, slope, kept, before, after, d_given, d_product):
        passed = honest(self, slope, kept, before, after, d_given, d_product)
        d_product.copy_(d_given)
        return passed

    patch.setattr(scan.GruCell, "backward", backward)


@_bed.plant("own-weights", CLASSIFIER, TWO_WAYS, trains=True)
def weights_shared_by_both_directions(patch):
    honest = Recurrence.__init__

    def init(self, *given):
        honest(self, *given)
        self.against = self.against and self.along

    patch.setattr(Recurrence, "__init__", init)


@_bed.plant("own-weights", SEVERAL_LAYERS)
def layers_that_start_as_copies_of_the_first(patch):
    """Like those of torch's TransformerEncoder, which are made by `deepcopy`."""
    honest = seeding._draw

    def draw(p, value, std, replica_seed, name):
        honest(p, value, std, replica_seed, re.sub(r"layers\.\d+", "layers.0", name))

    patch.setattr(seeding, "_draw", draw)


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
