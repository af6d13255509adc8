"""A translator without an encoder: source, END and target are one sequence for a single stack of layers.

row       x₁ … xₙ END y₁ … yₘ      the source is padded on the left, so that no padding comes before END
mask      prefix: source tokens attend to the whole source, target tokens causally; or causal for all
logits    [R, B, T, V]              of y₁, y₂ …, END, after the inputs END, y₁ … yₘ
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.core.spec import Problem
from headway.models.state import ModelState
from headway.models.translator import Translator, TranslatorSpec
from headway.nn.masks import Causal, Everything, Mask, Prefix
from headway.nn.replicated import Linear, parameter
from headway.nn.seeding import seed
from headway.nn.taps import Tap
from headway.nn.trainable import Carried


class DecoderOnlySpec(TranslatorSpec):
    """A decoder-only translator: a language model that continues a source with its translation. https://arxiv.org/abs/2202.00528"""

    kind: Literal["decoder-only"] = "decoder-only"
    mask: Literal["prefix", "causal"] = "prefix"
    """Whether source tokens attend to the whole source (prefix), or only to earlier tokens (causal)."""
    loss_on: Literal["target", "all"] = "target"
    """Which tokens the training loss is on: only the target, or also the source (with a causal mask)."""
    tied: bool = True
    """Whether the output matrix is the embedding table (weight tying)."""

    @property
    def shares_vocabulary(self) -> str:
        return "source and target are one sequence"

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.mask == "prefix" and self.positions.for_encoders is not self.positions:
            kind = self.positions.kind
            reason = f"{kind} is made for attending backwards, but with a prefix mask the source also attends forwards"
            yield Problem(("positions", "mask"), f"{reason}; use {kind}-symmetric, or mask: causal")
        if self.loss_on == "all" and self.mask == "prefix":
            reason = "with a prefix mask every token of the source sees the next one: there is nothing to predict"
            yield Problem(("loss_on", "mask"), f"{reason}; use mask: causal, or loss_on: target")

    def forward_flops(self, source: int, target: int, vocabulary: int) -> int:
        row = source + target
        return (
            row * self.flops_per_token(row) + 2 * (row if self.loss_on == "all" else target) * self.width * vocabulary
        )

    def build(
        self, source_vocabulary: int, vocabulary: int, seeds: Sequence[int] = (0,), device: str = "cpu"
    ) -> "DecoderOnly":
        assert source_vocabulary == vocabulary, "source and target are one sequence, so they have the same vocabulary"
        twice = self.model_copy(update={"context": 2 * self.context})  # for source and target
        model = DecoderOnly(self, twice, vocabulary, len(seeds), device)
        seed(model, seeds, device)
        return model


class DecoderOnly(Translator):
    spec: DecoderOnlySpec  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, spec: DecoderOnlySpec, built_as: DecoderOnlySpec, vocabulary: int, replicas: int, device: str):
        super().__init__(built_as, vocabulary, replicas, device, Causal())
        self.source_vocabulary = vocabulary
        self.spec = spec  # pyright: ignore[reportIncompatibleVariableOverride]
        self.output = None if spec.tied else Linear(replicas, spec.width, vocabulary, bias=False, gain=0.2)
        self.output_bias = parameter(replicas, vocabulary) if spec.output_bias else None
        self.logits = Tap()

    def read(self, sources: Int[Tensor, "R B S"], source_mask: Bool[Tensor, "R B S"] | None = None) -> ModelState:
        ids, told = self._moved_right(sources, source_mask)
        mask = Everything() if self.spec.mask == "prefix" else Causal()
        return self.hidden(ids, padding_mask=told, mask=mask)[1]

    def vectors(
        self,
        sources: Int[Tensor, "R B S"],
        ids: Int[Tensor, "R B T"],
        source_mask: Bool[Tensor, "R B S"] | None = None,
        padding_mask: Bool[Tensor, "R B T"] | None = None,
    ) -> Float[Tensor, "R B T D"]:
        known = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask
        return self._in_one_pass(*self._moved_right(sources, source_mask), ids, known)[:, :, sources.shape[2] :]

    def _in_one_pass(
        self,
        sources: Int[Tensor, "R B S"],
        told: Bool[Tensor, "R B S"],
        ids: Int[Tensor, "R B T"],
        known: Bool[Tensor, "R B T"],
    ) -> Float[Tensor, "R B S+T D"]:
        """One pass over a left-padded source and its target; equivalent to `read` and `written` one after the other."""
        mask: Mask = Prefix(sources.shape[2]) if self.spec.mask == "prefix" else Causal()
        return self.hidden(torch.cat((sources, ids), 2), padding_mask=torch.cat((told, known), 2), mask=mask)[0]

    def loss(self, batch: Any, state: Carried | None = None) -> tuple[Float[Tensor, "R"], Carried | None]:
        if self.spec.loss_on == "target" or not self.training:
            return super().loss(batch, state)
        sources, told = self._moved_right(batch.sources, batch.source_mask)
        x = self._in_one_pass(sources, told, batch.inputs, batch.padding_mask)
        # The target after each source token is the next one; after the last it is END, the first of the inputs.
        targets = torch.cat((sources[..., 1:], batch.inputs[..., :1], batch.targets), 2)
        return self.mean_nats(x, targets, torch.cat((told, batch.padding_mask), 2)), None

    def counted(self, batch: Any) -> Float[Tensor, "R"] | None:
        targets = batch.padding_mask.sum((1, 2)).float()
        if self.spec.loss_on == "target" or not self.training:
            return targets
        return targets + self._moved_right(batch.sources, batch.source_mask)[1].sum((1, 2))

    def _moved_right(
        self, sources: Int[Tensor, "R B S"], source_mask: Bool[Tensor, "R B S"] | None
    ) -> tuple[Int[Tensor, "R B S"], Bool[Tensor, "R B S"]]:
        """The sources with padding on the left, and without END, because the target starts with it."""
        end = self.vocabulary - 1
        told = sources != end if source_mask is None else source_mask & (sources != end)
        slots = torch.arange(sources.shape[2], device=sources.device)
        from_ = slots - (sources.shape[2] - told.sum(2, keepdim=True))
        return sources.gather(2, from_.clamp(min=0)), from_ >= 0
