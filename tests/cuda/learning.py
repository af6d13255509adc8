"""Losses of some training steps on a GPU or a CPU, compiled or not, recorded or not."""

import dataclasses
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headway.training.adam import AdamW
from headway.training.setting import choose
from headway.training.spec import TrainingSpec
from headway.training.update import Update


def losses_of_steps(
    model: Any,
    sampler: Any,
    training: TrainingSpec,
    steps: int = 12,
    rate: float = 1e-2,
    carries: bool = False,
    **how: bool,
) -> Float[Tensor, "steps R"]:
    """`how`: whether steps are compiled and recorded."""
    torch._dynamo.reset()
    first = next(model.parameters())
    replicas, device = first.shape[0], first.device
    setting = dataclasses.replace(choose(training, model.spec.width), **how)
    optimizer = AdamW().build(dict(model.named_parameters()), [rate] * replicas, [0.1] * replicas)
    alive = torch.ones(replicas, dtype=torch.bool, device=device)
    update = Update(model, optimizer, sampler, training, setting, alive)
    losses = torch.stack([update(step, 1.0)[0].cpu() for step in range(steps)])
    assert bool(update.carried) == carries, "whether a state is carried is not as expected"
    return losses
