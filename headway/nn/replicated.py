"""Linear, Embedding, norms and Dropout for R replicas at once: the only modules that know what a replica is.

Activations are `[R, B, T, D]` and parameters have a leading axis R: one batched matrix product serves all replicas.
With R = 1 each module takes the plain torch path, so that an ordinary model costs what it always did.

A module is built without randomness; `seed` then gives every parameter its initial value and every source of noise its
stream (`seeding.py`).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.core import random
from headway.nn.kernels import fused, fused_norm, launching, products
from headway.nn.kernels.onednn import Multiplying, PackedWeight, by_onednn, each_by_onednn


class Unbiased(NamedTuple):
    """Products, and the bias that is still to be added to them."""

    products: Float[Tensor, "R B T O"]
    bias: Float[Tensor, "R O"]


def with_bias(y: Tensor | Unbiased) -> Float[Tensor, "R B T O"]:
    return _add_bias(*y) if isinstance(y, Unbiased) else y


class Linear(Multiplying):
    """y = x Wᵀ + b, with its own W and b for every replica. Weights start with a deviation of gain / (2 √inputs): at
    GPT-2's width of 768 that is 0.018 (GPT-2: 0.02), and narrow models learn faster with it (docs/log.md)."""

    def __init__(
        self, replicas: int, inputs: int, outputs: int, bias: bool = True, gain: float = 1.0, std: float | None = None
    ):
        super().__init__()
        self.weight = parameter(replicas, outputs, inputs, std=gain * 0.5 / math.sqrt(inputs) if std is None else std)
        self.bias = parameter(replicas, outputs) if bias else None
        self.drop: nn.Module | None = None  # what leaves out some of the weights in training, if anything does
        self.makes: tuple[str, ...] = ()  # what its outputs are, in equal parts, where they are asked for by name
        self.adapter: nn.Module | None = None  # what is learnt beside a weight that stays as it is, if anything is

    def forward(self, x: Float[Tensor, "R B T I"], more: Tensor | None = None) -> Float[Tensor, "R B T O"]:
        """`more` is a bias for those that have none."""
        weight = self.weight if self.drop is None else self.drop(self.weight)
        y = _multiply(x, weight, self.bias if more is None else more, self.packed if self.drop is None else None)
        return y if self.adapter is None else y + self.adapter(x).to(y.dtype)

    def activated(self, x: Float[Tensor, "R B T I"], kind: str) -> Float[Tensor, "R B T O"] | None:
        """A nonlinearity of what it gives, where one kernel adds the bias and does that; else None."""
        if (packed := self.packed) is not None and self._is_plain:
            return packed.multiply(x, self.weight, self.bias, kind)
        if self.bias is None or not self._products_are_all(x):
            return None
        return fused.activate(_multiply(x, self.weight, None), self.bias, kind)

    def left_open(self, x: Float[Tensor, "R B T I"]) -> "Float[Tensor, 'R B T O'] | Unbiased":
        """What it gives; where kernels are used, the bias is left to the one that does what comes next, which may be in
        another layer."""
        if self.bias is None or not self._products_are_all(x) or not products.stays(self.bias):
            return self(x)
        return Unbiased(_multiply(x, self.weight, None), self.bias)

    def _products_are_all(self, x: Tensor) -> bool:
        """Whether kernels are used, and but for the bias there is nothing else to do."""
        return self._is_plain and self.packed is None and launching.wanted(x)

    @property
    def _is_plain(self) -> bool:
        """Whether there is nothing else to it: no dropout, no adapter, nothing that somebody else has written."""
        return self.drop is None and self.adapter is None and type(self).forward is Linear.forward


class Embedding(Multiplying):
    """A table of vectors per replica. `logits` uses the same table the other way round (tied output)."""

    def __init__(self, replicas: int, size: int, width: int, std: float = 0.02):
        super().__init__()
        self.weight = parameter(replicas, size, width, std=std)

    def forward(self, ids: Int[Tensor, "R B T"]) -> Float[Tensor, "R B T D"]:
        R, V, D = self.weight.shape
        if R == 1:
            return F.embedding(ids, self.weight.squeeze(0))
        # The tables stand one below the other; replica r's rows begin at r·V.
        first = torch.arange(R, device=ids.device)[:, None, None] * V
        return F.embedding(ids + first, self.weight.view(R * V, D))

    def logits(self, x: Float[Tensor, "R B T D"], bias: Tensor | None = None) -> Float[Tensor, "R B T V"]:
        return _multiply(x, self.weight, bias, self.packed)


class Norm(nn.Module):
    """What the kinds of norms share: kernels for training on a GPU."""

    centred: ClassVar[bool]
    weight: nn.Parameter
    bias: nn.Parameter | None
    eps: Any  # a number; of an RMSNorm, also None

    def __init__(self) -> None:
        super().__init__()
        self.for_products = False  # whether what it gives goes into matrix products, and nowhere else

    @property
    def is_as_written(self) -> bool:
        """Whether what it gives is what is written here, and not what somebody else has made of it."""
        return type(self).forward in (LayerNorm.forward, RMSNorm.forward)

    def by_kernel(
        self,
        x: Float[Tensor, "R B T D"],
        more: Float[Tensor, "R B T D"] | Unbiased | None = None,
        drop: "Dropout | None" = None,
    ) -> tuple[Float[Tensor, "R B T D"], Float[Tensor, "R B T D"]] | None:
        """x + drop(more), or x, where there is no more; and the norm of that, where one kernel makes both."""
        if not self.training or not launching.wanted(x) or (self.eps is None and x.dtype != torch.float32):
            return None
        eps = torch.finfo(torch.float32).eps if self.eps is None else self.eps
        into = _precision(x, self.for_products)
        added = None if more is None or drop is None else _to_add(more, drop)
        return fused_norm.sum_and_norm(x, added, self.weight, self.bias, eps, self.centred, into)


class LayerNorm(Norm):
    """Ba et al. 2016, https://arxiv.org/abs/1607.06450"""

    centred = True

    def __init__(self, replicas: int, width: int, bias: bool = True, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = parameter(replicas, width, value=1.0)
        self.bias = parameter(replicas, width) if bias else None

    def forward(self, x: Float[Tensor, "R B T D"]) -> Float[Tensor, "R B T D"]:
        if (both := self.by_kernel(x)) is not None:
            return both[1]
        width = self.weight.shape[1:]
        if len(self.weight) == 1:
            bias = None if self.bias is None else self.bias.squeeze(0)
            return F.layer_norm(x, width, self.weight.squeeze(0), bias, self.eps)
        x = F.layer_norm(x, width, eps=self.eps) * self.weight[:, None, None]
        return x if self.bias is None else x + self.bias[:, None, None]


class RMSNorm(Norm):
    """Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467"""

    centred = False

    def __init__(self, replicas: int, width: int, eps: float | None = None):
        """`eps`: None = the smallest number that 1 can tell, in the precision of x."""
        super().__init__()
        self.eps, self.bias = eps, None
        self.weight = parameter(replicas, width, value=1.0)

    def forward(self, x: Float[Tensor, "R B T D"]) -> Float[Tensor, "R B T D"]:
        if (both := self.by_kernel(x)) is not None:
            return both[1]
        if len(self.weight) == 1:
            return F.rms_norm(x, self.weight.shape[1:], self.weight.squeeze(0), self.eps)
        return F.rms_norm(x, self.weight.shape[1:], eps=self.eps) * self.weight[:, None, None]


class Clock:
    """Where training stands: what the noise of this forward pass depends on, beside the seed and the place."""

    def __init__(self, device: torch.device):
        self.step = torch.zeros((), dtype=torch.int32, device=device)  # a tensor, so that graphs can be replayed
        self.first_row = 0  # of this part of the batch, when gradients are accumulated over parts

    def set(self, step: int, first_row: int = 0) -> None:
        self.step.fill_(step)
        self.first_row = first_row


class Noisy(nn.Module):
    """A module that draws random numbers in training. `seed` hands it the keys of its stream and the clock."""

    keys: Tensor
    clock: Clock

    def __init__(self, replicas: int):
        super().__init__()
        self.register_buffer("keys", torch.zeros(replicas, 2, dtype=torch.int32), persistent=False)


class Dropout(Noisy):
    """Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html, with one rate per replica.

    The mask is a hash of (seed, place, step, index): see `headway.core.random`. Rates are exact to 1/65536.
    """

    rates: Tensor

    def __init__(self, replicas: int, rate: float, fixed: bool = False):
        super().__init__(replicas)
        self.fixed = fixed  # the rate is part of the architecture: `set_dropout` leaves it alone
        self.register_buffer("rates", torch.zeros(replicas), persistent=False)
        self.set_rates([rate] * replicas)

    def set_rates(self, rates: Sequence[float]) -> None:
        self.active = any(rate > 0 for rate in rates)
        self.rates.copy_(torch.tensor([min(round(rate * 65536), 65535) / 65536 for rate in rates]))

    @property
    def drops(self) -> bool:
        """Whether anything is dropped now."""
        return self.training and self.active

    def forward(self, x: Float[Tensor, "R B *rest"]) -> Float[Tensor, "R B *rest"]:
        if not self.drops:
            return x
        drawing = self.drawing(x.shape)
        if (y := fused.dropped(x, drawing)) is not None:
            return y
        return x * self.factors(x.shape, x.dtype, drawing.first)

    def drawing(self, shape: Sequence[int]) -> fused.Drawing:
        """What is dropped of numbers of this shape."""
        return fused.Drawing(self.keys, self.clock.step, self.rates, self.clock.first_row * math.prod(shape[2:]))

    def factors(self, shape: Sequence[int], dtype: torch.dtype, first: int = 0) -> Float[Tensor, "R *rest"]:
        """0 for what is dropped, 1 / (1 - rate) for what is kept; `first` is the index of a replica's first number."""
        drawn = random.bits(self.keys, self.clock.step, math.prod(shape[1:]), first)
        threshold = (self.rates * 65536 - 32768).to(torch.int32)  # int16 runs from -32768
        kept = (drawn >= threshold[:, None]).view(tuple(shape))
        scale = (1 / (1 - self.rates)).to(dtype).view(-1, *[1] * (len(shape) - 1))
        return kept * scale


def _to_add(more: Tensor | Unbiased, drop: Dropout) -> fused_norm.More:
    """drop(more), as a kernel takes it."""
    if type(drop).forward is not Dropout.forward:  # the kernel knows no other way to drop
        return fused_norm.More(drop(with_bias(more)))
    given, bias = more if isinstance(more, Unbiased) else (more, None)
    return fused_norm.More(given, bias, drop.drawing(given.shape) if drop.drops else None)


def parameter(
    replicas: int, *shape: int, value: float | Tensor = 0.0, std: float = 0.0, decays: bool | None = None
) -> nn.Parameter:
    """A parameter per replica that `seed` will fill with `value` + normal noise of this deviation. Matrices are
    pulled towards zero by weight decay, unless said otherwise; vectors are not."""
    if has_no_numbers.get():
        made = nn.Parameter(torch.empty(replicas, *shape, device="meta"))
    else:
        made = nn.Parameter(torch.zeros(replicas, *shape) + value)
    made.start = (value, std)  # pyright: ignore[reportAttributeAccessIssue]
    made.decays = len(shape) >= 2 if decays is None else decays  # pyright: ignore[reportAttributeAccessIssue]
    return made


has_no_numbers: ContextVar[bool] = ContextVar("has_no_numbers", default=False)


@contextmanager
def without_numbers() -> Iterator[None]:
    """Parameters of what is built here have shapes and no numbers, and take no room: to be counted."""
    before = has_no_numbers.set(True)
    try:
        yield
    finally:
        has_no_numbers.reset(before)


def set_dropout(model: nn.Module, rates: Sequence[float]) -> None:
    """One dropout rate per replica, at every place whose rate is not fixed."""
    for module in model.modules():
        if isinstance(module, Dropout) and not module.fixed:
            module.set_rates(rates)


def copies_for_products(model: nn.Module) -> products.CopiedWeights:
    """Of what the maps of a model are made of."""
    maps = [one for one in model.modules() if isinstance(one, Linear)]
    return products.CopiedWeights(p for one in maps for p in (one.weight, one.bias) if p is not None)


def _precision(x: Tensor, for_products: bool) -> torch.dtype:
    """Of what a norm gives: that of the products that read it, or its own."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind) if for_products else torch.float32


def _multiply(
    x: Float[Tensor, "R B T I"],
    weight: Float[Tensor, "R O I"],
    bias: Float[Tensor, "R O"] | None,
    packed: PackedWeight | None = None,
) -> Float[Tensor, "R B T O"]:
    if packed is not None and (done := packed.multiply(x, weight, bias)) is not None:
        return done
    R, B, T, _ = x.shape
    if R == 1:
        if (done := products.multiply(x, weight, bias)) is not None:
            return done
        only = x, weight.squeeze(0), None if bias is None else bias.squeeze(0)
        return F.linear(*only) if (done := by_onednn(*only)) is None else done
    if (done := each_by_onednn(x, weight, bias)) is not None:
        return done
    if (y := products.multiply(x, weight, None)) is None:
        y = (x.reshape(R, B * T, -1) @ weight.mT).view(R, B, T, -1)
    return y if bias is None else _add_bias(y, bias)


def _add_bias(y: Float[Tensor, "R B T O"], bias: Float[Tensor, "R O"]) -> Float[Tensor, "R B T O"]:
    if (done := fused.activate(y, bias, "none")) is not None:
        return done
    # Added afterwards, where a compiler joins it to what follows: baddbmm copies the bias into every row first.
    return (y.flatten(1, 2) + bias[:, None].to(y.dtype)).view(y.shape)
