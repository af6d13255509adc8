"""The learning curve of one run: its losses, learning rates and evaluations, from the run's metrics.jsonl.

Losses of single batches jump, so nothing is read off a single one: `parts` are medians over equal stretches of the
training, which neither an odd batch nor a spike can change much.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from headway.core.status import Status
from headway.scoring.metrics import LOSS, parsed

PARTS = 30
FAR = 1.5
"""Times the baseline that ignores the input: a loss that is clearly above it."""


@dataclass(frozen=True, eq=False)
class TrainingCurve:
    steps: np.ndarray
    losses: np.ndarray
    """The loss of each step's batch."""
    norms: np.ndarray
    """The gradient norm of each step, before clipping."""
    rates: np.ndarray
    evaluations: Mapping[str, tuple[np.ndarray, np.ndarray]]
    """By split: the steps at which it was scored, and the losses."""
    ended: Status | None = None
    """Why training ended early."""
    scored: float | None = None
    """The loss on the whole held-out split after training; the baselines are on the same tokens."""
    chance: float | None = None
    """The loss of the baseline that ignores the input."""
    chance_is: str = ""
    """What that baseline is, as a phrase: token frequencies, class frequencies."""
    counting: float | None = None
    """The loss of the 5-gram model, in nats per token."""
    unread: float | None = None
    """For a translator: the loss of a 5-gram model of the targets, which reads no source."""
    clip: float | None = None
    by_length: bool = False
    """Whether a larger gradient norm makes a longer step, as with SGD."""
    evaluate_on: Sequence[str] = ()
    """The splits scored during training; `best` and `patience` use the first."""
    best_by: str = "loss"
    """The metric by which the scored checkpoint was chosen."""
    selects: Sequence[str] = ()
    """The settings that choose by the first split of evaluate_on: keep_best, patience."""
    post_norm: bool = False
    warms_up: bool = False
    """Whether the schedule has a warm-up."""
    unaided: Callable[[], float | None] = lambda: None
    """Measured on demand: the held-out loss of some tokens when the text is cut off before each of them; None where
    this cannot be measured."""
    planned: Callable[[int], float | None] = lambda step: None
    """The learning rate of the recipe's schedule at a step (counted from 1), by its plain definition; None where the
    schedule has no definition."""
    harder_in_training: bool = False
    """Whether the loss of a training batch is above that of evaluation, by dropout, label smoothing or a penalty."""

    @classmethod
    def of(cls, metrics: Iterable[Mapping[str, Any]], **facts: Any) -> "TrainingCurve":
        """From the lines of metrics.jsonl; `facts` are the fields above from `scored` on."""
        taken = _Lines()
        for line in metrics:
            taken.add(line)
        steps = {split: np.array(where) for split, where in taken.where.items()}
        evaluations = {split: (steps[split], np.array(taken.scores[split], float)) for split in steps}
        rows = np.array(taken.steps, float).reshape(-1, 4)
        return cls(rows[:, 0].astype(int), *rows.T[1:], evaluations=evaluations, ended=taken.ended, **facts)

    @cached_property
    def parts(self) -> np.ndarray:
        """Medians of the losses over at most 30 equal stretches of the training, in order."""
        return np.array([np.median(part) for part in np.array_split(self.losses, min(PARTS, len(self.losses)))])

    @property
    def first(self) -> float:
        """The loss of the first steps; the median of a whole stretch would already be lower."""
        return float(np.median(self.losses[:3]))

    @property
    def last(self) -> float:
        """The train loss at the end."""
        return float(np.median(self.parts[-3:]))

    @property
    def held_out(self) -> str | None:
        """The split that stands for new text: valid if it was scored, else another that is not train."""
        others = [split for split in self.evaluations if split != "train"]
        return "valid" if "valid" in others else next(iter(others), None)

    @property
    def reached(self) -> float:
        """The loss at the end: of held-out text, if it was scored, else of train."""
        if self.scored is not None:
            return self.scored
        return float(self.evaluations[self.held_out][1][-1]) if self.held_out else self.last

    @property
    def held_out_fell(self) -> bool:
        """Whether the held-out loss fell by 5 % or more, and is not far above the baseline that ignores the input."""
        if self.held_out is None or self.chance is None:
            return False
        found = self.evaluations[self.held_out][1]
        return bool(found[-1] < 0.95 * found[0] and found[-1] < FAR * self.chance)

    @property
    def late_fall(self) -> float:
        """How much the train loss fell in the last third of the training."""
        third = max(2, len(self.parts) // 3)
        before, after = self.parts[-third - third // 2 : -third + third // 2], self.parts[-max(2, third // 2) :]
        return float(np.median(before) - np.median(after))

    @property
    def late_rate(self) -> float:
        """The mean learning rate of that third, as a share of the highest."""
        return float(self.rates[self.share_of_steps(2 / 3)].mean() / self.rates.max())

    @property
    def is_stuck(self) -> bool:
        """Whether the train loss fell by less than 1 % of its total fall in that third, although the rate was high."""
        return self.late_fall < 0.01 * max(self.first - self.last, 1e-9) and self.late_rate >= 0.3

    def share_of_steps(self, from_: float) -> np.ndarray:
        """A mask of the steps after this share of the training."""
        return np.arange(len(self.steps)) >= from_ * len(self.steps)


@dataclass
class _Lines:
    """The lines of metrics.jsonl, sorted by kind."""

    steps: list[tuple[float, float, float, float]] = field(default_factory=list)
    where: dict[str, list[int]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)
    ended: Status | None = None

    def add(self, line: Mapping[str, Any]) -> None:
        if "loss" in line:
            self.steps.append((line["step"], line["loss"], line["norm"], line["rate"]))
        for name, value in line.get("scores", {}).items():
            split, metric, _ = parsed(name)
            if metric == LOSS.name and value is not None:
                self.where.setdefault(split, []).append(line["step"])
                self.scores.setdefault(split, []).append(value)
        if "ended" in line:
            self.ended = Status.read(line, "ended")
