"""To go on with runs that were stopped: are they of this recipe, where can they be taken up, and everyone put back."""

from collections.abc import Callable
from typing import Any

from headway.errors import UserError
from headway.run import Run, open_run
from headway.training import checkpoint
from headway.training.checkpoint import Checkpoint
from headway.training.population import Population
from headway.training.processes import Processes


def check_reopened(run: Run) -> None:
    """A run can be resumed by the recipe that made it."""
    folder = run.folder
    if not folder.exists():
        raise UserError(f"there is nothing to resume: {folder} does not exist; leave out --resume to start it")
    made_by = open_run(str(folder), folder.parent).recipe
    ours, theirs = (
        flat(r.model_dump(mode="json", exclude={"training": {"parallel"}})) for r in (run.recipe, made_by)
    )  # processes may share the work in another way than before
    if ours != theirs:
        keys = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
        changes = ", ".join(f"{key} was {theirs.get(key)} and is {ours.get(key)}" for key in keys[:5])
        more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
        raise UserError(f"{folder} was made by another recipe: {changes}{more}; use --name for a new run")


def newest_checkpoints(members: list[Run]) -> list[Checkpoint]:
    """Of the newest step at which every member can be had: at that step, or ended before it. What the metrics say of
    later steps is forgotten. Nothing, if it was killed before the first checkpoint: begin again."""
    found = [list(run.good_checkpoints()) for run in members]
    steps = sorted({c.step for checkpoints in found for c in checkpoints}, reverse=True)
    newest: list[Checkpoint] = []
    for step in steps:
        chosen = [
            next((c for c in checkpoints if c.step == step or (c.step < step and c.facts["standing"]["ended"])), None)
            for checkpoints in found
        ]
        if all(chosen):
            newest = [c for c in chosen if c]
            break
    for r, run in enumerate(members):
        run.forget_after(newest[r].step if newest else 0)
    return newest


def restore(population: Population, saved: list[Checkpoint]) -> int:
    """Every process takes what the writer has read; gives the step to go on from."""
    processes = population.parallel.processes
    (any_saved,) = processes.agree(bool(saved))
    if not any_saved:
        return 0
    newest = 0
    for r in range(len(population.standings)):
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


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    return {key: value for name, inner in tree.items() for key, value in flat(inner, f"{prefix}{name}.").items()}
