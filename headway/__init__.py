"""Headway: a laboratory for attention models. Change one thing about attention, and know whether it mattered.

The public names. They are imported where they are first used, so that `import headway` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Recipe": "headway.recipe",
    "load_recipe": "headway.recipe:load",
    "train": "headway.experiment",
    "load_model": "headway.experiment",
    "Run": "headway.run",
    "open_run": "headway.run",
    "watch": "headway.nn.taps",
    "intervene": "headway.nn.taps",
    "look_at": "headway.looking",
    "Study": "headway.study.design",
    "run_study": "headway.study.execute:execute",
    "UserError": "headway.errors",
}
__all__ = [
    "Recipe",
    "Run",
    "Study",
    "UserError",
    "intervene",
    "load_model",
    "load_recipe",
    "look_at",
    "open_run",
    "run_study",
    "train",
    "watch",
]

if TYPE_CHECKING:
    from headway.errors import UserError
    from headway.experiment import load_model, train
    from headway.looking import look_at
    from headway.nn.taps import intervene, watch
    from headway.recipe import Recipe
    from headway.recipe import load as load_recipe
    from headway.run import Run, open_run
    from headway.study.design import Study
    from headway.study.execute import execute as run_study


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"headway has no '{name}'; it has: {', '.join(__all__)}")
    home, _, original = _HOMES[name].partition(":")
    return getattr(import_module(home), original or name)
