"""How several processes train one run: data parallel (ddp) or with sharded weights (fsdp).

Every process works on its own rows of the same global batch (`Update` picks them), so the mean of their losses and
gradients is that of the batch, for any number of processes. They differ in where the weights are:

    one process   all weights                                                 Parallel
    ddp           a whole copy in each process; gradients are averaged        Copies
    fsdp          each process keeps a shard of all weights and optimizer
                  state, and gathers a layer's weights to compute it          Shards

Checkpoints hold whole tensors in all three cases, so a run can be resumed with another number of processes.
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
        """Check that this number of replicas can be trained this way."""

    @abstractmethod
    def reason(self, processes: Processes) -> str:
        """A sentence that says what is done."""

    @abstractmethod
    def build(self, model: Trainable, processes: Processes) -> "Parallel":
        """The implementation for one process or several."""


class Ddp(ParallelSpec):
    """Each process has a copy of the whole model."""

    kind: Literal["ddp"] = "ddp"
    sharded: ClassVar[bool] = False

    def check(self, replicas: int) -> None:
        """Any number is possible."""

    def reason(self, processes: Processes) -> str:
        return f"{processes.world} processes (ddp): each computes its rows of every batch, gradients are averaged"

    def build(self, model: Trainable, processes: Processes) -> "Parallel":
        return Copies(model, processes) if processes.world > 1 else Parallel(model)


class Fsdp(ParallelSpec):
    """Each process keeps a shard of the weights, gradients and optimizer state: for a model too large for one GPU.
    https://arxiv.org/abs/2304.11277"""

    kind: Literal["fsdp"] = "fsdp"
    sharded: ClassVar[bool] = True

    def check(self, replicas: int) -> None:
        if replicas > 1:
            raise UserError(
                f"training.parallel: fsdp trains a single large model, not {replicas} replicas; "
                "use training.parallel=ddp, or train fewer replicas at a time"
            )

    def reason(self, processes: Processes) -> str:
        return f"{processes.world} processes (fsdp): each keeps 1/{processes.world} of the weights and of the optimizer"

    def build(self, model: Trainable, processes: Processes) -> "Parallel":
        return Shards(model, processes) if processes.world > 1 else Parallel(model)


def check_rows(batch: int, accumulate: int, processes: Processes) -> None:
    """Check that all processes get equally many rows; otherwise the mean of their means is not the batch mean."""
    parts = processes.world * accumulate
    if processes.world == 1 or batch % parts == 0:
        return
    nearest = max(1, round(batch / parts)) * parts
    each = f", each in {accumulate} parts" if accumulate > 1 else ""
    raise UserError(
        f"training.batch: {batch} rows cannot be divided evenly among {processes.world} processes{each}; "
        f"the nearest batch size that can is {nearest}"
    )


class Parallel:
    """A single process, with nothing to do. The base of the others."""

    sharded = False

    def __init__(self, model: nn.Module, processes: Processes = ALONE):
        self.processes = processes
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        """This process's part of the weights; its optimizer updates those that are not frozen (`moving`)."""
        self.shapes = {name: p.shape[1:] for name, p in self.parameters.items()}
        """The shapes of the whole weights without the replica axis, as in a checkpoint."""

    @property
    def takes_part(self) -> bool:
        """Whether this process takes part in scores and checkpoints: as the writer, or for its shard of the weights."""
        return self.processes.is_writer or self.sharded

    def average(self, losses: Tensor) -> None:
        """After the last backward pass, average losses and gradients over the processes."""

    def whole_norms(self, norms: Tensor) -> Tensor:
        """From the norms of this process's part to those of the whole model."""
        return norms

    def whole(self, name: str, here: Tensor) -> Tensor:
        """The whole tensor of a weight, or of optimizer state, from this process's part. All processes must call it."""
        return here

    def share(self, name: str, whole: Tensor) -> Tensor:
        """This process's part of a whole tensor."""
        return whole

    def asked_for(self, work: Callable[[], Any]) -> Any:
        """The writer's result, for all processes: if they decided on results of their own, they might diverge."""
        if self.processes.world == 1:
            return work()
        found = work() if self.sharded else None
        return json.loads(self.processes.from_writer(lambda: json.dumps(found if self.sharded else work()).encode()))


class Copies(Parallel):
    """ddp. Not torch's DistributedDataParallel, which hooks into `forward` and each parameter's gradient to overlap
    communication with computation. Here `loss` is called, the gradients of parts are summed first, and losses are
    reduced together with gradients, so that all processes agree on which replicas diverged. That is one all-reduce per
    step for any number of replicas, but without overlap."""

    def __init__(self, model: Trainable, processes: Processes):
        super().__init__(model, processes)
        with torch.no_grad():
            processes.copy_from_writer(list(self.parameters.values()))  # another CPU may have rounded differently

    def average(self, losses: Tensor) -> None:
        gradients = [p.grad for p in self.parameters.values()]
        self.processes.average([losses, *(g for g in gradients if g is not None)])


class Shards(Parallel):
    """fsdp: torch's FSDP2. It averages gradients itself. Its parameters are distributed tensors; our optimizer works on
    the plain tensors inside them, which are this process's shards."""

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
            # Not the replica axis, unless no other axis divides evenly: then the first process has the whole tensor.
            cuttable = [axis for axis in range(1, p.ndim) if p.shape[axis] % processes.world == 0]
            return Shard(max(cuttable, key=lambda axis: p.shape[axis], default=0))

        mesh = init_device_mesh(next(model.parameters()).device.type, (processes.world,))
        layers = [layer for stack in model.children() if isinstance(stack, nn.ModuleList) for layer in stack]
        # Root and layers both reshard after the forward pass, so that outside of it parameters are always shards.
        for module in (*layers, model):
            fully_shard(module, mesh=mesh, shard_placement_fn=longest_axis, reshard_after_forward=True)
        register_fsdp_forward_method(model, "loss")
        # The caches that layers return are views, and FSDP warns about writing into them, which does not happen.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        self.sharded_parameters: dict[str, Any] = dict(model.named_parameters())
        self.parameters = {name: _inside(p, plain[name]) for name, p in self.sharded_parameters.items()}

    def average(self, losses: Tensor) -> None:
        self.processes.average([losses])
        for name, p in self.sharded_parameters.items():
            if p.grad is None:  # frozen
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
    """This process's shard of a parameter, sharing its memory; an empty shard has the shape [1, 0]."""
    local = p.to_local().detach()
    made = nn.Parameter(local if len(local) else local.view(1, 0))
    made.decays = getattr(plain, "decays", plain.ndim >= 3)  # pyright: ignore[reportAttributeAccessIssue]
    made.pace = pace_of(plain)  # pyright: ignore[reportAttributeAccessIssue]
    return made
