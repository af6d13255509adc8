"""R replicas trained as one: the model and optimizer they share, and each one's own slice of them.

A slice has no replica axis and says nothing of the others, so a run can leave a population, or join one, at any
checkpoint.
"""

from dataclasses import asdict
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from headway.errors import UserError
from headway.training.checkpoint import Checkpoint
from headway.training.loop import Standing
from headway.training.optimizers import Optimizer

Model = TypeVar("Model", bound=nn.Module)


class Population(Generic[Model]):
    def __init__(self, model: Model, optimizer: Optimizer, replicas: int):
        self.model, self.optimizer = model, optimizer
        self.standings = [Standing() for _ in range(replicas)]

    def slice(self, r: int, step: int) -> Checkpoint:
        """Replica r as it stands, on the CPU."""
        return Checkpoint(
            step,
            {"standing": asdict(self.standings[r])},
            {name: _own(p[r]) for name, p in self.model.named_parameters()},
            {name: _own(t[r]) for name, t in self.optimizer.state().items()},
        )

    @torch.no_grad()
    def restore(self, r: int, saved: Checkpoint) -> None:
        """Put replica r back as it was saved."""
        load_weights(self.model, r, saved.weights)
        copy_into(r, self.optimizer.state(), saved.optimizer, "optimizer")
        self.optimizer.steps.fill_(saved.step)
        self.standings[r] = Standing(**saved.facts["standing"])


@torch.no_grad()
def load_weights(model: nn.Module, r: int, weights: dict[str, Tensor]) -> None:
    copy_into(r, dict(model.named_parameters()), weights, "weights")


def copy_into(r: int, ours: dict[str, Tensor], saved: dict[str, Tensor], what: str) -> None:
    """Fill replica r's slice of our tensors, after checking that everything fits."""
    wrong = [f"{name} is missing" for name in ours if name not in saved]
    wrong += [f"{name} is not part of this model" for name in saved if name not in ours]
    wrong += [
        f"{name} is {list(saved[name].shape)}, expected {list(tensor.shape[1:])}"
        for name, tensor in ours.items()
        if name in saved and saved[name].shape != tensor.shape[1:]
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise UserError(f"the checkpoint's {what} do not fit this recipe: {'; '.join(wrong[:3])}{more}")
    for name, tensor in ours.items():
        tensor[r].copy_(saved[name])


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
