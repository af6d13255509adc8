"""CLIP: encoders of pictures and captions with a joint embedding space. https://arxiv.org/abs/2103.00020

pictures   [R, B, 3, S, S]   0 to 255 → patches [R, B, P, 3·p·p] → [R, B, P, D] through layers → pooled → projected
captions   [R, B, T]         tokens and END → [R, B, T, D] through layers → pooled → projected
embedded   [R, B, E]         both with norm 1, so that their product is the cosine similarity
logits     [R, B, B]         of every picture with every caption: cosine times a learnt scale

The recipe keys of the model itself are those of the caption encoder; `picture` describes the picture encoder.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from pydantic import Field
from torch import Tensor, nn

from headway.core.spec import Problem, Spec
from headway.core.variants import Variant
from headway.models.backbone import Backbone, BackboneSpec
from headway.models.pooling import Mean, PoolingSpec
from headway.models.spec import MAX_LAYERS
from headway.nn import mixer
from headway.nn.attention import AttentionSpec
from headway.nn.backends import Needs
from headway.nn.block import Block, FeedForwardSpec, Gelu, Layer, NormSpec
from headway.nn.context import Context
from headway.nn.masks import Everything
from headway.nn.mixer import Mixer, Mixers, MixerSpec
from headway.nn.positions import Learned, PositionSpec
from headway.nn.replicated import Linear, parameter
from headway.nn.residual import with_norm
from headway.nn.seeding import seed
from headway.nn.taps import Tap
from headway.nn.trainable import Carried

Embedded = Float[Tensor, "R B E"]
Square = Float[Tensor, "R B B"]
EXCLUDED = -1e6
"""A logit for excluded entries that is finite, because a logsumexp may have no other terms."""


class ContrastSpec(Variant):
    """The contrastive loss."""

    scale: float = Field(gt=0)
    """The initial logit scale (the inverse temperature), by which cosines are multiplied; it is learnt."""
    sharpest: float = Field(default=100.0, gt=0)
    """The upper limit of the logit scale."""
    repeats: Literal["left-out", "wrong"] = "left-out"
    """How to treat other pictures in the batch with the very same caption (or other captions of the same picture):
    left-out = neither positives nor negatives; wrong = negatives like any other, as in CLIP."""

    def problems(self) -> Iterator[Problem]:
        if self.scale > self.sharpest:
            yield Problem(("scale", "sharpest"), f"it would start at {self.scale:g}, above its limit {self.sharpest:g}")

    @abstractmethod
    def build(self, replicas: int) -> "ContrastiveLoss": ...


class InfoNCE(ContrastSpec):
    """The mean of two cross-entropies: of choosing each picture's caption, and each caption's picture, within the
    batch. https://arxiv.org/abs/2103.00020"""

    kind: Literal["infonce"] = "infonce"
    scale: float = Field(default=1 / 0.07, gt=0)

    def build(self, replicas: int) -> "ContrastiveLoss":
        return ContrastiveLoss(self, replicas)


class Sigmoid(ContrastSpec):
    """Whether each pair matches, as a binary decision of its own: SigLIP. https://arxiv.org/abs/2303.15343"""

    kind: Literal["sigmoid"] = "sigmoid"
    scale: float = Field(default=10.0, gt=0)
    bias: float = -10.0
    """The initial logit bias: most pairs of a batch do not match. It is learnt."""

    def build(self, replicas: int) -> "ContrastiveLoss":
        return PairwiseLoss(self, replicas)


class ContrastiveLoss(nn.Module):
    """From cosine similarities to logits, and from logits to losses."""

    def __init__(self, spec: ContrastSpec, replicas: int):
        super().__init__()
        self.spec = spec
        self.log_scale = parameter(replicas, value=math.log(spec.scale))

    @property
    def scale(self) -> Float[Tensor, "R"]:
        return self.log_scale.clamp(max=math.log(self.spec.sharpest)).exp()

    def forward(self, cosines: Float[Tensor, "R B C"]) -> Float[Tensor, "R B C"]:
        """The logits."""
        return cosines * self.scale[:, None, None]

    def of_replica(self, r: int) -> "ContrastiveLoss":
        """The loss module of one replica, on the CPU and in float64, for exact checks."""
        with torch.no_grad():
            alone = self.spec.build(1).double()
            for mine, own in zip(alone.parameters(), self.parameters(), strict=True):
                mine.copy_(own[r : r + 1])
        return alone

    def losses(self, logits: Square, also_right: Bool[Tensor, "R B B"]) -> Float[Tensor, "R B"]:
        """The loss of each pair of the batch; pair k is picture k and caption k."""
        right = logits.diagonal(dim1=1, dim2=2)
        itself = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
        # log(1 + Σ exp(wrong − right)) stays exact when it is small; 1 − softmax would be only rounding error there.
        wrong = self._compared(logits, also_right, -torch.inf).masked_fill(itself, EXCLUDED)
        to_caption = F.softplus((wrong - right[:, :, None]).logsumexp(2))
        to_picture = F.softplus((wrong - right[:, None, :]).logsumexp(1))
        return (to_caption + to_picture) / 2

    def _compared(self, logits: Square, also_right: Bool[Tensor, "R B B"], nothing: float) -> Square:
        return logits.masked_fill(also_right, nothing) if self.spec.repeats == "left-out" else logits


class PairwiseLoss(ContrastiveLoss):
    spec: Sigmoid

    def __init__(self, spec: Sigmoid, replicas: int):
        super().__init__(spec, replicas)
        self.bias = parameter(replicas, value=spec.bias)

    def forward(self, cosines: Float[Tensor, "R B C"]) -> Float[Tensor, "R B C"]:
        return super().forward(cosines) + self.bias[:, None, None]

    def losses(self, logits: Square, also_right: Bool[Tensor, "R B B"]) -> Float[Tensor, "R B"]:
        """The loss of each picture with all captions."""
        right = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
        # softplus(-inf) is 0: excluded pairs add no loss.
        asked = self._compared(torch.where(right, -logits, logits), also_right, -torch.inf)
        return F.softplus(asked).sum(2)


class PictureEncoderSpec(Spec):
    """The encoder of pictures, a vision transformer on patches. https://arxiv.org/abs/2010.11929"""

    patch: int = Field(default=8, ge=1)
    """Height and width of a patch, in pixels."""
    layers: int = Field(default=4, ge=1, le=MAX_LAYERS)
    """The number of layers (blocks)."""
    width: int = Field(default=128, ge=1)
    """The size of the residual stream, also called d_model or the hidden size."""
    mixer: Mixers = AttentionSpec()
    """What moves information between patches: one for all layers, or a list with one for each."""
    positions: PositionSpec = Learned()
    """The position scheme of the patches, which are numbered row by row."""
    feedforward: FeedForwardSpec = Gelu()
    """The feed-forward net of each layer, by its nonlinearity."""
    norm: NormSpec = Layer()
    """The normalisation and its placement."""
    pooling: PoolingSpec = Mean()
    """How the vectors of the patches become one: mean, first, last, max."""

    @property
    def mixers(self) -> list[MixerSpec]:
        return mixer.of_layers(self.mixer, self.layers)

    def problems(self) -> Iterator[Problem]:
        yield from mixer.problems(self.mixer, self.layers, self.width, self.positions)

    def patches(self, size: int) -> int:
        """The number of patches of a square picture with sides of `size` pixels."""
        return (size // self.patch) ** 2

    def flops(self, size: int) -> int:
        """FLOPs of a forward pass of one picture."""
        n, into = self.patches(size), 2 * 3 * self.patch**2 * self.width
        per_patch = sum(one.flops_per_token(self.width, n) for one in self.mixers)
        return n * (into + per_patch + self.layers * self.feedforward.flops_per_token(self.width))


class ClipSpec(BackboneSpec):
    """Two encoders, of captions and of pictures, that are trained to agree.

    `layers`, `width` and so on are the caption encoder's."""

    reads: ClassVar[str] = "pictures"

    kind: Literal["clip"] = "clip"
    picture: PictureEncoderSpec = PictureEncoderSpec()
    """The encoder of pictures."""
    pooling: PoolingSpec = Mean()
    """How the vectors of a caption become one: mean, first, last (the END token), max."""
    shared: int = Field(default=64, ge=1)
    """The dimension of the joint embedding space in which pictures and captions are compared."""
    contrast: ContrastSpec = InfoNCE()
    """The contrastive loss: infonce (CLIP), sigmoid (SigLIP)."""

    @property
    def mixers_of_pictures(self) -> list[MixerSpec]:
        return self.picture.mixers

    def forward_flops(self, size: int, length: int) -> int:
        """FLOPs of one picture and its caption, padded to this length, without the logits of the batch."""
        projections = 2 * self.shared * (self.width + self.picture.width)
        return self.picture.flops(size) + length * self.flops_per_token(length) + projections

    def build(self, vocabulary: int, size: int, seeds: Sequence[int] = (0,), device: str = "cpu") -> "Clip":
        """The model for captions with this vocabulary, in which END is the last token, and pictures of this size."""
        model = Clip(self, vocabulary, size, len(seeds), device)
        seed(model, seeds, device)
        return model


class PictureEncoder(nn.Module):
    def __init__(self, spec: PictureEncoderSpec, size: int, replicas: int, dropout: float, device: str):
        super().__init__()
        self.spec, self.replicas, self.size = spec, replicas, size
        self.patches = Linear(replicas, 3 * spec.patch**2, spec.width)
        self.positions = mixer.build_positions(spec.positions, spec.mixers, replicas, spec.width, spec.patches(size))
        needs = Needs(device, spec.positions.kind)
        out_gain = 1 / math.sqrt(2 * spec.layers) if spec.norm.adds else 1.0
        shape = spec.feedforward, spec.norm, replicas, spec.width, dropout, out_gain, needs
        self.layers = nn.ModuleList(Block(one, *shape) for one in spec.mixers)
        self.norm = spec.norm.build_final(replicas, spec.width)
        self.embedded = Tap()

    @property
    def mixers(self) -> list[Mixer]:
        return [layer.mixer for layer in self.layers]  # pyright: ignore

    def forward(self, pictures: UInt8[Tensor, "R B 3 S S"] | Float[Tensor, "R B 3 S S"]) -> Float[Tensor, "R B D"]:
        R, B, p = *pictures.shape[:2], self.spec.patch
        n = pictures.shape[-1] // p
        x = pictures.to(self.patches.weight.dtype) / 127.5 - 1
        x = x.view(R, B, 3, n, p, n, p).permute(0, 1, 3, 5, 2, 4, 6).reshape(R, B, n * n, 3 * p * p)
        slots = torch.arange(n * n, device=x.device)
        x = self.embedded(self.positions.embed(self.patches(x), slots))
        context = Context((R, B), self.positions, Everything(), slots, slots)
        for layer in self.layers:
            x, _ = layer(x, context, None)
        everywhere = torch.ones((R, B, n * n), dtype=torch.bool, device=x.device)
        return self.spec.pooling.pool(with_norm(x, self.norm)[1], everywhere)


class Clip(Backbone):
    def __init__(self, spec: ClipSpec, vocabulary: int, size: int, replicas: int, device: str = "cpu"):
        super().__init__(spec, vocabulary, replicas, device, Everything())
        self.spec = spec
        self.picture = PictureEncoder(spec.picture, size, replicas, spec.dropout, device)
        self.caption_out = Linear(replicas, spec.width, spec.shared, bias=False)
        self.picture_out = Linear(replicas, spec.picture.width, spec.shared, bias=False)
        self.contrast = spec.contrast.build(replicas)
        self.told, self.shown, self.logits = Tap(), Tap(), Tap()

    @property
    def end(self) -> int:
        """The token that every caption ends with."""
        return self.vocabulary - 1

    def forward(self, ids: Int[Tensor, "R B T"], padding_mask: Bool[Tensor, "R B T"] | None = None) -> Embedded:
        """The embeddings of captions."""
        x, _ = self.hidden(ids, padding_mask=padding_mask)
        everything = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask
        return self.told(_of_length_one(self.caption_out, self.spec.pooling.pool(x, everything)))

    def see(self, pictures: UInt8[Tensor, "R B 3 S S"] | Float[Tensor, "R B 3 S S"]) -> Embedded:
        """The embeddings of pictures."""
        return self.shown(_of_length_one(self.picture_out, self.picture(pictures)))

    def match(
        self,
        pictures: UInt8[Tensor, "R B 3 S S"],
        ids: Int[Tensor, "R C T"],
        padding_mask: Bool[Tensor, "R C T"] | None = None,
    ) -> Float[Tensor, "R B C"]:
        """The logits of every picture with every caption."""
        shown, told = self.see(pictures), self(ids, padding_mask)
        with torch.autocast(shown.device.type, enabled=False):  # the scale would magnify bf16's rounding
            return self.logits(self.contrast(shown @ told.mT))

    def loss(self, batch: Any, state: Carried | None = None) -> tuple[Float[Tensor, "R"], Carried | None]:
        """The training loss: the mean over the pairs of a batch, one number per replica."""
        logits = self.match(batch.pictures, batch.inputs, batch.padding_mask)
        return self.contrast.losses(logits, batch.also_right).mean(1), None


def _of_length_one(project: Linear, pooled: Float[Tensor, "R B D"]) -> Embedded:
    projected = project(pooled[:, :, None]).squeeze(2)
    return F.normalize(projected.to(torch.promote_types(projected.dtype, torch.float32)), dim=-1)
