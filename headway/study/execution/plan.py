"""The cost of a study before it starts (runs, populations, minutes, memory), and the budgets that make arms equal.

Sizes are counted from the recipe and its data. Speed and memory are measured on a few steps of every distinct shape.
"""

import dataclasses
import itertools
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from headway import tasks
from headway.core.errors import UserError, did_you_mean
from headway.experiment.assembly import assemble, parameters_of
from headway.experiment.population import capacity
from headway.models.start import Drawn
from headway.nn.replicated import without_numbers
from headway.recipe.recipe import Recipe
from headway.scoring.metrics import parsed
from headway.study.design.factors import is_data
from headway.study.design.mistakes import cheap_methods
from headway.study.design.questions import Better
from headway.study.design.study import PlannedRun, Study
from headway.study.execution.executor import Workforce
from headway.study.execution.populations import by_shape, loads, populations_for
from headway.study.verdicts.power import SeedsCanShow
from headway.tasks.task import Task
from headway.training import setting as settings
from headway.training.update import STEPS_BEFORE_RECORDING, Update

MEASURED_SECONDS = 0.4
"""How long each shape is measured at most."""
MEASURED_IN_ALL = 8.0
"""How long all shapes together are measured."""


class RunSize(NamedTuple):
    """Sizes computed from a recipe and its data."""

    parameters: int
    steps: int
    tokens_per_step: int
    flops_per_step: int
    forward_tokens: int
    """Tokens read by evaluations and scoring."""


class Speed(NamedTuple):
    """What was measured with this many replicas at once."""

    replicas: int
    seconds_per_step: float
    memory: int
    """Bytes of GPU memory, or of a process on a CPU."""
    seconds_to_start: float


@dataclass(frozen=True)
class ArmPlan:
    """The cost of one run of an arm."""

    parameters: int
    steps: int
    tokens: int
    flops: int
    seconds: float
    memory: int


@dataclass(frozen=True)
class PlannedPopulation:
    """Runs of one shape, trained `at_once` at a time."""

    arms: list[str]
    runs: int
    at_once: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    title: str
    runs: list[PlannedRun]
    arms: dict[str, ArmPlan]
    populations: list[PlannedPopulation]
    workforce: Workforce
    seconds: float
    memory: int
    """Bytes of memory on each GPU, or of all processes together."""
    warnings: list[str]
    power: Sequence[SeedsCanShow] = ()
    """What these seeds can detect, per question."""

    def as_json(self) -> dict[str, Any]:
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("runs", "workforce")}
        found |= dataclasses.asdict(self.workforce)
        found["arms"] = {name: dataclasses.asdict(arm) for name, arm in self.arms.items()}
        found["populations"] = [dataclasses.asdict(population) for population in self.populations]
        found["power"] = [one.as_json() for one in self.power]
        return {**found, "runs": [run.name for run in self.runs]}


class Sizes:
    """Computes the size of each recipe once, and reads each corpus once."""

    seconds_to_load = 0.0
    """How long reading the data of the last recipe took."""

    def __init__(self) -> None:
        self._data: dict[str, tuple[Task, float]] = {}
        self._sizes: dict[str, RunSize] = {}

    def task(self, recipe: Recipe) -> Task:
        tree = {k: v for k, v in recipe.data.model_dump(mode="json").items() if is_data(f"data.{k}")}
        key = json.dumps([recipe.model.kind, tree], sort_keys=True)
        if key not in self._data:
            began = time.perf_counter()
            self._data[key] = tasks.load(recipe), time.perf_counter() - began
        task, self.seconds_to_load = self._data[key]
        return dataclasses.replace(task, recipe=recipe)

    def of(self, recipe: Recipe) -> RunSize:
        if recipe.hash not in self._sizes:
            self._sizes[recipe.hash] = self._size(recipe)
        return self._sizes[recipe.hash]

    def _size(self, recipe: Recipe) -> RunSize:
        task, training = self.task(untrained(recipe)), recipe.training
        task.check_splits()
        sampler = task.sampler([recipe.seed], "cpu")
        steps, between = (
            length.in_steps(sampler.steps_per_epoch, task.tokens_per_step)
            for length in (training.duration, training.evaluate_every)
        )
        at_most = training.evaluate_tokens or sys.maxsize
        evaluated = sum(min(task.tokens_in(split), at_most) for split in training.evaluate_on)
        forward = (steps // between + 1) * evaluated + sum(map(task.tokens_in, task.scored_splits))
        return RunSize(_counted(task), steps, task.tokens_per_step, task.flops_per_step, forward)


def _counted(task: Task) -> int:
    """The parameter count of its model, without allocating the weights."""
    with without_numbers():
        return parameters_of(task.build([task.recipe.seed], "cpu"))


def check_scores(study: Study, sizes: Sizes) -> None:
    """Check that every score in a question is measured: otherwise that would be noticed only after training."""
    for recipe in study.recipes.values():
        task = sizes.task(recipe)
        measured = {split: [metric.name for metric in task.metrics] for split in task.scored_splits}
        measured |= {split: [m.name for m in measure.metrics] for measure in study.measures for split in measure.splits}
        for question in study.asked:
            for score in question.scores:
                _check_measured(score, measured)
            if isinstance(question, Better) and question.than in cheap_methods():
                _check_cheap(question, task)
        for measure in study.measures:
            measure.check(task)


def _check_measured(score: str, measured: Mapping[str, Sequence[str]]) -> None:
    split, what, _ = parsed(score)
    if split not in measured:
        hint = did_you_mean(split, measured)
        raise UserError(f"a question needs '{score}', but the runs do not score '{split}' (scoring.splits){hint}")
    if what not in measured[split]:
        hint = did_you_mean(what, measured[split])
        raise UserError(f"a question needs '{score}', but '{split}' is not scored in {what}{hint}")


def _check_cheap(question: Better, task: Task) -> None:
    if question.than not in task.cheap_methods.names:
        hint = did_you_mean(question.than, task.cheap_methods.names)
        raise UserError(f"'{question}': there is no baseline '{question.than}' for a {task.recipe.model.kind}{hint}")
    methods = task.cheap_methods
    apart = methods.counted_apart if question.than == methods.counting else ()
    had = [f"{split}.{name}" for split in task.scored_splits for name in (task.headline_of(task.recipe).name, *apart)]
    if question.on not in had:
        raise UserError(f"'{question}': the baseline '{question.than}' is only computed for {' and '.join(had)}")


def budgets(study: Study, sizes: Sizes) -> dict[str, int]:
    """Steps for each arm so that all spend as much as the first one, or as much as their rung says. Empty if budgets
    are not equalized."""
    if study.ladder is not None:
        spent = {arm.name: study.ladder.flops_of(arm) for arm in study.arms}
        each = {name: sizes.of(recipe).flops_per_step for name, recipe in study.recipes.items()}
        return {name: max(1, round(spent[name] / each[name])) for name in spent}
    if study.equal is None:
        return {}
    found = {arm: sizes.of(recipe) for arm, recipe in study.recipes.items()}
    per_step: dict[str, float] = {
        "steps": dict.fromkeys(found, 1.0),
        "tokens": {arm: float(size.tokens_per_step) for arm, size in found.items()},
        "flops": {arm: float(size.flops_per_step) for arm, size in found.items()},
    }.get(study.equal) or {arm: speed(recipe, sizes).seconds_per_step for arm, recipe in study.recipes.items()}
    first = next(iter(found))
    spent = found[first].steps * per_step[first]
    return {arm: max(1, round(spent / each)) for arm, each in per_step.items()}


def plan(study: Study, workforce: Workforce, steps: Mapping[str, int] | None = None) -> Plan:
    """Plan a study before it starts. `steps` are budgets that were fixed before."""
    sizes = Sizes()
    check_scores(study, sizes)
    steps = budgets(study, sizes) if steps is None else steps
    runs = study.runs(steps)
    arms: dict[str, ArmPlan] = {}
    populations: list[PlannedPopulation] = []
    memory, warnings = 0, study.warnings()
    costs: list[float] = []  # seconds of each population or run, in the order they are assigned
    shapes, parts = by_shape(runs), {part[0].name: len(part) for part in populations_for(runs, workforce.gpus)}
    at_once = workforce.share_one(len(parts)) if workforce.gpus else min(workforce.processes, len(parts))
    each_shape = min(MEASURED_SECONDS, MEASURED_IN_ALL / len(shapes))
    for members in shapes:
        recipe, size = members[0].recipe, sizes.of(members[0].recipe)
        own = [parts[run.name] for run in members if run.name in parts]
        found = speed(recipe, sizes, max(own), [run.recipe for run in members], each_shape, 1 / at_once)
        forward = found.seconds_per_step / 3 * size.forward_tokens / size.tokens_per_step
        each = found.seconds_to_start + size.steps * found.seconds_per_step + forward
        turns = [-(-size // found.replicas) for size in own]
        names = list(dict.fromkeys(run.arm for run in members))
        populations.append(PlannedPopulation(names, len(members), found.replicas, round(sum(turns) * each, 2)))
        costs += [turn * each for turn in turns]
        memory = max(memory, found.memory)
        one = ArmPlan(
            size.parameters,
            size.steps,
            size.steps * size.tokens_per_step,
            size.steps * size.flops_per_step,
            round(each / found.replicas, 2),
            found.memory // found.replicas,
        )
        arms |= dict.fromkeys(names, one)
        warnings += _short_warmup(recipe, size, names)
    # Two populations running at once on one GPU take as long as one after the other.
    seconds = max(loads(costs, min(workforce.gpus, len(costs)))) if workforce.gpus else sum(costs) / at_once
    in_order = {arm.name: arms[arm.name] for arm in study.arms}
    return Plan(study.title, runs, in_order, populations, workforce, seconds, memory * at_once, warnings)


def _short_warmup(recipe: Recipe, size: RunSize, arms: Sequence[str]) -> list[str]:
    warmup = recipe.training.schedule.warmup
    if warmup is None or warmup.unit != "steps" or warmup.amount < size.steps:
        return []
    return [f"{', '.join(arms)}: training ends after {size.steps:,} steps, within the warm-up of {warmup}"]


def speed(
    recipe: Recipe,
    sizes: Sizes,
    wanted: int = 1,
    members: Sequence[Recipe] = (),
    seconds: float = MEASURED_SECONDS,
    share: float = 1.0,
) -> Speed:
    """Measure a few training steps of this shape: alone on one CPU thread, or with up to `wanted` replicas if a GPU
    holds as many. `share` is the share of the GPU they may use."""
    # Pretrained weights do not change the speed of a step, and may not exist yet.
    recipe, members = untrained(recipe), [untrained(one) for one in members]
    task, began = sizes.task(recipe), time.perf_counter()
    # Without torch.compile, which would take a minute per shape: compiled training will be faster than measured.
    setting = dataclasses.replace(settings.choose(recipe.training, recipe.model.width), compiled=False)
    cuda, threads = setting.device.type == "cuda", torch.get_num_threads()
    replicas = capacity(members, wanted, share).replicas if cuda and wanted > 1 else wanted
    if not cuda:
        torch.set_num_threads(1)  # as in the training processes
    _forget_peak(setting.device)
    try:
        step = _stepper((members or [recipe])[:replicas], task, setting)
        for _ in range(STEPS_BEFORE_RECORDING + 2 if cuda else 2):
            step()
        to_start, taken = time.perf_counter() - began, 0
        began = time.perf_counter()
        while taken < 3 or (time.perf_counter() - began < seconds and taken < 1000):
            step()
            taken += 1
        each = (time.perf_counter() - began) / taken
    finally:
        torch.set_num_threads(threads)
    found = Speed(replicas, each, _peak(setting.device), sizes.seconds_to_load + to_start)
    del step  # frees the replicas' memory
    _forget_peak(setting.device)
    return found


def untrained(recipe: Recipe) -> Recipe:
    """The recipe with random weights if it would start from those of a recipe that is trained first."""
    if recipe.model.trained_first is None:
        return recipe
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"start": Drawn()})})


def _stepper(recipes: Sequence[Recipe], task: Task, setting: settings.Setting) -> Callable[[], None]:
    """A function that takes one step with these replicas and waits for it to finish."""
    population, sampler = assemble(recipes, task, setting)
    alive = torch.ones(len(recipes), dtype=torch.bool, device=setting.device)
    update = Update(population.model, population.optimizer, sampler, task.recipe.training, setting, alive)
    steps = itertools.count()

    def step() -> None:
        update(next(steps), 0.0)
        if setting.device.type == "cuda":
            torch.cuda.synchronize(setting.device)

    return step


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int:
    """Peak memory in bytes. On a CPU that of the whole process so far, an upper bound for a training process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
