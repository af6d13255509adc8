"""The Triton kernels behind `fused.py` and the other `fused_….py`, forward and backward: each reads its inputs once and
writes its outputs once.

Replicas are stacked: row `n` of replica `r` is row `r·N + n` of a table `[R·N, D]`, and parameters are rows of
`[R, D]`. Sums over the rows of a replica are computed in fixed parts that are added afterwards, so that no result
depends on the order in which programs run.

Triton compiles different kernels for sizes that are multiples of 16 and for those that are not. Sizes for which this
makes no difference in speed are marked `do_not_specialize`, so that the kernel that was checked (`trusted.py`) is the
one that is used.
"""

# pyright: reportMissingImports=false, reportUnreachable=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportGeneralTypeIssues=false, reportPossiblyUnboundVariable=false
# (Triton comes with torch's CUDA builds only, and this module is imported only there.)

import triton
import triton.language as tl

GOLDEN, ODD_1, ODD_2 = tl.constexpr(-1640531535), tl.constexpr(2146121005), tl.constexpr(-2073254261)
"""As in `core/random.py`."""


@triton.jit
def _mixed(x):
    x = (x ^ ((x >> 16) & 0xFFFF)) * ODD_1
    x = (x ^ ((x >> 15) & 0x1FFFF)) * ODD_2
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
def _dropped(v, index, replica, keys, step, rates, like):
    """v · factors, for the elements of a replica with these indices (int64), in the dtype of `like`."""
    now = _mixed(tl.load(step) + GOLDEN)
    key_1 = _mixed(tl.load(keys + 2 * replica) + now)
    key_2 = _mixed(tl.load(keys + 2 * replica + 1) + now)
    w = (index >> 1).to(tl.int32) * GOLDEN + key_1
    w = (w ^ ((w >> 16) & 0xFFFF)) * ODD_1 + key_2
    w = (w ^ ((w >> 15) & 0x1FFFF)) * ODD_2
    w = w ^ ((w >> 16) & 0xFFFF)
    drawn = tl.where((index & 1) == 1, w >> 16, (w << 16) >> 16)
    rate = tl.load(rates + replica)
    kept = drawn >= (rate * 65536.0 - 32768.0).to(tl.int32)
    one = rate * 0.0 + 1.0
    scale = tl.div_rn(one, one - rate).to(like.dtype.element_ty).to(tl.float32)
    return tl.where(kept, v * scale, v * 0.0)


@triton.jit(do_not_specialize=["first"])
def dropped(y, out, keys, step, rates, count, first, BLOCK: tl.constexpr):
    """y · factors; `count` elements per replica, with the indices from `first` on."""
    replica = tl.program_id(1).to(tl.int64)
    own = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here, at = own < count, replica * count + own
    v = tl.load(y + at, here, 0.0).to(tl.float32)
    tl.store(out + at, _dropped(v, own + first, replica, keys, step, rates, y), here)


@triton.jit(do_not_specialize=["N", "first"])
def norm_forward(
    x, weight, bias, normed, mean, scale, N, D, eps, more, more_bias, total, keys, step, rates, first,
    centred: tl.constexpr, biased: tl.constexpr, adds: tl.constexpr, biased_more: tl.constexpr, drops: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The norm of x. If `adds`: the norm of x + `more`, where `more` can have a bias; the sum is also written to
    `total`. If `drops`: dropout of `more`, with the indices from `first` on."""
    replica = tl.program_id(1).to(tl.int64)
    row, unit = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    here = row < N
    there = here[:, None] & (unit < D)[None, :]
    own = row[:, None] * D + unit[None, :]
    whole, at = replica * N + row, replica * N * D + own
    v = tl.load(x + at, there, 0.0).to(tl.float32)
    if adds:
        a = tl.load(more + at, there, 0.0).to(tl.float32)
        if biased_more:
            a += tl.load(more_bias + replica * D + unit, unit < D, 0.0)[None, :]
        if drops:
            a = _dropped(a, own + first, replica, keys, step, rates, more).to(more.dtype.element_ty).to(tl.float32)
        v = (v + a).to(total.dtype.element_ty).to(tl.float32)
        tl.store(total + at, v, there)
    if centred:
        middle = tl.sum(v, 1) / D
        v = tl.where(there, v - middle[:, None], 0.0)
        tl.store(mean + whole, middle, here)
    s = 1.0 / tl.sqrt(tl.sum(v * v, 1) / D + eps)
    tl.store(scale + whole, s, here)
    out = v * s[:, None] * tl.load(weight + replica * D + unit, unit < D, 0.0)[None, :]
    if biased:
        out += tl.load(bias + replica * D + unit, unit < D, 0.0)[None, :]
    tl.store(normed + at, out, there)


@triton.jit(do_not_specialize=["N", "per", "first"])
def norm_backward(
    dy, x, weight, mean, scale, dx, d_weight, d_bias, N, D, per,
    d_total, d_more, d_more_bias, keys, step, rates, first,
    centred: tl.constexpr, biased: tl.constexpr, splits: tl.constexpr, biased_more: tl.constexpr, drops: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`d_total`: the gradient that reaches the sum past the norm. If `splits`: write the gradient of `more` to a tensor
    of its own, in its dtype and with its dropout (`drops`)."""
    replica, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    unit = tl.arange(0, BLOCK)
    w = tl.load(weight + replica * D + unit, unit < D, 0.0)[None, :]
    # Keep sums per row of the tile: adding rows up makes warps wait for each other, so do it only once at the end.
    sum_weight, sum_bias = tl.zeros((ROWS, BLOCK), tl.float32), tl.zeros((ROWS, BLOCK), tl.float32)
    sum_more = tl.zeros((ROWS, BLOCK), tl.float32)
    for top in range(part * per, part * per + per, ROWS):
        row = top + tl.arange(0, ROWS).to(tl.int64)
        here = row < N
        there = here[:, None] & (unit < D)[None, :]
        own = row[:, None] * D + unit[None, :]
        whole, at = replica * N + row, replica * N * D + own
        g = tl.load(dy + at, there, 0.0).to(tl.float32)
        v = tl.load(x + at, there, 0.0).to(tl.float32)
        s = tl.load(scale + whole, here, 0.0)
        other = tl.load(d_total + at, there, 0.0).to(tl.float32)  # before warps wait for each other: loads overlap
        if centred:
            v -= tl.load(mean + whole, here, 0.0)[:, None]
        v = tl.where(there, v * s[:, None], 0.0)
        sum_weight += g * v
        sum_bias += g
        g = g * w
        d = g - v * (tl.sum(g * v, 1) / D)[:, None]
        if centred:
            d -= (tl.sum(g, 1) / D)[:, None]
        d = d * s[:, None]
        d += other
        tl.store(dx + at, d, there)
        if splits:
            if drops:
                d = _dropped(d, own + first, replica, keys, step, rates, d_more)
            tl.store(d_more + at, d, there)
        if biased_more:
            sum_more += d
    out = (replica * tl.num_programs(1) + part) * D + unit
    tl.store(d_weight + out, tl.sum(sum_weight, 0), unit < D)
    if biased:
        tl.store(d_bias + out, tl.sum(sum_bias, 0), unit < D)
    if biased_more:
        tl.store(d_more_bias + out, tl.sum(sum_more, 0), unit < D)


@triton.jit
def _activated(v, kind: tl.constexpr):
    if kind == "relu":
        v = tl.where(v < 0, 0.0, v)  # NaN stays NaN
    elif kind == "gelu":
        v = 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))
    elif kind == "gelu-tanh":
        v = v * tl.sigmoid(1.5957691216057308 * (v + 0.044715 * v * v * v))
    elif kind == "silu":
        v = v * tl.sigmoid(v)
    return v


@triton.jit
def _slope(v, kind: tl.constexpr):
    d = tl.zeros_like(v) + 1.0
    if kind == "relu":
        d = tl.where(v > 0, 1.0, 0.0)
    elif kind == "gelu":
        d = 0.5 * (1.0 + tl.erf(v * 0.7071067811865476)) + v * 0.3989422804014327 * tl.exp(-0.5 * v * v)
    elif kind == "gelu-tanh":
        s = tl.sigmoid(1.5957691216057308 * (v + 0.044715 * v * v * v))
        d = s + v * s * (1.0 - s) * 1.5957691216057308 * (1.0 + 0.134145 * v * v)
    elif kind == "silu":
        s = tl.sigmoid(v)
        d = s + v * s * (1.0 - s)
    return d


@triton.jit(do_not_specialize=["rows", "N"])
def activate_forward(products, bias, y, rows, N, D, kind: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (unit < D)[None, :]
    at = row[:, None] * D + unit[None, :]
    v = tl.load(products + at, there, 0.0).to(tl.float32)
    v += tl.load(bias + (row // N)[:, None] * D + unit[None, :], there, 0.0)
    tl.store(y + at, _activated(v, kind), there)


@triton.jit(do_not_specialize=["N", "per"])
def activate_backward(
    dy, products, bias, dx, d_bias, N, D, per, kind: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    replica, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    unit = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(bias + replica * D + unit, unit < D, 0.0)[None, :]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(part * per, part * per + per, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < N)[:, None] & (unit < D)[None, :]
        at = (replica * N + row)[:, None] * D + unit[None, :]
        d = tl.load(dy + at, there, 0.0).to(tl.float32)
        if kind != "none":
            d = d * _slope(tl.load(products + at, there, 0.0).to(tl.float32) + b, kind)
            tl.store(dx + at, d, there)
        total += d
    tl.store(d_bias + (replica * tl.num_programs(1) + part) * D + unit, tl.sum(total, 0), unit < D)


@triton.jit(do_not_specialize=["T", "stride_row", "stride_head", "stride_time", "out_row", "out_head", "out_time"])
def rotated(
    x, out, places, frequencies, T, stride_row, stride_head, stride_time, out_row, out_head, out_time,
    sign, H: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rotate each pair of dimensions of each head by an angle that grows with the position. Pairs are adjacent."""
    row, time = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    unit = tl.arange(0, BLOCK)
    here = unit < H * HALF
    head, pair = unit // HALF, unit % HALF
    angle = tl.load(places + time).to(tl.float32) * tl.load(frequencies + pair, here, 0.0)
    cos, sin = tl.cos(angle), tl.sin(angle) * sign
    x += row * stride_row + time * stride_time + head * stride_head + 2 * pair
    even, odd = tl.load(x, here, 0.0).to(tl.float32), tl.load(x + 1, here, 0.0).to(tl.float32)
    out += row * out_row + time * out_time + head * out_head + 2 * pair
    tl.store(out, even * cos - odd * sin, here)
    tl.store(out + 1, even * sin + odd * cos, here)


@triton.jit
def _added_up(v, largest, total):
    """The largest logit of each lane, and the sum of exp(logit - largest), with these logits [lanes, side]."""
    higher = tl.maximum(largest, tl.max(v, 1))
    total = total * tl.exp(largest - higher) + tl.sum(tl.exp(v - higher[:, None]), 1)
    return higher, total


@triton.jit(do_not_specialize=["V"])
def loss_and_slope(
    logits, targets, shares, losses, V, W, smoothing, smooth: tl.constexpr, LANES: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """The loss of each row of logits, which are overwritten by its derivative. There are V words; rows have W elements,
    a multiple of 64.

    Because of W, loads and stores can be vectorised. Elements beyond V are masked, in a loop of their own, because
    masks take as long as the rest. A row is read twice, the second time from its end, which is still in the cache. A
    lane finds the maximum of `SIDE` elements before it takes their exponentials, so that the running sum is rescaled
    only once for all of them."""
    PIECE: tl.constexpr = LANES * SIDE
    row = tl.program_id(0).to(tl.int64)
    logits += row * W
    target, share = tl.load(targets + row).to(tl.int32), tl.load(shares + row)
    asked = tl.load(logits + target).to(tl.float32)  # before it is overwritten
    unit = tl.arange(0, LANES)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    largest, total = tl.full((LANES,), -1e30, tl.float32), tl.zeros((LANES,), tl.float32)
    plain_sum = tl.zeros((LANES,), tl.float32)
    full = V // PIECE * PIECE
    for first in range(0, full, PIECE):
        v = tl.load(logits + first + unit, eviction_policy="evict_last").to(tl.float32)
        if smooth:
            plain_sum += tl.sum(v, 1)
        largest, total = _added_up(v, largest, total)
    for first in range(full, W, PIECE):
        word = first + unit
        v = tl.load(logits + word, word < W, 0.0, eviction_policy="evict_last").to(tl.float32)
        if smooth:
            plain_sum += tl.sum(tl.where(word < V, v, 0.0), 1)
        largest, total = _added_up(tl.where(word < V, v, -float("inf")), largest, total)
    most = tl.max(largest, 0)
    log_total = most + tl.log(tl.sum(total * tl.exp(largest - most), 0))
    wanted, spread = asked, 0.0
    if smooth:
        spread = smoothing / V
        wanted = (1.0 - smoothing) * asked + spread * tl.sum(plain_sum, 0)
    tl.store(losses + row, (log_total - wanted) * share)
    for first in range(full, W, PIECE):
        word = first + unit
        v = tl.load(logits + word, word < W, 0.0, eviction_policy="evict_first").to(tl.float32)
        d = tl.exp(v - log_total) - tl.where(word == target, 1.0 - smoothing, 0.0) - spread
        tl.store(logits + word, tl.where(word < V, d * share, 0.0), word < W, eviction_policy="evict_first")
    for back in range(PIECE, full + PIECE, PIECE):
        word = full - back + unit
        v = tl.load(logits + word, eviction_policy="evict_first").to(tl.float32)
        d = tl.exp(v - log_total) - tl.where(word == target, 1.0 - smoothing, 0.0) - spread
        tl.store(logits + word, d * share, eviction_policy="evict_first")


@triton.jit
def adamw(
    weights, gradient, mean, square, scales, rates, decays, filled_mean, filled_root, n,
    keep_mean, keep_square, epsilon, decayed: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    replica = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = unit < n
    at = replica * n + unit
    scale, rate = tl.load(scales + replica), tl.load(rates + replica)
    g = tl.load(gradient + at, here, 0.0).to(tl.float32)
    g = tl.where(scale > 0, g * scale, 0.0)
    m, s, w = tl.load(mean + at, here, 0.0), tl.load(square + at, here, 0.0), tl.load(weights + at, here, 0.0)
    m += (g - m) * (1.0 - keep_mean)
    s = s * keep_square + g * g * (1.0 - keep_square)
    if decayed:
        w *= 1.0 - rate * tl.load(decays + replica)
    size = tl.sqrt(s) / tl.load(filled_root) + epsilon
    tl.store(weights + at, w - m / size * (rate / tl.load(filled_mean)), here)
    tl.store(mean + at, m, here)
    tl.store(square + at, s, here)
