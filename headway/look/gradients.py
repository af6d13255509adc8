"""What a prediction depends on, for any model with an embedding, with attention or without.

For each prediction, the gradient of the log-probability of what the model finds likeliest, in the embedding of every
token, and the length of that vector: how fast the prediction changes when the token does. Rows are scaled to sum to
one, so that they can be read, and compared, like attention. (Simonyan et al. 2013, https://arxiv.org/abs/1312.6034)

A language model predicts once per token: row i is what the token after token i depends on. A classifier predicts once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.data.tokenizers import Tokenizer
from headway.draw.colours import SHARES
from headway.draw.picture import Grid, Panel, Picture, Table, finite
from headway.look.reading import Sentence, passes, read
from headway.nn.replicated import Embedding


@dataclass(frozen=True, eq=False)
class Gradients:
    """In a notebook it draws itself."""

    title: str
    sentence: Sentence
    lengths: Float[Tensor, "P T"]
    """Of the gradient, for each prediction (row) and token (column)."""
    predicted: list[str]
    """What was likeliest, for each row."""
    probabilities: list[float]
    """Of that."""

    @property
    def shares(self) -> Float[Tensor, "P T"]:
        """Rows that sum to one."""
        return self.lengths / self.lengths.sum(-1, keepdim=True).clamp(min=torch.finfo(self.lengths.dtype).tiny)

    @property
    def rows(self) -> tuple[str, ...]:
        """What each row is named after: the token that is followed by the prediction, or the class."""
        tokens = self.sentence.tokens
        return tokens if len(self.predicted) == len(tokens) else tuple(self.predicted)

    def grid(self) -> Grid:
        panel = Panel("gradients", self.shares.numpy(), self.rows, self.sentence.tokens, ())
        return Grid(self.title, [[panel]], SHARES)

    def draw(self) -> Picture:
        how = (
            "Each row is a prediction, and shows on which tokens it depends: the length of "
            "d log p(likeliest) / d embedding, rows scaled to sum to one."
        )
        text, warnings = self.sentence.text, self.sentence.warnings
        return Picture(f"Gradients of {self.title}", text, how, [self.grid()], warnings, self.table)

    @property
    def table(self) -> Table:
        rows = []
        for name, guess, probability, row in zip(
            self.rows, self.predicted, self.probabilities, self.shares, strict=True
        ):
            rows.append([name, guess, finite(probability), self.sentence.tokens[int(row.argmax())]])
        return Table(["after", "likeliest", "probability", "depends most on"], rows)

    def as_json(self) -> dict[str, Any]:
        rows = [
            {"predicted": guess, "probability": probability, "lengths": lengths}
            for guess, probability, lengths in zip(
                self.predicted, self.probabilities, self.lengths.tolist(), strict=True
            )
        ]
        return {"tokens": list(self.sentence.tokens), "unknown": list(self.sentence.unknown), "predictions": rows}

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()


def gradients_of(
    model: nn.Module,
    tokenizer: Tokenizer,
    text: str,
    title: str = "model",
    classes: Sequence[str] | None = None,
    replica: int = 0,
) -> Gradients:
    """`classes` are the names of what a classifier predicts; a language model predicts tokens."""
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
            logits = one.through(model)[replica, 0].float()
    finally:
        hook.remove()
    found, best = logits.reshape(-1, logits.shape[-1]).log_softmax(-1).max(-1)  # [P]
    rows = [torch.autograd.grad(p, kept[0], retain_graph=True)[0][replica, 0].norm(dim=-1) for p in found]
    chosen: list[int] = best.tolist()
    predicted = [classes[k] for k in chosen] if classes else tokenizer.pieces(chosen)
    return Gradients(title, sentence, torch.stack(rows).double().cpu(), predicted, found.exp().tolist())
