"""What several processes share when they train one run.

Every process works on its own rows of the same global batch (`Update` picks them), so the mean of their losses and
gradients is that of the batch, whatever the number of processes. What differs is where the weights are:

    one process   everything here                                            Parallel
    ddp           a whole copy in each process; gradients are averaged        Copies
    fsdp          each process keeps a share of every weight and memory, and
                  gathers a layer's weights while it computes that layer      Shards

Checkpoints hold whole tensors in all three cases: a run may go on with another number of processes.
"""

import json
import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.core.variants import Variant
from headway.nn.trainable import Trainable, pace_of
from headway.training.processes import ALONE, Processes


class ParallelSpec(Variant):
    """How several processes divide the work."""

    sharded: ClassVar[bool]

    @abstractmethod
    def check(self, replicas: int) -> None:
        """Whether so many replicas can be trained this way."""

    @abstractmethod
    def reason(self, processes: Processes) -> str:
        """What is done, in words."""

    @abstractmethod
    def build(self, model: Trainable, processes: Processes) -> "Parallel":
        """For one process or several."""


class Ddp(ParallelSpec):
    """Each process has a copy of the whole model."""

    kind: Literal["ddp"] = "ddp"
    sharded: ClassVar[bool] = False

    def check(self, replicas: int) -> None:
        """Any model will do."""

    def reason(self, processes: Processes) -> str:
        return f"{processes.world} processes (ddp): each computes its rows of every batch, gradients are averaged"

    def build(self, model: Trainable, processes: Processes) -> "Parallel":
        return Copies(model, processes) if processes.world > 1 else Parallel(model)


class Fsdp(ParallelSpec):
    """Each process keeps a share of the weights, gradients and optimizer: for one model too large for one GPU.
    https://arxiv.org/abs/2304.11277"""

    kind: Literal["fsdp"] = "fsdp"
    sharded: ClassVar[bool] = True

    def check(self, replicas: int) -> None:
        if replicas > 1:
            raise UserError(
                f"training.parallel: fsdp is for one model that is too large, not for {replicas} replicas; "
                "use training.parallel=ddp, or train fewer replicas at a time"
            )

    def reason(self, processes: Processes) -> str:
        return f"{processes.world} processes (fsdp): each keeps 1/{processes.world} of the weights and of the optimizer"

    def build(self, model: Trainable, processes: Processes) -> "Parallel":
        return Shards(model, processes) if processes.world > 1 else Parallel(model)


def check_rows(batch: int, accumulate: int, processes: Processes) -> None:
    """Shares must be equal, or the mean of their means would not be the mean of the batch."""
    parts = processes.world * accumulate
    if processes.world == 1 or batch % parts == 0:
        return
    nearest = max(1, round(batch / parts)) * parts
    each = f", each in {accumulate} parts" if accumulate > 1 else ""
    raise UserError(
        f"training.batch: {batch} rows cannot be shared by {processes.world} processes{each}; "
        f"the nearest batch that can is {nearest}"
    )


class Parallel:
    """One process, which has everything: nothing to do. The base of the others."""

    sharded = False

    def __init__(self, model: nn.Module, processes: Processes = ALONE):
        self.processes = processes
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        """What this process has of the weights; of those that move (`moving`), its optimizer moves it."""
        self.shapes = {name: p.shape[1:] for name, p in self.parameters.items()}
        """Of the whole, without the replica axis: what a checkpoint holds."""

    @property
    def takes_part(self) -> bool:
        """Whether the writer's work (scores, checkpoints) is ours too: where it needs our share of the weights."""
        return self.processes.is_writer or self.sharded

    def average(self, losses: Tensor) -> None:
        """After the last backward pass: losses and gradients become those of the global batch."""

    def whole_norms(self, norms: Tensor) -> Tensor:
        """From the norms of what is here to those of the whole model."""
        return norms

    def whole(self, name: str, here: Tensor) -> Tensor:
        """The whole of a weight, or of a memory of it, of which we have this. All processes must ask."""
        return here

    def share(self, name: str, whole: Tensor) -> Tensor:
        """Our share of it."""
        return whole

    def asked_for(self, work: Callable[[], Any]) -> Any:
        """What the writer finds, for everyone: processes that decide on numbers of their own would part company."""
        if self.processes.world == 1:
            return work()
        found = work() if self.sharded else None
        return json.loads(self.processes.from_writer(lambda: json.dumps(found if self.sharded else work()).encode()))


class Copies(Parallel):
    """Not torch's DistributedDataParallel, which hooks into `forward` and into each parameter's gradient in order to
    talk while it still computes. Here `loss` is what is called, the gradients of parts are summed first, and the losses
    travel along with the gradients, so that all processes agree on who has diverged: one conversation per step, for
    any number of replicas, at the price that nothing is computed meanwhile."""

    def __init__(self, model: Trainable, processes: Processes):
        super().__init__(model, processes)
        with torch.no_grad():
            processes.copy_from_writer(list(self.parameters.values()))  # another CPU may have rounded another way

    def average(self, losses: Tensor) -> None:
        gradients = [p.grad for p in self.parameters.values()]
        self.processes.average([losses, *(g for g in gradients if g is not None)])


class Shards(Parallel):
    """torch's FSDP2. It averages gradients itself, and its parameters are tensors that know of all their shards; our
    optimizer works on the plain tensors inside them, which are this process's."""

    sharded = True

    def __init__(self, model: Trainable, processes: Processes):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
        from torch.distributed.tensor import Shard

        super().__init__(model, processes)
        plain = self.parameters
        with torch.no_grad():
            processes.copy_from_writer(list(plain.values()))

        def longest_axis(p: nn.Parameter) -> Shard:
            # Never the replica axis, if another can be cut into equal pieces: of that one the first process has all.
            cuttable = [axis for axis in range(1, p.ndim) if p.shape[axis] % processes.world == 0]
            return Shard(max(cuttable, key=lambda axis: p.shape[axis], default=0))

        mesh = init_device_mesh(next(model.parameters()).device.type, (processes.world,))
        layers = [layer for stack in model.children() if isinstance(stack, nn.ModuleList) for layer in stack]
        # Root and layers alike give back what they gathered: the parameters are shards whenever somebody looks.
        for module in (*layers, model):
            fully_shard(module, mesh=mesh, shard_placement_fn=longest_axis, reshard_after_forward=True)
        register_fsdp_forward_method(model, "loss")
        # The caches that layers return are views, and FSDP warns of writing into them, which nobody does.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        self.sharded_parameters: dict[str, Any] = dict(model.named_parameters())
        self.parameters = {name: _inside(p, plain[name]) for name, p in self.sharded_parameters.items()}

    def average(self, losses: Tensor) -> None:
        self.processes.average([losses])
        for name, p in self.sharded_parameters.items():
            if p.grad is None:  # it stays as it is
                continue
            here = self.parameters[name]
            here.grad = p.grad.to_local().view_as(here)
            p.grad = None

    def whole_norms(self, norms: Tensor) -> Tensor:
        return self.processes.sum(norms.square()).sqrt()

    def whole(self, name: str, here: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        p = self.sharded_parameters[name]
        local = here.detach().view(p.to_local().shape)
        made = DTensor.from_local(local, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())
        return made.full_tensor()

    def share(self, name: str, whole: Tensor) -> Tensor:
        axis = self.sharded_parameters[name].placements[0].dim
        if axis == 0:
            return whole if self.processes.rank == 0 else whole.new_zeros(1, 0)
        return whole.chunk(self.processes.world, dim=axis)[self.processes.rank]


def _inside(p: Any, plain: nn.Parameter) -> nn.Parameter:
    """The tensor of this process in a sharded parameter, sharing its memory; one without anything is [1, 0]."""
    local = p.to_local().detach()
    made = nn.Parameter(local if len(local) else local.view(1, 0))
    made.decays = getattr(plain, "decays", plain.ndim >= 3)  # pyright: ignore[reportAttributeAccessIssue]
    made.pace = pace_of(plain)  # pyright: ignore[reportAttributeAccessIssue]
    return made
