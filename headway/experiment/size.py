"""Whether a model fits in memory at all, told before anything is allocated.

Its parameters are counted on torch's meta device, where tensors have shapes and no numbers. A stack of hundreds of
layers would take a while even there, so it is built with one, two and three, and the rest follows from those. What
training needs at the least (weights, their gradients, a vector for each token of a batch) is set beside the memory that
there is; what is more than that is refused, with both numbers. What it needs at the most is guessed from above: where
that fits many times, nobody has to try it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from headway.core import plugins
from headway.core.errors import UserError
from headway.core.reading import memory_of_machine
from headway.core.spec import Spec
from headway.recipe.recipe import Recipe
from headway.tasks.task import Task

FLOAT = 4
"""Bytes; weights stay float32, whatever products are computed in."""
MANY = 8
"""Layers, above which they are counted by what one more of them costs."""
UNCOUNTABLE = 2**62
SURELY = 100
"""Bytes for each parameter of a rough guess: what is far below the memory then need not be counted."""

DEPTH_OF_LISTS = 64
"""Layers, at most, where a list says what each of them is."""
VECTORS_OF_A_LAYER = 60
"""That are kept of each token until gradients are there: projections, a feed-forward net of four widths with a gate,
gates of a recurrence, norms, dropout, and both precisions of all these."""
COPIES = 8
"""Of weights (gradients, memories of the optimizer, averages); of the scores of attention and of logits."""


def check_size(recipe: Recipe, task: Task, replicas: int, device: torch.device) -> None:
    """A UserError in words where the weights of a recipe, with what training needs beside them, cannot fit."""
    if _has_weights_of_others(recipe):
        return
    there, training = memory_of(device), recipe.training
    # Most models are small, and torch takes seconds to learn about its meta device.
    is_small = SURELY * replicas * _at_most(recipe, task) < there
    parameters = 0 if is_small else parameters_of_recipe(recipe, task)
    weights = replicas * parameters * 2 * FLOAT
    vectors = replicas * (task.tokens_per_step // training.accumulate) * recipe.model.width * FLOAT
    if weights + vectors <= there:
        return
    parameters = parameters or parameters_of_recipe(recipe, task)
    many = f"{replicas} replicas of " if replicas > 1 else ""
    needs = f"{_bytes(weights)} for weights and their gradients" if weights >= vectors else ""
    if vectors > weights:
        tokens = f"{task.tokens_per_step // training.accumulate:,} tokens"
        needs = (
            f"{_bytes(vectors)} for one vector for each of {tokens} of a batch (training.batch, training.accumulate)"
        )
    where = "this machine" if device.type == "cpu" else str(device)
    count = f"{parameters:,}" if parameters < UNCOUNTABLE else f"more than {UNCOUNTABLE:,}"
    raise UserError(f"{many}{count} parameters need at least {needs}, and {where} has {_bytes(there)}")


def needed_at_most(recipe: Recipe, task: Task) -> int | None:
    """Bytes that one replica takes in a step of training: too many rather than too few. None where nothing here can
    tell: of weights of others, and of parts that somebody else wrote."""
    if _has_weights_of_others(recipe) or plugins.used_by(recipe):
        return None
    widest = max(recipe.model.width, *(size for _, size in _sizes(recipe.model)))
    heads = max((size for name, size in _sizes(recipe.model) if name.endswith("heads")), default=1)
    layers = sum(depth for _, depth in _depths(recipe.model)) or DEPTH_OF_LISTS
    row, accumulate = task.longest_row, recipe.training.accumulate
    tokens = max(task.tokens_per_step, recipe.training.batch * row) // accumulate + row
    of_a_token = layers * (VECTORS_OF_A_LAYER * widest + COPIES * heads * row) + COPIES * task.data.tokenizer.size
    return FLOAT * (COPIES * _at_most(recipe, task) + tokens * of_a_token)


def _has_weights_of_others(recipe: Recipe) -> bool:
    """Which are as large as their files."""
    return recipe.model.trained_first is not None or recipe.model.own_tokenizer is not None


def parameters_of_recipe(recipe: Recipe, task: Task) -> int:
    """Of one replica; nothing is allocated."""
    deep = [(path, depth) for path, depth in _depths(recipe.model) if depth > MANY]
    shallow = dict.fromkeys((path for path, _ in deep), 1)
    count = least = _counted(task, recipe, shallow)
    for path, depth in deep:
        two, three = (_counted(task, recipe, shallow | {path: depths}) for depths in (2, 3))
        # Where every layer begins with something of all others, as in some decoders, the steps grow, evenly.
        step, growth = two - least, three - 2 * two + least
        count += (depth - 1) * step + (depth - 1) * (depth - 2) // 2 * growth
    return count


def _at_most(recipe: Recipe, task: Task) -> int:
    """Parameters, roughly, and rather too many: every layer a few squares of its width, or of what else is large."""
    width, sizes = recipe.model.width, [size for _, size in _sizes(recipe.model)]
    depth = sum(depth for _, depth in _depths(recipe.model)) or DEPTH_OF_LISTS
    return 16 * depth * width * max(width, *sizes) + 4 * width * (task.data.tokenizer.size + max(width, *sizes))


def _sizes(spec: Spec) -> Iterator[tuple[str, int]]:
    """Every whole number in a model's spec, by its name, but how often something is repeated."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Spec):
                yield from _sizes(one)
            elif type(one) is int and name.split("_")[-1] != "layers":
                yield name, one


def _depths(spec: Spec, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every number of layers in a model's spec, by its path. A list of mixers has as many as stand in it."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, Spec):
            yield from _depths(value, (*above, name))
        elif name.split("_")[-1] == "layers" and type(value) is int and not isinstance(getattr(spec, "mixer", 0), list):
            yield (*above, name), value


def _counted(task: Task, recipe: Recipe, depths: dict[tuple[str, ...], int]) -> int:
    model: Any = recipe.model
    for path, depth in depths.items():
        model = _changed(model, path, depth)
    smaller = replace(task, recipe=recipe.model_copy(update={"model": model}))
    try:
        with torch.device("meta"):
            built = smaller.build([recipe.seed], "meta")
    except (RuntimeError, OverflowError, TypeError, ValueError):  # more numbers than 64 bits can count
        return UNCOUNTABLE
    return sum(p.numel() for p in built.parameters())


def _changed(spec: Any, path: tuple[str, ...], value: int) -> Any:
    name, *rest = path
    return spec.model_copy(update={name: _changed(getattr(spec, name), tuple(rest), value) if rest else value})


def memory_of(device: torch.device) -> int:
    """All of it, whoever else uses it now: what is more than that fits at no time."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return memory_of_machine()


def _bytes(count: int) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
