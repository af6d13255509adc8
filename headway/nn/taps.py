"""Taps: named internals of a model that can be read and replaced.

A `Tap` is an identity module with a name: the queries of the fourth layer pass through `layers.3.attention.queries`. A
module with an attribute `called` appears under that name instead of its attribute's, so the mixer of a layer is named
`attention`. Watching or replacing what passes through a tap needs no change to the model, and costs nothing when it is
not done:

    with watch(model, "layers.0.attention.weights", "logits") as seen:
        model(ids)
    seen["layers.0.attention.weights"]          # [R, B, H, T, T]

    with intervene(model, {"layers.0.attention.mixed": without_head(3)}):
        model(ids)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from headway.core.errors import UserError, did_you_mean


class Tap(nn.Module):
    """A place where a tensor can be watched or replaced. `called`: its name, if it differs from the attribute's."""

    def __init__(self, called: str | None = None):
        super().__init__()
        self.called = called

    def forward(self, x: Tensor) -> Tensor:
        return x

    @property
    def is_watched(self) -> bool:
        return bool(self._forward_hooks)


class Display(Tap):
    """A tap that can only be watched: its tensor is computed for display, so replacing it would change nothing."""


def tap_names(model: nn.Module) -> list[str]:
    """The names of all taps of this model."""
    return list(named_taps(model))


@contextmanager
def watch(model: nn.Module, *names: str) -> Iterator[dict[str, Tensor]]:
    """Collect the tensors at these taps (all taps, if none is named) while the block runs."""
    seen: dict[str, Tensor] = {}

    def keep(name: str):
        return lambda module, given, out: seen.__setitem__(name, out)

    with ExitStack() as hooks:
        for name, tap in _chosen(model, names or tap_names(model)).items():
            hooks.callback(tap.register_forward_hook(keep(name)).remove)
        yield seen


@contextmanager
def intervene(model: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """While the block runs, replace the tensor at each tap by the result of its function.

    Later hooks see the change: `with intervene(…), watch(…)` watches the replacement.
    """
    taps = _chosen(model, changes)
    for name, tap in taps.items():
        if isinstance(tap, Display):
            reason = "it is computed only for display, and replacing it would change nothing"
            raise UserError(f"'{name}' cannot be replaced: {reason}; replace queries, keys, values or mixed instead")

    def replace(name: str, change: Callable[[Tensor], Tensor]):
        def hook(module: nn.Module, given: tuple, out: Tensor) -> Tensor:
            changed = change(out)
            if changed.shape != out.shape:
                raise UserError(f"'{name}' has shape {tuple(out.shape)}; its replacement has {tuple(changed.shape)}")
            return changed

        return hook

    with ExitStack() as hooks:
        for name, tap in taps.items():
            hooks.callback(tap.register_forward_hook(replace(name, changes[name])).remove)
        yield


def without_head(*heads: int) -> Callable[[Tensor], Tensor]:
    """A function for `….mixed`, [R, B, H, T, d], that sets the output of these heads to zero."""

    def silence(mixed: Tensor) -> Tensor:
        for head in heads:
            if not 0 <= head < mixed.shape[2]:
                raise UserError(f"there is no head {head}: the heads are 0 to {mixed.shape[2] - 1}")
        return mixed.index_fill(2, mixed.new_tensor(heads).long(), 0)

    return silence


def named_taps(model: nn.Module) -> dict[str, Tap]:
    """The taps by name."""
    found: dict[str, Tap] = {}

    def walk(module: nn.Module, path: tuple[str, ...]) -> None:
        if isinstance(module, Tap):
            found[".".join(path)] = module
        for slot, child in module.named_children():
            walk(child, (*path, getattr(child, "called", None) or slot))

    walk(model, ())
    return found


def _chosen(model: nn.Module, names: Iterable[str]) -> dict[str, Tap]:
    known = named_taps(model)
    for name in names:
        if name not in known:
            raise UserError(f"the model has no internal '{name}'{did_you_mean(name, known)}")
    return {name: known[name] for name in names}
