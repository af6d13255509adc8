"""Names of internals as an API.

A `Tap` is an identity with a name: `layers.3.mixer.queries` is where the queries of the fourth layer flow by. Watching
taps needs no change to the model, and costs nothing when nobody watches:

    with watch(model, "layers.0.mixer.weights", "logits") as seen:
        model(ids)
    seen["layers.0.mixer.weights"]          # [R, B, H, T, T]
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from headway.errors import UserError, did_you_mean


class Tap(nn.Module):
    """A place where a tensor can be watched."""

    def forward(self, x: Tensor) -> Tensor:
        return x

    @property
    def is_watched(self) -> bool:
        return bool(self._forward_hooks)


def tap_names(model: nn.Module) -> list[str]:
    """Every internal of this model that can be watched."""
    return [name for name, module in model.named_modules() if isinstance(module, Tap)]


@contextmanager
def watch(model: nn.Module, *names: str) -> Iterator[dict[str, Tensor]]:
    """Collect what flows by these taps (all of them, if none is named) while the block runs."""
    known = tap_names(model)
    for name in names:
        if name not in known:
            raise UserError(f"the model has no internal '{name}'{did_you_mean(name, known)}")
    seen: dict[str, Tensor] = {}

    def keep(name: str):
        return lambda module, given, out: seen.__setitem__(name, out)

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in names or known]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
