"""Position schemes: how a model knows the position of a token. A scheme can act in three places:

    embed(x, at)              add to the embeddings            learned, sinusoidal
    rotate(x, at)             rotate queries and keys          rotary
    bias(replica, head, i, j) add to the attention scores      ALiBi, T5

`at`, `i` and `j` are positions (not slots of a cache or of a padded row). `bias` is called with broadcasting index
tensors, or index by index from inside a compiled kernel. A new scheme is one spec and one module, in this file or in a
user's own.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from headway.core.spec import Problem
from headway.core.variants import Variant
from headway.nn.kernels import fused
from headway.nn.replicated import Embedding, parameter


class Positions(nn.Module):
    """Base of all schemes: does nothing anywhere."""

    has_bias = False  # whether bias() applies
    limit: int | None = None  # the longest sequence that the scheme supports; None = any

    def embed(self, x: Float[Tensor, "R B T D"], at: Int[Tensor, "*b T"]) -> Float[Tensor, "R B T D"]:
        return x

    def rotate(self, x: Float[Tensor, "R B H T d"], at: Int[Tensor, "*b T"]) -> Float[Tensor, "R B H T d"]:
        return x

    def bias(self, replica: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        raise NotImplementedError

    def for_heads(self, heads: int) -> "Positions":
        """The scheme for layers with this number of heads."""
        return self


class PositionSpec(Variant):
    """A position scheme: how a model knows the position of a token."""

    ends: ClassVar[bool] = False
    """Whether it has no positions beyond the model's context length."""
    marks_embeddings: ClassVar[bool] = False
    """Whether it adds a token's position within its segment to the embedding."""
    acts_in_heads: ClassVar[bool] = False
    """Whether it rotates queries and keys, or adds to scores. If so, what it builds is for one number of heads, and
    layers without heads cannot use it."""
    rotates: ClassVar[bool] = False
    """Whether it rotates queries and keys, so that their product depends on their distance."""

    @abstractmethod
    def build(self, replicas: int, width: int, heads: int, context: int) -> Positions:
        """The module that acts on embeddings, queries and keys, or scores."""

    @property
    def for_encoders(self) -> "PositionSpec":
        """The same scheme for encoders, which attend in both directions."""
        return self

    def problems_with(self, width: int, heads: Sequence[int]) -> Iterator[str]:
        """Why it cannot be used in a model of this width with these numbers of heads in its layers."""
        yield from ()


class NoPositions(PositionSpec):
    """No positions: only the causal mask tells the order. https://arxiv.org/abs/2305.19466"""

    kind: Literal["none"] = "none"

    def build(self, replicas: int, width: int, heads: int, context: int) -> Positions:
        return Positions()


class Learned(PositionSpec):
    """A learned vector per position, added to the embeddings. https://arxiv.org/abs/1705.03122"""

    kind: Literal["learned"] = "learned"
    ends = True
    marks_embeddings: ClassVar[bool] = True

    def build(self, replicas: int, width: int, heads: int, context: int) -> Positions:
        return LearnedPositions(replicas, context, width)


class LearnedPositions(Positions):
    def __init__(self, replicas: int, context: int, width: int):
        super().__init__()
        self.limit = context
        self.table = Embedding(replicas, context, width)

    def embed(self, x, at):
        return x + self.table(at.expand(len(x), 1, -1) if at.ndim == 1 else at)


class Sinusoidal(PositionSpec):
    """Fixed sines and cosines, added to the embeddings. https://arxiv.org/abs/1706.03762"""

    kind: Literal["sinusoidal"] = "sinusoidal"
    marks_embeddings: ClassVar[bool] = True
    base: float = Field(default=10000.0, gt=1)
    """The longest wavelength is 2π times this."""
    size: float = Field(default=0.02, gt=0)
    """The amplitude. Token embeddings start with a standard deviation of 0.02, and amplitude 1 would drown them out."""
    layout: Literal["alternating", "halves"] = "alternating"
    """Sines and cosines interleaved, as in the paper; or all sines first, as in Marian."""

    added: ClassVar[frozenset[str]] = frozenset({"layout"})

    def build(self, replicas: int, width: int, heads: int, context: int) -> Positions:
        return SinusoidalPositions(width, self.base, self.size, self.layout == "halves")


class SinusoidalPositions(Positions):
    frequencies: Tensor

    def __init__(self, width: int, base: float, size: float, halves: bool = False):
        super().__init__()
        self.width, self.size, self.halves = width, size, halves
        frequencies = _frequencies(width, base, torch.float64 if halves else torch.float32)  # as in Marian
        self.register_buffer("frequencies", frequencies, persistent=False)

    def embed(self, x, at):
        angle = at[..., None] * self.frequencies
        both = angle.sin(), angle.cos()
        waves = (torch.cat(both, -1) if self.halves else torch.stack(both, -1).flatten(-2))[..., : self.width]
        return x + self.size * (waves if at.ndim > 1 else waves[None, None]).to(x.dtype)


class Alibi(PositionSpec):
    """A penalty on the scores that grows with the distance, steeper in some heads. https://arxiv.org/abs/2108.12409"""

    kind: Literal["alibi"] = "alibi"
    acts_in_heads: ClassVar[bool] = True

    def build(self, replicas: int, width: int, heads: int, context: int) -> Positions:
        return AlibiPositions(heads)

    @property
    def for_encoders(self) -> "SymmetricAlibi":
        return SymmetricAlibi()


class AlibiPositions(Positions):
    has_bias = True
    slopes: Tensor

    def __init__(self, heads: int):
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)), persistent=False)

    def bias(self, replica, head, i, j):
        return self.slopes[head] * (j - i)


class SymmetricAlibi(PositionSpec):
    """ALiBi for encoders: the penalty grows in both directions."""

    kind: Literal["alibi-symmetric"] = "alibi-symmetric"
    acts_in_heads: ClassVar[bool] = True

    def build(self, replicas: int, width: int, heads: int, context: int) -> Positions:
        return SymmetricAlibiPositions(heads)


class SymmetricAlibiPositions(AlibiPositions):
    def bias(self, replica, head, i, j):
        return -self.slopes[head] * (j - i).abs()


class Rotary(PositionSpec):
    """Queries and keys are rotated by an angle that grows with the position. https://arxiv.org/abs/2104.09864"""

    kind: Literal["rotary"] = "rotary"
    acts_in_heads: ClassVar[bool] = True
    rotates: ClassVar[bool] = True
    base: float = Field(default=10000.0, gt=1)
    """The slowest pair of dimensions turns once in 2π times this many positions (rope_theta)."""

    def build(self, replicas: int, width: int, heads: int, context: int) -> Positions:
        return RotaryPositions(width // heads, self.base)

    def problems_with(self, width, heads):
        for count in dict.fromkeys(heads):
            if width % (2 * count):
                yield f"rotary rotates pairs of dimensions: width {width} over {count} heads gives an odd head width"


class RotaryPositions(Positions):
    frequencies: Tensor

    def __init__(self, head_width: int, base: float):
        super().__init__()
        self.register_buffer("frequencies", _frequencies(head_width, base), persistent=False)

    def rotate(self, x, at):
        if self.training and (rotated := fused.rotated(x, at, self.frequencies)) is not None:
            return rotated
        if torch.compiler.is_compiling():  # it does not support complex numbers, and fuses the plain version
            return fused.plain_rotated(x, at, self.frequencies)
        angle = at[..., None, :, None] * self.frequencies  # [*b, 1, T, d/2]
        wide = x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
        pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))
        rotated = torch.view_as_real(pairs * torch.complex(angle.cos(), angle.sin()))
        return rotated.flatten(-2).to(x.dtype)


class T5(PositionSpec):
    """A learned bias per head and distance back; long distances share buckets. https://arxiv.org/abs/1910.10683"""

    kind: Literal["t5"] = "t5"
    acts_in_heads: ClassVar[bool] = True
    buckets: int = Field(default=32, ge=4, multiple_of=4)
    """The number of buckets: distances, or ranges of distances, with a bias of their own."""
    furthest: int = Field(default=128, ge=4)
    """Everything at this distance and beyond shares the last bucket."""

    def problems(self) -> Iterator[Problem]:
        yield from _bucket_problems(self.buckets // 2, self.furthest)

    def build(self, replicas: int, width: int, heads: int, context: int) -> Positions:
        return T5Positions(replicas, heads, self.buckets, self.furthest)

    @property
    def for_encoders(self) -> "SymmetricT5":
        return SymmetricT5(buckets=self.buckets, furthest=self.furthest)

    def problems_with(self, width, heads):
        yield from _shared_by_layers(self.kind, heads)


class SymmetricT5(PositionSpec):
    """T5's bias for encoders: one half of the buckets for each direction."""

    kind: Literal["t5-symmetric"] = "t5-symmetric"
    acts_in_heads: ClassVar[bool] = True
    buckets: int = Field(default=32, ge=4, multiple_of=4)
    """The number of buckets of both directions: distances, or ranges of distances, with a bias of their own."""
    furthest: int = Field(default=128, ge=4)
    """Everything at this distance and beyond shares the last bucket."""

    def problems(self) -> Iterator[Problem]:
        yield from _bucket_problems(self.buckets // 4, self.furthest)

    def build(self, replicas: int, width: int, heads: int, context: int) -> Positions:
        return SymmetricT5Positions(replicas, heads, self.buckets, self.furthest)

    def problems_with(self, width, heads):
        yield from _shared_by_layers(self.kind, heads)


class T5Positions(Positions):
    has_bias = True

    def __init__(self, replicas: int, heads: int, buckets: int, furthest: int):
        super().__init__()
        self.buckets, self.furthest = buckets, furthest
        self.weight = parameter(replicas, heads, buckets, std=0.02, decays=False)

    def bias(self, replica, head, i, j):
        return self.weight[replica, head, self.bucket(j - i)]

    def bucket(self, distance: Int[Tensor, "*s"]) -> Int[Tensor, "*s"]:
        return self.by_size((-distance).clamp(min=0), self.buckets)

    def by_size(self, far: Int[Tensor, "*s"], buckets: int) -> Int[Tensor, "*s"]:
        """The bucket of a distance: one each for short distances, logarithmic ranges for long ones."""
        exact = buckets // 2
        ratio = (far.clamp(min=exact) / exact).log() / math.log(self.furthest / exact)
        coarse = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
        return torch.where(far < exact, far, coarse)


class SymmetricT5Positions(T5Positions):
    def bucket(self, distance):
        half = self.buckets // 2
        return self.by_size(distance.abs(), half) + half * (distance > 0)


class PositionsByHeads(Positions):
    """A scheme for a model whose layers have different numbers of heads: one module for each number."""

    def __init__(self, schemes: dict[int, Positions]):
        super().__init__()
        self.numbers, self.schemes = list(schemes), nn.ModuleList(schemes.values())

    def for_heads(self, heads: int) -> Positions:
        return self.schemes[self.numbers.index(heads)]  # pyright: ignore[reportReturnType]


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n) … if the number of heads n is a power of two; otherwise the series for the largest power of
    two below it, completed from the series for twice that power, as in the paper."""
    whole = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / whole) for h in range(whole)]
    between = [2 ** (-4 * (h + 1) / whole) for h in range(0, 2 * whole, 2)]
    return slopes + between[: heads - whole]


def _frequencies(width: int, base: float, dtype: torch.dtype = torch.float32) -> Float[Tensor, "half"]:
    return base ** (-torch.arange(0, width, 2).to(dtype) / width)


def _shared_by_layers(kind: str, heads: Sequence[int]) -> Iterator[str]:
    if len(set(heads)) > 1:
        layers = {count: [str(n) for n, own in enumerate(heads) if own == count] for count in dict.fromkeys(heads)}
        told = ", ".join(f"{count} (layer {', '.join(numbers)})" for count, numbers in layers.items())
        yield f"{kind} learns a bias per head that all layers share, so all need the same number of heads, not {told}"


def _bucket_problems(exact: int, furthest: int) -> Iterator[Problem]:
    if furthest <= exact:
        reason = f"the shortest {exact} distances have a bucket each, so furthest must be {exact + 1} or more"
        yield Problem(("buckets", "furthest"), reason)
