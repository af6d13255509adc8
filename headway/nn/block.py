"""A layer: a mixer, which moves information between positions, and a feed-forward net at each position.

The placement of the norm is an object too. `pre` normalises the input of a sublayer and leaves the residual stream
alone; `post` normalises the stream after each addition (the original, which needs a warm-up). `norm: none` also removes
the residual stream: each layer reads the output of the previous one, as in a plain recurrent net. With
`feedforward: none` a layer is only its mixer.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from headway.core.spec import Problem
from headway.core.variants import Variant
from headway.nn.backends import Needs
from headway.nn.context import Context
from headway.nn.dropout import ORDINARY, NoiseSpec
from headway.nn.mixer import MixerSpec
from headway.nn.replicated import Dropout, LayerNorm, Linear, RMSNorm
from headway.nn.residual import Chained, Given, Joined, PendingSum, PostNorm, PreNorm, Stream, whole
from headway.nn.taps import Tap

_PLACEMENTS = {"pre": PreNorm, "post": PostNorm}


class FeedForwardSpec(Variant):
    """The feed-forward net at each position: two linear maps with a nonlinearity between them (three if gated)."""

    hidden: int | None = Field(default=None, ge=1)
    """Hidden units; null = four times the width (swiglu: 8/3 times, which costs the same)."""
    bias: bool = True
    """Whether the linear maps have a bias."""

    def hidden_units(self, width: int) -> int:
        return self.hidden or 4 * width

    def build(self, replicas: int, width: int, out_gain: float) -> nn.Module | None:
        """The feed-forward net of one layer, or None if it has none."""
        return FeedForward(self, replicas, width, self.hidden_units(width), out_gain)

    def nonlinearity(self, x: Tensor) -> Tensor:
        """The activation function of the hidden units."""
        raise NotImplementedError

    def flops_per_token(self, width: int) -> int:
        """FLOPs of a forward pass for one token."""
        return 2 * 2 * width * self.hidden_units(width)


class Relu(FeedForwardSpec):
    """max(x, 0)"""

    kind: Literal["relu"] = "relu"

    def nonlinearity(self, x):
        return F.relu(x)


class Gelu(FeedForwardSpec):
    """x·Φ(x): https://arxiv.org/abs/1606.08415"""

    kind: Literal["gelu"] = "gelu"

    def nonlinearity(self, x):
        return F.gelu(x)


class GeluTanh(FeedForwardSpec):
    """The approximation of GELU that GPT-2 uses."""

    kind: Literal["gelu-tanh"] = "gelu-tanh"

    def nonlinearity(self, x):
        return F.gelu(x, approximate="tanh")


class Silu(FeedForwardSpec):
    """x·σ(x), also called swish: https://arxiv.org/abs/1702.03118"""

    kind: Literal["silu"] = "silu"

    def nonlinearity(self, x):
        return F.silu(x)


class SwiGlu(FeedForwardSpec):
    """One half of the hidden units gates the other: https://arxiv.org/abs/2002.05202"""

    kind: Literal["swiglu"] = "swiglu"

    def hidden_units(self, width: int) -> int:
        return self.hidden or _rounded(8 * width / 3)

    def build(self, replicas: int, width: int, out_gain: float) -> nn.Module:
        return GatedFeedForward(self, replicas, width, self.hidden_units(width), out_gain)

    def nonlinearity(self, x):
        return F.silu(x)

    def flops_per_token(self, width: int) -> int:
        return 2 * 3 * width * self.hidden_units(width)


class NoFeedForward(FeedForwardSpec):
    """None: a layer is only its mixer, as in a plain recurrent net."""

    kind: Literal["none"] = "none"

    def problems(self) -> Iterator[Problem]:
        if self.hidden is not None or not self.bias:
            yield Problem(("hidden", "bias"), "there is no feed-forward net that these could apply to")

    def build(self, replicas: int, width: int, out_gain: float) -> None:
        return None

    def flops_per_token(self, width: int) -> int:
        return 0


class FeedForward(nn.Module):
    reads_products = True

    def __init__(self, spec: FeedForwardSpec, replicas: int, width: int, hidden: int, out_gain: float):
        super().__init__()
        self.into = Linear(replicas, width, hidden, bias=spec.bias)
        self.nonlinearity = spec.nonlinearity
        self.output = Linear(replicas, hidden, width, bias=spec.bias, gain=out_gain)
        self.into.output_names = self.output.output_names = ("feedforward",)

    def forward(self, x: Stream) -> Given:
        kernel = _KERNELS.get(getattr(self.nonlinearity, "__func__", None))
        hidden = None if kernel is None else self.into.activated(x, kernel)
        return self.output.with_pending_bias(self.nonlinearity(self.into(x)) if hidden is None else hidden)


_KERNELS: dict[Any, str] = {one.nonlinearity: one.model_fields["kind"].default for one in (Relu, Gelu, GeluTanh, Silu)}
"""Nonlinearities that a kernel fuses with the bias (`kernels/fused.py`). The keys are the functions themselves, so that
a subclass with a nonlinearity of its own does not match."""


class GatedFeedForward(nn.Module):
    reads_products = True

    def __init__(self, spec: FeedForwardSpec, replicas: int, width: int, hidden: int, out_gain: float):
        super().__init__()
        self.into = Linear(replicas, width, 2 * hidden, bias=spec.bias)
        self.nonlinearity = spec.nonlinearity
        self.output = Linear(replicas, hidden, width, bias=spec.bias, gain=out_gain)
        self.into.output_names = self.output.output_names = ("feedforward",)

    def forward(self, x: Stream) -> Given:
        gate, value = self.into(x).chunk(2, dim=-1)
        return self.output.with_pending_bias(self.nonlinearity(gate) * value)


class NormSpec(Variant):
    """The normalisation of the residual stream, and where it is applied."""

    adds: ClassVar[bool] = True
    """Whether sublayers add to a residual stream, or are chained."""
    embedding_std: ClassVar[float] = 0.02
    """The standard deviation of the initial embeddings; a norm rescales them anyway."""

    placement: Literal["pre", "post"] = "pre"
    """pre: before each sublayer (trains reliably); post: after each residual addition, as in 2017 (needs a warm-up)."""
    of_embeddings: bool = False
    """Whether the embeddings are normalised before the first layer, as in BERT."""
    eps: float | None = Field(default=None, gt=0)
    """The epsilon under the square root; null = 1e-5 (rms: the machine epsilon of the precision)."""

    added: ClassVar[frozenset[str]] = frozenset({"of_embeddings", "eps"})

    @abstractmethod
    def build(self, replicas: int, width: int) -> nn.Module:
        """The norm, for vectors of this width."""

    def build_for_embeddings(self, replicas: int, width: int) -> nn.Module:
        return self.build(replicas, width) if self.of_embeddings else nn.Identity()

    def build_residual(self, replicas: int, width: int, drop: Dropout) -> PreNorm | PostNorm | Chained:
        """The residual connection around a sublayer."""
        return _PLACEMENTS[self.placement](self.build(replicas, width), drop)

    def build_crossing(self, replicas: int, width: int, drop: Dropout) -> PreNorm | PostNorm | Chained:
        """The residual connection around cross attention."""
        return self.build_residual(replicas, width, drop)

    def crossing_flops(self, width: int) -> int:
        """FLOPs of the matrix products in `build_crossing`'s module, for one token."""
        return 0

    def build_final(self, replicas: int, width: int) -> nn.Module:
        """The norm after the last layer; the output of post-norm layers is normalised already."""
        return self.build(replicas, width) if self.placement == "pre" else nn.Identity()


class NoNorm(NormSpec):
    """No norm and no residual stream: each layer reads the output of the previous one, as in a plain recurrent net."""

    kind: Literal["none"] = "none"
    adds = False
    embedding_std = 0.3  # with less, gates barely open and nothing is learnt for hundreds of steps (docs/log.md)

    def problems(self) -> Iterator[Problem]:
        if self.placement != "pre" or self.of_embeddings or self.eps is not None:
            yield Problem(("placement", "of_embeddings", "eps"), "there is no norm that these could apply to")

    def build(self, replicas: int, width: int) -> nn.Module:
        return nn.Identity()

    def build_residual(self, replicas: int, width: int, drop: Dropout) -> Chained:
        return Chained(drop)

    def build_crossing(self, replicas: int, width: int, drop: Dropout) -> Joined:
        return Joined(replicas, width, drop)

    def crossing_flops(self, width: int) -> int:
        return 2 * 2 * width * width


class Layer(NormSpec):
    """LayerNorm: mean 0 and standard deviation 1, then a learned scale and bias. https://arxiv.org/abs/1607.06450"""

    kind: Literal["layer"] = "layer"

    def build(self, replicas: int, width: int) -> nn.Module:
        return LayerNorm(replicas, width, eps=self.eps or 1e-5)


class Rms(NormSpec):
    """RMSNorm: without centring and without a bias. https://arxiv.org/abs/1910.07467"""

    kind: Literal["rms"] = "rms"

    def build(self, replicas: int, width: int) -> nn.Module:
        return RMSNorm(replicas, width, self.eps)


class Block(nn.Module):
    """One layer. `state` is what the mixer carries from one call to the next: a KV cache, or a hidden state."""

    is_repeated = True

    def __init__(
        self,
        mixer: MixerSpec,
        feedforward: FeedForwardSpec,
        norm: NormSpec,
        replicas: int,
        width: int,
        dropout: float,
        out_gain: float,
        needs: Needs,
        noise: NoiseSpec = ORDINARY,
        own_dropout: float | None = None,
    ):
        """`own_dropout`: this layer's dropout rate, if it differs from the model's."""
        super().__init__()
        self.around_mixer = norm.build_residual(replicas, width, noise.build(replicas, dropout, own_dropout))
        self.mixer = mixer.build(replicas, width, out_gain, needs)
        self.around_mixer.feeds(self.mixer)
        self.feedforward = feedforward.build(replicas, width, out_gain)
        if self.feedforward is not None:
            drop = noise.build(replicas, dropout, own_dropout)
            self.around_feedforward = norm.build_residual(replicas, width, drop)
            self.around_feedforward.feeds(self.feedforward)
        self.stream = Tap()

    def forward(self, x: Stream | PendingSum, context: Context, state: Any = None) -> tuple[Stream | PendingSum, Any]:
        x, state = self.around_mixer(x, lambda h: self.mixer(h, context, state))
        if (feedforward := self.feedforward) is not None:
            x, _ = self.around_feedforward(x, lambda h: (feedforward(h), None))
        return self._given(x), state

    def _given(self, x: Stream | PendingSum) -> Stream | PendingSum:
        """Add a pending residual sum if a tap watches the stream; otherwise leave it to the next layer's norm."""
        return x if isinstance(x, PendingSum) and not self.stream.is_watched else self.stream(whole(x))


class CrossBlock(Block):
    """A decoder layer, with cross attention between its mixer and its feed-forward net. Its state is the mixer's, and
    the keys and values of the other sequence, which are computed once."""

    def __init__(
        self,
        mixer: MixerSpec,
        cross: MixerSpec,
        feedforward: FeedForwardSpec,
        norm: NormSpec,
        replicas: int,
        width: int,
        dropout: float,
        out_gain: float,
        needs: Needs,
        noise: NoiseSpec = ORDINARY,
        own_dropout: float | None = None,
    ):
        super().__init__(mixer, feedforward, norm, replicas, width, dropout, out_gain, needs, noise, own_dropout)
        self.around_cross = norm.build_crossing(replicas, width, noise.build(replicas, dropout, own_dropout))
        self.cross = cross.build_cross(replicas, width, out_gain, replace(needs, positions="none"))

    def forward(self, x: Stream | PendingSum, context: Context, state: Any = None) -> tuple[Stream | PendingSum, Any]:
        own, other = (None, None) if state is None else state
        x, own = self.around_mixer(x, lambda h: self.mixer(h, context, own))
        x, other = self.around_cross(x, lambda h: self.cross(h, context.across, other))
        if (feedforward := self.feedforward) is not None:
            x, _ = self.around_feedforward(x, lambda h: (feedforward(h), None))
        return self._given(x), (own, other)


def _rounded(hidden: float) -> int:
    """Rounded to a multiple of 8, which is fast on tensor cores."""
    return max(8, round(hidden / 8) * 8)
