"""What attention goes on from: the keys and values of slots so far, or the slots before a segment."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """What attention was given in the slots before a segment (https://arxiv.org/abs/1901.02860). Their keys and values
    are made again, by the weights of today, and placed where they stand as seen from the segment."""

    inputs: Float[Tensor, "R B S D"]
    told: Bool[Tensor, "R B S"]
    """Where a slot holds a token; False = the stream began after it."""

    def extended(self, new: "Memory", most: int) -> "Memory":
        """The last `most` slots of both."""
        inputs, told = torch.cat((self.inputs, new.inputs), dim=2), torch.cat((self.told, new.told), dim=2)
        return Memory(inputs[:, :, -most:], told[:, :, -most:])

    def filled_up(self, size: int) -> "Memory":
        """With empty slots before those it has."""
        missing = size - self.inputs.shape[2]
        return Memory(F.pad(self.inputs, (0, 0, missing, 0)), F.pad(self.told, (missing, 0)))


@dataclass(frozen=True)
class Cache:
    """What attention goes on from: the keys (already placed) and values of all slots so far."""

    keys: Float[Tensor, "R B H S d"]
    values: Float[Tensor, "R B H S d"]
    memory: Memory | None = None
    """Of the last slots, where the next segment is to see them."""
    room: "Room | None" = None
    """Where these stand, with space behind them."""

    def extended(self, new: "Cache") -> "Cache":
        if new.keys.requires_grad:  # a gradient remembers what it was computed from
            return Cache(torch.cat((self.keys, new.keys), dim=3), torch.cat((self.values, new.values), dim=3))
        room = self.room if self.room is not None and self.room.ends_with(self) else Room(self, new.keys.shape[3])
        return room.extended(new)


class Room:
    """Space for the keys and values of slots still to come, so that a token more costs no copy of all before it. Only
    who has the last slots in it may write behind them; whoever else goes on gets a room of his own."""

    def __init__(self, first: Cache, more: int):
        """For what is there, and for twice as much as is there and `more` together."""
        self.filled = first.keys.shape[3]
        self.space = max(64, 2 * (self.filled + more))
        self.keys, self.values = (self._spacious(part) for part in (first.keys, first.values))

    def _spacious(self, part: Float[Tensor, "R B H S d"]) -> Float[Tensor, "R B H space d"]:
        R, B, H, S, d = part.shape
        space = part.new_empty(R, B, H, self.space, d)  # what a head reads stands together
        space[..., :S, :] = part
        return space

    def ends_with(self, cache: Cache) -> bool:
        return cache.keys.shape[3] == self.filled and cache.keys.data_ptr() == self.keys.data_ptr()

    def extended(self, new: Cache) -> Cache:
        last = self.filled + new.keys.shape[3]
        if last > self.space:
            return Room(Cache(*self._first(self.filled)), new.keys.shape[3]).extended(new)
        for space, part in ((self.keys, new.keys), (self.values, new.values)):
            space[..., self.filled : last, :] = part
        self.filled = last
        return Cache(*self._first(last), room=self)

    def _first(self, slots: int) -> tuple[Tensor, Tensor]:
        return self.keys[..., :slots, :], self.values[..., :slots, :]


class MemoryCache(Cache):
    """Of another sequence, which stays as it is however long the text becomes that looks at it."""
