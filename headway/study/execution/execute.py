"""Carry a study out: every run that has not ended is begun, or taken up where it stands.

Where: in this process, as populations (on a GPU, where a population costs what one run costs); in several processes for
each GPU, where there are several populations; in a pool of processes, one run and one thread each (on a CPU,
where populations gain nothing); or on a Ray cluster. A run that fails is noted with its reason, and the others go on.
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
    """Runs that have ended: finished, stopped by their patience, or diverged."""
    failed: dict[str, Status]
    """By run, with the reason; the same command tries them again."""
    interrupted: bool


def execute(
    study: Study,
    folder: Path,
    on: Executor | None = None,
    listeners: Sequence[Listener] = (),
    reuse: Sequence[Path] = (),
) -> ExecutedStudy:
    """Train what is not trained yet, in this study's folder; nor in those of the studies to `reuse`."""
    home = StudyFolder(folder)
    log, of = Log(home, listeners), (folder.name,)
    with home.taken(study):
        runs = study.runs(_fixed_budgets(study, home, reuse))
        ended, damaged = _standing(runs, home)
        left = [run for run in runs if run.name not in {*ended, *damaged}]
        for run in left:
            home.forget_failure(run.name)
        for name, why in damaged.items():  # it is left as it is, and the others go on
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
    """The names of those that have ended; and of those whose folders are damaged, why."""
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
    """What runs begin with, before there are several processes that would all want to."""
    from headway.experiment.train import train_first

    missing = {start.folder: start for run in runs if (start := run.recipe.model.trained_first) is not None}
    for start in missing.values():
        if not start.is_there:
            log.note(f"first {start.called} is trained, which arms begin with; it is kept in {start.folder}")
    train_first([run.recipe for run in runs])


def _fixed_budgets(study: Study, home: StudyFolder, reuse: Sequence[Path]) -> dict[str, int]:
    """Measured or counted when the study begins; kept, so that a study that goes on is the same study."""
    steps = home.budgets
    if steps is None:
        sizes = Sizes()
        check_scores(study, sizes)
        home.budgets = steps = _measured_by(reuse, study) or budgets(study, sizes)
    return steps


def _measured_by(others: Sequence[Path], study: Study) -> dict[str, int] | None:
    """Seconds are never measured twice the same. A study of the same arms keeps the steps of the one that it reuses,
    whose runs would else be other runs."""
    for other in map(StudyFolder, others) if study.equal == "seconds" else ():
        if other.study.equal == "seconds" and [*other.study.recipes.items()] == [*study.recipes.items()]:
            return other.budgets
    return None


def executor_named(on: str | None, workers: int | None, study: Study) -> Executor:
    """By the name that the command line knows it by; None = what suits the study."""
    if on is None:
        return suited(study, workers)
    if on == "here":
        if workers not in (None, 1):
            raise UserError(f"--on here is one process, not {workers}: --on pool and --on gpus have several")
        return InProcess()
    if on == "pool":
        return Pool(workers)
    if on == "gpus":
        if (asked := _one_gpu_asked_for(study)) is not None:  # of which each process would see another, as cuda:0
            raise UserError(f"training.device={asked} is one GPU, and --on gpus uses all: leave one of them away")
        if not (names := gpus_here()):
            raise UserError("no CUDA device can be used here: --on pool has a process for each core")
        return Gpus.suited(study.runs(), names) if workers is None else Gpus.shared_by(workers, names)
    if on.startswith("ray://") and workers is not None:
        raise UserError(f"how many runs {on} trains at once is for that cluster to say: leave --workers away")
    if on == "ray" or on.startswith("ray://"):
        return Ray(None if on == "ray" else on, workers)
    raise UserError(
        f"there is no executor '{on}'{did_you_mean(on, ['here', 'pool', 'gpus', 'ray', 'ray://HOST:PORT'])}"
    )


def suited(study: Study, workers: int | None = None) -> InProcess | Gpus | Pool:
    """Populations where there is a GPU, by several processes where there are several of either, unless one is asked
    for; else a pool of processes."""
    from headway.training.setting import choose

    recipe = next(iter(study.recipes.values()))
    if choose(recipe.training, recipe.model.width).device.type != "cuda":
        return Pool(workers)
    if (asked := _one_gpu_asked_for(study)) is not None:  # whoever asks for cuda:1 gets that one
        if workers not in (None, 1):
            raise UserError(f"training.device={asked} is for one process, not {workers}: leave one of them away")
        return InProcess()
    there = gpus_here()
    dealt_out = Gpus.suited(study.runs(), there) if workers is None else Gpus.shared_by(workers, there)
    return dealt_out if len(dealt_out.names) > 1 else InProcess()


def _one_gpu_asked_for(study: Study) -> str | None:
    return next((one.training.device for one in study.recipes.values() if ":" in one.training.device), None)
