"""Other kinds of dropout: locked over time, of whole words, of weights. Any model can use them.

Like `replicated.Dropout`, each mask depends only on (seed, module, step, index), and each replica has its own rate. So
populations and resumed runs see the same noise as a replica that trains alone. AWD-LSTM is regularised with these
(https://arxiv.org/abs/1708.02182).
"""

from typing import Annotated, Literal

from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from headway.core.spec import OR_BY_NAME, Spec
from headway.nn.replicated import Dropout


class NoiseSpec(Spec):
    """The kind of dropout, and the rates that differ from `dropout`."""

    kind: Literal["each", "locked"] = "each"
    """each: every element independently. locked: one mask per row, the same for all its tokens (variational dropout,
    https://arxiv.org/abs/1512.05287)."""
    words: float = Field(default=0.0, ge=0, lt=1)
    """Word dropout: the fraction of the vocabulary whose embeddings are zero in a step."""
    input: float | None = Field(default=None, ge=0, lt=1)
    """The rate of the embedded tokens; null = `dropout`."""
    output: float | None = Field(default=None, ge=0, lt=1)
    """The rate of the last layer's output; null = `dropout` in models without norms, else 0."""

    def build(self, replicas: int, rate: float, own: float | None = None) -> Dropout:
        """A dropout module; `own` is its rate if that differs from the model's."""
        made = LockedDropout if self.kind == "locked" else Dropout
        return made(replicas, rate if own is None else own, fixed=own is not None)


Noise = Annotated[NoiseSpec, OR_BY_NAME]
ORDINARY = NoiseSpec()


class LockedDropout(Dropout):
    """One mask for all tokens of a row."""

    def forward(self, x: Float[Tensor, "R B T D"]) -> Float[Tensor, "R B T D"]:
        if not self.drops:
            return x
        R, B, _, D = x.shape
        return x * self.factors((R, B, 1, D), x.dtype, self.clock.first_row * D)


class WordDropout(Dropout):
    """Drop whole words of the vocabulary, at all their occurrences in the batch."""

    def __init__(self, replicas: int, vocabulary: int, rate: float):
        super().__init__(replicas, rate, fixed=True)
        self.vocabulary = vocabulary

    def forward(self, x: Float[Tensor, "R B T D"], ids: Int[Tensor, "R B T"]) -> Float[Tensor, "R B T D"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self.drops:
            return x
        factors = self.factors((len(x), self.vocabulary), x.dtype)
        return x * factors.gather(1, ids.flatten(1)).view(ids.shape)[..., None]


class WeightDropout(Dropout):
    """Dropout of a weight matrix (DropConnect, http://proceedings.mlr.press/v28/wan13), one mask per step."""

    def __init__(self, replicas: int, rate: float):
        super().__init__(replicas, rate, fixed=True)

    def mask(self, shape):
        return super().mask(shape)._replace(first=0)  # whichever rows of the batch this pass has
