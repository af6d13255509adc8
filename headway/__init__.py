"""Headway: a laboratory for attention models. Change one thing about attention, and know whether it mattered.

The public names. They are imported where they are first used, so that `import headway` costs nothing.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and "headway.cli" in sys.orig_argv:
    del sys.path[0]  # `python -m headway.cli`, as torchrun does: the current folder, where anybody's yaml.py may lie

__version__ = "0.1.0"

_HOMES = {
    "Recipe": "headway.recipe.recipe",
    "load_recipe": "headway.recipe.recipe:load",
    "train": "headway.experiment.train",
    "load_model": "headway.experiment.load",
    "Run": "headway.run.folder",
    "open_run": "headway.run.folder",
    "load_plugin": "headway.core.plugins",
    "watch": "headway.nn.taps",
    "intervene": "headway.nn.taps",
    "look_at": "headway.experiment.inspect",
    "Study": "headway.study.design.study",
    "run_study": "headway.study.execution.execute:execute",
    "UserError": "headway.core.errors",
}
__all__ = [
    "Recipe",
    "Run",
    "Study",
    "UserError",
    "intervene",
    "load_model",
    "load_plugin",
    "load_recipe",
    "look_at",
    "open_run",
    "run_study",
    "train",
    "watch",
]

if TYPE_CHECKING:
    from headway.core.errors import UserError
    from headway.core.plugins import load_plugin
    from headway.experiment.inspect import look_at
    from headway.experiment.load import load_model
    from headway.experiment.train import train
    from headway.nn.taps import intervene, watch
    from headway.recipe.recipe import Recipe
    from headway.recipe.recipe import load as load_recipe
    from headway.run.folder import Run, open_run
    from headway.study.design.study import Study
    from headway.study.execution.execute import execute as run_study


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"headway has no '{name}'; it has: {', '.join(__all__)}")
    home, _, original = _HOMES[name].partition(":")
    return getattr(import_module(home), original or name)
