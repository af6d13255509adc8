"""A decoder language model: embedding, positions, layers, norm, logits.

ids     [R, B, T]
x       [R, B, T, D]   through `layers`
logits  [R, B, T, V]   the output matrix is the embedding table if `tied`
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.core.spec import Problem
from headway.models.backbone import Backbone, BackboneSpec
from headway.models.start import BorrowedBody
from headway.models.state import ModelState
from headway.nn.cross_entropy import mean_cross_entropy
from headway.nn.masks import Causal
from headway.nn.penalty import NO_PENALTY, Penalty
from headway.nn.replicated import Linear, parameter
from headway.nn.seeding import seed
from headway.nn.taps import Tap
from headway.nn.trainable import Carried


class LanguageModelSpec(BackboneSpec):
    """A decoder that predicts the next token."""

    reads: ClassVar[str] = "text"

    kind: Literal["language-model"] = "language-model"
    tied: bool = True
    """Whether the output matrix is the embedding table (weight tying, https://arxiv.org/abs/1608.05859)."""
    output_bias: bool = False
    """Whether the output layer has a bias."""

    penalty: Penalty = NO_PENALTY
    """Activation regularisation, added to the training loss: penalties on the size of the last layer's output, and on
    its change from token to token."""

    body: BorrowedBody | None = None
    """A decoder of another architecture, run by transformers; `headway import` sets it. null = Headway's own layers."""

    added: ClassVar[frozenset[str]] = BackboneSpec.added | {"output_bias", "penalty", "body"}

    @property
    def harder_in_training(self) -> bool:
        return super().harder_in_training or self.penalty.counts

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        ahead = {n: one for n, one in enumerate(self.mixers) if one.only_encodes}
        if ahead:
            numbers, kinds = ", ".join(map(str, ahead)), ", ".join(dict.fromkeys(one.kind for one in ahead.values()))
            reason = f"a language model must not see later tokens, but layer {numbers} ({kinds}) reads them"
            yield Problem(("mixer",), f"{reason}; bidirectional mixers are for encoders")
        if self.penalty.counts and self.body is not None:
            yield Problem(("penalty",), "models run by transformers have no activation regularisation; leave it out")

    def warnings(self) -> Iterator[str]:
        yield from super().warnings()
        reasons = dict.fromkeys(mixer.why_not_causal for mixer in self.mixers)
        yield from (f"{why}, so the perplexity is not valid" for why in reasons if why)

    def forward_flops_per_token(self, vocabulary: int, segment: int) -> int:
        """FLOPs for one token of a segment of this length, in one replica."""
        return self.flops_per_token(segment) + 2 * self.width * vocabulary

    def build(self, vocabulary: int, seeds: Sequence[int] = (0,), device: str = "cpu") -> "LanguageModel":
        """A model with one replica per seed, ready to train."""
        if self.body is None:
            model = LanguageModel(self, vocabulary, len(seeds), device)
        else:
            from headway.models.borrowed.language_model import BorrowedLanguageModel

            model = BorrowedLanguageModel(self, vocabulary, len(seeds), device)
        seed(model, seeds, device)
        return model


class LanguageModel(Backbone):
    multiplies_out: ClassVar[bool] = True
    """Whether the logits are just the last vectors times the output matrix, plus a bias if there is one."""

    def __init__(self, spec: LanguageModelSpec, vocabulary: int, replicas: int, device: str = "cpu"):
        super().__init__(spec, vocabulary, replicas, device, Causal())
        self.spec = spec
        self.norm.for_products = True  # pyright: ignore (only the output matrix reads it)
        self.output = None if spec.tied else Linear(replicas, spec.width, vocabulary, bias=False, gain=0.2)
        self.output_bias = parameter(replicas, vocabulary) if spec.output_bias else None
        self.logits = Tap()

    @property
    def output_table(self) -> Tensor | None:
        return self.embedding.weight if self.output is None else None

    @property
    def why_no_cache(self) -> str | None:
        """Why sampling must recompute the whole sequence for every token, or None."""
        return next((mixer.why_no_cache for mixer in self.mixers if mixer.why_no_cache), None)

    def forward(
        self,
        ids: Int[Tensor, "R B T"],
        state: ModelState | None = None,
        padding_mask: Bool[Tensor, "R B T"] | None = None,
    ) -> tuple[Float[Tensor, "R B T V"], ModelState]:
        """The logits of the next token after each token, and the new state."""
        x, state = self.hidden(ids, state, padding_mask)
        logits = self.embedding.logits(x) if self.output is None else self.output(x)
        if self.output_bias is not None:
            logits = logits + self.output_bias[:, None, None]
        return self.logits(logits), state

    def go_on(self, ids: Int[Tensor, "R B T"], state: ModelState | None) -> tuple[Float[Tensor, "R B T V"], ModelState]:
        """The same, under the name that decoding uses for all models."""
        return self(ids, state)

    def losses(self, inputs: Int[Tensor, "R B T"], targets: Int[Tensor, "R B T"]) -> Float[Tensor, "R B T"]:
        """The loss of every target token, in nats."""
        return self.losses_going_on(inputs, targets, None)[0]

    def losses_going_on(
        self, inputs: Int[Tensor, "R B T"], targets: Int[Tensor, "R B T"], state: Carried | None
    ) -> tuple[Float[Tensor, "R B T"], Carried | None]:
        """The same for rows that continue from a carried state; also returns the state to carry on."""
        logits, after = self(inputs, self.going_on_from(state))
        nats = F.cross_entropy(logits.flatten(0, 2).float(), targets.flatten(), reduction="none")
        return nats.view(targets.shape), self.carried(after)

    def loss(self, batch: Any, state: Carried | None = None) -> tuple[Float[Tensor, "R"], Carried | None]:
        """The training loss: mean nats per token, one number per replica; in training mode plus the penalty, if any."""
        x, after = self.hidden(batch.inputs, self.going_on_from(state))
        weight = self.embedding.weight if self.output is None else self.output.weight
        nats = mean_cross_entropy(x.flatten(1, 2), weight, batch.targets.flatten(1, 2), self.output_bias)
        penalty = self.spec.penalty
        return nats + penalty.of(x) if self.training and penalty.counts else nats, self.carried(after)
