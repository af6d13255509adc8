"""Tasks: what models are trained for. `of(recipe)` is the task class, `load(recipe)` the task with its data."""

from typing import TypeVar

from headway.core.errors import UserError
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.tasks.abilities import Ability
from headway.tasks.classification import Classification
from headway.tasks.contrastive import Contrastive
from headway.tasks.language_modelling import LanguageModelling
from headway.tasks.masked import MaskedModelling
from headway.tasks.task import TASKS, Task
from headway.tasks.translation import Translating

__all__ = [
    "TASKS",
    "Classification",
    "Contrastive",
    "LanguageModelling",
    "MaskedModelling",
    "Task",
    "Translating",
    "able",
    "load",
    "load_for",
    "of",
]

SomeAbility = TypeVar("SomeAbility", bound=Ability)


def of(recipe: Recipe) -> type[Task]:
    """The task class for this recipe's kind of model."""
    return TASKS.find(recipe.model.kind)


def able(run: Run, ability: type[SomeAbility]) -> type[SomeAbility]:
    """The task class of this run, if it has the ability; else a UserError."""
    task = of(run.recipe)
    if not issubclass(task, ability):
        *more, last = dict.fromkeys(other.models for other in TASKS.values() if issubclass(other, ability))
        others = f"{', '.join(more)} and {last}" if more else last
        kind = run.recipe.model.kind
        is_a = f"{run.name} is {'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        raise UserError(
            f"{ability.activity} is only possible with {others}, but {is_a}; try {task.example.format(run=run.name)}"
        )
    return task


def load(recipe: Recipe, known_as: str | None = None) -> Task:
    """The task with its data, tokenised or read from the cache. `known_as` is the data's identity that a run has
    recorded."""
    return of(recipe).load(recipe) if known_as is None else of(recipe).load_again(recipe, known_as)


def load_for(run: Run) -> Task:
    """The task of a finished run, on the data that it was trained on."""
    recipe = run.recipe.model_copy(update={"data": run.recipe.data.kept_in(run.folder)})
    task = load(recipe, run.facts.get("corpus"))
    task.check_same_data(run)
    return task
