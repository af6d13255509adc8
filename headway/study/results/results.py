"""The results of a study, read only from its run folders."""

import glob
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headway.audit.audit import FILE as AUDIT
from headway.audit.audit import Finding, Report, read_report
from headway.core.errors import UserError, did_you_mean
from headway.core.reading import DAMAGED, UnreadableError
from headway.core.status import State, Status
from headway.run.record import read_json, read_scores, read_status
from headway.scaling.analysis import ScalingAnalysis
from headway.scoring.score import Score, label_of_all
from headway.study.design.factors import Arm
from headway.study.design.measures import Measure
from headway.study.design.study import Looks, Study
from headway.study.folder import StudyFolder
from headway.study.results.evidence import Circumstances, Correct, EarlierLook
from headway.study.results.measuring import measured_scores


@dataclass(frozen=True)
class Result:
    """One finished run."""

    arm: str
    seed: int
    folder: Path
    status: Status
    scores: dict[str, Score]
    audit: Report | None
    """None if it is not audited yet."""
    parameters: int | None
    steps: int
    """Training steps taken."""
    flops: int | None
    """Training FLOPs."""
    seconds: float
    """Training time; of the whole population if it was trained in one."""
    test_scored: int
    """How often the test split was scored."""
    taken_from: str | None = None
    """The study it is reused from, if any."""

    @property
    def environment(self) -> dict[str, Any]:
        """The environment it was trained in; empty if unknown."""
        try:
            return read_json(self.folder / "environment.json")
        except UserError:
            return {}

    @property
    def failures(self) -> list[Finding]:
        """The findings of audits that failed."""
        return self.audit.failures if self.audit else []


@dataclass(frozen=True)
class Results:
    study: Study
    folder: Path
    runs: list[Result]
    """Runs that finished without divergence, by arm and seed."""
    missing: dict[str, Status]
    """Runs without a result: diverged, failed, interrupted, not begun …"""

    @property
    def arms(self) -> dict[str, Circumstances]:
        """What verdicts need to know about each arm besides its scores."""
        return self._arms

    @cached_property
    def _arms(self) -> dict[str, Circumstances]:
        return {arm.name: self._circumstances(arm) for arm in self.study.arms}

    def _circumstances(self, arm: Arm) -> Circumstances:
        runs, recipe = self.of(arm.name), self.study.recipes[arm.name]
        optimizer = recipe.training.optimizer
        lost = {seed: how for seed in self.study.seeds if (how := self.missing.get(f"{arm.name}.seed-{seed}"))}
        failed = {finding.audit: finding.sentence for run in runs for finding in run.failures}
        return Circumstances(
            arm.levels,
            _mean([run.parameters for run in runs]),
            _mean([run.flops for run in runs]),
            _mean([run.seconds for run in runs]),
            failed,
            lost,
            (optimizer.kind, optimizer.learning_rate),
            recipe.model.pretrained_as,
        )

    @property
    def test_scored(self) -> int:
        """How often test was scored, as the maximum over runs."""
        return max((run.test_scored for run in self.runs), default=0)

    @property
    def looks(self) -> Looks:
        return self.study.looks

    @cached_property
    def _earlier_looks(self) -> list[EarlierLook]:
        seeds, looks = set(self.study.seeds), StudyFolder(self.folder).looks()
        return [look for look in looks if seeds & set(look.seeds) and seeds - set(look.seeds)]

    @property
    def earlier_looks(self) -> list[EarlierLook]:
        """Looks at some of these seeds before others were added. A study with only new seeds is independent of them."""
        return self._earlier_looks

    @property
    def score_names(self) -> list[str]:
        """The names of all scores that any run has."""
        return list(dict.fromkeys(name for run in self.runs for name in run.scores))

    def of(self, arm: str) -> list[Result]:
        return [run for run in self.runs if run.arm == arm]

    def table(self, score: str) -> dict[str, dict[int, float]]:
        """Arm → seed → value, for finished runs. Values may be infinite or NaN."""
        if self.runs and score not in self.score_names:
            raise UserError(f"no run of {self.folder} has the score '{score}'{did_you_mean(score, self.score_names)}")
        found: dict[str, dict[int, float]] = {arm.name: {} for arm in self.study.arms}
        for run in self.runs:
            if score in run.scores:
                found[run.arm][run.seed] = run.scores[score].value
        return found

    def cheap(self, score: str) -> dict[str, float]:
        """The values of the simple baselines for this score."""
        found = (b for run in self.runs if run.audit for b in run.audit.baselines if b.score.name == score)
        return {baseline.method: baseline.score.value for baseline in found}

    def laws(self, score: str) -> Mapping[str, ScalingAnalysis]:
        """The scaling analysis of each family of a ladder; a UserError if too few runs have finished."""
        from headway.study.results.ladder_points import laws_of

        return laws_of(self, score)

    def label(self, score: str) -> str:
        """How this score was measured; per arm if that differs between arms."""
        told = {arm: [run.scores[score].label for run in self.of(arm) if score in run.scores] for arm in self.arms}
        return label_of_all(told)

    def as_json(self) -> dict[str, Any]:
        runs = {
            run.folder.name: {
                "arm": run.arm,
                "seed": run.seed,
                "status": str(run.status.state),
                "scores": {name: score.as_json() for name, score in run.scores.items()},
                "failed_audits": [finding.audit for finding in run.failures],
                "parameters": run.parameters,
                "steps": run.steps,
                "flops": run.flops,
                "seconds": run.seconds,
            }
            for run in self.runs
        }
        missing = {name: str(status) for name, status in self.missing.items()}
        return {"study": str(self.folder), "title": self.study.title, "runs": runs, "missing": missing}


def read_results(folder: Path, study: Study | None = None) -> Results:
    """Read everything measured so far in a study's folder."""
    home = StudyFolder(folder)
    study = study or home.study
    failures, runs, missing = home.failures(), [], {}
    for arm, seed in _cells(study):
        name = f"{arm}.seed-{seed}"
        try:
            found = _read(home.runs / name, arm, seed, study.measures)
        except UserError as error:  # one damaged run must not hide the others
            missing[name] = Status(State.FAILED, reason=str(error))
            continue
        if isinstance(found, Result):
            runs.append(found)
        else:
            missing[name] = failures.get(name, found)
    return Results(study, folder, runs, missing)


def correct_in(runs: Path) -> Correct:
    """Per-row results of each run (right or wrong, or what it adds to the sums of a score), from folders ARM.seed-N."""

    def correct(arm: str, score: str) -> dict[int, np.ndarray]:
        found = {}
        for path in runs.glob(f"{glob.escape(arm)}.seed-*/scores.json"):
            seed = path.parent.name.removeprefix(f"{arm}.seed-")
            try:
                kept = read_json(path).get(score, {}) if seed.isdecimal() else {}
            except UserError:  # `read_results` reports it
                continue
            if "rows" in kept:
                found[int(seed)] = np.array([row == "1" for row in kept["rows"]])
            elif "counts" in kept:
                found[int(seed)] = np.array(kept["counts"], dtype=np.float64)
        return found

    return correct


def find_study(name: str, studies: Path) -> Path:
    """Find the folder of a study by its name in `studies` or by its path."""
    for folder in (studies / name, Path(name)):
        if (folder / "study.yaml").is_file():
            return folder
    known = [path.parent.name for path in studies.glob("*/study.yaml")]
    hint = did_you_mean(name, known) if known else f"; there are no studies in {studies} yet"
    raise UserError(f"there is no study '{name}'{hint}")


def ending(folder: Path) -> Status | None:
    """The status of a run that has ended, been scored and audited; None if anything is left to do."""
    if not all((folder / name).exists() for name in ("run.json", "scores.json", AUDIT)):
        return None
    status = read_status(folder)
    return status if status.is_end else None


def _cells(study: Study) -> Iterator[tuple[str, int]]:
    return ((arm.name, seed) for arm in study.arms for seed in study.seeds)


def _read(folder: Path, arm: str, seed: int, measures: Sequence[Measure]) -> Result | Status:
    """A finished run, or the status of one that does not count. Its recipe is not read, because that would be slow."""
    if not (folder / "run.json").exists():
        return Status(State.NOT_BEGUN)
    facts, status = read_json(folder / "run.json"), read_status(folder)
    if not status.is_end or status.is_diverged:
        return status
    if not (folder / "scores.json").exists():
        return Status(State.NOT_SCORED, status.step)
    scores = read_scores(folder) | measured_scores(folder, measures)
    try:
        steps, per_step = int(facts.get("step") or 0), facts.get("flops_per_step")
        flops, seconds = None if per_step is None else steps * int(per_step), float(facts.get("seconds", 0.0))
        test_scored = int(facts.get("test_scored", 0))
    except (TypeError, ValueError):
        raise UnreadableError(folder / "run.json", f"expected numbers; {DAMAGED}") from None
    return Result(
        arm,
        seed,
        folder,
        status,
        scores,
        read_report(folder),
        facts.get("parameters"),
        steps,
        flops,
        seconds,
        test_scored,
        facts.get("taken_from"),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None
