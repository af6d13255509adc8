"""An attention layer of `headway.nn` with weights set by hand and a table of biases by distance.

`Construction` is such a layer together with a direct computation of the same operation, against which it is checked.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.core import random
from headway.core.errors import UserError
from headway.nn.attention import Attention, AttentionSpec
from headway.nn.backends import Needs
from headway.nn.context import Context
from headway.nn.masks import Everything
from headway.nn.positions import Positions
from headway.nn.taps import watch
from headway.solve.derivation import at_most, number

MAX_ZEROS = 4096
"""Attention computes all pairs, which would not fit into memory with many more slots than this."""

Stretch = Float[Tensor, "T c"]
"""A sequence of T tokens with c channels."""


class RelativeBias(Positions):
    """A bias per head and distance j − i, starting at `first`; −∞ outside the table."""

    has_bias = True
    table: Tensor

    def __init__(self, table: Float[Tensor, "H W"], first: int):
        super().__init__()
        self.first = first
        self.register_buffer("table", table)

    def bias(self, replica, head, i, j):
        place = j - i - self.first
        width = self.table.shape[1]
        return torch.where((place >= 0) & (place < width), self.table[head, place.clamp(0, width - 1)], -torch.inf)


@dataclass(frozen=True, eq=False)
class Construction:
    """A layer that computes a known operation. Call it with [T, channels]."""

    what: str
    channels: int
    layer: Attention
    positions: RelativeBias
    zeros: tuple[int, int]
    """How many zero vectors are added before and after the sequence for the layer to attend to."""
    weights: dict[str, str]
    """The projections, as text."""
    bound: float
    """The largest difference from the direct computation for any input; 0 = only rounding."""
    direct: Callable[[Stretch], Stretch]
    """The operation by its definition, without attention."""
    reasons: list[str]

    def __post_init__(self):
        if sum(self.zeros) > MAX_ZEROS:
            raise UserError(
                f"{self.what} needs {sum(self.zeros):,} zero vectors beyond the ends to attend to; at most "
                f"{MAX_ZEROS:,} are supported"
            )

    @torch.no_grad()
    def __call__(self, x: Stretch) -> Stretch:
        if x.ndim != 2 or x.shape[1] != self.channels or not len(x):
            raise UserError(f"the input has the shape {list(x.shape)}; expected [tokens, {self.channels}]")
        return self._seen(x.double()).to(x.dtype)

    def attention(self, x: Stretch) -> Float[Tensor, "H T K"]:
        """The attention weights for this sequence. The keys include the zero vectors before and after it."""
        with watch(self.layer, "weights") as seen:
            self(x)
        before = self.zeros[0]
        return seen["weights"][0, 0, :, before : before + len(x)]

    def worst_error(self, trials: int = 20, seed: int = 0) -> float:
        """The largest difference from the direct computation on random inputs of 1 to 24 tokens and various scales."""
        errors = []
        for trial in range(trials):
            drawn = random.generator(seed, "solve", self.what, trial)
            length = int(torch.randint(1, 25, (), generator=drawn))
            x = torch.randn(length, self.channels, generator=drawn, dtype=torch.float64) * 10.0 ** (trial % 4 - 2)
            size = max(1.0, float(x.abs().max())) if not self.bound else 1.0
            errors.append((self(x) - self.direct(x)).abs().max() / size)
        return float(torch.stack(errors).max())  # propagates NaN, which Python's max would hide

    @property
    def derivation(self) -> list[str]:
        settings = ", ".join(f"{name} = {value}" for name, value in self.weights.items())
        found = f"it differs from the direct computation by {at_most(self.worst_error())}"
        return [
            f"{self.what}, {self.channels} channel{'s' if self.channels > 1 else ''}: {settings}.",
            *self.reasons,
            f"Checked on 20 random inputs: {found}{f' (the bound is {number(self.bound)})' if self.bound else ''}.",
        ]

    def as_json(self) -> dict[str, Any]:
        table = [[None if math.isinf(b) else b for b in row] for row in self.positions.table.tolist()]
        return {
            "what": self.what,
            "channels": self.channels,
            "heads": len(table),
            "width": self.layer.output.weight.shape[-1],
            "weights": self.weights,
            "biases": table,  # null = −∞: no attention
            "first_distance": self.positions.first,
            "zeros": list(self.zeros),
            "bound": self.bound,
            "worst_error": self.worst_error(),
            "derivation": self.derivation,
        }

    def _seen(self, x: Stretch) -> Stretch:
        before, after = self.zeros
        width = self.layer.output.weight.shape[-1]
        padded = nn.functional.pad(x, (0, width - self.channels, before, after))
        slots = torch.arange(len(padded))
        context = Context((1, 1), self.positions, Everything(), slots, slots)
        return self.layer(padded[None, None], context)[0][0, 0, before : before + len(x), : self.channels]


@torch.no_grad()
def attention_layer(
    width: int,
    heads: int,
    values: Tensor,
    output: Tensor | None = None,
    queries: Tensor | None = None,
    query_bias: float = 0.0,
    keys: Tensor | None = None,
) -> Attention:
    """A layer in float64 with W_V, W_O (default: identity), W_Q and W_K (default: 0), and a query bias.

    The layer divides scores by the square root of the head width; constructions with queries have heads of width 1.
    """
    layer = AttentionSpec(heads=heads, backend="plain").build(1, width, 1.0, Needs()).double()
    weights = dict(layer.named_parameters())
    for k, matrix in enumerate((queries, keys, values)):
        rows = slice(k * width, (k + 1) * width)
        weights["project.together.weight"][0, rows] = 0.0 if matrix is None else matrix
    weights["project.together.bias"][0, :width] = query_bias
    weights["output.weight"][0] = torch.eye(width) if output is None else output
    return layer
