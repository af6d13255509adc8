"""Recurrences: RNN, GRU and LSTM, where all information about earlier tokens is in a hidden state.

    y_t, state_t = cell(x_t, state_{t-1})

They are computed step by step (`scan.py`; with a single replica, by library kernels: oneDNN's or ATen's on a CPU,
cuDNN's on a GPU). Matrices start with the standard deviation of torch's own modules, 1/√(3·hidden). minGRU, whose steps
are computed in parallel, is in `mingru.py`; it is the same mixer with another `Direction`.

Padding leaves the state unchanged: tokens get the same vectors with any amount of padding, and the final state is the
one after the last token. The state is float32 in every precision.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.core.spec import Problem
from headway.nn.backends import Needs
from headway.nn.context import Context
from headway.nn.dropout import WeightDropout
from headway.nn.mixer import Mixer, MixerSpec, check_parts, check_rows
from headway.nn.replicated import Linear, parameter
from headway.nn.scan import CELLS, scan
from headway.nn.taps import Display, Tap
from headway.nn.trainable import Carried

TokenMask = Bool[Tensor, "R B T"]
STATE_PARTS = ("hidden", "cell")
"""The parts of a state; only an LSTM has the second."""
BACKWARD_SUFFIX = "_against"
"""The suffix of the state's parts in the backward direction."""


class RecurrenceSpec(MixerSpec):
    """A recurrence: a hidden state that is updated token by token."""

    hidden: int | None = Field(default=None, ge=1)
    """Hidden units per direction; null = the width (half of it if bidirectional). If the output's size differs from the
    width, a linear map follows."""
    bias: bool = True
    """Whether the gates have a bias."""
    bidirectional: bool = False
    """Whether the row is also read backwards, with a second set of weights: for encoders only."""
    weight_dropout: float = Field(default=0.0, ge=0, lt=1)
    """The DropConnect rate of the hidden-to-hidden matrix; one mask is used for all tokens of a step."""

    @property
    def cell(self) -> str:
        """The name of its cell in `scan.CELLS`."""
        return self.kind

    def build(self, replicas: int, width: int, out_gain: float, needs: Needs) -> "Recurrence":
        return Recurrence(self, replicas, width, out_gain)

    def build_direction(self, replicas: int, width: int) -> "Direction":
        return Cells(self, replicas, width, self.hidden_units(width))

    def bias_start(self, hidden: int) -> Float[Tensor, "GH"]:
        """The initial biases of the gates."""
        return torch.zeros(CELLS[self.cell].gates * hidden)

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def hidden_units(self, width: int) -> int:
        return self.hidden or max(1, width // self.directions)

    def matrices(self, width: int) -> int:
        """The number of weights in the matrices of one direction."""
        hidden = self.hidden_units(width)
        return CELLS[self.cell].gates * hidden * (width + hidden)

    def parts(self) -> tuple[str, ...]:
        """The names of the state's parts in one direction."""
        return STATE_PARTS[: CELLS[self.cell].states]

    def state_sizes(self, width: int) -> dict[str, int]:
        names = [name + ending for ending in ("", BACKWARD_SUFFIX)[: self.directions] for name in self.parts()]
        return dict.fromkeys(names, self.hidden_units(width))

    @property
    def remembers(self) -> float:
        return 0.0 if self.bidirectional else math.inf

    @property
    def why_not_causal(self) -> str | None:
        return f"a bidirectional {self.kind} also reads the row backwards" if self.bidirectional else None

    @property
    def only_encodes(self) -> bool:
        return self.bidirectional

    @property
    def looks_ahead(self) -> bool:
        return self.bidirectional

    def flops_per_token(self, width: int, segment: int) -> int:
        out = self.directions * self.hidden_units(width)
        return 2 * (self.directions * self.matrices(width) + (0 if out == width else out * width))

    def largest(self, width: int, length: int) -> int:
        return 6 * self.hidden_units(width)  # matrix products, and what is saved for the gradient

    def kept(self, width: int) -> int:
        cell = CELLS[self.cell]
        return self.directions * self.hidden_units(width) * (cell.states + cell.keeps)


class RnnSpec(RecurrenceSpec):
    """The plain recurrent net: h' = φ(W x + U h + b). https://doi.org/10.1207/s15516709cog1402_1"""

    kind: Literal["rnn"] = "rnn"
    nonlinearity: Literal["tanh", "relu", "sigmoid"] = "tanh"
    """φ"""

    @property
    def cell(self) -> str:
        return f"rnn-{self.nonlinearity}"


class GruSpec(RecurrenceSpec):
    """Gated recurrent units: one gate resets, one updates. https://arxiv.org/abs/1406.1078, in cuDNN's form"""

    kind: Literal["gru"] = "gru"


class LstmSpec(RecurrenceSpec):
    """Long short-term memory, with a forget gate. https://doi.org/10.1162/089976600300015015"""

    kind: Literal["lstm"] = "lstm"
    forget_bias: float = 1.0
    """The initial bias of the forget gate; above 0, the cell starts out remembering.
    http://proceedings.mlr.press/v37/jozefowicz15"""

    def bias_start(self, hidden: int) -> Float[Tensor, "GH"]:
        start = torch.zeros(4, hidden)
        start[1] = self.forget_bias
        return start.flatten()

    def problems(self) -> Iterator[Problem]:
        if not self.bias and self.forget_bias != type(self).model_fields["forget_bias"].default:
            yield Problem(("bias", "forget_bias"), "without biases the forget gate has none either")


class Direction(nn.Module):
    """One direction of reading, with its own weights."""

    parts: tuple[str, ...] = STATE_PARTS[:1]
    """The names of the state's parts."""

    def forward(
        self, x: Float[Tensor, "R B T D"], first: Float[Tensor, "S R B H"], real: TokenMask | None
    ) -> tuple[Float[Tensor, "R B T H"], Float[Tensor, "S R B H"]]:
        """The hidden state at every token, and the state after the last."""
        raise NotImplementedError

    def step_bound(self) -> Float[Tensor, "R"] | None:
        """See `Mixer.step_bound`."""
        return None


class Cells(Direction):
    """RNN, GRU or LSTM, computed step by step."""

    def __init__(self, spec: RecurrenceSpec, replicas: int, width: int, hidden: int):
        super().__init__()
        cell = CELLS[spec.cell]
        self.cell, self.parts = spec.cell, spec.parts()
        std = 1 / math.sqrt(3 * hidden)
        self.input = Linear(replicas, width, cell.gates * hidden, bias=False, std=std)
        if spec.bias:
            self.input.bias = parameter(replicas, cell.gates * hidden, value=spec.bias_start(hidden))
        self.recurrent = parameter(replicas, cell.gates * hidden, hidden, std=std)
        self.reset_bias = parameter(replicas, hidden) if spec.bias and spec.cell == "gru" else None
        self.drop = WeightDropout(replicas, spec.weight_dropout)
        self.gates, self.cells = Display(), Display()  # library kernels do not expose them

    def forward(self, x, first, real):
        recurrent = self.drop(self.recurrent)
        if self._library_can(x, real):
            return self._by_library(x, recurrent, first)
        products = self.input(x)
        states, kept = scan(self.cell, products, recurrent, self.reset_bias, first, real)
        if kept.shape[-1]:
            self.gates(kept)
        if len(self.parts) > 1:
            self.cells(states[1, :, :, 1:])
        return states[0, :, :, 1:].to(products.dtype), states[:, :, :, -1]

    def step_bound(self):
        steepest = CELLS[self.cell].steepest
        return None if steepest is None else steepest * torch.linalg.matrix_norm(self.recurrent, ord=2)

    def _library_can(self, x: Tensor, real: TokenMask | None) -> bool:
        watched = self.gates.is_watched or self.cells.is_watched
        alone = len(x) == 1 and real is None and not watched and self.cell in _LIBRARY
        if not alone or self.recurrent.dtype != torch.float32 or torch.compiler.is_compiling():  # would unroll it
            return False
        # Under autocast our own GPU kernels are used; on a CPU the library's float32 is the fastest.
        return not x.is_cuda or not torch.is_autocast_enabled("cuda")

    def _by_library(self, x: Tensor, recurrent: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        weights, bias = [self.input.weight[0], recurrent[0]], self.input.bias
        if bias is not None:  # the library takes two biases; only a GRU needs a part of the second
            other = torch.zeros_like(bias[0])
            if self.reset_bias is not None:
                other = torch.cat((other[: -first.shape[-1]], self.reset_bias[0]))
            weights += [bias[0], other]
        state = first.unbind() if len(first) > 1 else first[0]  # [1, B, H] each: the axis of layers is that of replicas
        if x.is_cuda:
            weights = _contiguous(weights)
            # With TF32 cuDNN rounds factors to ten bits, and a replica alone would differ from one in a population.
            torch.backends.cudnn.allow_tf32 = False
        keeps = self.training or torch.is_grad_enabled()  # cuDNN then saves what its backward pass needs
        with torch.autocast(x.device.type, enabled=False):
            y, *last = _LIBRARY[self.cell](x[0].float(), state, weights, bias is not None, 1, 0.0, keeps, False, True)
        return y[None], torch.stack(last)


def _contiguous(weights: list[Tensor]) -> list[Tensor]:
    """The same weights, contiguous in memory one after another; otherwise cuDNN copies them itself, with a warning."""
    flat = torch.cat([weight.flatten() for weight in weights])
    pieces = flat.split([weight.numel() for weight in weights])
    return [piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=True)]


_LIBRARY = {"rnn-tanh": torch.rnn_tanh, "rnn-relu": torch.rnn_relu, "gru": torch.gru, "lstm": torch.lstm}


class Recurrence(Mixer):
    knows_order = True

    def __init__(self, spec: RecurrenceSpec, replicas: int, width: int, out_gain: float):
        super().__init__()
        self.called = spec.kind  # in the names of taps
        self.spec, self.units = spec, spec.hidden_units(width)
        self.along = spec.build_direction(replicas, width)
        self.against = spec.build_direction(replicas, width) if spec.bidirectional else None
        out = spec.directions * self.units
        self.output = None if out == width else Linear(replicas, out, width, bias=spec.bias, gain=out_gain)
        self.hidden = Tap()
        self.advances = None if self.against is None else "the direction that reads forwards"

    def forward(
        self, x: Float[Tensor, "R B T D"], context: Context, state: Carried | None = None
    ) -> tuple[Float[Tensor, "R B T D"], Carried]:
        # A bidirectional recurrence reads whole rows, so it always starts from an empty state.
        y, last = self.along(x, self._first(x, state if self.against is None else None), context.padding_mask)
        after = dict(zip(self.along.parts, last.unbind(), strict=True))
        if self.against is not None:
            real = None if context.padding_mask is None else context.padding_mask.flip(2)
            back, last = self.against(x.flip(2), self._first(x, None), real)
            y = torch.cat((y, back.flip(2)), -1)
            after |= {
                name + BACKWARD_SUFFIX: part for name, part in zip(self.against.parts, last.unbind(), strict=True)
            }
        y = self.hidden(y)
        return y if self.output is None else self.output(y), after

    def advance(self, x: Float[Tensor, "R B T D"], context: Context, state: Carried | None = None) -> Carried:
        _, last = self.along(x, self._first(x, state), context.padding_mask)
        return dict(zip(self.along.parts, last.unbind(), strict=True))

    def summary(self, state: Carried) -> Float[Tensor, "R B N"]:
        return torch.cat(list(state.values()), -1)

    def carried(self, state: Carried | None) -> Carried:
        if self.against is not None:  # the backward direction cannot be continued
            return {}
        return {name: part.detach() for name, part in (state or {}).items()}

    def going_on_from(self, carried: Carried) -> Carried | None:
        check_parts(self.spec.kind, carried, self.along.parts)
        return carried or None

    def step_bound(self) -> Float[Tensor, "R"] | None:
        return self.along.step_bound()

    def _first(self, x: Tensor, state: Carried | None) -> Float[Tensor, "S R B H"]:
        parts, (R, B) = self.along.parts, x.shape[:2]
        if not state:
            dtype = torch.promote_types(x.dtype, torch.float32)
            return torch.zeros(len(parts), R, B, self.units, dtype=dtype, device=x.device)
        for part in parts:
            check_rows(self.spec.kind, state[part].shape, x.shape)
            if (units := state[part].shape[-1]) != self.units:
                raise UserError(f"the state of this {self.spec.kind} has {units} units, its cells have {self.units}")
        return torch.stack([state[part] for part in parts])
