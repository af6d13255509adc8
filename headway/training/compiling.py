"""What is compiled: one layer, which serves all that are alike, or the whole loss.

The layers of a stack differ only in their weights, which Dynamo treats as inputs. So one layer is compiled, whether
there are four, twelve or fifty. The rest (embeddings, the loss, the optimizer) has its own GPU kernels (`nn/kernels`)
and need not be compiled. This takes half the compile time and gains less, because nothing is fused across layers. A
model without repeated layers is always compiled as a whole.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from headway.nn.trainable import Trainable


class CompiledLayers:
    """A model's loss with compiled layers. They are compiled only inside this call; evaluation would need another
    compilation and stays uncompiled."""

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
    """The loss of this model, compiled layer by layer, or as a whole if asked or if it has no repeated layers."""
    if model.repeated and not whole:
        return CompiledLayers(model, dynamic, backend)
    return torch.compile(model.loss, dynamic=dynamic, backend=backend)
