"""Runs that were trained as one population, with their checkpoints and scores: the input of the audits in scores.py.

Replicas share their data, and their recipes except for what replicas may differ in. So all of them are evaluated in one
pass, and each run takes its share. Each is also evaluated on a few rows alone or in a smaller group, because a fault
that occurs only in a population would otherwise affect the score and its check alike.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply
from headway.audit.populations.members import cut
from headway.audit.probe import TINY, differences
from headway.audit.probing import Probing
from headway.audit.scores.recount import Asked, Counted, Recount
from headway.core.errors import UserError
from headway.run.folder import Run
from headway.scoring.metrics import LOSS, parsed
from headway.scoring.score import Score
from headway.training.checkpoint import Checkpoint
from headway.training.population import load_side_by_side, load_weights

ROWS, TOKENS = 2, 32
"""Size of the excerpt of its first batch that each replica also answers alone."""


class Recomputed(NamedTuple):
    """A part of a split, and its scores from two computations."""

    what: str
    is_whole: bool
    """Whether it is the whole split."""
    said: Mapping[str, Score]
    """The scorer's, by name, without the split."""
    counted: Counted
    at_odds: str | None
    """What is wrong, as a phrase, if the scores do not follow from what was stored with them."""


class ControlOutputs(NamedTuple):
    """The outputs of one replica alone or in a control group, to check those of the population."""

    answers: Tensor
    """For a few rows of its first batch."""
    evaluated: dict[str, float]
    """Its evaluation, as done during training."""

    @classmethod
    def of_each(cls, model: Any, batch: Any, task: Any) -> "list[ControlOutputs]":
        """The outputs of all replicas in this model."""
        answers = answers_of_each(model, batch, task.probing)
        return [cls(*own) for own in zip(answers, task.evaluate(model), strict=True)]

    def has_answers(self, answers: Tensor) -> bool:
        """Whether these are its answers, up to rounding."""
        (off,) = differences(answers[None], self.answers[None])
        return off <= TINY

    def agrees_with(self, other: "ControlOutputs") -> bool:
        """Whether both are the same, up to rounding."""
        both = ((said, other.evaluated.get(name, math.nan)) for name, said in self.evaluated.items())
        is_near = all(abs(said - again) <= TINY * max(abs(again), 0.1) for said, again in both)
        return is_near and self.has_answers(other.answers)


def answers_of_each(model: Any, batch: Any, how: Probing) -> Tensor:
    """The answers of each replica for a few rows of its batch."""
    with torch.no_grad():
        return how.answer_batch(model, excerpt_of(batch))


def excerpt_of(batch: Any) -> Any:
    """The first tokens of a few rows of every replica's batch."""
    return cut(batch, (slice(None), slice(ROWS), slice(TOKENS)))


@dataclass(frozen=True)
class ScoredPopulation:
    runs: Sequence[Run]
    kept: Sequence[Checkpoint]
    """The checkpoint of each run that should have been scored."""
    task: Any
    device: str
    seconds: float
    """Time limit for computing scores again, for all replicas."""
    controls: "Sequence[ControlOutputs | None]" = ()
    """The outputs of each replica outside this population, if there are several and they are available."""
    beside: Any = None
    """The population, if it is in memory already."""

    @property
    def members(self) -> "list[ScoredRun]":
        return [ScoredRun(self, place) for place in range(len(self.runs))]

    @cached_property
    def together(self) -> Any:
        """All replicas as one population, in evaluation mode."""
        if self.beside is not None:
            return self.beside
        if len(self.runs) == 1:
            return self._single(0)
        model = self.task.build([run.recipe.seed for run in self.runs], self.device)
        load_side_by_side(model, [kept.weights for kept in self.kept])
        return model.eval()

    @cached_property
    def alone(self) -> Callable[[int], Any]:
        """One replica as a single model, loaded as for scoring that run alone; each is built on first use."""
        return cache(self._single) if len(self.runs) > 1 else lambda place: self.together

    def _single(self, place: int) -> Any:
        model = self.task.rebuild(self.runs[place], self.device)
        load_weights(model, 0, self.kept[place].weights)
        return model.eval()

    @cached_property
    def asked(self) -> Asked:
        asked = partial(_AskedAgain, self.task.probing, self.device)
        return Asked(asked(self.together), lambda place: asked(self.alone(place)), len(self.runs))

    @cached_property
    def are_finite(self) -> list[bool]:
        """For each replica, whether all weights are finite."""
        found = [p.detach().isfinite().reshape(len(p), -1).all(1) for p in self.together.parameters()]
        return torch.stack(found).all(0).tolist()

    @cached_property
    def apart(self) -> list[float]:
        """For each replica, the difference between its outputs in the population and outside it."""
        batch = self.task.sampler([run.recipe.seed for run in self.runs], self.device).at(0)
        beside = answers_of_each(self.together, batch, self.task.probing)
        outside = [one if own is None else own.answers for one, own in zip(beside, self.controls, strict=True)]
        return differences(beside, torch.stack(outside))

    @cached_property
    def stored(self) -> list[dict[str, dict[str, Score]]]:
        """The stored scores of each run, by split and name."""
        found: list[dict[str, dict[str, Score]]] = [{} for _ in self.runs]
        for own, run in zip(found, self.runs, strict=True):
            for score in run.scores():
                split, _, name = score.name.partition(".")
                own.setdefault(split, {})[name] = score
        return found

    @cached_property
    def recounts(self) -> dict[str, Recount]:
        """The recomputation of every split that was scored."""
        try:
            return {split: self.task.evidence.read_again(split) for own in self.stored for split in own}
        except (OSError, UserError) as problem:
            raise DoesNotApply(f"the data cannot be read again: {problem}") from None

    @cached_property
    def unaided(self) -> list[float] | None:
        """The loss of the split that the audits use, on some tokens, with the text cut off right before each."""
        try:
            recount = self.recounts.get(self.task.evidence.judged)
        except DoesNotApply:
            return None
        return None if recount is None else recount.unaided(self.asked)

    @cached_property
    def recomputed(self) -> dict[str, list[list[Recomputed]]]:
        """Of every split that was scored, for each run: the whole split if there is time for that, else parts."""
        return {split: self._counted(split, recount) for split, recount in self.recounts.items()}

    @cached_property
    def many(self) -> Callable[[str], list[Counted] | None]:
        """For each run, thousands of a split's pieces, computed once; None if all of it was computed already, or if its
        parts suffice."""

        @cache
        def counted(split: str) -> list[Counted] | None:
            recount = self.recounts[split]
            if self.recomputed[split][0][0].is_whole or recount.many is None:
                return None
            return recount.losses(recount.many, self.asked)

        return counted

    def _counted(self, split: str, recount: Recount) -> list[list[Recomputed]]:
        began = time.thread_time()  # CPU time, so that a busy machine checks as much as an idle one
        found = [self._part(split, recount, part) for part in recount.parts]
        took, size = time.thread_time() - began, sum(recount.size(part) for part in recount.parts)
        if took * recount.size(recount.whole) <= size * self.seconds / len(self.recounts):
            said = [own.get(split, {}) for own in self.stored]
            return [[one] for one in self._recomputed(f"all of {split}", True, recount, recount.whole, said)]
        return [list(own) for own in zip(*found, strict=True)]

    def _part(self, split: str, recount: Recount, part: Any) -> list[Recomputed]:
        """A part of the split, scored alone by the scorer and recomputed."""
        data = replace(self.task.data, splits={**self.task.data.splits, split: recount.given(part)})
        scores = replace(self.task, data=data).score(self.together, [split])
        said = [{score.name.partition(".")[2]: score for score in own} for own in scores]
        return self._recomputed(f"a part of {split}", False, recount, part, said)

    def _recomputed(
        self, what: str, is_whole: bool, recount: Recount, part: Any, said: Sequence[Mapping[str, Score]]
    ) -> list[Recomputed]:
        counted = recount.counts(part, self.asked)
        return [
            Recomputed(what, is_whole, own, found, recount.at_odds(part, own, found))
            for own, found in zip(said, counted, strict=True)
        ]


@dataclass(frozen=True)
class ScoredRun:
    """One run of a scored population."""

    population: ScoredPopulation
    place: int

    @property
    def run(self) -> Run:
        return self.population.runs[self.place]

    @property
    def task(self) -> Any:
        return self.population.task

    @property
    def step(self) -> int:
        """The step of the checkpoint that should have been scored."""
        return self.population.kept[self.place].step

    @property
    def is_finite(self) -> bool:
        return self.population.are_finite[self.place]

    @property
    def model(self) -> Any:
        """A model with this replica only."""
        return self.population.alone(self.place)

    @property
    def answer(self) -> Any:
        """How this replica is called alone."""
        return self.population.asked.alone(self.place)

    @property
    def scores(self) -> dict[str, dict[str, Score]]:
        """The stored scores, by split and name."""
        return self.population.stored[self.place]

    @cached_property
    def stored(self) -> dict[str, dict[str, float]]:
        """The values of the stored scores."""
        return {split: {name: score.value for name, score in own.items()} for split, own in self.scores.items()}

    @cached_property
    def evaluations(self) -> dict[int, dict[str, float]]:
        """By step: the loss of every split that was evaluated."""
        found: dict[int, dict[str, float]] = {}
        for line in self.run.evaluations():
            for name, value in line["scores"].items():
                split, metric, _ = parsed(name)
                if metric == LOSS.name and value is not None:
                    found.setdefault(line["step"], {})[split] = value
        return found

    def evaluated(self, name: str) -> dict[int, float]:
        """By step: the evaluations of this metric of a split."""
        lines = (line for line in self.run.evaluations() if name in line["scores"])
        return {line["step"]: value for line in lines if (value := line["scores"][name]) is not None}

    @cached_property
    def evaluated_again(self) -> dict[str, float]:
        """The evaluation done in training, repeated with the stored weights, outside the population."""
        control = self.population.controls[self.place] if self.population.controls else None
        return self.task.evaluate(self.model)[0] if control is None else control.evaluated

    @property
    def apart(self) -> float:
        """The difference between its outputs in the population and outside it."""
        return self.population.apart[self.place] if self.population.controls else 0.0

    @property
    def recounts(self) -> dict[str, Recount]:
        return {split: recount for split, recount in self.population.recounts.items() if split in self.scores}

    def unaided(self) -> float | None:
        found = self.population.unaided
        return None if found is None else found[self.place]

    @property
    def recomputed(self) -> dict[str, list[Recomputed]]:
        return {split: self.population.recomputed[split][self.place] for split in self.recounts}

    def pieces(self, split: str) -> Iterator[np.ndarray]:
        """The losses of the pieces that were recomputed; then of many more, where there are. The loss of a model that
        is nearly always right is concentrated in a few rows, which need not be among the first."""
        yield np.concatenate([one.counted.pieces for one in self.recomputed[split]])
        if (many := self.population.many(split)) is not None:
            yield many[self.place].pieces


class _AskedAgain(NamedTuple):
    """Asks a model in evaluation mode, whatever mode a faulty scorer has left it in."""

    how: Any
    device: str
    model: Any

    def __call__(self, ids: Tensor, **beside: Tensor) -> Tensor:
        given = {name: self._for_each(tensor) for name, tensor in beside.items()}
        return self.how.answer(self.model.eval(), self._for_each(ids), **given)

    def asked(self, question: str, *given: Tensor) -> Tensor:
        """Call another method of the task's `Probing`, by its name."""
        return getattr(self.how, question)(self.model.eval(), *map(self._for_each, given))

    def going_on(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.how.carry_on(self.model.eval(), self._for_each(ids), state)

    def _for_each(self, given: Tensor) -> Tensor:
        """The same input for every replica."""
        return given.to(self.device).expand(self.model.replicas, *given.shape[1:])
