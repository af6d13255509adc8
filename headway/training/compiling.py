"""What is compiled: one layer, which serves all that are alike; or the whole of the loss.

Dynamo tells layers apart by what their code depends on, and finds that the layers of a stack differ in their weights
alone, which are inputs: so of four, twelve or fifty layers one is compiled. What stands around them (embeddings, the
loss, the optimizer) has kernels of its own on a GPU (`nn/kernels`) and need not be. That takes half of the time, and
gains less: across the borders of layers nothing is joined. A model without repeated layers is always compiled whole.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from headway.nn.trainable import Trainable


class CompiledLayers:
    """A model's loss with its layers compiled. They are so only inside of it: evaluation, which would be compiled once
    more, goes on as it was."""

    def __init__(self, model: Trainable, dynamic: bool | None, backend: str = "inductor"):
        self.model = model
        self.layers: list[tuple[nn.Module, Callable[..., Any]]] = [
            (layer, torch.compile(layer.forward, dynamic=dynamic, backend=backend)) for layer in model.repeated
        ]

    def __call__(self, batch: Any, state: Any = None) -> Any:
        for layer, compiled in self.layers:
            layer.forward = compiled
        try:
            return self.model.loss(batch, state)
        finally:
            for layer, _ in self.layers:
                del layer.forward


def compiled_loss(
    model: Trainable, dynamic: bool | None, backend: str = "inductor", whole: bool = False
) -> Callable[..., Any]:
    """The loss of this model, compiled layer by layer or, where it has none that repeat, as a whole."""
    if model.repeated and not whole:
        return CompiledLayers(model, dynamic, backend)
    return torch.compile(model.loss, dynamic=dynamic, backend=backend)
