"""Attention by construction: describe what attention should do, and get weights that do it or a proof that none can.

These are the public names. They are imported lazily, because queries and keys need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "select": "inputs",
    "average": "inputs",
    "find_query": "queries",
    "find_queries": "queries",
    "find_key": "keys",
    "convolution": "relative",
    "mean_pool": "relative",
    "shift": "relative",
    "max_pool": "relative",
    "as_matrix": "kronecker",
    "fixed_layer": "replacement",
}
__all__ = [
    "as_matrix",
    "average",
    "convolution",
    "find_key",
    "find_queries",
    "find_query",
    "fixed_layer",
    "max_pool",
    "mean_pool",
    "select",
    "shift",
]

if TYPE_CHECKING:
    from headway.solve.inputs import average, select
    from headway.solve.keys import find_key
    from headway.solve.kronecker import as_matrix
    from headway.solve.queries import find_queries, find_query
    from headway.solve.relative import convolution, max_pool, mean_pool, shift
    from headway.solve.replacement import fixed_layer


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"headway.solve has no '{name}'; it has: {', '.join(__all__)}")
    return getattr(import_module(f"headway.solve.{_HOMES[name]}"), name)
