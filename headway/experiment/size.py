"""Checks whether a model fits in memory, before anything is allocated.

Parameters are counted on torch's meta device, where tensors have shapes but no data. Building hundreds of layers would
take a while even there, so one, two and three are built and the rest is extrapolated. The least that training needs
(weights, gradients, what the mixers keep of every token of a batch) is compared with the device's memory; if it is
more, the recipe is refused with both numbers. The most that training may need is estimated from above: if that fits
several times over, nothing has to be measured.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from headway.core.errors import NoRoomError
from headway.core.reading import memory_of_machine
from headway.core.spec import Spec
from headway.recipe import plugins
from headway.recipe.recipe import Recipe
from headway.tasks.task import Task
from headway.training.tuning import Full, Layerwise

FLOAT = 4
"""Bytes per parameter: weights stay float32, whatever precision the products use."""
MAX_COUNTED_LAYERS = 8
"""With more layers than this, their parameters are extrapolated from the cost of one more layer."""
UNCOUNTABLE = 2**62
ROUGH_BYTES = 100
"""Bytes per parameter of a rough estimate. If it is below the memory, parameters need not be counted."""

DEPTH_OF_LISTS = 64
"""Layers assumed at most if a list gives each layer's kind."""
VECTORS_OF_A_LAYER = 60
"""Vectors stored per token for the backward pass: projections, a gated feed-forward layer of four times the width,
gates of a recurrence, norms, dropout, and both precisions of all these."""
COPIES = 8
"""Copies of the weights (gradients, optimizer state, averages), of attention scores, and of logits."""


def check_weights(recipe: Recipe, task: Task, replicas: int, device: torch.device) -> None:
    """Raise an error if the weights of a recipe, and their gradients, cannot fit."""
    if _is_pretrained(recipe):
        return
    there = memory_of(device)
    # Most models are small, and torch takes seconds to load its meta device.
    if ROUGH_BYTES * replicas * _parameters_at_most(recipe, task) < there:
        return
    parameters = parameters_of_recipe(recipe, task)
    if (needed := replicas * parameters * 2 * FLOAT) > there:
        count = f"{parameters:,}" if parameters < UNCOUNTABLE else f"more than {UNCOUNTABLE:,}"
        many = f"{replicas} replicas of " if replicas > 1 else ""
        needs = f"{many}{count} parameters need at least {_bytes(needed)} for weights and their gradients"
        raise NoRoomError(f"{_has(device, there)}, but {needs}")


def check_batch(recipe: Recipe, task: Task, replicas: int, device: torch.device, processes: int = 1) -> None:
    """Raise an error if what training keeps of a batch for the backward pass cannot fit. Several processes divide the
    rows; on a CPU they also share the memory."""
    if _is_pretrained(recipe):
        return
    there, divided = memory_of(device), processes if device.type == "cuda" else 1
    if (needed := replicas * kept_at_least(recipe, task, device) // divided) > there:
        tokens = f"{task.tokens_per_step // recipe.training.accumulate // divided:,} tokens in a batch"
        many = f" of {replicas} replicas" if replicas > 1 else ""
        fewer = ", or train fewer replicas at a time (--together)" if replicas > 1 else ""
        less = (
            f"shorten the rows (data.segment, model.context), lower training.batch or raise training.accumulate{fewer}"
        )
        needs = f"training needs at least {_bytes(needed)} for what is kept of {tokens}{many}"
        raise NoRoomError(f"{_has(device, there)}, but {needs}: {less}")


def kept_at_least(recipe: Recipe, task: Task, device: torch.device) -> int:
    """Bytes per replica that are kept of a batch for the backward pass: the embeddings, and what each mixer keeps. 0 if
    layers are frozen, which keep nothing or less."""
    training, width = recipe.training, recipe.model.width
    if not isinstance(training.tuning, Full | Layerwise):
        return 0
    may_be_half = training.precision == "bf16" or (training.precision == "auto" and device.type != "cpu")
    of_a_token = FLOAT * width + sum(mixer.kept(width) for mixer in recipe.model.mixers) * (2 if may_be_half else FLOAT)
    return task.tokens_per_step // training.accumulate * of_a_token


def needed_at_most(recipe: Recipe, task: Task) -> int | None:
    """An upper estimate of the bytes that one replica needs in a training step. None for pretrained weights and for
    plugin code, whose needs are unknown."""
    if _is_pretrained(recipe) or plugins.used_by(recipe):
        return None
    widest = max(recipe.model.width, *(size for _, size in _sizes(recipe.model)))
    heads = max((size for name, size in _sizes(recipe.model) if name.endswith("heads")), default=1)
    layers = sum(depth for _, depth in _depths(recipe.model)) or DEPTH_OF_LISTS
    row, accumulate = task.longest_row, recipe.training.accumulate
    tokens = max(task.tokens_per_step, recipe.training.batch * row) // accumulate + row
    of_a_token = layers * (VECTORS_OF_A_LAYER * widest + COPIES * heads * row) + COPIES * task.data.tokenizer.size
    return FLOAT * (COPIES * _parameters_at_most(recipe, task) + tokens * of_a_token)


def _is_pretrained(recipe: Recipe) -> bool:
    """Whether the model's size is given by weight files."""
    return recipe.model.trained_first is not None or recipe.model.own_tokenizer is not None


def parameters_of_recipe(recipe: Recipe, task: Task) -> int:
    """The parameters of one replica, counted without allocating them."""
    deep = [(path, depth) for path, depth in _depths(recipe.model) if depth > MAX_COUNTED_LAYERS]
    shallow = dict.fromkeys((path for path, _ in deep), 1)
    count = least = _counted(task, recipe, shallow)
    for path, depth in deep:
        two, three = (_counted(task, recipe, shallow | {path: depths}) for depths in (2, 3))
        # In some decoders each layer reads all layers before it, so each adds more, by a constant amount.
        step, growth = two - least, three - 2 * two + least
        count += (depth - 1) * step + (depth - 1) * (depth - 2) // 2 * growth
    return count


def _parameters_at_most(recipe: Recipe, task: Task) -> int:
    """A rough upper estimate of the parameters: a few squares of the width, or of the largest size, per layer."""
    width, sizes = recipe.model.width, [size for _, size in _sizes(recipe.model)]
    depth = sum(depth for _, depth in _depths(recipe.model)) or DEPTH_OF_LISTS
    return 16 * depth * width * max(width, *sizes) + 4 * width * (task.data.tokenizer.size + max(width, *sizes))


def _sizes(spec: Spec) -> Iterator[tuple[str, int]]:
    """Every integer in a model's spec with its name, except numbers of layers."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Spec):
                yield from _sizes(one)
            elif type(one) is int and name.split("_")[-1] != "layers":
                yield name, one


def _depths(spec: Spec, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every number of layers in a model's spec, by its path. A list of mixers gives its own number of layers."""
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
    except (RuntimeError, OverflowError, TypeError, ValueError):  # more elements than 64 bits can count
        return UNCOUNTABLE
    return sum(p.numel() for p in built.parameters())


def _changed(spec: Any, path: tuple[str, ...], value: int) -> Any:
    name, *rest = path
    return spec.model_copy(update={name: _changed(getattr(spec, name), tuple(rest), value) if rest else value})


def memory_of(device: torch.device) -> int:
    """The device's total memory, used or free: anything larger can never fit."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return memory_of_machine()


def _has(device: torch.device, memory: int) -> str:
    return f"{'this machine' if device.type == 'cpu' else device} has {_bytes(memory)}"


def _bytes(count: int) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
