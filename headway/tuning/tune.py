"""Hyperparameter search: Optuna suggests trials, and populations train them.

    searches/NAME/
      search.json      the base recipe, the space and the score
      trials.db        Optuna's storage; also read by its dashboard
      runs/trial-000/  an ordinary run folder per trial
      trials.csv       one line per trial
      importance.png   the importance of each key, and the score by value
      best.yaml        the best recipe
      test.json        the best model's scores on test, and how often test was looked at
      result.json      a summary of all this

Trials are requested in batches. Those that differ only in what replicas may differ in train as one population. A search
that was killed resumes: finished trials are kept, started ones continued. All choices are made on valid, among models
that do not see the future; the best is scored on test once, at the end.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import optuna
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from headway import tasks
from headway.core import random
from headway.core.errors import UserError
from headway.core.events import Listener
from headway.core.files import as_json, locked, write_json, write_whole
from headway.core.reading import DAMAGED, UnreadableError, check_own
from headway.core.seal import rewriting
from headway.core.status import State
from headway.core.yaml import flat, what_changed
from headway.experiment.evaluate import audited, score_splits_again
from headway.experiment.population import train_in_turns
from headway.experiment.resume import check_reopened
from headway.recipe.recipe import Recipe
from headway.recipe.text import annotated
from headway.run.folder import Run, open_run
from headway.run.record import read_json, read_status
from headway.scoring.metrics import metric_of
from headway.study.execution.populations import shape
from headway.study.results.evidence import Circumstances
from headway.study.verdicts.caveats import no_such_number, sees_the_future
from headway.tuning.pruning import PRUNERS, PruningListener
from headway.tuning.report import draw, importance, write_table
from headway.tuning.search import Search
from headway.tuning.space import changes, grid


@dataclass(frozen=True)
class Tuned:
    """The result of a search."""

    best: Run
    suggested: dict[str, Any]
    value: float
    trials: dict[str, int]
    """How many were finished, pruned …"""
    importance: dict[str, float]
    """By name; empty if there are too few trials to tell."""
    test: dict[str, float]
    """The best model's scores on test; empty if there is no such split."""
    test_scored: int
    notes: list[str]
    folder: Path

    def as_json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**found, "best": str(self.best.folder), "folder": str(self.folder)}


class Interrupted(Exception):  # noqa: N818 (Ctrl-C is not an error)
    """Stopped by Ctrl-C. Everything is saved; the same command resumes."""


def tune(search: Search, folder: Path, trials: int, together: int = 1, listeners: Sequence[Listener] = ()) -> Tuned:
    """Run trials until this many have ended (a grid: all), then score the best on test. Raises `Interrupted`."""
    search.check()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), _readable_errors(folder):
        study = _opened(search, folder)
        if search.grid:
            for suggested in grid(search.space):
                study.enqueue_trial(suggested, skip_if_exists=True)
            trials = len(grid(search.space))
        runs = folder / "runs"
        begun = [Trial(study, trial._trial_id) for trial in study.get_trials(states=(TrialState.RUNNING,))]
        _train(search, begun, study, runs, listeners)
        while (left := trials - _ended(study)) > 0:
            _train(search, _asked(study, search, min(together, left)), study, runs, listeners)
        return _result(search, study, folder)


@contextmanager
def _readable_errors(folder: Path) -> Iterator[None]:
    """Turn errors of Optuna's storage (damage, a full disk) into sentences."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        reason = str(getattr(error, "orig", None) or error.__cause__ or error).splitlines()[0]
        raise UserError(
            f"{folder / 'trials.db'} cannot be used: {reason}; if this persists, use another --name"
        ) from None


def _opened(search: Search, folder: Path) -> optuna.Study:
    asked, path = search.as_json(), folder / "search.json"
    check_own(folder, folder / "runs", folder / "trials.db")
    if not path.exists():
        with rewriting(folder, new=not (folder / "trials.db").exists()) as new:
            new[path.name] = as_json(asked)
    elif changed := what_changed(flat(read_json(path)), flat(asked)):
        raise UserError(f"{folder} belongs to a different search: {changed}; use another --name")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        study_name="search",
        storage=f"sqlite:///{folder / 'trials.db'}",
        pruner=PRUNERS[search.pruning](),
        direction="minimize" if metric_of(search.on).lower_is_better else "maximize",
        load_if_exists=True,
    )


def _ended(study: optuna.Study) -> int:
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))


def _asked(study: optuna.Study, search: Search, count: int) -> list[Trial]:
    """A batch of new trials. Suggestions depend on the trials before, not on how often the search was restarted."""
    seed = random.key(search.base.seed, "search", len(study.get_trials(deepcopy=False))) % 2**32
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=8, constant_liar=True)
    return [study.ask({name: d.distribution for name, d in search.space.items()}) for _ in range(count)]


class _Candidate(NamedTuple):
    """A trial and its run."""

    trial: Trial
    recipe: Recipe
    run: Run

    @property
    def progress(self) -> Literal["new", "begun", "over"]:
        if not self.run.folder.exists():
            return "new"
        is_over = read_status(self.run.folder).is_end and (self.run.folder / "scores.json").exists()
        return "over" if is_over else "begun"


def _train(search: Search, batch: list[Trial], study: optuna.Study, runs: Path, listeners: Sequence[Listener]) -> None:
    """Train every trial of a batch, those of one shape as one population; started ones continue."""
    candidates = []
    for trial in batch:
        if _possible(search, trial, study):
            recipe = search.recipe(trial.params)
            candidates.append(_Candidate(trial, recipe, Run(runs / _name(trial), recipe)))
    for alike in populations([one.recipe for one in candidates]):
        found: dict[str, list[_Candidate]] = {}
        for k in alike:
            found.setdefault(candidates[k].progress, []).append(candidates[k])
        for one in found.get("over", ()):  # killed before the result was reported
            check_reopened([one.run])
            _report(study, one.trial, open_run(one.run.name, runs), search.on)
        for progress in ("begun", "new"):
            if progress in found:
                _train_as_one(found[progress], progress == "begun", study, search.on, runs, listeners)


def _train_as_one(
    some: list[_Candidate], resume: bool, study: optuna.Study, on: str, runs: Path, listeners: Sequence[Listener]
) -> None:
    """Train trials as one population, and report to Optuna how each ended."""
    trials = {one.run.name: one.trial for one in some}
    recipes = [one.recipe for one in some]
    made = train_in_turns(recipes, list(trials), runs, resume, [*listeners, PruningListener(trials, on)])
    for run in made:
        if not run.status.is_interrupted:
            _report(study, trials[run.name], run, on)
    if any(run.status.is_interrupted for run in made):
        raise Interrupted


def populations(recipes: Sequence[Recipe]) -> list[list[int]]:
    """Group the recipes that can be trained as one population, by index."""
    groups: dict[str, list[int]] = {}
    for k, recipe in enumerate(recipes):
        groups.setdefault(shape(recipe), []).append(k)
    return list(groups.values())


def _possible(search: Search, trial: Trial, study: optuna.Study) -> bool:
    """Whether a trial's values can be combined; if not, the trial ends at once."""
    try:
        search.recipe(trial.params)
    except UserError as error:
        trial.set_user_attr("ended", f"impossible: {str(error).splitlines()[-1].strip()}")
        study.tell(trial, state=TrialState.PRUNED)
        return False
    return True


def _report(study: optuna.Study, trial: Trial, run: Run, on: str) -> None:
    status = run.status
    value = next((score.value for score in run.scores() if score.name == on), math.nan)
    is_no_score = sees_the_future(Circumstances(failed_audits=_failures(run)))
    trial.set_user_attr("ended", no_such_number(metric_of(on)) if is_no_score else str(status))
    # Diverged trials are reported as pruned: Optuna ignores failed ones, and would try the same values again.
    if status.state in (State.PRUNED, State.DIVERGED) or is_no_score or not math.isfinite(value):
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, value)


def _result(search: Search, study: optuna.Study, folder: Path) -> Tuned:
    done = study.get_trials(states=(TrialState.COMPLETE,))
    write_table(study, search.space, search.on, folder / "trials.csv")
    if not done:
        raise UserError(f"none of {_ended(study)} trials has a usable score; see how each ended in {folder}/trials.csv")
    best = study.best_trial
    run = open_run(_name(best), folder / "runs")
    _check_told(best, run, search.on, folder)
    test, looks = _scored_on_test(run, folder)
    weights = importance(study)
    write_whole(folder / "best.yaml", annotated(search.base.with_changes(changes(search.space, best.params))))
    draw(study, search.space, search.on, weights, folder / "importance.png")
    states = [trial.state.name.lower() for trial in study.get_trials(deepcopy=False)]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    assert best.value is not None
    notes = [*_notes(len(done), looks), *(f"fails {audit}: {said}" for audit, said in _failures(run).items())]
    found = Tuned(run, dict(best.params), best.value, counts, weights, test, looks, notes, folder)
    write_json(folder / "result.json", found.as_json())
    return found


def _check_told(trial: FrozenTrial, run: Run, on: str, folder: Path) -> None:
    """Check that Optuna's storage, which has no checksum, agrees with the run, which has one."""
    value = next((score.value for score in run.scores() if score.name == on), math.nan)
    if trial.value is not None and not math.isclose(trial.value, value, rel_tol=1e-9):
        said = f"says {trial.value} of {run.name}, whose {on} is {value}"
        raise UserError(f"{folder / 'trials.db'} was changed: it {said}; use another --name")


def _scored_on_test(run: Run, folder: Path) -> tuple[dict[str, float], int]:
    """Score the best run on test, once; again only if later trials found a better one. The look is counted before it is
    taken, so that it also counts if the process is killed."""
    path = folder / "test.json"
    known = read_json(path) if path.exists() else {"run": None, "scores": {}, "looks": 0}
    try:
        before, scores, seen = known["run"], dict(known["scores"]), int(known["looks"])
    except (KeyError, TypeError, ValueError):
        raise UnreadableError(path, DAMAGED) from None
    if before == run.name and scores:
        return scores, seen
    if "test" not in tasks.load(run.recipe).data.splits:
        return {}, 0
    looks = seen + 1
    with rewriting(folder) as new:
        new[path.name] = as_json({"run": run.name, "scores": {}, "looks": looks})
    found = {s.name: s.value for s in score_splits_again(run, ["test"]) if math.isfinite(s.value)}
    with rewriting(folder) as new:
        new[path.name] = as_json({"run": run.name, "scores": found, "looks": looks})
    return found, looks


def _notes(finished: int, looks: int) -> list[str]:
    picked = (
        f"this score is the best of {finished} trials, so it is optimistic"
        if finished > 1
        else "there was only one trial"
    )
    notes = [f"{picked}; it was reached with one seed"]
    if looks == 0:
        notes.append("there is no test split to show by how much")
    elif looks > 1:
        notes.append(f"test was scored {looks} times, because the search was extended later")
    return notes


def _name(trial: Trial | FrozenTrial) -> str:
    return f"trial-{trial.number:03d}"


def _failures(run: Run) -> dict[str, str]:
    return {finding.audit: finding.sentence for finding in audited(run).failures}
