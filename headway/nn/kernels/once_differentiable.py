"""Gradients that cannot be differentiated again: those of kernels, and those computed together with a loss."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Of an `autograd.Function`. Whoever asks for a gradient of this gradient is told that there is none. (torch's own
    `once_differentiable` says so only where what comes back is a variable itself. A loss is most often differentiated
    by a constant, and then it gives a gradient without a graph, whose derivative is silently that of something else.)
    A compiler looks at both directions at once, and nobody asks it for a third."""

    @wraps(backward)
    def told(ctx: Any, *slopes: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "this gradient has none of its own (create_graph=True): it is a kernel's, or was computed with the "
                "loss; outside of a training step, take a loss of `logits` instead"
            )
        return backward(ctx, *slopes)

    return told
