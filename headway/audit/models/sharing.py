"""An audit of what layers are made of: has each its own weights, and do they begin as what was drawn for it?

`[layer] * n`, or a second direction that is the first one again, gives a model with a part of its parameters, which
trains and scores like any other. Copies of one layer are as many parameters, all of which begin alike.
"""

import re

from torch import Tensor

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed
from headway.audit.probe import Probe

IN_LAYERS = re.compile(r"(^|\.)layers\.\d+\.")
LOOKED_AT = 4096
"""Numbers of a matrix that are compared."""
DRAWN = 0.5
"""The fraction of them that differ from each other, where they were drawn and not set."""


@audit("model")
def own_weights(probe: Probe) -> Outcome:
    """Every layer has weights of its own, in each direction, and no matrix begins as a copy of another.

    No two parameters of layers may stand in the same memory. And in a fresh model no two matrices of layers that are
    drawn at random may have the same numbers. When it fails, look for one module that was put into several places
    (`[layer] * n`), or for a `deepcopy` behind which nothing was drawn anew, as in torch's TransformerEncoder: the
    model has fewer parameters than its recipe says, or layers that begin alike.
    """
    if getattr(probe.recipe.model, "body", None) is not None:
        raise DoesNotApply("its layers are somebody else's, and may share their weights")
    places: dict[int, str] = {}
    of_layers = _of_layers(probe.model)
    for name, p in of_layers.items():
        if (other := places.setdefault(p.data_ptr(), name)) != name:
            return failed(None, f"{other} and {name} are one and the same parameter; each layer should have its own")
    begins: dict[tuple[tuple[int, ...], bytes], str] = {}
    for name, p in _of_layers(probe.start).items():
        some = p[0].detach().flatten()[:LOOKED_AT].cpu()
        if p.ndim < 3 or len(some.unique()) < DRAWN * len(some):
            continue
        other = begins.setdefault((tuple(p.shape), some.numpy().tobytes()), name)
        if other != name:
            return failed(None, f"{name} begins as a copy of {other}, where each should be drawn by itself")
    return passed(len(of_layers), f"{len(of_layers)} parameters of layers are each their own")


def _of_layers(model: object) -> dict[str, Tensor]:
    named = model.named_parameters(remove_duplicate=False)  # pyright: ignore[reportAttributeAccessIssue]
    return {name: p for name, p in named if IN_LAYERS.search(name) and p.numel()}


ABOUT_SHARING: tuple[Audit, ...] = (own_weights,)
