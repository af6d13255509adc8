"""An audit of shared weights: does every layer have its own, and were they drawn independently?

`[layer] * n`, or a second direction that is the same module as the first, gives a model with only some of its
parameters, which trains and scores like any other. Deep copies of a layer are separate parameters, but all start with
the same values.
"""

import re

from torch import Tensor

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed
from headway.audit.probe import Probe

IN_LAYERS = re.compile(r"(^|\.)layers\.\d+\.")
COMPARED_VALUES = 4096
"""How many values of each matrix are compared."""
DISTINCT = 0.5
"""A matrix counts as drawn at random if at least this fraction of its values is distinct."""


@audit("model")
def own_weights(probe: Probe) -> Outcome:
    """Every layer and direction has its own weights, and no matrix starts as a copy of another.

    No two parameters of layers may be in the same memory. In a fresh model, no two randomly drawn matrices of layers
    may have the same values. If it fails, look for one module used in several places (`[layer] * n`), or for a
    `deepcopy` whose weights were not drawn again, as in torch's TransformerEncoder: the model has fewer parameters than
    its recipe says, or layers that start alike.
    """
    if getattr(probe.recipe.model, "body", None) is not None:
        raise DoesNotApply("the layers are run by transformers and may share weights")
    by_memory: dict[int, str] = {}
    of_layers = _of_layers(probe.model)
    for name, p in of_layers.items():
        if (other := by_memory.setdefault(p.data_ptr(), name)) != name:
            return failed(None, f"{other} and {name} are the same parameter; each layer should have its own")
    by_values: dict[tuple[tuple[int, ...], bytes], str] = {}
    for name, p in _of_layers(probe.start).items():
        values = p[0].detach().flatten()[:COMPARED_VALUES].cpu()
        if p.ndim < 3 or len(values.unique()) < DISTINCT * len(values):
            continue
        other = by_values.setdefault((tuple(p.shape), values.numpy().tobytes()), name)
        if other != name:
            return failed(None, f"{name} starts as a copy of {other}; each should be drawn independently")
    return passed(len(of_layers), f"no two of the {len(of_layers)} parameter tensors of layers are shared or copies")


def _of_layers(model: object) -> dict[str, Tensor]:
    """All parameters inside layers, including those that occur more than once."""
    named = model.named_parameters(remove_duplicate=False)  # pyright: ignore[reportAttributeAccessIssue]
    return {name: p for name, p in named if IN_LAYERS.search(name) and p.numel()}


ABOUT_SHARING: tuple[Audit, ...] = (own_weights,)
