"""What models are trained for. `of(recipe)` is the kind of task, `load(recipe)` the task with its data."""

from headway.recipe import Recipe
from headway.tasks.classification import Classification
from headway.tasks.language_modelling import LanguageModelling
from headway.tasks.task import Task

_OF_MODEL: dict[str, type[Task]] = {"language-model": LanguageModelling, "classifier": Classification}


def of(recipe: Recipe) -> type[Task]:
    """The task that this recipe's model is for."""
    return _OF_MODEL[recipe.model.kind]


def load(recipe: Recipe) -> Task:
    """That task, with its data read and made into tokens, or found so."""
    return of(recipe).load(recipe)
