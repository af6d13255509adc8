"""The state of attention: a KV cache of the slots so far, or a memory of the slots before a segment."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """The inputs of attention in the slots before a segment (https://arxiv.org/abs/1901.02860). Their keys and values
    are recomputed with the current weights, at their positions relative to the segment."""

    inputs: Float[Tensor, "R B S D"]
    told: Bool[Tensor, "R B S"]
    """True where a slot holds a token; False = it is before the beginning of the stream."""

    def extended(self, new: "Memory", most: int) -> "Memory":
        """The last `most` slots of both."""
        inputs, told = torch.cat((self.inputs, new.inputs), dim=2), torch.cat((self.told, new.told), dim=2)
        return Memory(inputs[:, :, -most:], told[:, :, -most:])

    def filled_up(self, size: int) -> "Memory":
        """Padded at the front with empty slots, to `size` slots."""
        missing = size - self.inputs.shape[2]
        return Memory(F.pad(self.inputs, (0, 0, missing, 0)), F.pad(self.told, (missing, 0)))


@dataclass(frozen=True)
class Cache:
    """A KV cache: the keys (already rotated) and values of all slots so far."""

    keys: Float[Tensor, "R B H S d"]
    values: Float[Tensor, "R B H S d"]
    memory: Memory | None = None
    """The memory of the last slots, if the next segment attends to them."""
    buffer: "Buffer | None" = None
    """The preallocated buffer that holds these keys and values."""

    def extended(self, new: "Cache") -> "Cache":
        if new.keys.requires_grad:  # autograd needs the old tensors unchanged
            return Cache(torch.cat((self.keys, new.keys), dim=3), torch.cat((self.values, new.values), dim=3))
        buffer = (
            self.buffer if self.buffer is not None and self.buffer.ends_with(self) else Buffer(self, new.keys.shape[3])
        )
        return buffer.extended(new)


class Buffer:
    """A preallocated buffer for keys and values, so that a new token does not copy all earlier ones. Only a cache that
    holds all the filled slots may append to it; any other one that is extended gets a new buffer."""

    def __init__(self, first: Cache, more: int):
        """Holds `first`, with space for twice as many slots as `first` and `more` together."""
        self.filled = first.keys.shape[3]
        self.space = max(64, 2 * (self.filled + more))
        self.keys, self.values = (self._spacious(part) for part in (first.keys, first.values))

    def _spacious(self, part: Float[Tensor, "R B H S d"]) -> Float[Tensor, "R B H space d"]:
        R, B, H, S, d = part.shape
        space = part.new_empty(R, B, H, self.space, d)  # the slots of a head are contiguous
        space[..., :S, :] = part
        return space

    def ends_with(self, cache: Cache) -> bool:
        return cache.keys.shape[3] == self.filled and cache.keys.data_ptr() == self.keys.data_ptr()

    def extended(self, new: Cache) -> Cache:
        last = self.filled + new.keys.shape[3]
        if last > self.space:
            return Buffer(Cache(*self._first(self.filled)), new.keys.shape[3]).extended(new)
        for space, part in ((self.keys, new.keys), (self.values, new.values)):
            space[..., self.filled : last, :] = part
        self.filled = last
        return Cache(*self._first(last), buffer=self)

    def _first(self, slots: int) -> tuple[Tensor, Tensor]:
        return self.keys[..., :slots, :], self.values[..., :slots, :]


class MemoryCache(Cache):
    """Keys and values of another sequence, for cross attention; it does not grow with the text being decoded."""
