"""Resuming runs that were stopped: do they belong to this recipe, from which step can they go on, and their state put
back.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from headway.core.errors import UserError
from headway.core.plugins import changed_since, used_by
from headway.core.yaml import flat, what_changed
from headway.models.start import Drawn
from headway.recipe.recipe import Recipe
from headway.run.folder import Run, open_run
from headway.run.record import read_status
from headway.training import checkpoint
from headway.training.checkpoint import Checkpoint
from headway.training.population import Population
from headway.training.processes import Processes


def resumable_together(folders: Sequence[Path]) -> list[list[int]]:
    """Which of these runs can go on together, by their places: those that have saved a step in common, most of them
    first. What was begun but saved nothing starts with what was not begun at all, and before it in the list."""
    saved = [set(checkpoint.saved_steps(folder / "checkpoints")) for folder in folders]
    left, found = list(range(len(folders))), []
    while count := Counter(step for k in left for step in saved[k]):
        step = max(count, key=lambda step: (count[step], step))
        found.append([k for k in left if step in saved[k]])
        left = [k for k in left if step not in saved[k]]
    left.sort(key=lambda k: not folders[k].exists())
    return [*found, left] if left else found


def ended_apart(folders: Sequence[Path]) -> list[list[int]]:
    """The runs of a population go on together, by their places, from the last step that all have saved: only so do they
    end as if nothing had been. But those that have ended, and share no step with the others, were trained apart from
    them (the memory had run out, and halves went in turns), and need not be trained again."""
    everyone = list(range(len(folders)))
    saved = [set(checkpoint.saved_steps(folder / "checkpoints")) for folder in folders]
    ended = [k for k in everyone if saved[k] and read_status(folders[k]).is_end]
    if not ended or set.intersection(*saved) or not all(folder.exists() for folder in folders):
        return [everyone]
    return [group for group in (ended, [k for k in everyone if k not in ended]) if group]


def check_reopened(members: list[Run]) -> None:
    """Runs can be resumed by the recipes that made them. Some may be missing, if all were killed in the making."""
    missing = [run.folder for run in members if not run.folder.exists()]
    begun = any(run.folder.exists() and run.has_checkpoints for run in members)
    if missing and (begun or len(missing) == len(members)):
        raise UserError(f"there is nothing to resume: {missing[0]} does not exist; leave out --resume to start it")
    for run in members:
        if run.folder.exists():
            _mend_recipe(run)
            _check_recipe(run)


def _mend_recipe(run: Run) -> None:
    """A recipe that was damaged is written anew, by whoever has the one that made the run: run.json tells it."""
    if not (run.folder / "run.json").exists():
        return
    try:
        run.recipe_text()
    except UserError as error:
        if run.facts.get("recipe_hash") != run.recipe.hash:
            raise
        print(f"{error}; that is done now", file=sys.stderr)
        run.keep_recipe()


def going_on(run: Run) -> Recipe:
    """A run's recipe, as its folder alone can carry it on: where it began with what somebody lent it, the tokens are
    those that lie in the folder, and so are the weights, should the lender be gone."""
    recipe, model = run.recipe, run.recipe.model
    if model.own_tokenizer is None or not run.folder.exists() or not run.has_checkpoints:
        return recipe
    try:
        model.start.facts  # noqa: B018 (it looks for the lender)
    except UserError:
        model = model.model_copy(update={"start": Drawn()})
    return recipe.model_copy(update={"data": recipe.data.kept_in(run.folder), "model": model})


def _check_recipe(run: Run) -> None:
    made_by = open_run(str(run.folder), run.folder.parent).recipe
    ours, theirs = (
        flat(r.model_dump(mode="json", exclude={"training": {"parallel"}})) for r in (run.recipe, made_by)
    )  # processes may share the work in another way than before
    if ours != theirs:
        raise UserError(
            f"{run.folder} was made by another recipe: {what_changed(theirs, ours)}; use --name for a new run"
        )
    if changed := changed_since(run.folder, used_by(run.recipe)):
        raise UserError(f"{run.folder} was made with other code: {changed}; use --name for a new run")


def newest_checkpoints(members: list[Run], warn: Callable[[str], None]) -> list[Checkpoint]:
    """Of the newest step at which every member can be had: at that step, or ended before it. What the metrics say of
    later steps is forgotten. Nothing, if all were killed before the first checkpoint: begin again."""
    found = [list(run.resumable_checkpoints()) for run in members]
    ways: list[list[Checkpoint]] = []
    for step in sorted({c.step for checkpoints in found for c in checkpoints}, reverse=True):
        chosen = [
            next((c for c in checkpoints if c.step == step or (c.step < step and c.facts["standing"]["ended"])), None)
            for checkpoints in found
        ]
        if None not in chosen:
            ways.append([c for c in chosen if c is not None])
    # Rather an older checkpoint than a gap in the metrics, and rather a gap than to begin again.
    whole = [chosen for chosen in ways if not _torn(members, chosen, warn)]
    for chosen in (whole or ways)[:1]:
        for run, saved in zip(members, chosen, strict=True):
            run.forget_after(saved.step)
        return chosen
    for run in members:
        if "imported_from" in run.facts:
            raise UserError(f"{run.folder} has lost the weights that were imported: remove it, and import them again")
    for run in members:  # killed before the first checkpoint, most likely
        if run.has_checkpoints:
            warn(f"{run.name} has no checkpoint that can be resumed from: beginning again")
        run.forget_after(0)
    return []


def _torn(members: list[Run], chosen: list[Checkpoint], warn: Callable[[str], None]) -> bool:
    """Whether lines of metrics that were there when these checkpoints were saved are lost."""
    torn = [(run, saved) for run, saved in zip(members, chosen, strict=True) if not run.has_metrics_of(saved)]
    for run, saved in torn:
        warn(f"{run.folder / 'metrics.jsonl'} has lost lines before step {saved.step}, or they were changed")
    return bool(torn)


def restore(population: Population, saved: list[Checkpoint]) -> int:
    """Every process takes what the writer has read; gives the step to go on from."""
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
    """Only the writer's machine need have the run folder."""
    if processes.world == 1:
        return read()
    return checkpoint.unpack(processes.from_writer(lambda: checkpoint.pack(read())))
