"""Several processes that train one run: ranks, collective operations, and common decisions.

`torchrun` starts the processes and sets their ranks in the environment. Process 0 is the *writer*: only it writes the
run folder, metrics, progress and scores. The others compute.

To avoid deadlocks, all processes must call the same collective operations in the same order. So a decision that depends
on what only one process knows (a clock, a signal, a full disk) takes effect only after `agree` has told it to all of
them. A single process never communicates, and none of this costs anything.
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
"""How long a process waits for another that is still alive: while the writer scores, the others are idle. If a process
dies, the others notice at once by the broken connection, and torchrun ends them."""
ARRIVAL = timedelta(minutes=5)
"""How long processes wait at the start until all have arrived."""


@dataclass
class Processes:
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """The number of this process on its machine, and of its GPU."""
    _error: Exception | None = field(default=None, repr=False)

    @property
    def is_writer(self) -> bool:
        return self.rank == 0

    @property
    def command(self) -> list[str]:
        """The command that starts the same number of processes."""
        if self.world == 1:
            return ["headway"]
        here = os.environ.get("LOCAL_WORLD_SIZE", str(self.world))
        return ["torchrun", "--nproc-per-node", here, "-m", "headway.cli"]

    # --- decisions -----------------------------------------------------------------------------------------------

    def agree(self, *wishes: bool) -> tuple[bool, ...]:
        """The logical or of each wish over all processes. An error that a process has kept ends all processes here: the
        first one with an error raises it, and the others end without a message."""
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
            raise EndedElsewhereError(f"process {first} failed with an error, so this one ended too")
        return tuple(answer < 0 for answer in answers)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block without communication in which each process may fail: either all complete it, or all end."""
        if self.world == 1:
            yield
            return
        try:
            yield
        except Exception as error:
            self._error = error
        self.agree()

    def write(self, do: Callable[[], None]) -> None:
        """Let the writer do this. If it fails, nothing more is written, and the error is kept for the next `agree`,
        because raising it here would leave the other processes waiting."""
        if self.world == 1:
            do()
        elif self.is_writer and self._error is None:
            try:
                do()
            except Exception as error:
                self._error = error

    def check_same(self, what: str, content: str) -> None:
        """Check that all processes have the same content: files may differ between machines, which training would not
        notice."""
        if self.world == 1:
            return
        mine = int.from_bytes(hashlib.sha256(content.encode()).digest()[:7], "big")
        ends = torch.tensor([mine, -mine])
        with self._talking() as dist:
            dist.all_reduce(ends, dist.ReduceOp.MAX)
        with self.together():
            if ends[0] != -ends[1]:
                raise UserError(f"the {self.world} processes do not have the same {what}; compare their files")

    # --- tensors -------------------------------------------------------------------------------------------------

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over the processes. They are sent as one tensor, which is cheaper."""
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
        """The tensors of all processes, which have the same shape, in the order of ranks."""
        if self.world == 1:
            return [tensor]
        found = [torch.empty_like(tensor) for _ in range(self.world)]
        with self._talking() as dist:
            dist.all_gather(found, tensor.contiguous())
        return found

    def copy_from_writer(self, tensors: Sequence[Tensor]) -> None:
        """Broadcast the writer's values into the tensors of all processes."""
        for tensor in tensors if self.world > 1 else ():
            with self._talking() as dist:
                dist.broadcast(tensor, src=0)

    def from_writer(self, make: Callable[[], bytes]) -> bytes:
        """Broadcast what the writer makes to all processes; as bytes, so that nothing is unpickled."""
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
            text = f"process {self.rank} lost the others ({reason}); --resume continues from the last checkpoint"
            raise UserError(text) from None


ALONE = Processes()

_current = ALONE
_starts = 0


@contextmanager
def started() -> Iterator[Processes]:
    """The processes that torchrun has started (usually one), connected inside the block, which may be nested."""
    global _current
    if _current is not ALONE or os.environ.get("WORLD_SIZE", "1") == "1":
        yield _current
        return
    import torch.distributed as dist

    store, rank, world = _meeting_point()
    # CPU tensors, such as those of decisions, use gloo; GPU tensors use NCCL.
    nccl = torch.cuda.is_available() and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    _current = Processes(rank, world, int(os.environ.get("LOCAL_RANK", "0")))
    try:
        yield _current
    finally:
        _current = ALONE
        # torch's sharding caches keep the group's threads alive. A thread that frees its last tensor while the
        # interpreter shuts down aborts the process, so wait a moment.
        time.sleep(0.1)
        dist.destroy_process_group()


def _meeting_point() -> tuple[Any, int, int]:
    """The store in which processes exchange addresses, once all have arrived; the rank; the number of processes."""
    global _starts
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

    try:
        whole, rank, world = _rendezvous()
        store = PrefixStore(f"headway-{_starts}", whole)  # not the stale addresses of an earlier start
        store.set(f"here-{rank}", "")
        store.wait([f"here-{other}" for other in range(world)], ARRIVAL)
    except (ValueError, RuntimeError) as error:
        asked = f"WORLD_SIZE asks for {os.environ['WORLD_SIZE']} processes"
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(f"{asked}, which did not connect ({reason}); start them with torchrun") from None
    _starts += 1
    return store, rank, world


@functools.cache
def _rendezvous() -> tuple[Any, int, int]:
    """Called once per process: with two calls, one process could be at the first while another is at the second."""
    from torch.distributed.rendezvous import rendezvous

    return next(rendezvous("env://", timeout=ARRIVAL))
