"""Every random number of training is a pure function of (seed, purpose, step, index).

There is no running state. The dropout mask of replica 3 in layer 2 at step 700 is a hash of those four facts, so it is
the same whether the replica trains alone or among 32, on a CPU or on a GPU, in one large batch or in accumulated parts,
before or after a resume; and there is no random state to save. The hash is made of ordinary integer tensor operations:
it runs anywhere, and is no slower than torch's own dropout.
"""

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Int, Int16, Int32
from torch import Tensor


def key(*parts: int | str) -> int:
    """A 63-bit hash of these facts, used as the seed of a `torch.Generator` or of a stream."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A CPU generator for one-time draws, such as initial weights."""
    return torch.Generator().manual_seed(key(*parts))


def stream_keys(seeds: Sequence[int], purpose: str) -> Int32[Tensor, "R 2"]:
    """The keys that `bits` and `integers` need for each replica: two independent 32-bit keys per seed."""
    pairs = [[_signed(key(seed, purpose, half)) for half in (0, 1)] for seed in seeds]
    return torch.tensor(pairs, dtype=torch.int32)


def bits(keys: Int32[Tensor, "R 2"], step: Int32[Tensor, ""] | int, count: int, first: int = 0) -> Int16[Tensor, "R n"]:
    """`count` uniform 16-bit numbers per replica, starting at index `first`."""
    pair, odd = divmod(first, 2)
    words = _words(keys, step, pair, (count + odd + 1) // 2)
    return words.view(torch.int16)[:, odd : odd + count]


def integers(
    keys: Int32[Tensor, "R 2"], step: Int32[Tensor, ""] | int, high: int, count: int, first: int = 0
) -> Int[Tensor, "R n"]:
    """`count` numbers from 0 to `high` - 1 per replica; the bias of the scaling is below high / 2³²."""
    words = _words(keys, step, first, count).to(torch.int64) & 0xFFFFFFFF
    return (words * high) >> 32


def _words(keys: Tensor, step: Tensor | int, first: int, count: int) -> Int32[Tensor, "R n"]:
    """Hash a counter with two rounds of xor-shift-multiply, each using one of the keys.

    The multipliers are those of C. Wellons' `lowbias32` (https://nullprogram.com/blog/2018/07/31/), found by a search
    for the least bias; the second key keeps streams from being shifted copies of each other.
    """
    keys = _mix(keys + _mix(torch.as_tensor(step, dtype=torch.int32, device=keys.device) + _GOLDEN))
    index = torch.arange(first, first + count, dtype=torch.int32, device=keys.device)
    x = (index * _GOLDEN)[None] + keys[:, :1]
    x ^= (x >> 16) & 0xFFFF
    x *= _ODD_1
    x += keys[:, 1:]
    x ^= (x >> 15) & 0x1FFFF
    x *= _ODD_2
    x ^= (x >> 16) & 0xFFFF
    return x


def _mix(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 16) & 0xFFFF)) * _ODD_1
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _ODD_2
    return x ^ ((x >> 16) & 0xFFFF)


def _signed(word: int) -> int:
    """The low 32 bits as an int32 value."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


_GOLDEN, _ODD_1, _ODD_2 = _signed(0x9E3779B1), _signed(0x7FEB352D), _signed(0x846CA68B)
