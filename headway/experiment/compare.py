"""Compares runs side by side: scores with intervals, and differences of their recipes. Reads only run folders.

Runs that differ only in the seed form one arm, as in a study: their scores have a mean and an interval, and arms are
compared seed by seed. With one seed each, chance cannot be ruled out, and a note says so. Intervals are not corrected
for multiple comparisons; for an answer that should hold, ask the question in a study beforehand.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.audit.audit import Finding, read_report
from headway.core.errors import UserError
from headway.core.yaml import flat
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.metrics import LOSS, METRICS, metric_of, parsed
from headway.scoring.score import label_of_all
from headway.stats.intervals import contrast

ONE_SEED = "one seed each: differences may be chance; headway train … --vary seed=0..7 shows the spread"
ABSENT = "–"


@dataclass
class ComparedArm:
    """Runs of one recipe, by seed."""

    name: str
    recipe: Recipe
    runs: dict[int, Run] = field(default_factory=dict)

    def values(self, score: str) -> dict[int, float]:
        """The finite values of a score, by seed."""
        found = {seed: {s.name: s.value for s in run.scores()} for seed, run in self.runs.items()}
        return {seed: scores[score] for seed, scores in found.items() if math.isfinite(scores.get(score, math.nan))}


@dataclass(frozen=True)
class SeedMean:
    value: float
    interval: tuple[float, float] | None
    """95 % over seeds; for a single run, the score's own interval if it has one."""
    seeds: int


@dataclass(frozen=True)
class AheadOfFirst:
    """How much better an arm is than the first; negative if worse."""

    by: float
    unit: str
    interval: tuple[float, float] | None
    seeds: int
    """The number of seeds compared."""

    @property
    def is_told_apart(self) -> bool:
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


@dataclass(frozen=True)
class RunComparison:
    arms: Sequence[ComparedArm]
    notes: Sequence[str]

    @property
    def scores(self) -> list[str]:
        """Every score of any arm, except those of single classes."""
        named = (s.name for arm in self.arms for run in arm.runs.values() for s in run.scores())
        return [name for name in dict.fromkeys(named) if not parsed(name).part and parsed(name).metric in METRICS]

    def mean(self, arm: ComparedArm, score: str) -> SeedMean | None:
        values = arm.values(score)
        if not values:
            return None
        metric = metric_of(score)
        natural = {seed: metric.natural(value) for seed, value in values.items()}
        known, interval = contrast([natural], [1.0]), None
        if known is not None and known.has_spread:
            low, high = sorted(map(metric.back, known.interval()))
            interval = metric.possible(low), metric.possible(high)
        elif len(values) == 1:
            (run,) = (arm.runs[seed] for seed in values)
            interval = next((s.interval for s in run.scores() if s.name == score), None)
        return SeedMean(metric.mean(values.values()), interval, len(values))

    def ahead(self, arm: ComparedArm, score: str) -> AheadOfFirst | None:
        """Compare with the first arm; None if a score is missing, and for the first arm itself."""
        ours, theirs, metric = arm.values(score), self.arms[0].values(score), metric_of(score)
        if arm is self.arms[0] or not ours or not theirs:
            return None
        columns = [{seed: metric.natural(value) for seed, value in one.items()} for one in (ours, theirs)]
        level = metric.natural(metric.mean(theirs.values()))
        known = contrast(columns, [metric.sign, -metric.sign])
        if known is None:
            by = metric.sign * (metric.natural(metric.mean(ours.values())) - level)
            return AheadOfFirst(metric.in_units(by, level), metric.unit, None, min(len(ours), len(theirs)))
        low, high = (metric.in_units(end, level) for end in known.interval())
        interval = (low, high) if known.has_spread else None
        return AheadOfFirst(metric.in_units(known.estimate, level), metric.unit, interval, len(known.seeds))

    @property
    def differences(self) -> dict[str, list[Any]]:
        """Recipe keys that differ, with a value for each arm."""
        trees = [_without_seed(arm.recipe) for arm in self.arms]
        keys = list(dict.fromkeys(key for tree in trees for key in tree))
        rows = {key: [tree.get(key, ABSENT) for tree in trees] for key in keys}
        return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}

    def as_json(self) -> dict[str, Any]:
        return {"arms": [self._arm(arm) for arm in self.arms], "differences": self.differences, "notes": self.notes}

    def _arm(self, arm: ComparedArm) -> dict[str, Any]:
        means = {name: mean for name in self.scores if (mean := self.mean(arm, name)) is not None}
        aheads = {name: ahead for name in self.scores if (ahead := self.ahead(arm, name)) is not None}
        return {
            "name": arm.name,
            "runs": {str(seed): str(run.folder) for seed, run in arm.runs.items()},
            "scores": {name: vars(mean) for name, mean in means.items()},
            "beside_first": {name: vars(one) | {"told_apart": one.is_told_apart} for name, one in aheads.items()},
        }


def compare(runs: Sequence[Run]) -> RunComparison:
    """Compare runs in the given order; those that differ only in the seed form one arm."""
    if len({run.folder.resolve() for run in runs}) < 2:
        raise UserError("compare needs at least two runs: headway compare RUN RUN …")
    arms: dict[str, ComparedArm] = {}
    notes = []
    for run in runs:
        key = f"{run.recipe.model_copy(update={'seed': 0}).hash} {run.facts.get('corpus')}"
        arm = arms.setdefault(key, ComparedArm(run.name, run.recipe))
        seed = run.recipe.seed
        if seed in arm.runs:
            other = arm.runs[seed]
            if other.folder.resolve() != run.folder.resolve():
                notes.append(f"{run.name} is left out: {other.name} has the same recipe and seed")
            continue
        arm.runs[seed] = run
    for arm in arms.values():
        arm.name = _common_name([run.name for run in arm.runs.values()])
    found = list(arms.values())
    named = [arm.name for arm in found]
    for arm in found:  # arms with the same common name are named after their first runs
        arm.name = next(iter(arm.runs.values())).name if named.count(arm.name) > 1 else arm.name
    return RunComparison(found, [*notes, *_notes(found)])


def _notes(arms: Sequence[ComparedArm]) -> list[str]:
    notes = []
    if len(arms) == 1:
        notes.append("these runs differ only in the seed: there is nothing to compare but their spread")
    elif all(len(arm.runs) == 1 for arm in arms):
        notes.append(ONE_SEED)
    elif single := [arm.name for arm in arms if len(arm.runs) == 1]:
        notes.append(f"{_listed(single)}: only one seed, so its spread is unknown")
    data = {arm.name: next(iter(arm.runs.values())).facts.get("corpus") for arm in arms}
    if len(set(data.values())) > 1:
        notes.append("the runs were trained on different data: their scores are of different texts or tokens")
    if len(set(data.values())) == 1:
        notes += _not_measured_alike(arms)
    for arm in arms:
        for run in arm.runs.values():
            if not run.status.is_end or run.status.is_diverged:
                notes.append(f"{run.name}: {run.status}")
        failed = Counter(one.audit for run in arm.runs.values() for one in _failures(run))
        if failed:
            notes.append(f"{arm.name} failed {_listed([_of(audit, n, len(arm.runs)) for audit, n in failed.items()])}")
    return notes


def _not_measured_alike(arms: Sequence[ComparedArm]) -> list[str]:
    """Notes on losses that were measured differently, according to their labels."""
    told: dict[str, dict[str, list[str]]] = {}
    for arm in arms:
        for score in (score for run in arm.runs.values() for score in run.scores()):
            if parsed(score.name)[1:] == (LOSS.name, ""):
                told.setdefault(score.name, {}).setdefault(arm.name, []).append(score.label)
    differing = {name: by_arm for name, by_arm in told.items() if len(set(itertools.chain(*by_arm.values()))) > 1}
    return [
        f"{parsed(name).split} was measured differently: {label_of_all(by_arm)}" for name, by_arm in differing.items()
    ]


def _failures(run: Run) -> Sequence[Finding]:
    report = read_report(run.folder)
    return report.failures if report else []


def _of(audit: str, runs: int, of: int) -> str:
    return audit if of == 1 else f"{audit} ({runs} of {of} runs)"


def _without_seed(recipe: Recipe) -> Mapping[str, Any]:
    return flat(recipe.model_dump(mode="json", exclude={"seed": True, "training": {"parallel"}}))


def _common_name(names: Sequence[str]) -> str:
    """`demo-seed-0`, `demo-seed-1` → `demo`."""
    if len(names) == 1:
        return names[0]
    length = next((k for k, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), 0)
    return names[0][:length].removesuffix("seed-").rstrip(".-_") or names[0]


def _listed(words: Sequence[str], most: int = 5) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
