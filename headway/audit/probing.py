"""How audits query a kind of model; every task defines this for its models."""

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
    """How a kind of model is queried, and what is known of its outputs in advance. Every task has its own subclass; the
    methods here are for models that read tokens."""

    per_token: ClassVar[bool]
    """Whether there is an output at every token, [R, B, T, …], or one for each row, [R, B, …]."""
    looks_ahead: ClassVar[bool]
    """Whether an output may depend on later tokens."""
    by_heart: ClassVar[int] = 64
    """Tokens of each of the four rows that `one-batch` tries to memorise in a few steps."""
    audits: ClassVar[Sequence[Audit]] = ()
    """Audits of this kind of model only."""
    claimed: ClassVar[list[Audit]] = []
    """The audits that belong to one kind of model; all others apply to every model."""
    one_noise: ClassVar[bool] = True
    """Whether dropout draws the same mask where the model answers a batch and where its loss is computed."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        Probing.claimed += cls.audits

    def answer(self, model: Any, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """All outputs for rows [R, B, T], of one replica or of all replicas of a population at once."""
        given = {} if padding_mask is None else {"padding_mask": padding_mask}
        found = model(ids, **given)
        return found[0] if isinstance(found, tuple) else found

    def run(self, model: Any, ids: Tensor, padding_mask: Tensor | None = None) -> None:
        """Run the forward pass for its side effects on hooks and taps; the output is not used."""
        self.answer(model, ids, padding_mask)

    def run_whole(self, model: Any, ids: Tensor, padding_mask: Tensor | None, batch: Any) -> None:
        """The same, also for parts of the model that read something else than rows of tokens, from a training batch."""
        self.run(model, ids, padding_mask)

    def answer_batch(self, model: Any, batch: Any) -> Tensor:
        """All outputs for a training batch."""
        return self.answer(model, batch.inputs, getattr(batch, "padding_mask", None))

    def apart(self, model: Any) -> Sequence[Module]:
        """The modules that process another sequence than the one that is probed, such as an encoder's."""
        return ()

    def go_on(self, model: Any, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The outputs for the next piece of the rows, and the state to continue from, using the KV cache."""
        raise DoesNotApply("this kind of model reads its whole input at once")

    def carry_on(self, model: Any, ids: Tensor, carried: Any) -> tuple[Tensor, Any]:
        """The outputs for rows that continue those that left this state, as in consecutive training batches, and the
        state they leave in turn."""
        raise DoesNotApply("this kind of model carries no state from batch to batch")

    def as_trained(self, model: Any) -> None:
        """Set training mode; without dropout where the outputs would have another dropout mask than the loss."""
        model.train()
        for place in model.modules():
            if isinstance(place, Dropout) and not self.one_noise:
                place.eval()

    @abstractmethod
    def loss(self, answers: Tensor, batch: Any) -> Tensor:
        """The loss of these outputs on a batch, by its plain definition."""

    def loss_by(self, model: Any, answers: Tensor, batch: Any) -> Tensor:
        """The same, where the loss also depends on the model."""
        return self.loss(answers, batch)

    def lowered(self, model: Any, answers: Tensor, batch: Any, before: Any = None) -> Tensor:
        """What training should minimise, by its plain definition, where that is more than the loss. `before` is the
        state carried into the batch."""
        return self.loss_by(model, answers, batch)

    def clueless(self, model: Any) -> tuple[float, str]:
        """The loss of a model that knows nothing, and a phrase that says whose loss it is."""
        raise DoesNotApply("the loss of such a model before training is not known in advance")

    def clueless_of(self, model: Any, batch: Any) -> tuple[float, str]:
        """The same for this batch, where it depends on the batch."""
        return self.clueless(model)

    def draw(self, model: Any, purpose: str, rows: int, length: int) -> Tensor:
        """Rows [1, rows, T] of random tokens, the same every time."""
        keys = noise.stream_keys([0], f"audit {purpose}")
        return noise.integers(keys, 0, model.vocabulary, rows * length).view(1, rows, -1)

    def exchanged(self, model: Any, ids: Tensor, where: Tensor, by: Tensor) -> Tensor:
        """These tokens replaced by others, chosen by the random numbers `by`; none stays the same."""
        if model.vocabulary == 1:
            raise DoesNotApply("the vocabulary has only one token, so there is nothing to exchange it for")
        step = 1 + by % (model.vocabulary - 1)
        return torch.where(where, (ids + step) % model.vocabulary, ids)

    def excerpt(self, batch: Any, rows: int, tokens: int) -> Any:
        """The first rows of a batch of one replica, cut to so many tokens."""
        cut = (slice(1), slice(rows), slice(tokens))
        parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return replace(batch, **{n: p[cut[: p.ndim]] for n, p in parts.items() if isinstance(p, Tensor)})
