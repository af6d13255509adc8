"""What a prediction depends on, for any model with an embedding, with attention or without.

For each prediction, the gradient of a number that stands for it, in the embedding of every token, and the length of
that vector: how fast the prediction changes when the token does. Rows are scaled to sum to one, so that they can be
read, and compared, like attention. (Simonyan et al. 2013, https://arxiv.org/abs/1312.6034)

Where a model predicts at every token, row i is what the prediction after token i depends on; else there is one row.
Which number stands for a prediction is the task's to say: of models that choose, the log-probability of the likeliest.
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
    """Predictions, as numbers that have gradients."""

    numbers: Float[Tensor, "P"]
    """Of each prediction, what is differentiated."""
    predicted: list[str]
    """What it says, in words."""
    sizes: list[float]
    """How much of it: a probability, a value."""
    what: str = "d log p(likeliest)"
    """What is differentiated, in words."""
    size_is: str = "probability"

    def only(self, places: Sequence[int]) -> "Explained":
        """Some of the predictions."""
        predicted, sizes = ([of[k] for k in places] for of in (self.predicted, self.sizes))
        return replace(self, numbers=self.numbers[list(places)], predicted=predicted, sizes=sizes)


def likeliest(answer: Float[Tensor, "*P C"], names: Callable[[list[int]], Sequence[str]]) -> Explained:
    """Of models that choose: which choice is likeliest, by the names of the choices."""
    found, best = answer.reshape(-1, answer.shape[-1]).log_softmax(-1).max(-1)  # [P]
    return Explained(found, list(names(best.tolist())), found.exp().tolist())


@dataclass(frozen=True, eq=False)
class Gradients:
    """In a notebook it draws itself."""

    title: str
    sentence: Sentence
    lengths: Float[Tensor, "P T"]
    """Of the gradient, for each prediction (row) and token (column)."""
    explained: Explained
    """What was predicted, for each row."""
    per_token: bool
    """Whether there is a prediction after every token, or one of the whole sentence."""
    places: Sequence[int] | None = None
    """Which of the predictions these are; None: all of them."""

    @property
    def shares(self) -> Float[Tensor, "P T"]:
        """Rows that sum to one."""
        return self.lengths / self.lengths.sum(-1, keepdim=True).clamp(min=torch.finfo(self.lengths.dtype).tiny)

    @property
    def rows(self) -> tuple[str, ...]:
        """What each row is named after: the token that is followed by the prediction, or what is predicted."""
        if not self.per_token:
            return tuple(self.explained.predicted)
        tokens = self.sentence.tokens
        return tokens if self.places is None else tuple(tokens[k] for k in self.places)

    def grid(self) -> Grid:
        panel = Panel("gradients", self.shares.numpy(), self.rows, self.sentence.tokens, ())
        return Grid(self.title, [[panel]], SHARES)

    def draw(self) -> Picture:
        how = (
            "Each row is a prediction, and shows on which tokens it depends: the length of "
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
    """`explain` makes of the model's answer, [T, …] or [C], what is differentiated; without it, the likeliest token.
    `only`: after these tokens, and not after every one, each of which takes a pass back through the model."""
    embedding = next((m for m in model.modules() if isinstance(m, Embedding)), None)
    if embedding is None:
        raise UserError(f"{title} has no embedding to take gradients in")
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
                raise UserError(f"there is no prediction {strange[0]}: they are 0 to {len(said.numbers) - 1}")
            said = said if only is None else said.only(only)
    finally:
        hook.remove()
    rows = [torch.autograd.grad(p, kept[0], retain_graph=True)[0][replica, 0].norm(dim=-1) for p in said.numbers]
    return Gradients(title, sentence, torch.stack(rows).double().cpu(), said, answer.ndim > 1, only)
