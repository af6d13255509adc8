"""Several processes that train one run: who we are, and how we agree.

`torchrun` starts the processes and says in the environment who each one is. Process 0 is the *writer*: run folder,
metrics, progress and scores are its business alone. The others compute.

The rule that keeps them from waiting for each other for ever: all of them go through the same conversations in the same
order. So a decision that one takes from what only it knows (a clock, a signal, a full disk) is not acted on until
`agree` has told it to everyone. One process alone never talks, and none of this costs it anything.
"""

import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from headway.core.errors import EndedElsewhereError, UserError

PATIENCE = timedelta(days=1)
"""How long a process waits for one that is still there: while the writer scores, the others have nothing to do. One
that is gone is noticed at once, by its broken connection, and torchrun ends the others."""
ARRIVAL = timedelta(minutes=5)
"""How long the first to come waits for the last."""


@dataclass
class Processes:
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """Our number on this machine: which of its GPUs is ours."""
    _error: Exception | None = field(default=None, repr=False)

    @property
    def is_writer(self) -> bool:
        return self.rank == 0

    @property
    def command(self) -> list[str]:
        """What a user types to get as many of us again."""
        if self.world == 1:
            return ["headway"]
        here = os.environ.get("LOCAL_WORLD_SIZE", str(self.world))
        return ["torchrun", "--nproc-per-node", here, "-m", "headway.cli"]

    # --- decisions -----------------------------------------------------------------------------------------------

    def agree(self, *wishes: bool) -> tuple[bool, ...]:
        """What any of us wishes, all of us do. An error that one of us has kept ends all of us here: the first who has
        one raises it, the others end without a word."""
        if self.world == 1:
            return wishes
        told = torch.tensor([self.world if self._error is None else self.rank, *(-int(wish) for wish in wishes)])
        with self._talking() as dist:
            dist.all_reduce(told, dist.ReduceOp.MIN)
        first, *answers = told.tolist()
        if first < self.world:
            error, self._error = self._error, None
            if error is not None and first == self.rank:
                raise error
            raise EndedElsewhereError(f"process {first} ended with an error, and this one with it")
        return tuple(answer < 0 for answer in answers)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A stretch in which nobody talks to anybody and each may fail: all get to its end, or none."""
        if self.world == 1:
            yield
            return
        try:
            yield
        except Exception as error:
            self._error = error
        self.agree()

    def write(self, do: Callable[[], None]) -> None:
        """Let the writer do this. If it fails, nothing more is written, and the error is kept for the next `agree`:
        to end here would leave the others waiting."""
        if self.world == 1:
            do()
        elif self.is_writer and self._error is None:
            try:
                do()
            except Exception as error:
                self._error = error

    def check_same(self, what: str, content: str) -> None:
        """Everyone must have found the same: files may differ between machines, and nobody would notice in training."""
        if self.world == 1:
            return
        mine = int.from_bytes(hashlib.sha256(content.encode()).digest()[:7], "big")
        ends = torch.tensor([mine, -mine])
        with self._talking() as dist:
            dist.all_reduce(ends, dist.ReduceOp.MAX)
        with self.together():
            if ends[0] != -ends[1]:
                raise UserError(f"the {self.world} processes do not see the same {what}; compare their files")

    # --- numbers -------------------------------------------------------------------------------------------------

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes its mean over the processes. They travel as one: it is conversations that cost."""
        if self.world == 1:
            return
        flat = torch.cat([t.flatten() for t in tensors])
        with self._talking() as dist:
            dist.all_reduce(flat)
        flat /= self.world
        for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(piece.view_as(tensor))

    def sum(self, tensor: Tensor) -> Tensor:
        if self.world > 1:
            with self._talking() as dist:
                dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor, all of one shape, in the order of the ranks."""
        if self.world == 1:
            return [tensor]
        found = [torch.empty_like(tensor) for _ in range(self.world)]
        with self._talking() as dist:
            dist.all_gather(found, tensor.contiguous())
        return found

    def copy_from_writer(self, tensors: Sequence[Tensor]) -> None:
        """Everyone gets the writer's values."""
        for tensor in tensors if self.world > 1 else ():
            with self._talking() as dist:
                dist.broadcast(tensor, src=0)

    def from_writer(self, make: Callable[[], bytes]) -> bytes:
        """What the writer makes, for everyone. As bytes: nothing is unpickled here either."""
        if self.world == 1:
            return make()
        made = b""
        with self.together():
            if self.is_writer:
                made = make()
        size = torch.tensor(len(made))
        self.copy_from_writer([size])
        text = torch.frombuffer(bytearray(made) or bytearray(1), dtype=torch.uint8)
        text = text if self.is_writer else torch.empty(max(1, int(size)), dtype=torch.uint8)
        self.copy_from_writer([text])
        return text.numpy().tobytes()[: int(size)]

    @contextmanager
    def _talking(self) -> Iterator[Any]:
        import torch.distributed as dist

        try:
            yield dist
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1][:200]
            text = f"process {self.rank} lost the others ({reason}); --resume goes on from what was saved"
            raise UserError(text) from None


ALONE = Processes()

_current = ALONE
_starts = 0


@contextmanager
def started() -> Iterator[Processes]:
    """As many processes as torchrun has started (usually one), able to talk inside the block, which may be nested."""
    global _current
    if _current is not ALONE or os.environ.get("WORLD_SIZE", "1") == "1":
        yield _current
        return
    import torch.distributed as dist

    store, rank, world = _meeting_point()
    # Tensors on the CPU, such as every decision, go by gloo; those on GPUs by NCCL.
    nccl = torch.cuda.is_available() and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    _current = Processes(rank, world, int(os.environ.get("LOCAL_RANK", "0")))
    try:
        yield _current
    finally:
        _current = ALONE
        # torch's caches of shardings keep the group and its threads alive, and one that lets go of its last tensor only
        # when the interpreter is already closing aborts the process: leave them a moment.
        time.sleep(0.1)
        dist.destroy_process_group()


def _meeting_point() -> tuple[Any, int, int]:
    """Where the processes exchange their addresses, after all of them have come; our rank, and how many we are."""
    global _starts
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

    try:
        whole, rank, world = _rendezvous()
        store = PrefixStore(f"headway-{_starts}", whole)  # addresses of an earlier time would lead nowhere
        store.set(f"here-{rank}", "")
        store.wait([f"here-{other}" for other in range(world)], ARRIVAL)
    except (ValueError, RuntimeError) as error:
        asked = f"WORLD_SIZE asks for {os.environ['WORLD_SIZE']} processes"
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(f"{asked}, which did not find each other ({reason}); torchrun starts them") from None
    _starts += 1
    return store, rank, world


@functools.cache
def _rendezvous() -> tuple[Any, int, int]:
    """Once: of two, one process could still come to the first when the other is at the second."""
    from torch.distributed.rendezvous import rendezvous

    return next(rendezvous("env://", timeout=ARRIVAL))
