"""From recipes to finished runs: data → model → loop → run folders → scores.

`train` takes one recipe or several that differ only in what replicas may differ in, and trains them as one population.
Each member gets a run folder of its own, the same as if it had been trained alone.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from headway import tasks
from headway.audit.audit import write_report
from headway.core.errors import UserError
from headway.core.files import check_names
from headway.core.progress import Reporter
from headway.core.status import State, Status
from headway.core.yaml import flat
from headway.experiment.audit import audit_runs
from headway.experiment.recorder import RunRecorder, writer_for
from headway.experiment.resume import check_reopened, checkpoint_from_writer, newest_checkpoints, restore
from headway.experiment.trackers import Observer
from headway.nn.replicated import Trainable, set_dropout
from headway.recipe.recipe import Recipe
from headway.run.folder import Run, check_new
from headway.scoring.metrics import parsed
from headway.scoring.score import Score
from headway.tasks.task import Task
from headway.training import setting as settings
from headway.training.checkpoint import Checkpoint
from headway.training.loop import Loop
from headway.training.parallel import check_rows
from headway.training.population import Population, load_weights
from headway.training.processes import ALONE, Processes, started
from headway.training.update import Sampler

MAY_VARY = ("seed", "training.optimizer.learning_rate", "training.optimizer.weight_decay", "model.dropout")
"""What the members of a population may differ in; everything else is one shape or one schedule."""


def train(
    recipes: Sequence[Recipe],
    names: Sequence[str],
    runs: Path = Path("runs"),
    resume: bool = False,
    reporter: Reporter | None = None,
    observers: Sequence[Observer] = (),
) -> list[Run]:
    """Train these recipes as one population, to the end or to Ctrl-C, and score them. Gives their run folders.

    Under torchrun every process calls this; the first one writes, and the others have nothing to read until it is over.
    """
    with started() as processes, ExitStack() as locks:
        reporter = reporter if reporter and processes.is_writer else Reporter()
        observers = observers if processes.is_writer else ()
        recipe, folders = recipes[0], [runs / name for name in names]
        with processes.together():
            check_population(recipes)
            check_names(names)
            for warning in recipe.warnings():
                reporter.warn(warning)
            setting = settings.choose(recipe.training, recipe.model.width, processes)
            if setting.device.index is not None:
                torch.cuda.set_device(setting.device)
            recipe.training.parallel.check(len(recipes))
            check_rows(recipe.training.batch, recipe.training.accumulate, processes)
            members = [Run(folder, r) for folder, r in zip(folders, recipes, strict=True)]
            written = members if processes.is_writer else []
            if resume:
                check_reopened(written)
            for run in () if resume else written:  # all of them before the first is made
                check_new(run.folder)
        task = _load_task(recipe, processes)
        with processes.together():
            for run in written:
                if run.folder.exists():
                    task.check_same_data(run)
        population, sampler = assemble(recipes, task, setting, processes)
        model = population.model
        saved: list[Checkpoint] = []
        with processes.together():
            for run in written:
                if not run.folder.exists():
                    cost = {"parameters": parameters_of(model), "flops_per_step": task.flops_per_step}
                    Run.create(run.folder, run.recipe, _where(setting, processes), **task.facts, **cost)
            for run in written:
                locks.enter_context(run.locked())
            for run in written:
                _settle_vocabulary(run, task)
            saved = newest_checkpoints(written, reporter) if resume else []
        step = restore(population, saved)
        for run, replica_state in zip(written, population.replica_states, strict=False):
            replica_state.lines = len(run.metrics())
        writer = writer_for(setting, processes, len(members))
        locks.callback(writer.close)  # before the locks are let go
        loop = Loop(
            model,
            population.optimizer,
            sampler,
            recipe.training,
            setting,
            tokens_per_step=task.tokens_per_step,
            evaluate=lambda: task.evaluate(model),
            recorder=RunRecorder(population, members, reporter, observers, writer),
            replica_states=population.replica_states,
            step=step,
            parallel=population.parallel,
            carried=population.carried,
        )
        if loop.warmup >= loop.total:
            reporter.warn(f"training ends in the warm-up ({loop.warmup:,} steps): the full rate is never reached")
        with processes.together():
            for observer in observers:
                observer.start(members, resume, loop.total, reporter)
                locks.callback(observer.end)  # however this ends, and before the locks are let go
        reporter.begin(_title(members, model, task, setting, step), step, loop.total)
        try:
            loop.run()
            writer.finish()
        finally:
            reporter.end()
        _finish(loop, population, members, task)
    return members


def _load_task(recipe: Recipe, processes: Processes) -> Task:
    """The writer first: what it prepared the others find in the cache."""
    task: Task | None = None
    for turn in (True,) if processes.world == 1 else (True, False):
        with processes.together():
            if processes.is_writer == turn:
                task = tasks.load(recipe)
                task.check_splits()
    assert task is not None
    processes.check_same("recipe and text", f"{recipe.hash} {task.data.identity}")
    return task


def assemble(
    recipes: Sequence[Recipe], task: Task, setting: settings.Setting, processes: Processes = ALONE
) -> tuple[Population[Trainable], Sampler]:
    """The replicas these recipes describe, side by side, and what they read."""
    recipe, seeds = recipes[0], [r.seed for r in recipes]
    with processes.together():
        model = task.build(seeds, str(setting.device))
        set_dropout(model, [r.model.dropout for r in recipes])
        sampler = task.sampler(seeds, str(setting.device))
    parallel = recipe.training.parallel.build(model, processes)
    optimizer = recipe.training.optimizer.build(
        parallel.parameters,
        [r.training.optimizer.learning_rate for r in recipes],
        [r.training.optimizer.weight_decay for r in recipes],
    )
    optimizer.whole_norms = parallel.whole_norms
    return Population(model, optimizer, len(recipes), parallel), sampler


def check_population(recipes: Sequence[Recipe]) -> None:
    """All members must agree in every key but those that may vary."""
    first = flat(recipes[0].model_dump(mode="json"))
    differing = {
        key for r in recipes[1:] for key, value in flat(r.model_dump(mode="json")).items() if value != first.get(key)
    }
    if wrong := sorted(differing - set(MAY_VARY)):
        raise UserError(
            f"these recipes cannot be trained as one population: they differ in {', '.join(wrong)}; "
            f"only {', '.join(MAY_VARY)} may vary"
        )


def load_model(run: Run, which: str = "auto", device: str | None = None) -> tuple[Any, Checkpoint]:
    """The trained model of a run, as a population of one, and the checkpoint it came from."""
    saved = run.checkpoint(which)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = tasks.of(run.recipe).rebuild(run, device)
    load_weights(model, 0, saved.weights)
    model.eval()
    return model, saved


def _finish(loop: Loop, population: Population, members: list[Run], task: Task) -> None:
    """Score what was kept, note how each run ended, and audit it: no score is shown before that."""
    model, parallel, recipe = population.model, population.parallel, members[0].recipe
    processes = parallel.processes
    if recipe.training.keep_best:
        for r, run in enumerate(members):
            kept = checkpoint_from_writer(processes, lambda run=run: run.checkpoint("auto"))
            population.load_weights(r, kept.weights)
    with processes.together():
        for run, replica_state in zip(members, population.replica_states, strict=True) if processes.is_writer else ():
            now = Status(State.INTERRUPTED if loop.interrupted else State.FINISHED, loop.step)
            ended, seconds = replica_state.ended or now, round(replica_state.seconds, 2)
            run.note(**ended.as_json(), steps=loop.total, seconds=seconds)
    all_scores: list[list[Score]] = []
    if parallel.takes_part:
        model.eval()  # in float32, whatever was trained in: the same number that `headway score` gives later
        all_scores = task.score(model, task.scored_splits)
    with processes.together():
        for run, scores in zip(members, all_scores, strict=True) if processes.is_writer else ():
            run.save_scores(scores)
            if not loop.interrupted:
                # Who watches test while training has looked at it, too.
                watched = ({parsed(name).split for name in line.get("scores", ())} for line in run.metrics())
                run.count_looks_at_test(task.scored_splits, *watched)
    with processes.together():
        for run, report in zip(members, audit_runs(members, task), strict=True) if processes.is_writer else ():
            write_report(run.folder, report)


def _where(setting: settings.Setting, processes: Processes) -> str:
    return f"{setting.device}" + (f", the first of {processes.world} processes" if processes.world > 1 else "")


def parameters_of(model: Trainable) -> int:
    """Of one replica."""
    return sum(p.numel() for p in model.parameters()) // model.replicas


def _settle_vocabulary(run: Run, task: Task) -> None:
    """Kept with the run; made again where it was lost."""
    path = run.folder / "tokenizer.json"
    if not path.exists() or path.read_bytes() != task.data.tokenizer.to_json().encode():
        run.tokenizer = task.data.tokenizer


def _title(members: list[Run], model: Trainable, task: Task, setting: settings.Setting, step: int) -> list[str]:
    many = f", {len(members)} replicas trained as one" if len(members) > 1 else ""
    return [
        f"{members[0].folder}{f' … {members[-1].name}' if len(members) > 1 else ''}"
        + (f": resuming at step {step}" if step else ""),
        *task.title(model),
        f"{parameters_of(model):,} parameters{many}",
        *setting.reasons,
    ]
