"""Execute a study: start every run that has not ended, or resume it from its checkpoint.

Runs are trained in this process, as populations (on a GPU, where a population costs about as much as one run); in
several processes per GPU if there are several populations; in a pool of processes with one run and one thread each (on
a CPU, where populations gain nothing); or on a Ray cluster. A failed run is recorded with its reason, and the others
continue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import UserError, did_you_mean
from headway.core.events import Closed, Listener, Opened
from headway.core.reading import check_own
from headway.core.status import Status
from headway.study.design.study import PlannedRun, Study
from headway.study.execution.cluster import Ray
from headway.study.execution.executor import Executor, Log
from headway.study.execution.in_process import InProcess
from headway.study.execution.plan import Sizes, budgets, check_scores
from headway.study.execution.pool import Gpus, Pool, gpus_here
from headway.study.execution.reuse import take_over
from headway.study.folder import StudyFolder
from headway.study.results.results import ending


@dataclass(frozen=True)
class ExecutedStudy:
    folder: Path
    done: int
    """The number of runs that have ended: finished, stopped early (patience), or diverged."""
    failed: dict[str, Status]
    """Failed runs with the reason; running the same command tries them again."""
    interrupted: bool


def execute(
    study: Study,
    folder: Path,
    on: Executor | None = None,
    listeners: Sequence[Listener] = (),
    reuse: Sequence[Path] = (),
) -> ExecutedStudy:
    """Train all runs that exist neither in this study's folder nor in the studies to `reuse`."""
    home = StudyFolder(folder)
    log, of = Log(home, listeners), (folder.name,)
    with home.taken(study):
        runs = study.runs(_fixed_budgets(study, home, reuse))
        ended, damaged = _standing(runs, home)
        left = [run for run in runs if run.name not in {*ended, *damaged}]
        for run in left:
            home.forget_failure(run.name)
        for name, why in damaged.items():  # leave it as it is, and continue with the others
            log.failed(name, why)
        if reuse:
            ended += take_over(left, reuse, log)
            left = [run for run in left if run.name not in set(ended)]
        _train_first(left, log)
        log.tell(Opened(of=of, arm_of={run.name: run.arm for run in runs}, done=ended))
        interrupted = True
        try:
            interrupted = bool(left) and (on or suited(study)).train(left, log)
        finally:
            log.tell(Closed(of=of, interrupted=interrupted))
        done = len(_standing(runs, home)[0])
        return ExecutedStudy(folder, done, home.failures(), interrupted)


def _standing(runs: Sequence[PlannedRun], home: StudyFolder) -> tuple[list[str], dict[str, str]]:
    """The names of runs that have ended, and of those with damaged folders, with the reason."""
    ended, damaged = [], {}
    for run in runs:
        try:
            check_own(home.runs / run.name)
            if ending(home.runs / run.name):
                ended.append(run.name)
        except UserError as error:
            damaged[run.name] = str(error)
    return ended, damaged


def _train_first(runs: Sequence[PlannedRun], log: Log) -> None:
    """Train the models that runs start from, before several processes would all try to."""
    from headway.experiment.train import train_first

    missing = {start.folder: start for run in runs if (start := run.recipe.model.trained_first) is not None}
    for start in missing.values():
        if not start.is_there:
            log.note(f"training {start.called} first, from which arms start; it is kept in {start.folder}")
    train_first([run.recipe for run in runs])


def _fixed_budgets(study: Study, home: StudyFolder, reuse: Sequence[Path]) -> dict[str, int]:
    """The budgets, computed when the study begins and stored, so that a resumed study uses the same ones."""
    steps = home.budgets
    if steps is None:
        sizes = Sizes()
        check_scores(study, sizes)
        home.budgets = steps = _measured_by(reuse, study) or budgets(study, sizes)
    return steps


def _measured_by(others: Sequence[Path], study: Study) -> dict[str, int] | None:
    """Budgets in seconds come from measured speed, which is never the same twice. So a study with the same arms keeps
    the steps of the study it reuses; otherwise no run could be reused."""
    for other in map(StudyFolder, others) if study.equal == "seconds" else ():
        if other.study.equal == "seconds" and [*other.study.recipes.items()] == [*study.recipes.items()]:
            return other.budgets
    return None


def executor_named(on: str | None, workers: int | None, study: Study) -> Executor:
    """The executor with this command-line name; None = the one suited to the study."""
    if on is None:
        return suited(study, workers)
    if on == "here":
        if workers not in (None, 1):
            raise UserError(f"--on here uses one process, not {workers}: use --on pool or --on gpus for several")
        return InProcess()
    if on == "pool":
        return Pool(workers)
    if on == "gpus":
        if (asked := _one_gpu_asked_for(study)) is not None:  # each process would see another GPU as cuda:0
            raise UserError(f"training.device={asked} is one GPU, and --on gpus uses all: leave one of them out")
        if not (names := gpus_here()):
            raise UserError("no CUDA device is available: --on pool uses one process per core")
        return Gpus.suited(study.runs(), names) if workers is None else Gpus.shared_by(workers, names)
    if on.startswith("ray://") and workers is not None:
        raise UserError(f"the cluster at {on} decides how many runs it trains at once: leave --workers out")
    if on == "ray" or on.startswith("ray://"):
        return Ray(None if on == "ray" else on, workers)
    raise UserError(
        f"there is no executor '{on}'{did_you_mean(on, ['here', 'pool', 'gpus', 'ray', 'ray://HOST:PORT'])}"
    )


def suited(study: Study, workers: int | None = None) -> InProcess | Gpus | Pool:
    """The default executor: populations if there is a GPU, in several processes if there are several GPUs or
    populations (unless the recipe asks for one GPU); otherwise a pool of processes."""
    from headway.training.setting import choose

    recipe = next(iter(study.recipes.values()))
    if choose(recipe.training, recipe.model.width).device.type != "cuda":
        return Pool(workers)
    if (asked := _one_gpu_asked_for(study)) is not None:  # a specific device, such as cuda:1
        if workers not in (None, 1):
            raise UserError(f"training.device={asked} allows only one process, not {workers}: leave one of them out")
        return InProcess()
    there = gpus_here()
    dealt_out = Gpus.suited(study.runs(), there) if workers is None else Gpus.shared_by(workers, there)
    return dealt_out if len(dealt_out.names) > 1 else InProcess()


def _one_gpu_asked_for(study: Study) -> str | None:
    return next((one.training.device for one in study.recipes.values() if ":" in one.training.device), None)
