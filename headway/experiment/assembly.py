"""Builds a population from recipes: the replicas as one model, its optimizer, and the batches each replica reads."""

from collections.abc import Sequence

from headway.core.errors import UserError
from headway.core.yaml import flat
from headway.experiment.size import check_weights
from headway.nn.replicated import set_dropout
from headway.nn.trainable import Trainable, moving, pace_of
from headway.recipe.recipe import Recipe
from headway.tasks.task import Task
from headway.training.averaging import Averages
from headway.training.population import Population
from headway.training.processes import ALONE, Processes
from headway.training.setting import Setting
from headway.training.update import Sampler

MAY_VARY = ("seed", "training.optimizer.learning_rate", "training.optimizer.weight_decay", "model.dropout")
"""Keys in which the members of a population may differ; everything else must be equal."""


def check_population(recipes: Sequence[Recipe]) -> None:
    """Check that all members agree in every key except those that may vary."""
    first = flat(recipes[0].model_dump(mode="json"))
    differing = {
        key for r in recipes[1:] for key, value in flat(r.model_dump(mode="json")).items() if value != first.get(key)
    }
    if wrong := sorted(differing - set(MAY_VARY)):
        raise UserError(
            f"these recipes cannot be trained as one population: they differ in {', '.join(wrong)}; "
            f"only {', '.join(MAY_VARY)} may vary"
        )


def assemble(
    recipes: Sequence[Recipe], task: Task, setting: Setting, processes: Processes = ALONE
) -> tuple[Population[Trainable], Sampler]:
    """Build the replicas of these recipes as one model, and the sampler of their batches."""
    recipe, seeds = recipes[0], [r.seed for r in recipes]
    with processes.together():
        check_weights(recipe, task, len(recipes), setting.device)
        model = task.build(seeds, str(setting.device))
        set_dropout(model, [r.model.dropout for r in recipes])
        sampler = task.sampler(seeds, str(setting.device))
        if recipe.training.tuning.keeps_features:
            sampler = task.with_features(model, sampler, setting.autocast)
    for p in model.parameters():
        p.requires_grad_(pace_of(p) > 0)  # no gradients for frozen weights
    parallel = recipe.training.parallel.build(model, processes)
    trained = moving(parallel.parameters)
    optimizer = recipe.training.optimizer.build(
        trained,
        [r.training.optimizer.learning_rate for r in recipes],
        [r.training.optimizer.weight_decay for r in recipes],
    )
    optimizer.whole_norms = parallel.whole_norms
    averages, training = None, recipe.training
    if training.averaging is not None:
        total = training.duration.in_steps(sampler.steps_per_epoch, task.tokens_per_step)
        averages = Averages(training.averaging, trained, total)
    return Population(model, optimizer, len(recipes), parallel, averages), sampler


def parameters_of(model: Trainable) -> int:
    """The parameters of one replica."""
    return sum(p.numel() for p in model.parameters()) // model.replicas


def trained_parameters_of(model: Trainable) -> int:
    """The trained parameters of one replica."""
    return sum(p.numel() for p in moving(dict(model.named_parameters())).values()) // model.replicas
