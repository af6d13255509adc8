"""Gradients that cannot be differentiated again: those of kernels, and those computed together with the loss."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for the backward of an `autograd.Function`: asking for a second derivative raises an error. (torch's
    own `once_differentiable` does so only if the incoming gradient requires a gradient. That of a loss is usually a
    constant; torch then returns a gradient without a graph, and second derivatives are silently wrong.) Not checked
    under torch.compile, which traces forward and backward together."""

    @wraps(backward)
    def told(ctx: Any, *slopes: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "this gradient cannot be differentiated again (create_graph=True): it comes from a kernel, or was "
                "computed together with the loss; outside of a training step, compute the loss from `logits` instead"
            )
        return backward(ctx, *slopes)

    return told
