"""The course of one training: its losses, rates and evaluations, as a run's metrics.jsonl tells them.

Losses of single batches jump, so nothing is ever read off a single one: `parts` are medians over equal stretches of the
training, which neither one odd batch nor a spike can move.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from headway.core.status import Status
from headway.scoring.metrics import LOSS, parsed

PARTS = 30


@dataclass(frozen=True, eq=False)
class TrainingCurve:
    steps: np.ndarray
    losses: np.ndarray
    """Of each step's batch."""
    norms: np.ndarray
    """Of each step's gradient, before it was clipped."""
    rates: np.ndarray
    evaluations: Mapping[str, tuple[np.ndarray, np.ndarray]]
    """By split: at which steps it was scored, and the losses."""
    ended: Status | None = None
    """Why training ended before its time."""
    scored: float | None = None
    """The loss on the whole of the held-out split, after training; the baselines are on the same tokens."""
    chance: float | None = None
    """The loss of what looks at nothing."""
    chance_is: str = ""
    """What that is, in words: token frequencies, class frequencies."""
    counting: float | None = None
    """Nats of the 5-gram model."""
    unread: float | None = None
    """Of a translator: nats of a 5-gram model of the targets, which reads no source."""
    clip: float | None = None
    by_length: bool = False
    """Whether a longer gradient makes a longer step, as with SGD."""
    evaluate_on: Sequence[str] = ()
    """The first is what `best` and `patience` go by."""
    best_by: str = "loss"
    """What the weights that are scored were chosen by."""
    selects: Sequence[str] = ()
    """What goes by the first split of evaluate_on: keep_best, patience."""
    post_norm: bool = False
    warms_up: bool = False
    """Whether the learning rate begins low."""
    unaided: Callable[[], float | None] = lambda: None
    """Measured when asked for: the held-out loss of some tokens where the text ends before them; None where nobody can
    say."""
    planned: Callable[[int], float | None] = lambda step: None
    """The learning rate that the recipe's schedule has at a step (counted from 1), by its plain definition; None where
    nobody can say."""
    harder_in_training: bool = False
    """Whether the loss of a training batch is above that of evaluation: something is dropped out, or penalised."""

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
        """The loss at the very beginning: a stretch's median would have learnt already."""
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
    def late_fall(self) -> float:
        """By how much the train loss fell in the last third of the training."""
        third = max(2, len(self.parts) // 3)
        before, after = self.parts[-third - third // 2 : -third + third // 2], self.parts[-max(2, third // 2) :]
        return float(np.median(before) - np.median(after))

    @property
    def late_rate(self) -> float:
        """The mean rate of that third, as a share of the highest."""
        return float(self.rates[self.share_of_steps(2 / 3)].mean() / self.rates.max())

    @property
    def is_stuck(self) -> bool:
        """The train loss fell by less than 1 % of all it fell, although the rate was far from low."""
        return self.late_fall < 0.01 * max(self.first - self.last, 1e-9) and self.late_rate >= 0.3

    def share_of_steps(self, from_: float) -> np.ndarray:
        """Which steps come after this share of the training."""
        return np.arange(len(self.steps)) >= from_ * len(self.steps)


@dataclass
class _Lines:
    """The lines of metrics.jsonl, sorted by what they are."""

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
