"""How audits query a kind of model: what each task tells them about its models."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Module

from headway.audit.audit import Audit, DoesNotApply
from headway.core import random as noise
from headway.nn.replicated import Dropout


class Probing(ABC):
    """How a kind of model is asked, and what is known of its answers beforehand. Every task gives one; here is what
    holds of models that read tokens."""

    per_token: ClassVar[bool]
    """Whether there is an answer at every token, [R, B, T, …], or one for each row, [R, B, …]."""
    looks_ahead: ClassVar[bool]
    """Whether an answer may depend on tokens that come later."""
    by_heart: ClassVar[int] = 64
    """Tokens of each row, where four rows are to be learnt by heart in few steps."""
    audits: ClassVar[Sequence[Audit]] = ()
    """Those of models of this kind alone."""
    claimed: ClassVar[list[Audit]] = []
    """The audits that any kind has for itself; all others are of every model."""
    one_noise: ClassVar[bool] = True
    """Whether dropout draws the same where the model answers a batch and where it is trained on it."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        Probing.claimed += cls.audits

    def answer(self, model: Any, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Everything the model says of rows [R, B, T]: of one replica, or of all members of a population at once."""
        given = {} if padding_mask is None else {"padding_mask": padding_mask}
        found = model(ids, **given)
        return found[0] if isinstance(found, tuple) else found

    def run(self, model: Any, ids: Tensor, padding_mask: Tensor | None = None) -> None:
        """Let rows flow through the layers, for those who watch what flows there and need no answer."""
        self.answer(model, ids, padding_mask)

    def run_whole(self, model: Any, ids: Tensor, padding_mask: Tensor | None, batch: Any) -> None:
        """The same, and whatever else of a batch of training flows through parts that rows of tokens do not reach."""
        self.run(model, ids, padding_mask)

    def answer_batch(self, model: Any, batch: Any) -> Tensor:
        """Everything the model says of a batch of training."""
        return self.answer(model, batch.inputs, getattr(batch, "padding_mask", None))

    def apart(self, model: Any) -> Sequence[Module]:
        """The parts of the model that look at another sequence than the one that is probed."""
        return ()

    def go_on(self, model: Any, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The answers to the next piece of rows, and the state to go on from."""
        raise DoesNotApply("such a model reads everything at once")

    def carry_on(self, model: Any, ids: Tensor, carried: Any) -> tuple[Tensor, Any]:
        """The answers to rows that continue those which left this state, as batches of training follow each other; and
        what they leave for the next."""
        raise DoesNotApply("such a model carries nothing from one batch to the next")

    def as_trained(self, model: Any) -> None:
        """Into the mode of training; without dropout, where an answer would have another than the loss."""
        model.train()
        for place in model.modules():
            if isinstance(place, Dropout) and not self.one_noise:
                place.eval()

    @abstractmethod
    def loss(self, answers: Tensor, batch: Any) -> Tensor:
        """Of these answers to a batch, by its plain definition."""

    def loss_by(self, model: Any, answers: Tensor, batch: Any) -> Tensor:
        """The same, where the model has a say in what its loss is."""
        return self.loss(answers, batch)

    def lowered(self, model: Any, answers: Tensor, batch: Any, before: Any = None) -> Tensor:
        """What training should lower, by its plain definition, where that is not the loss itself; `before`: what was
        carried to the batch."""
        return self.loss_by(model, answers, batch)

    def clueless(self, model: Any) -> tuple[float, str]:
        """The loss of a model that knows nothing, and what that is in words."""
        raise DoesNotApply("nobody can say what the loss of such a model is before it is trained")

    def clueless_of(self, model: Any, batch: Any) -> tuple[float, str]:
        """The same of this batch, where it hangs on what is in it."""
        return self.clueless(model)

    def draw(self, model: Any, purpose: str, rows: int, length: int) -> Tensor:
        """Rows [1, rows, T] of random tokens, the same every time."""
        keys = noise.stream_keys([0], f"audit {purpose}")
        return noise.integers(keys, 0, model.vocabulary, rows * length).view(1, rows, -1)

    def exchanged(self, model: Any, ids: Tensor, where: Tensor, by: Tensor) -> Tensor:
        """Other tokens at these places, as random numbers say: none stays what it is."""
        if model.vocabulary == 1:
            raise DoesNotApply("there is only one kind of token, and nothing to exchange it for")
        step = 1 + by % (model.vocabulary - 1)
        return torch.where(where, (ids + step) % model.vocabulary, ids)

    def excerpt(self, batch: Any, rows: int, tokens: int) -> Any:
        """Of a batch of one replica, so many rows and the beginnings of them."""
        cut = (slice(1), slice(rows), slice(tokens))
        parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return replace(batch, **{n: p[cut[: p.ndim]] for n, p in parts.items() if isinstance(p, Tensor)})
