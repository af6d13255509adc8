"""Linear, Embedding, norms and Dropout for R replicas at once: the only modules that know what a replica is.

Activations are `[R, B, T, D]` and parameters have a leading axis R: one batched matrix product serves all replicas.
With R = 1 each module takes the plain torch path, so that a single model is no slower than ordinary torch code.

Modules are built without randomness. `seed` then initialises every parameter and gives every source of noise its random
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


class PendingBias(NamedTuple):
    """The output of a Linear whose bias has not been added yet."""

    products: Float[Tensor, "R B T O"]
    bias: Float[Tensor, "R O"]


def with_bias(y: Tensor | PendingBias) -> Float[Tensor, "R B T O"]:
    return _add_bias(*y) if isinstance(y, PendingBias) else y


class Linear(Multiplying):
    """y = x Wᵀ + b, with its own W and b for every replica. Weights start with a standard deviation of
    gain / (2 √inputs): at GPT-2's width of 768 that is 0.018 (GPT-2: 0.02), and narrow models learn faster with it
    (docs/log.md)."""

    def __init__(
        self, replicas: int, inputs: int, outputs: int, bias: bool = True, gain: float = 1.0, std: float | None = None
    ):
        super().__init__()
        self.weight = parameter(replicas, outputs, inputs, std=gain * 0.5 / math.sqrt(inputs) if std is None else std)
        self.bias = parameter(replicas, outputs) if bias else None
        self.drop: nn.Module | None = None  # weight dropout
        self.output_names: tuple[str, ...] = ()  # parts of the output, of equal size; adapters select by them
        self.adapter: nn.Module | None = None  # a low-rank adapter beside the frozen weight

    def forward(self, x: Float[Tensor, "R B T I"], more: Tensor | None = None) -> Float[Tensor, "R B T O"]:
        """`more`: a bias to use instead of the module's own."""
        weight = self.weight if self.drop is None else self.drop(self.weight)
        y = _multiply(x, weight, self.bias if more is None else more, self.packed if self.drop is None else None)
        return y if self.adapter is None else y + self.adapter(x).to(y.dtype)

    def activated(self, x: Float[Tensor, "R B T I"], kind: str) -> Float[Tensor, "R B T O"] | None:
        """The output after a nonlinearity, if one kernel can fuse bias and nonlinearity; else None."""
        if (packed := self.packed) is not None and self._is_plain:
            return packed.multiply(x, self.weight, self.bias, kind)
        if self.bias is None or not self._products_are_all(x):
            return None
        return fused.activate(_multiply(x, self.weight, None), self.bias, kind)

    def with_pending_bias(self, x: Float[Tensor, "R B T I"]) -> "Float[Tensor, 'R B T O'] | PendingBias":
        """The output. If fused kernels are used, the bias is left for the kernel of the next operation, which may be in
        another layer."""
        if self.bias is None or not self._products_are_all(x) or not products.has_copy(self.bias):
            return self(x)
        return PendingBias(_multiply(x, self.weight, None), self.bias)

    def _products_are_all(self, x: Tensor) -> bool:
        """Whether fused kernels are used, and the module is only a matrix product and a bias."""
        return self._is_plain and self.packed is None and launching.wanted(x)

    @property
    def _is_plain(self) -> bool:
        """Whether it has no weight dropout, no adapter and no overridden `forward`."""
        return self.drop is None and self.adapter is None and type(self).forward is Linear.forward


class Embedding(Multiplying):
    """A table of vectors per replica. `logits` uses the same table as the output matrix (tied embeddings)."""

    def __init__(self, replicas: int, size: int, width: int, std: float = 0.02):
        super().__init__()
        self.weight = parameter(replicas, size, width, std=std)

    def forward(self, ids: Int[Tensor, "R B T"]) -> Float[Tensor, "R B T D"]:
        R, V, D = self.weight.shape
        if R == 1:
            return F.embedding(ids, self.weight.squeeze(0))
        # The tables are stacked; replica r's rows start at r·V.
        first = torch.arange(R, device=ids.device)[:, None, None] * V
        return F.embedding(ids + first, self.weight.view(R * V, D))

    def logits(self, x: Float[Tensor, "R B T D"], bias: Tensor | None = None) -> Float[Tensor, "R B T V"]:
        return _multiply(x, self.weight, bias, self.packed)


class Norm(nn.Module):
    """What the norms share: fused kernels for training on a GPU."""

    centred: ClassVar[bool]
    weight: nn.Parameter
    bias: nn.Parameter | None
    eps: Any  # a number; RMSNorm also allows None

    def __init__(self) -> None:
        super().__init__()
        self.for_products = False  # whether its output is used only in matrix products

    @property
    def is_not_overridden(self) -> bool:
        """Whether `forward` is not overridden by a subclass."""
        return type(self).forward in (LayerNorm.forward, RMSNorm.forward)

    def by_kernel(
        self,
        x: Float[Tensor, "R B T D"],
        more: Float[Tensor, "R B T D"] | PendingBias | None = None,
        drop: "Dropout | None" = None,
    ) -> tuple[Float[Tensor, "R B T D"], Float[Tensor, "R B T D"]] | None:
        """x + drop(more) (x if `more` is None) and its norm, if one kernel can compute both; else None."""
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
        """`eps`: None = the machine epsilon of x's dtype."""
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
    """The current step (and part of the batch), on which noise depends besides the seed and the module."""

    def __init__(self, device: torch.device):
        self.step = torch.zeros((), dtype=torch.int32, device=device)  # a tensor, so that CUDA graphs can be replayed
        self.first_row = 0  # the first row of this micro-batch, if gradients are accumulated

    def set(self, step: int, first_row: int = 0) -> None:
        self.step.fill_(step)
        self.first_row = first_row


class Noisy(nn.Module):
    """A module that draws random numbers in training. `seed` gives it the keys of its random stream and the clock."""

    keys: Tensor
    clock: Clock

    def __init__(self, replicas: int):
        super().__init__()
        self.register_buffer("keys", torch.zeros(replicas, 2, dtype=torch.int32), persistent=False)


class Dropout(Noisy):
    """Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html, with one rate per replica.

    The mask is a hash of (seed, module, step, index): see `headway.core.random`. Rates are exact to 1/65536.
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
        """Whether it is training with a rate above 0."""
        return self.training and self.active

    def forward(self, x: Float[Tensor, "R B *rest"]) -> Float[Tensor, "R B *rest"]:
        if not self.drops:
            return x
        mask = self.mask(x.shape)
        if (y := fused.dropped(x, mask)) is not None:
            return y
        return x * self.factors(x.shape, x.dtype, mask.first)

    def mask(self, shape: Sequence[int]) -> fused.DropoutMask:
        """What determines the mask for a tensor of this shape."""
        return fused.DropoutMask(self.keys, self.clock.step, self.rates, self.clock.first_row * math.prod(shape[2:]))

    def factors(self, shape: Sequence[int], dtype: torch.dtype, first: int = 0) -> Float[Tensor, "R *rest"]:
        """0 for dropped elements, 1 / (1 - rate) for kept ones; `first` is the index of a replica's first element."""
        drawn = random.bits(self.keys, self.clock.step, math.prod(shape[1:]), first)
        threshold = (self.rates * 65536 - 32768).to(torch.int32)  # int16 runs from -32768
        kept = (drawn >= threshold[:, None]).view(tuple(shape))
        scale = (1 / (1 - self.rates)).to(dtype).view(-1, *[1] * (len(shape) - 1))
        return kept * scale


def _to_add(more: Tensor | PendingBias, drop: Dropout) -> fused_norm.More:
    """drop(more), in the form that the norm kernel takes."""
    if type(drop).forward is not Dropout.forward:  # the kernel supports only plain dropout
        return fused_norm.More(drop(with_bias(more)))
    given, bias = more if isinstance(more, PendingBias) else (more, None)
    return fused_norm.More(given, bias, drop.mask(given.shape) if drop.drops else None)


def parameter(
    replicas: int, *shape: int, value: float | Tensor = 0.0, std: float = 0.0, decays: bool | None = None
) -> nn.Parameter:
    """A parameter per replica, which `seed` will initialise with `value` + normal noise of standard deviation `std`.
    Weight decay applies to matrices but not to vectors, unless `decays` says otherwise."""
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
    """Parameters built inside this block are on the meta device: shapes without memory, for counting them."""
    before = has_no_numbers.set(True)
    try:
        yield
    finally:
        has_no_numbers.reset(before)


def set_dropout(model: nn.Module, rates: Sequence[float]) -> None:
    """Set one dropout rate per replica, in every module whose rate is not fixed."""
    for module in model.modules():
        if isinstance(module, Dropout) and not module.fixed:
            module.set_rates(rates)


def copies_for_products(model: nn.Module) -> products.CopiedWeights:
    """Copies of the weights and biases of all Linear layers in the dtype of the matrix products."""
    maps = [one for one in model.modules() if isinstance(one, Linear)]
    return products.CopiedWeights(p for one in maps for p in (one.weight, one.bias) if p is not None)


def _precision(x: Tensor, for_products: bool) -> torch.dtype:
    """The dtype of a norm's output: that of the matrix products that read it, or float32."""
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
    # A separate addition, which a compiler fuses with what follows: baddbmm first copies the bias into every row.
    return (y.flatten(1, 2) + bias[:, None].to(y.dtype)).view(y.shape)
