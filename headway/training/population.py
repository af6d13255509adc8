"""A population: R replicas with a shared model and optimizer, and the slice of each replica.

A slice has no replica axis and does not depend on the other replicas, so a run can leave or join a population at any
checkpoint.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from headway.core.errors import UserError
from headway.training.averaging import Averages
from headway.training.carried import CarriedState
from headway.training.checkpoint import Checkpoint
from headway.training.loop import ReplicaState
from headway.training.optimizers import Optimizer
from headway.training.parallel import Parallel

Model = TypeVar("Model", bound=nn.Module)


class Population(Generic[Model]):
    def __init__(
        self,
        model: Model,
        optimizer: Optimizer,
        replicas: int,
        parallel: Parallel | None = None,
        averages: Averages | None = None,
    ):
        self.model, self.optimizer, self.averages = model, optimizer, averages
        self.parallel = parallel or Parallel(model)
        self.replica_states = [ReplicaState() for _ in range(replicas)]
        self.carried = CarriedState(self.parallel.processes)

    @property
    def takes_part(self) -> bool:
        """Whether a checkpoint needs this process: to write it, or for its part of the weights or rows."""
        return self.parallel.takes_part or bool(self.carried)

    def slice(self, r: int, step: int) -> Checkpoint:
        """The checkpoint of replica r, on the CPU. If processes hold shards, or rows of a state, all must call this."""
        whole = self.parallel.whole
        weights = {name: _cpu_copy(whole(name, t)[r]) for name, t in self._weights.items()}
        memory = {key: _cpu_copy(whole(_name(key), t)[r]) for key, t in self._training_state.items()}
        carried = {name: _cpu_copy(rows) for name, rows in self.carried.of_replica(r).items()}
        if self.optimizer.steps.is_cuda:
            torch.cuda.current_stream().synchronize()  # once for all copies
        return Checkpoint(step, {"standing": self.replica_states[r].as_json()}, weights, memory, carried)

    def restore(self, r: int, saved: Checkpoint) -> None:
        """Restore replica r from a checkpoint."""
        self._fill(r, self._weights, saved.weights, "weights")
        if saved.step or saved.optimizer:
            self._fill(r, self._training_state, saved.optimizer, "optimizer")
        elif self.averages is not None:  # an imported model, without optimizer state
            self._fill(r, dict(self.averages.parameters), saved.weights, "weights")
        self.carried.restore(r, len(self.replica_states), saved.state, self.optimizer.steps.device)
        self.optimizer.steps.fill_(saved.step)
        self.replica_states[r] = ReplicaState.from_json(saved.facts["standing"])

    @property
    def _weights(self) -> dict[str, Tensor]:
        """The weights of a checkpoint, which are those that are scored: the averages, if there are any."""
        return dict(self.parallel.parameters) | ({} if self.averages is None else self.averages.tensors)

    @property
    def _training_state(self) -> dict[str, Tensor]:
        """The rest of the training state: the optimizer's, and the trained weights if averages are saved as weights."""
        trained = {} if self.averages is None else {f"trained/{n}": p for n, p in self.averages.parameters.items()}
        return self.optimizer.state() | trained

    def load_weights(self, r: int, weights: dict[str, Tensor]) -> None:
        self._fill(r, dict(self.parallel.parameters), weights, "weights")

    @torch.no_grad()
    def _fill(self, r: int, ours: dict[str, Tensor], saved: dict[str, Tensor], what: str) -> None:
        check_fits({key: self.parallel.shapes[_name(key)] for key in ours}, saved, what)
        for key, tensor in ours.items():
            tensor[r].copy_(self.parallel.share(_name(key), saved[key][None])[0])


@torch.no_grad()
def load_weights(model: nn.Module, r: int, weights: dict[str, Tensor]) -> None:
    ours = dict(model.named_parameters())
    check_fits({name: p.shape[1:] for name, p in ours.items()}, weights, "weights")
    for name, p in ours.items():
        p[r].copy_(weights[name])


@torch.no_grad()
def load_side_by_side(model: nn.Module, weights: Sequence[dict[str, Tensor]]) -> None:
    """The same for all replicas at once, with one copy to the device per parameter instead of one per replica."""
    ours = dict(model.named_parameters())
    for own in weights:
        check_fits({name: p.shape[1:] for name, p in ours.items()}, own, "weights")
    for name, p in ours.items():
        p.copy_(torch.stack([own[name] for own in weights]))


def check_fits(expected: dict[str, torch.Size], saved: dict[str, Tensor], what: str) -> None:
    """Check names and shapes of all tensors before anything is changed."""
    wrong = [f"{name} is missing" for name in expected if name not in saved]
    wrong += [f"{name} is not part of this model" for name in saved if name not in expected]
    wrong += [
        f"{name} is {list(saved[name].shape)}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in saved and saved[name].shape != shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise UserError(f"the checkpoint's {what} do not fit this recipe: {'; '.join(wrong[:3])}{more}")


def _name(key: str) -> str:
    """The name of the parameter that a state tensor belongs to: `mean/layers.0.…` → `layers.0.…`."""
    return key.rpartition("/")[2]


def _cpu_copy(tensor: Tensor) -> Tensor:
    """A copy on the CPU. From a GPU the copy is asynchronous, into pinned memory."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return made.copy_(tensor.detach(), non_blocking=True)
