"""The formulas of the papers for the parts of a model, in a few plain lines of float64 each.

Nothing here is shared with `headway.nn`, which is fast and has replicas, caches and kernels: a mistake there would have
to be made here a second time to go unnoticed. Position schemes are looked up by their kind; a user's own scheme is
compared too if it is added to `SCHEMES`, and skipped otherwise.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

Parameters = Mapping[str, Tensor]
"""The parameters of a module for one replica, without the replica axis."""


class Scheme(NamedTuple):
    """How a position scheme acts; None where it does nothing."""

    embed: Callable[[Any, Parameters, int, int], Tensor] | None = None
    """(spec, parameters, T, D): what is added to the embeddings [T, D]."""
    rotate: Callable[[Any, Tensor], Tensor] | None = None
    """(spec, x [..., T, d]): the rotated queries or keys."""
    bias: Callable[[Any, Parameters, int, int, float], Tensor] | None = None
    """(spec, parameters, heads, T, nudge): what is added to the scores [heads, T, T]. `nudge` is added before a formula
    rounds down, since float32 may put a number on the border to either side."""


# --- attention, norms, loss ------------------------------------------------------------------------------------------


def attention_weights(scores: Tensor, may_see: Tensor) -> Tensor:
    """The softmax over what may be seen; zeros where nothing may. https://arxiv.org/abs/1706.03762"""
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp() * may_see
    return exponentials / exponentials.sum(-1, keepdim=True).clamp(min=1e-300)


def scaled_dot(parameters: Parameters, queries: Tensor, keys: Tensor) -> Tensor:
    """q·k/√d. https://arxiv.org/abs/1706.03762"""
    return torch.einsum("...qd,...kd->...qk", queries.double(), keys.double()) * queries.shape[-1] ** -0.5


def additive(parameters: Parameters, queries: Tensor, keys: Tensor) -> Tensor:
    """v·tanh(q + k), one query at a time. https://arxiv.org/abs/1409.0473"""
    rows = []
    for t in range(queries.shape[-2]):
        total = queries[..., t : t + 1, :].double() + keys.double()  # [..., H, K, d]
        rows.append(((2 * _sigmoid(2 * total) - 1) * parameters["vector"].double()[:, None]).sum(-1))
    return torch.stack(rows, -2)


SIMILARITIES: dict[str, Callable[[Parameters, Tensor, Tensor], Tensor]] = {
    "scaled-dot": scaled_dot,
    "additive": additive,
}
"""(parameters, queries [..., H, Q, d], keys [..., H, K, d]): the scores [..., H, Q, K]."""


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float = 1e-5) -> Tensor:
    """https://arxiv.org/abs/1607.06450"""
    centred = x.double() - x.double().mean(-1, keepdim=True)
    normal = centred / (centred.pow(2).mean(-1, keepdim=True) + eps) ** 0.5 * weight.double()
    return normal if bias is None else normal + bias.double()


def rms_norm(x: Tensor, weight: Tensor, eps: float = 0.0) -> Tensor:
    """https://arxiv.org/abs/1910.07467"""
    return x.double() / (x.double().pow(2).mean(-1, keepdim=True) + eps) ** 0.5 * weight.double()


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean of -log p(target), p = softmax(logits)."""
    shifted = logits.double().flatten(0, -2)
    shifted = shifted - shifted.amax(-1, keepdim=True)
    normaliser = shifted.exp().sum(-1).log()
    return (normaliser - shifted[torch.arange(len(shifted), device=shifted.device), targets.flatten()]).mean()


def penalty(spec: Any, x: Tensor) -> Tensor:
    """α·mean(h²) + β·mean((h' - h)²), of vectors [.., T, D] and of those of the next token: 1708.01009"""
    x = x.double()
    change = (x[..., 1:, :] - x[..., :-1, :]).pow(2)
    return spec.size * x.pow(2).mean() + (spec.change * change.mean() if change.numel() else 0.0)


# --- recurrences -----------------------------------------------------------------------------------------------------

State = tuple[Tensor, ...]
"""The hidden state of one row, [H], and whatever else a cell carries."""


def rnn(spec: Any, parameters: Parameters, x: Tensor, state: State) -> State:
    """h' = φ(W x + b + U h). https://doi.org/10.1207/s15516709cog1402_1"""
    total = _from_input(parameters, x) + parameters["recurrent"].double() @ state[0]
    if spec.nonlinearity == "relu":
        return (torch.maximum(total, torch.zeros_like(total)),)
    return (_sigmoid(total) if spec.nonlinearity == "sigmoid" else 2 * _sigmoid(2 * total) - 1,)  # tanh, otherwise


def gru(spec: Any, parameters: Parameters, x: Tensor, state: State) -> State:
    """h' = (1 - z)·n + z·h, n = tanh(a + r·(U h + c)): the form of https://arxiv.org/abs/1406.1078 that cuDNN has."""
    H, U = len(state[0]), parameters["recurrent"].double()
    a = _from_input(parameters, x)
    reset = _sigmoid(a[:H] + U[:H] @ state[0])
    update = _sigmoid(a[H : 2 * H] + U[H : 2 * H] @ state[0])
    more = parameters["reset_bias"].double() if "reset_bias" in parameters else 0.0
    candidate = 2 * _sigmoid(2 * (a[2 * H :] + reset * (U[2 * H :] @ state[0] + more))) - 1
    return ((1 - update) * candidate + update * state[0],)


def lstm(spec: Any, parameters: Parameters, x: Tensor, state: State) -> State:
    """c' = f·c + i·g, h' = o·tanh(c'), rows of the matrices in the order i, f, g, o. 10.1162/089976600300015015"""
    H = len(state[0])
    total = _from_input(parameters, x) + parameters["recurrent"].double() @ state[0]
    enter, forget, leave = (_sigmoid(total[k * H : (k + 1) * H]) for k in (0, 1, 3))
    cell = forget * state[1] + enter * (2 * _sigmoid(2 * total[2 * H : 3 * H]) - 1)
    return leave * (2 * _sigmoid(2 * cell) - 1), cell


def mingru(spec: Any, parameters: Parameters, x: Tensor, state: State) -> State:
    """h' = (1 - z)·h + z·g(U x), z = σ(W x). https://arxiv.org/abs/2410.01201"""
    H, a = len(state[0]), _from_input(parameters, x)
    update, candidate = _sigmoid(a[:H]), a[H:]
    positive = torch.where(candidate >= 0, candidate + 0.5, _sigmoid(candidate))
    return ((1 - update) * state[0] + update * positive,)


def recurrence(spec: Any, parameters: Parameters, x: Tensor, first: State, real: Tensor | None) -> tuple[Tensor, State]:
    """Of one row [T, D]: the hidden state at every token [T, H] and the last state. Padding leaves it as it is."""
    state, found = tuple(part.double() for part in first), []
    for t in range(len(x)):
        if real is None or bool(real[t]):
            state = RECURRENCES[spec.kind](spec, parameters, x[t].double(), state)
        found.append(state[0])
    return torch.stack(found), state


def _from_input(parameters: Parameters, x: Tensor) -> Tensor:
    product = parameters["input.weight"].double() @ x
    return product + parameters["input.bias"].double() if "input.bias" in parameters else product


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


RECURRENCES: dict[str, Callable[[Any, Parameters, Tensor, State], State]] = {
    "rnn": rnn,
    "gru": gru,
    "lstm": lstm,
    "mingru": mingru,
}


# --- positions -------------------------------------------------------------------------------------------------------


def learned(spec: Any, parameters: Parameters, length: int, width: int) -> Tensor:
    """A vector per position. https://arxiv.org/abs/1705.03122"""
    return parameters["table.weight"][:length].double()


def sinusoidal(spec: Any, parameters: Parameters, length: int, width: int) -> Tensor:
    """sin(t / base^(2i/D)) and cos of the same, alternating, or all sines first. https://arxiv.org/abs/1706.03762"""
    rows = []
    for t in range(length):
        waves = [t / spec.base ** (2 * (k // 2) / width) for k in range(width)]
        rows.append([spec.size * (math.cos(wave) if k % 2 else math.sin(wave)) for k, wave in enumerate(waves)])
    by_turns = torch.tensor(rows, dtype=torch.float64)
    return torch.cat((by_turns[:, 0::2], by_turns[:, 1::2]), 1) if spec.layout == "halves" else by_turns


def rotary(spec: Any, x: Tensor) -> Tensor:
    """Each pair of dimensions, as a complex number, times exp(i·t·base^(-2k/d)). https://arxiv.org/abs/2104.09864"""
    length, width = x.shape[-2:]
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    t = torch.arange(length, dtype=torch.float64, device=x.device)[:, None]
    k = torch.arange(width // 2, dtype=torch.float64, device=x.device)
    angles = t * torch.exp(-2 * k / width * math.log(spec.base))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def alibi(spec: Any, parameters: Parameters, heads: int, length: int, nudge: float) -> Tensor:
    """-m·(i - j) for key j of query i. https://arxiv.org/abs/2108.12409"""
    return -_slopes(heads)[:, None, None] * _distances(length)


def alibi_symmetric(spec: Any, parameters: Parameters, heads: int, length: int, nudge: float) -> Tensor:
    """-m·|i - j|"""
    return -_slopes(heads)[:, None, None] * _distances(length).abs()


def t5(spec: Any, parameters: Parameters, heads: int, length: int, nudge: float) -> Tensor:
    """A learned number per head and bucket of i - j, for keys not after the query. https://arxiv.org/abs/1910.10683"""
    back = _distances(length).clamp(min=0)
    return parameters["weight"].double()[:, _buckets(back, spec.buckets, spec.furthest, nudge)]


def t5_symmetric(spec: Any, parameters: Parameters, heads: int, length: int, nudge: float) -> Tensor:
    """The same with half of the buckets for each direction, the second half for later keys."""
    back, half = _distances(length), spec.buckets // 2
    bucket = _buckets(back.abs(), half, spec.furthest, nudge) + half * (back < 0)
    return parameters["weight"].double()[:, bucket]


def _distances(length: int) -> Tensor:
    """i - j"""
    return torch.tensor([[i - j for j in range(length)] for i in range(length)], dtype=torch.float64)


def _slopes(heads: int) -> Tensor:
    """A geometric series that starts at 2^(-8/n) and has that ratio. If n is not a power of two: the series of the next
    lower power, then every second number of that of the next higher one."""
    below = 1
    while 2 * below <= heads:
        below *= 2
    series = [2.0 ** (-8 * k / below) for k in range(1, below + 1)]
    above = [2.0 ** (-8 * k / (2 * below)) for k in range(1, 2 * below + 1)]
    return torch.tensor((series + above[::2])[:heads], dtype=torch.float64)


def _buckets(far: Tensor, buckets: int, furthest: int, nudge: float) -> Tensor:
    """The first half of the buckets holds single distances; the others divide the rest up to `furthest` evenly in the
    logarithm."""

    def bucket(distance: int) -> int:
        exact = buckets // 2
        if distance < exact:
            return distance
        share = math.log(distance / exact) / math.log(furthest / exact)
        return min(buckets - 1, exact + math.floor(max(0.0, share * (buckets - exact) + nudge)))

    found = {distance: bucket(distance) for distance in {int(d) for d in far.unique()}}
    return torch.tensor([[found[int(d)] for d in row] for row in far.tolist()])


SCHEMES: dict[str, Scheme] = {
    "none": Scheme(),
    "learned": Scheme(embed=learned),
    "sinusoidal": Scheme(embed=sinusoidal),
    "rotary": Scheme(rotate=rotary),
    "alibi": Scheme(bias=alibi),
    "alibi-symmetric": Scheme(bias=alibi_symmetric),
    "t5": Scheme(bias=t5),
    "t5-symmetric": Scheme(bias=t5_symmetric),
}


# --- optimizers and averages -----------------------------------------------------------------------------------------


def adamw(spec: Any, weights: Tensor, gradient: Tensor, memory: Any, step: int, rate: float, decay: float) -> Any:
    """The weights after this step (counted from 1), and the optimizer's state. https://arxiv.org/abs/1711.05101"""
    mean, square = memory or (0.0, 0.0)
    mean = spec.beta1 * mean + (1 - spec.beta1) * gradient
    square = spec.beta2 * square + (1 - spec.beta2) * gradient**2
    size = (square / (1 - spec.beta2**step)) ** 0.5 + spec.epsilon
    return weights - rate * decay * weights - rate * mean / (1 - spec.beta1**step) / size, (mean, square)


def adam(spec: Any, weights: Tensor, gradient: Tensor, memory: Any, step: int, rate: float, decay: float) -> Any:
    """AdamW with weight decay as an L2 penalty in the gradient. https://arxiv.org/abs/1412.6980"""
    return adamw(spec, weights, gradient + decay * weights, memory, step, rate, 0.0)


def sgd(spec: Any, weights: Tensor, gradient: Tensor, memory: Any, step: int, rate: float, decay: float) -> Any:
    """With momentum. https://proceedings.mlr.press/v28/sutskever13.html"""
    gradient = gradient + decay * weights
    velocity = gradient + (0.0 if memory is None else spec.momentum * memory)
    return weights - rate * (gradient + spec.momentum * velocity if spec.nesterov else velocity), velocity


def adagrad(spec: Any, weights: Tensor, gradient: Tensor, memory: Any, step: int, rate: float, decay: float) -> Any:
    """https://jmlr.org/papers/v12/duchi11a.html"""
    gradient = gradient + decay * weights
    squares = gradient**2 + (0.0 if memory is None else memory)
    return weights - rate * gradient / (squares**0.5 + spec.epsilon), squares


OPTIMIZERS: dict[str, Callable[..., Any]] = {"adamw": adamw, "adam": adam, "sgd": sgd, "adagrad": adagrad}
OF_EACH_WEIGHT = frozenset(OPTIMIZERS)
"""Optimizers that update each weight independently of the others, so that checking some of a tensor suffices."""


PACES: dict[str, Callable[[Any, int, int, bool], float]] = {
    "full": lambda spec, depth, head, added: 1.0,
    "frozen": lambda spec, depth, head, added: 1.0 if depth == head else 0.0,
    "last": lambda spec, depth, head, added: 1.0 if head - depth <= spec.layers else 0.0,
    "layerwise": lambda spec, depth, head, added: math.prod([spec.decay] * (head - depth)),
    "lora": lambda spec, depth, head, added: 1.0 if added or depth == head else 0.0,
}
"""(spec, depth of the parameter, depth of the head, whether it was added): the factor on its learning rate. Depth is
counted from the embeddings upwards."""


def tail(spec: Any, weights: list[Tensor]) -> Tensor:
    """The mean of the last weights, taken every few steps, counted from the end."""
    taken = weights[::-1][:: spec.every][: max(1, int(spec.last * len(weights) / spec.every))]
    return torch.stack(taken).mean(0)


def moving(spec: Any, weights: list[Tensor]) -> Tensor:
    """An exponential moving average; a plain mean at first, as long as that forgets faster."""
    average = weights[0]
    for step, here in enumerate(weights):
        share = max(1 / (step + 1), 1 - spec.decay)
        average = (1 - share) * average + share * here
    return average


AVERAGES: dict[str, Callable[[Any, list[Tensor]], Tensor]] = {"tail": tail, "moving": moving}


def rate_of(schedule: Any, step: int, warmup: int, total: int) -> float | None:
    """The learning rate at a step (counted from 0) as a share of the highest: a linear warm-up from zero, with the
    first step already above it, then by the kind of schedule; None for a kind that has no definition here."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    left = total - 1 - warmup
    done = min(1.0, (step - warmup) / left) if left > 0 else 0.0
    final = getattr(schedule, "final", 1.0)
    shares = {"constant": 1.0, "linear": 1 - done * (1 - final)}
    shares["cosine"] = final + (1 - final) * math.cos(math.pi * done / 2) ** 2
    return shares.get(schedule.kind)
