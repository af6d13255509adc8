"""Resumes interrupted runs: checks that they belong to the recipe, finds the step to resume from, and restores their
state.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from headway.core.errors import UserError
from headway.core.yaml import flat, what_changed
from headway.models.start import Drawn
from headway.recipe.plugins import changed_since, used_by
from headway.recipe.recipe import Recipe
from headway.run.folder import Run, open_run
from headway.run.record import read_status
from headway.training import checkpoint
from headway.training.checkpoint import Checkpoint
from headway.training.population import Population
from headway.training.processes import Processes


def resumable_together(folders: Sequence[Path]) -> list[list[int]]:
    """Group the runs that can resume together, by index: those with a saved step in common, largest groups first.
    Runs without a checkpoint form the last group, started ones before new ones."""
    saved = [set(checkpoint.saved_steps(folder / "checkpoints")) for folder in folders]
    left, found = list(range(len(folders))), []
    while count := Counter(step for k in left for step in saved[k]):
        step = max(count, key=lambda step: (count[step], step))
        found.append([k for k in left if step in saved[k]])
        left = [k for k in left if step not in saved[k]]
    left.sort(key=lambda k: not folders[k].exists())
    return [*found, left] if left else found


def ended_apart(folders: Sequence[Path]) -> list[list[int]]:
    """Group the runs of a population that resume together, by index. Normally all resume from the last step that all
    have saved, which gives the same result as without the interruption. Runs that have ended and share no step with
    the others were trained separately (the memory had run out), and need no further training."""
    everyone = list(range(len(folders)))
    saved = [set(checkpoint.saved_steps(folder / "checkpoints")) for folder in folders]
    ended = [k for k in everyone if saved[k] and read_status(folders[k]).is_end]
    if not ended or set.intersection(*saved) or not all(folder.exists() for folder in folders):
        return [everyone]
    return [group for group in (ended, [k for k in everyone if k not in ended]) if group]


def check_reopened(members: list[Run]) -> None:
    """Check that runs can be resumed with their recipes. Some may be missing if all were killed while being created."""
    missing = [run.folder for run in members if not run.folder.exists()]
    begun = any(run.folder.exists() and run.has_checkpoints for run in members)
    if missing and (begun or len(missing) == len(members)):
        raise UserError(f"there is nothing to resume: {missing[0]} does not exist; start it without --resume")
    for run in members:
        if run.folder.exists():
            _restore_recipe(run)
            _check_recipe(run)


def _restore_recipe(run: Run) -> None:
    """Restore a damaged recipe file, if run.json confirms that this recipe made the run."""
    if not (run.folder / "run.json").exists():
        return
    try:
        run.recipe_text()
    except UserError as error:
        if run.facts.get("recipe_hash") != run.recipe.hash:
            raise
        print(f"{error}; it was restored now", file=sys.stderr)
        run.keep_recipe()


def going_on(run: Run) -> Recipe:
    """A run's recipe, changed so that its folder is sufficient to resume. If the run started from a pretrained model,
    its tokenizer is read from the run folder; and its start is dropped if the pretrained model is gone."""
    recipe, model = run.recipe, run.recipe.model
    if model.own_tokenizer is None or not run.folder.exists() or not run.has_checkpoints:
        return recipe
    try:
        model.start.facts  # noqa: B018 (fails if the pretrained model is gone)
    except UserError:
        model = model.model_copy(update={"start": Drawn()})
    return recipe.model_copy(update={"data": recipe.data.kept_in(run.folder), "model": model})


def _check_recipe(run: Run) -> None:
    made_by = open_run(str(run.folder), run.folder.parent).recipe
    ours, theirs = (
        flat(r.model_dump(mode="json", exclude={"training": {"parallel"}})) for r in (run.recipe, made_by)
    )  # the processes may divide the work differently than before
    if ours != theirs:
        raise UserError(
            f"{run.folder} was made with a different recipe: {what_changed(theirs, ours)}; use --name for a new run"
        )
    if changed := changed_since(run.folder, used_by(run.recipe)):
        raise UserError(f"{run.folder} was made with different code: {changed}; use --name for a new run")


def newest_checkpoints(members: list[Run], warn: Callable[[str], None]) -> list[Checkpoint]:
    """Checkpoints of the newest step available for every run: saved at that step, or ended before it. Metrics of later
    steps are dropped. Empty if all were killed before the first checkpoint; then training starts again."""
    found = [list(run.resumable_checkpoints()) for run in members]
    ways: list[list[Checkpoint]] = []
    for step in sorted({c.step for checkpoints in found for c in checkpoints}, reverse=True):
        chosen = [
            next((c for c in checkpoints if c.step == step or (c.step < step and c.facts["standing"]["ended"])), None)
            for checkpoints in found
        ]
        if None not in chosen:
            ways.append([c for c in chosen if c is not None])
    # An older checkpoint is better than a gap in the metrics, and a gap is better than starting again.
    whole = [chosen for chosen in ways if not _lost_metrics(members, chosen, warn)]
    for chosen in (whole or ways)[:1]:
        for run, saved in zip(members, chosen, strict=True):
            run.forget_after(saved.step)
        return chosen
    for run in members:
        if "imported_from" in run.facts:
            raise UserError(f"{run.folder} has lost its imported weights: remove it, and import them again")
    for run in members:  # most likely killed before the first checkpoint
        if run.has_checkpoints:
            warn(f"{run.name} has no usable checkpoint: starting again")
        run.forget_after(0)
    return []


def _lost_metrics(members: list[Run], chosen: list[Checkpoint], warn: Callable[[str], None]) -> bool:
    """Whether metrics that existed when these checkpoints were saved are lost."""
    torn = [(run, saved) for run, saved in zip(members, chosen, strict=True) if not run.has_metrics_of(saved)]
    for run, saved in torn:
        warn(f"{run.folder / 'metrics.jsonl'} has lost or changed lines before step {saved.step}")
    return bool(torn)


def restore(population: Population, saved: list[Checkpoint]) -> int:
    """Load the writer's checkpoints in every process. Returns the step to continue from."""
    processes = population.parallel.processes
    (any_saved,) = processes.agree(bool(saved))
    if not any_saved:
        return 0
    newest = 0
    for r in range(len(population.replica_states)):
        one = checkpoint_from_writer(processes, lambda r=r: saved[r])
        with processes.together():
            population.restore(r, one)
        newest = max(newest, one.step)
    population.optimizer.steps.fill_(newest)
    return newest


def checkpoint_from_writer(processes: Processes, read: Callable[[], Checkpoint]) -> Checkpoint:
    """Read a checkpoint on the writer's machine, which may be the only one with the run folder."""
    if processes.world == 1:
        return read()
    return checkpoint.unpack(processes.from_writer(lambda: checkpoint.pack(read())))
