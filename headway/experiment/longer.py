"""Trains finished runs for longer: `headway continue`.

The longer run is a separate run with the recipe of the longer training: nothing already found is lost, and each folder
still holds what its recipe says. It starts with the last checkpoint (weights, optimizer, carried state) and the metrics
up to there.

By default the learning rate follows the schedule of the longer training from there on. With a constant rate, the longer
run ends like one that was trained for that long from the start, bit for bit on a CPU. A decayed rate rises again to its
value in the longer schedule, which no single training would do. `rate="last"` keeps the final learning rate instead.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headway import tasks
from headway.core.errors import UserError
from headway.core.files import write_whole
from headway.core.format import number
from headway.core.seal import read_sealed, rewriting
from headway.core.status import State
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.metrics import is_test, parsed
from headway.training.checkpoint import Checkpoint
from headway.training.loop import ReplicaState
from headway.training.schedule import Duration, factor

Rate = Literal["longer", "last"]
CONTINUABLE = (State.FINISHED, State.STOPPED, State.PRUNED)
_NOT_COPIED = {"format", "headway", "name", "recipe_hash", "status", "step", "reason", "created", "seconds", "steps"}
_NOT_COPIED |= {"test_looks"}  # included in `test_scored`; the longer training's own looks are counted again
"""Facts in run.json that are not copied to the longer run."""


class Longer(NamedTuple):
    """A run and the run that continues it."""

    before: Run
    step: int
    """The step from which it continues."""
    recipe: Recipe
    name: str
    rate: str
    """What the learning rate does, as a sentence."""


def longer_than(run: Run, by: Duration, rate: Rate = "longer", name: str | None = None) -> Longer:
    """Plan the longer run; nothing is created yet."""
    status = run.status
    if status.state not in CONTINUABLE:
        raise UserError(f"{run.name} cannot be continued: {_why_not(run)}")
    saved = run.checkpoint("last")
    task = tasks.load(run.recipe)
    task.check_same_data(run)
    training, per_epoch = run.recipe.training, task.sampler([run.recipe.seed], "cpu").steps_per_epoch

    def in_steps(duration: Duration) -> int:
        return duration.in_steps(per_epoch, task.tokens_per_step)

    planned, total = in_steps(training.duration), saved.step + in_steps(by)
    as_one = Duration(training.duration.amount + by.amount, by.unit)
    same_unit = training.duration.unit == by.unit and in_steps(as_one) == total
    whole = as_one if same_unit else Duration(float(total), "steps")
    warmup = in_steps(training.schedule.warmup) if training.schedule.warmup else 0
    ended_at = factor(training.schedule, saved.step - 1, warmup, planned)
    goes_on_at = factor(training.schedule, saved.step, warmup, total)
    base = training.optimizer.learning_rate
    changes, kind = [f"training.duration={whole}"], training.schedule.kind
    if ended_at == goes_on_at == factor(training.schedule, total - 1, warmup, total):
        said = f"it stays at {number(base * goes_on_at)}, so this run ends like {total:,} steps from the start"
        if training.averaging is not None:
            said += ", except that the weights are averaged over a different tail"
    elif rate == "last":
        changes += ["training.schedule=constant", f"training.optimizer.learning_rate={base * ended_at!r}"]
        said = f"it stays at {number(base * ended_at)}, where the {kind} schedule ended at step {saved.step:,}"
    else:
        said = (
            f"the {kind} schedule was at {ended_at:.0%} of {number(base)} at step {saved.step:,}; a schedule over "
            f"{total:,} steps is at {goes_on_at:.0%} there and continues from that, so this run differs from "
            f"{total:,} steps from the start (--rate last keeps {number(base * ended_at)})"
        )
    name = name or f"{run.name}-{str(whole).replace(' ', '-')}"
    return Longer(run, saved.step, run.recipe.with_changes(changes), name, said)


def begin(longer: Longer, runs: Path) -> None:
    """Create the longer run's folder at the point where it continues, ready to be resumed. An existing one is kept."""
    folder, before = runs / longer.name, longer.before
    origin = {"run": str(before.folder), "step": longer.step, "recipe_hash": before.mark}
    run = Run(folder, longer.recipe)
    if (folder / "run.json").exists():
        if run.facts.get("continued_from", {}).get("recipe_hash") != before.mark or run.mark != longer.recipe.hash:
            raise UserError(f"{folder} exists and does not continue {before.name}: give this run another --name")
        if run.has_checkpoints:
            return
    else:
        facts = {key: value for key, value in before.facts.items() if key not in _NOT_COPIED}
        looks = {"test_scored": _scored_on_test(before)} if _scored_on_test(before) else {}
        Run.create(folder, longer.recipe, "cpu", **{**facts, **looks, "continued_from": origin})
    with run.locked():
        with rewriting(folder) as new:
            new.update({path.name: read_sealed(path) for path in before.folder.glob("*tokenizer*.json")})
        lines = [line for line in before.metrics_until(origin["step"]) if "ended" not in line]
        write_whole(folder / "metrics.jsonl", "")
        run.append_metrics(lines)
        if before.has_best:
            run.save_best(before.checkpoint("best"))
        run.save_checkpoint(_not_ended(before.checkpoint("last"), len(lines)))


def _not_ended(saved: Checkpoint, lines: int) -> Checkpoint:
    """The checkpoint, marked as not ended."""
    standing = ReplicaState.from_json(saved.facts["standing"])
    standing.lines = lines
    if standing.ended is not None:  # its patience was over: start counting again
        standing.ended, standing.evaluations_since_best = None, 0
    return dataclasses.replace(saved, facts={"standing": standing.as_json()})


def _scored_on_test(run: Run) -> int:
    """How often test was scored, without the scores in the metrics, which are copied and counted again."""
    watched = [{parsed(name).split for name in line["scores"]} for line in run.evaluations()]
    return max(0, int(run.facts.get("test_scored", 0)) - sum(any(map(is_test, splits)) for splits in watched))


def _why_not(run: Run) -> str:
    status = run.status
    if status.is_diverged:
        return f"it {status}; train it again with a lower training.optimizer.learning_rate or a longer warm-up"
    if status.state is State.IMPORTED:
        return "nothing was trained yet: headway train --resume trains it"
    return f"it has not ended ({status}): resume it first with headway train … --resume"


def check_apart(longer: Sequence[Longer]) -> None:
    names: dict[str, Any] = {}
    for one in longer:
        if one.name in names:
            raise UserError(f"two runs would both be called {one.name}")
        names[one.name] = one
