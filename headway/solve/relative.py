"""Attention layers with relative biases that compute a given operation: convolutions, shifts, mean and max pooling.

Edges: softmax normalizes over the visible tokens, so if a window extends beyond the sequence, the remaining weights
grow. For mean and max pooling that is right (the window is truncated). A convolution needs zeros beyond the ends, so
zero vectors are added there to attend to.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.solve.construction import Construction, RelativeBias, Stretch, attention_layer
from headway.solve.derivation import number
from headway.solve.inputs import checked_positive

LARGEST_SCALE = 1e30
"""The largest scale of queries for max pooling: its square, and that times an input, are still finite."""


MAX_CHANNELS = 1024
"""The layer's matrices have this many rows and columns, or twice as many."""


def convolution(taps: Sequence[float], centre: int | None = None, channels: int = 1) -> Construction:
    """y_i = Σ_k taps[k] · x_{i + k − centre} with zeros beyond the ends, like torch's conv1d: the kernel is not
    flipped.

    `centre` is the tap at the position itself; by default the middle one. Taps of one sign need one head, of both signs
    two: softmax weights are not negative, so one head adds and the other subtracts.
    """
    kernel = [float(tap) for tap in taps]
    if not all(math.isfinite(tap) for tap in kernel):
        raise UserError(
            f"the kernel contains {next(t for t in kernel if not math.isfinite(t))}; taps must be finite numbers"
        )
    if math.isinf(sum(map(abs, kernel))):
        raise UserError("the taps are too large for float64: W_V is their sum, which is infinite")
    if not any(kernel):
        raise UserError("the kernel is empty or all zeros; it needs at least one nonzero tap")
    first = -_centre("kernel", "taps", len(kernel), centre)
    shown = ", ".join(number(tap) for tap in kernel)
    return _weighted_sum(f"Convolution with ({shown}), centre at tap {-first}", kernel, first, channels)


def shift(by: int, channels: int = 1) -> Construction:
    """y_i = x_{i − by}: shift the sequence towards its end (towards its beginning if negative), filling with zeros."""
    return _weighted_sum(f"Shift by {number(by)}", [1.0], -by, channels)


def mean_pool(window: int, centre: int | None = None, channels: int = 1) -> Construction:
    """The mean of the window around each position, truncated at the ends."""
    first, channels = _window(window, centre), _channels(channels)
    return Construction(
        what=f"Mean over windows of {window}",
        channels=channels,
        layer=attention_layer(channels, 1, values=torch.eye(channels)),
        positions=RelativeBias(torch.zeros(1, window, dtype=torch.float64), first),
        zeros=(0, 0),
        weights={
            "W_Q": "0",
            "W_K": "0",
            "W_V": "I",
            "biases": f"0 in the window ({_reach(first, window)}), −∞ elsewhere",
        },
        bound=0.0,
        direct=_over_windows(first, window, lambda part: part.mean(0)),
        reasons=[
            "Equal scores in the window give equal weights; at the ends the window is truncated, and the mean is over "
            "the remaining tokens."
        ],
    )


def max_pool(window: int, centre: int | None = None, channels: int = 1, within: float = 1e-3) -> Construction:
    """The maximum of the window around each position, per channel, at most `within` too small for any input."""
    first, within = _window(window, centre), checked_positive("within", within)
    scale = max_pool_bound(window, 1.0) / within or 1.0
    if scale > LARGEST_SCALE:
        raise UserError(
            f"within = {within:g} needs queries of {scale:.3g}, but above {LARGEST_SCALE:g} scores overflow in float64"
        )
    identity = torch.eye(_channels(channels))
    return Construction(
        what=f"Maximum over windows of {window}",
        channels=channels,
        layer=attention_layer(channels, channels, query_bias=scale, keys=identity, values=identity),
        positions=RelativeBias(torch.zeros(channels, window, dtype=torch.float64), first),
        zeros=(0, 0),
        weights={
            "W_Q": "0",
            "b_Q": number(scale),
            "W_K": "I",
            "W_V": "I",
            "heads": f"{channels}, of width 1",
            "biases": f"0 in the window ({_reach(first, window)}), −∞ elsewhere",
        },
        bound=within if window > 1 else 0.0,
        direct=_over_windows(first, window, lambda part: part.amax(0)),
        reasons=["One slot has all the attention."]
        if window == 1
        else [
            f"The query is the constant C = {number(scale)}, so slot j has the score C·x_j for every query, "
            "and the largest wins.",
            f"max − Σ p_j x_j is largest if all others are (1 + W)/C below the maximum, W = W₀((n − 1)/e) = "
            f"{number(max_pool_bound(window, 1.0))} for n = {window} (W₀: Lambert's function), and is then W/C = "
            f"{number(max_pool_bound(window, scale))}; no input gives a larger error.",
            "The bound by C: "
            + ", ".join(f"{number(c)} → {number(max_pool_bound(window, c))}" for c in (1.0, 10.0, 100.0, 1e3)),
            _why_not_as_reported(window, first, max(scale, 10.0)),
        ],
    )


def max_pool_bound(window: int, scale: float) -> float:
    """The largest of max − Σ p_j x_j over all inputs, p = softmax(scale · x) over n slots: W₀((n − 1)/e) / scale.

    With a_j = scale · (max − x_j), scale times the error is f = Σ a_j e^{−a_j} / (1 + Σ e^{−a_j}). At the maximum
    1 − a_j + f = 0 for all j, so all a_j are 1 + f, and f = (n − 1) e^{−1−f}, that is f e^f = (n − 1)/e.
    """
    from scipy.special import lambertw

    return float(lambertw((window - 1) / math.e).real) / scale


def max_pool_as_reported(window: int, centre: int | None = None, scale: float = 100.0) -> Construction:
    """W_Q = W_K = C, W_V = 1, with one channel: right if x_i is positive, but the minimum if it is negative."""
    first, one = _window(window, centre), torch.ones(1, 1, dtype=torch.float64)
    return Construction(
        what=f"Maximum over windows of {window}, as reported",
        channels=1,
        layer=attention_layer(1, 1, queries=one * scale, keys=one * scale, values=one),
        positions=RelativeBias(torch.zeros(1, window, dtype=torch.float64), first),
        zeros=(0, 0),
        weights={"W_Q": number(scale), "W_K": number(scale), "W_V": "1"},
        bound=0.0,
        direct=_over_windows(first, window, lambda part: part.amax(0)),
        reasons=[
            "This is not the maximum: the scores are C²·x_i·x_j, which is largest for the smallest x_j if x_i < 0."
        ],
    )


def _why_not_as_reported(window: int, first: int, scale: float) -> str:
    x = torch.tensor([[2.0], [-1.0]]).repeat(window, 1)[: window + 1].double()
    reported = max_pool_as_reported(window, -first, scale)
    got, right = reported(x)[:, 0], reported.direct(x)[:, 0]
    i = int((got - right).abs().argmax())
    return (
        "W_Q = W_K = C instead would give the scores C²·x_i·x_j, and the minimum wherever x_i < 0: with "
        f"C = {number(scale)}, for x = ({', '.join(number(float(v)) for v in x[:, 0])}), it gives "
        f"{number(float(got[i]))} at position {i}, where the maximum is {number(float(right[i]))}."
    )


def _weighted_sum(what: str, kernel: list[float], first: int, channels: int) -> Construction:
    """y_i = Σ_k kernel[k] · x_{i + first + k}, with zeros beyond the ends."""
    signs = [sign for sign in (1.0, -1.0) if any(sign * tap > 0 for tap in kernel)]
    heads = torch.tensor([[max(sign * tap, 0.0) for tap in kernel] for sign in signs], dtype=torch.float64)
    sums = heads.sum(1)
    signed = [sign * total for sign, total in zip(signs, sums.tolist(), strict=True)]
    width = _channels(channels) * len(signs)  # each head carries all channels
    values, output = torch.zeros(2, width, width, dtype=torch.float64)
    for h, total in enumerate(signed):
        part = slice(h * channels, (h + 1) * channels)
        values[part, :channels] = total * torch.eye(channels, dtype=torch.float64)
        output[:channels, part] = torch.eye(channels)

    def direct(x: Stretch) -> Stretch:
        padded = nn.functional.pad(x, (0, 0, len(x) + abs(first), len(x) + abs(first) + len(kernel)))
        at = len(x) + abs(first) + first
        return sum((tap * padded[at + k : at + k + len(x)] for k, tap in enumerate(kernel)), torch.zeros_like(x))

    last = first + len(kernel) - 1
    biases = "; ".join(
        "(" + ", ".join(number(b) if math.isfinite(b) else "−∞" for b in row) + ")" for row in heads.log().tolist()
    )
    shares = "; ".join("(" + ", ".join(number(p) for p in row) + ")" for row in (heads / sums[:, None]).tolist())
    totals = [("" if total > 0 else "−") + ("I" if abs(total) == 1 else f"{number(abs(total))}·I") for total in signed]
    reasons = [
        f"With W_Q = W_K = 0 only the biases matter, and their softmax is {shares}: the taps divided by their "
        "sum. W_V multiplies by the sum."
    ]
    if len(signs) == 2:
        reasons.append(
            "Weights cannot be negative, so the negative taps have a head of their own with negated values; each head "
            "carries all channels, so the layer is twice as wide."
        )
    places = "distances" if len(kernel) > 1 else "distance"
    before, after = max(0, -first), max(0, last)
    if before or after:
        alone = "a position at the end would have nothing to attend to"
        shared = "a window that extends beyond the end would be normalized by the sum of the remaining taps"
        reasons.append(
            f"{before} zero vector{'' if before == 1 else 's'} before the sequence and {after} after it: without "
            f"them {alone if len(kernel) == 1 else shared}."
        )
    return Construction(
        what=what,
        channels=channels,
        layer=attention_layer(width, len(signs), values=values, output=output),
        positions=RelativeBias(heads.log(), first),
        zeros=(before, after),
        weights={
            "W_Q": "0",
            "W_K": "0",
            "W_V": " and ".join(totals),
            "biases": f"{biases} at {places} {_reach(first, len(kernel))}, −∞ elsewhere",
        },
        bound=0.0,
        direct=direct,
        reasons=reasons,
    )


def _over_windows(first: int, window: int, of: Callable[[Tensor], Tensor]) -> Callable[[Stretch], Stretch]:
    return lambda x: torch.stack([of(x[max(0, i + first) : i + first + window]) for i in range(len(x))])


def _window(window: int, centre: int | None) -> int:
    if window < 1:
        raise UserError(f"a window of {window}; it must be 1 or more")
    return -_centre("window", "slots", window, centre)


def _centre(what: str, parts: str, width: int, centre: int | None) -> int:
    if centre is None:
        if width % 2 == 0:
            raise UserError(
                f"a {what} of {width} {parts} has no middle one: set centre to the one at the position itself, 0 to "
                f"{width - 1}"
            )
        return width // 2
    if not 0 <= centre < width:
        raise UserError(f"centre {centre} is outside the {what}; its {parts} are numbered 0 to {width - 1}")
    return centre


def _channels(count: int) -> int:
    if not 1 <= count <= MAX_CHANNELS:
        raise UserError(f"channels = {count}; it must be between 1 and {MAX_CHANNELS:,}")
    return count


def _reach(first: int, width: int) -> str:
    return f"{number(first)} … {number(first + width - 1)}" if width > 1 else number(first)
