"""Gradients of predictions with respect to the input tokens, for any model with an embedding.

For each prediction, a scalar that stands for it is differentiated with respect to the embedding of every token; the
gradient norm says how much the prediction depends on the token. Rows are scaled to sum to one, so that they can be read
and compared like attention. (Simonyan et al. 2013, https://arxiv.org/abs/1312.6034)

If a model predicts at every token, row i is for the prediction after token i; else there is one row. The task defines
the scalar: for classification over tokens or classes, the log-probability of the likeliest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.data.tokenizers import Tokenizer
from headway.draw.colours import SHARES
from headway.draw.picture import Grid, Panel, Picture, PictureTable, finite
from headway.look.reading import Sentence, passes, read
from headway.nn.replicated import Embedding


@dataclass(frozen=True, eq=False)
class Explained:
    """Predictions as scalars to differentiate."""

    numbers: Float[Tensor, "P"]
    """The scalar of each prediction."""
    predicted: list[str]
    """The name of each prediction."""
    sizes: list[float]
    """Its size, such as a probability."""
    what: str = "d log p(likeliest)"
    """The name of the gradient, for captions."""
    size_is: str = "probability"

    def only(self, places: Sequence[int]) -> "Explained":
        """A subset of the predictions."""
        predicted, sizes = ([of[k] for k in places] for of in (self.predicted, self.sizes))
        return replace(self, numbers=self.numbers[list(places)], predicted=predicted, sizes=sizes)


def likeliest(answer: Float[Tensor, "*P C"], names: Callable[[list[int]], Sequence[str]]) -> Explained:
    """The likeliest choice of each prediction, named by `names`."""
    found, best = answer.reshape(-1, answer.shape[-1]).log_softmax(-1).max(-1)  # [P]
    return Explained(found, list(names(best.tolist())), found.exp().tolist())


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients of one sentence. In a notebook it draws itself."""

    title: str
    sentence: Sentence
    lengths: Float[Tensor, "P T"]
    """Gradient norms, for each prediction (row) and token (column)."""
    explained: Explained
    """The prediction of each row."""
    per_token: bool
    """Whether there is a prediction after every token, or one for the whole sentence."""
    places: Sequence[int] | None = None
    """The indices of the predictions; None = all."""

    @property
    def shares(self) -> Float[Tensor, "P T"]:
        """Gradient norms with rows scaled to sum to one."""
        return self.lengths / self.lengths.sum(-1, keepdim=True).clamp(min=torch.finfo(self.lengths.dtype).tiny)

    @property
    def rows(self) -> tuple[str, ...]:
        """Row labels: the token before the prediction, or the prediction itself."""
        if not self.per_token:
            return tuple(self.explained.predicted)
        tokens = self.sentence.tokens
        return tokens if self.places is None else tuple(tokens[k] for k in self.places)

    def grid(self) -> Grid:
        panel = Panel("gradients", self.shares.numpy(), self.rows, self.sentence.tokens, ())
        return Grid(self.title, [[panel]], SHARES)

    def draw(self) -> Picture:
        how = (
            "Each row is a prediction and shows how much it depends on each token: the norm of "
            f"{self.explained.what} / d embedding, rows scaled to sum to one."
        )
        text, warnings = self.sentence.text, self.sentence.warnings
        return Picture(f"Gradients of {self.title}", text, how, [self.grid()], warnings, self.table)

    @property
    def table(self) -> PictureTable:
        said, tokens = self.explained, self.sentence.tokens
        told = zip(self.rows, said.predicted, said.sizes, self.shares, strict=True)
        rows = [[name, guess, finite(size), tokens[int(row.argmax())]] for name, guess, size, row in told]
        return PictureTable(["after", "likeliest", said.size_is, "depends most on"], rows)

    def as_json(self) -> dict[str, Any]:
        said = self.explained
        told = zip(said.predicted, said.sizes, self.lengths.tolist(), strict=True)
        rows = [{"predicted": guess, said.size_is: size, "lengths": lengths} for guess, size, lengths in told]
        return {"tokens": list(self.sentence.tokens), "unknown": list(self.sentence.unknown), "predictions": rows}

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()


def gradients_of(
    model: nn.Module,
    tokenizer: Tokenizer,
    text: str,
    title: str = "model",
    explain: Callable[[Tensor], Explained] | None = None,
    replica: int = 0,
    only: Sequence[int] | None = None,
) -> Gradients:
    """The gradients for one text. `explain` turns the model's output, [T, …] or [C], into scalars; default: the
    log-probability of the likeliest token. `only`: these predictions instead of all, since each needs a backward
    pass."""
    embedding = next((m for m in model.modules() if isinstance(m, Embedding)), None)
    if embedding is None:
        raise UserError(f"{title} has no embedding, so gradients cannot be taken at its input")
    sentence = read(tokenizer, text)
    kept: list[Tensor] = []

    def keep(module: nn.Module, given: Any, out: Tensor) -> Tensor:
        kept.append(out.detach().requires_grad_())
        return kept[-1]

    hook = embedding.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            (one,) = passes(model, [sentence], padding=0)
            answer = one.through(model)[replica, 0].float()
            said = explain(answer) if explain else likeliest(answer, tokenizer.pieces)
            if strange := [k for k in only or () if not 0 <= k < len(said.numbers)]:
                raise UserError(f"there is no prediction {strange[0]}: the numbers are 0 to {len(said.numbers) - 1}")
            said = said if only is None else said.only(only)
    finally:
        hook.remove()
    rows = [torch.autograd.grad(p, kept[0], retain_graph=True)[0][replica, 0].norm(dim=-1) for p in said.numbers]
    return Gradients(title, sentence, torch.stack(rows).double().cpu(), said, answer.ndim > 1, only)
