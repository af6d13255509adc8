"""Runs that were trained as one population, with what they kept and what was scored: what the audits of scores are
given (scores.py).

Members share their data, and their recipes but for what replicas may differ in. So whatever is asked of one of them is
asked of all at once, and each run takes its share of the answers. Each is also heard alone, on a few rows: what goes
wrong only among many would else go wrong in the score and in its check alike.
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
"""Of its first batch, that a member answers alone."""


class Twice(NamedTuple):
    """A part of a split, and what two computations say of it."""

    what: str
    is_whole: bool
    """It is all of the split."""
    said: Mapping[str, Score]
    """By name, without the split."""
    counted: Counted
    at_odds: str | None
    """In words, where the scores are not what follows from what is kept with them."""


class Heard(NamedTuple):
    """What one member says alone, or in other company: what all are asked together must not be taken for the truth
    unseen."""

    answers: Tensor
    """To a few rows of its first batch."""
    evaluated: dict[str, float]
    """As training evaluates it."""

    @classmethod
    def of_each(cls, model: Any, batch: Any, task: Any) -> "list[Heard]":
        """Of all that are in this model."""
        return [
            cls(*own) for own in zip(answers_of_each(model, batch, task.probing), task.evaluate(model), strict=True)
        ]

    def answers_as(self, answers: Tensor) -> bool:
        """Whether these are its answers, but for rounding."""
        (off,) = differences(answers[None], self.answers[None])
        return off <= TINY

    def agrees_with(self, other: "Heard") -> bool:
        """Whether both say the same, but for rounding."""
        both = ((said, other.evaluated.get(name, math.nan)) for name, said in self.evaluated.items())
        is_near = all(abs(said - again) <= TINY * max(abs(again), 0.1) for said, again in both)
        return is_near and self.answers_as(other.answers)


def answers_of_each(model: Any, batch: Any, how: Probing) -> Tensor:
    """To a few rows of the batch of each."""
    with torch.no_grad():
        return how.answer_batch(model, excerpt_of(batch))


def excerpt_of(batch: Any) -> Any:
    """Of every member's batch a few rows."""
    return cut(batch, (slice(None), slice(ROWS), slice(TOKENS)))


@dataclass(frozen=True)
class ScoredPopulation:
    runs: Sequence[Run]
    kept: Sequence[Checkpoint]
    """The one of each that was said to be scored."""
    task: Any
    device: str
    seconds: float
    """That counting again may take, for all of them."""
    heard: "Sequence[Heard | None]" = ()
    """What each said alone or in other company, where there are several and it can be said."""
    beside: Any = None
    """All of them side by side, where somebody has them so already."""

    @property
    def members(self) -> "list[ScoredRun]":
        return [ScoredRun(self, place) for place in range(len(self.runs))]

    @cached_property
    def together(self) -> Any:
        """All of them side by side, in evaluation mode."""
        if self.beside is not None:
            return self.beside
        if len(self.runs) == 1:
            return self._single(0)
        model = self.task.build([run.recipe.seed for run in self.runs], self.device)
        load_side_by_side(model, [kept.weights for kept in self.kept])
        return model.eval()

    @cached_property
    def alone(self) -> Callable[[int], Any]:
        """One of them, as whoever scores that run alone has it; each is built once, and only if it is asked for."""
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
        """Whether all weights of each are numbers."""
        found = [p.detach().isfinite().reshape(len(p), -1).all(1) for p in self.together.parameters()]
        return torch.stack(found).all(0).tolist()

    @cached_property
    def apart(self) -> list[float]:
        """How far what each says beside all others is off what it said alone, or in other company."""
        batch = self.task.sampler([run.recipe.seed for run in self.runs], self.device).at(0)
        beside = answers_of_each(self.together, batch, self.task.probing)
        alone = [one if own is None else own.answers for one, own in zip(beside, self.heard, strict=True)]
        return differences(beside, torch.stack(alone))

    @cached_property
    def stored(self) -> list[dict[str, dict[str, Score]]]:
        """Of each run, by split and name."""
        found: list[dict[str, dict[str, Score]]] = [{} for _ in self.runs]
        for own, run in zip(found, self.runs, strict=True):
            for score in run.scores():
                split, _, name = score.name.partition(".")
                own.setdefault(split, {})[name] = score
        return found

    @cached_property
    def recounts(self) -> dict[str, Recount]:
        """Of every split that was scored."""
        try:
            return {split: self.task.evidence.read_again(split) for own in self.stored for split in own}
        except (OSError, UserError) as problem:
            raise DoesNotApply(f"the data cannot be read again: {problem}") from None

    @cached_property
    def unaided(self) -> list[float] | None:
        """The loss of the split that the audits go by, on some tokens, where the text ends before each of them."""
        try:
            recount = self.recounts.get(self.task.evidence.judged)
        except DoesNotApply:
            return None
        return None if recount is None else recount.unaided(self.asked)

    @cached_property
    def twice(self) -> dict[str, list[list[Twice]]]:
        """Of every split that was scored, for each run: the whole of it where there is time for that, else parts."""
        return {split: self._counted(split, recount) for split, recount in self.recounts.items()}

    @cached_property
    def many(self) -> Callable[[str], list[Counted] | None]:
        """Thousands of a split's pieces, for each run, counted once; None where all of it was counted, or its parts are
        as good."""

        @cache
        def counted(split: str) -> list[Counted] | None:
            recount = self.recounts[split]
            if self.twice[split][0][0].is_whole or recount.many is None:
                return None
            return recount.losses(recount.many, self.asked)

        return counted

    def _counted(self, split: str, recount: Recount) -> list[list[Twice]]:
        began = time.thread_time()  # on a busy machine the same is counted as on an idle one
        found = [self._part(split, recount, part) for part in recount.parts]
        took, size = time.thread_time() - began, sum(recount.size(part) for part in recount.parts)
        if took * recount.size(recount.whole) <= size * self.seconds / len(self.recounts):
            said = [own.get(split, {}) for own in self.stored]
            return [[one] for one in self._twice(f"all of {split}", True, recount, recount.whole, said)]
        return [list(own) for own in zip(*found, strict=True)]

    def _part(self, split: str, recount: Recount, part: Any) -> list[Twice]:
        """What the scorer says of this part alone."""
        data = replace(self.task.data, splits={**self.task.data.splits, split: recount.given(part)})
        scores = replace(self.task, data=data).score(self.together, [split])
        said = [{score.name.partition(".")[2]: score for score in own} for own in scores]
        return self._twice(f"a part of {split}", False, recount, part, said)

    def _twice(
        self, what: str, is_whole: bool, recount: Recount, part: Any, said: Sequence[Mapping[str, Score]]
    ) -> list[Twice]:
        counted = recount.counts(part, self.asked)
        return [
            Twice(what, is_whole, own, found, recount.at_odds(part, own, found))
            for own, found in zip(said, counted, strict=True)
        ]


@dataclass(frozen=True)
class ScoredRun:
    """One of them."""

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
        """Of the checkpoint that was said to be scored."""
        return self.population.kept[self.place].step

    @property
    def is_finite(self) -> bool:
        return self.population.are_finite[self.place]

    @property
    def model(self) -> Any:
        """A single replica."""
        return self.population.alone(self.place)

    @property
    def answer(self) -> Any:
        """How it is asked alone."""
        return self.population.asked.alone(self.place)

    @property
    def scores(self) -> dict[str, dict[str, Score]]:
        """That were stored, by split and name."""
        return self.population.stored[self.place]

    @cached_property
    def stored(self) -> dict[str, dict[str, float]]:
        """Their values."""
        return {split: {name: score.value for name, score in own.items()} for split, own in self.scores.items()}

    @cached_property
    def evaluations(self) -> dict[int, dict[str, float]]:
        """By step: the loss of every split that was looked at."""
        found: dict[int, dict[str, float]] = {}
        for line in self.run.metrics():
            for name, value in line.get("scores", {}).items():
                split, metric, _ = parsed(name)
                if metric == LOSS.name and value is not None:
                    found.setdefault(line["step"], {})[split] = value
        return found

    def evaluated(self, name: str) -> dict[int, float]:
        """By step: what evaluations gave for this."""
        lines = (line for line in self.run.metrics() if name in line.get("scores", {}))
        return {line["step"]: value for line in lines if (value := line["scores"][name]) is not None}

    @cached_property
    def evaluated_again(self) -> dict[str, float]:
        """As training evaluates, with the weights that were kept; alone, for training did it beside the others."""
        heard = self.population.heard[self.place] if self.population.heard else None
        return self.task.evaluate(self.model)[0] if heard is None else heard.evaluated

    @property
    def apart(self) -> float:
        """How far what it says beside the others is off what it says alone."""
        return self.population.apart[self.place] if self.population.heard else 0.0

    @property
    def recounts(self) -> dict[str, Recount]:
        return {split: recount for split, recount in self.population.recounts.items() if split in self.scores}

    def unaided(self) -> float | None:
        found = self.population.unaided
        return None if found is None else found[self.place]

    @property
    def twice(self) -> dict[str, list[Twice]]:
        return {split: self.population.twice[split][self.place] for split in self.recounts}

    def pieces(self, split: str) -> Iterator[np.ndarray]:
        """The nats of its pieces, as far as they were counted; then of many, where there are more. A model that is
        nearly always right has its loss in a few rows, and none of them need be among the first."""
        yield np.concatenate([one.counted.pieces for one in self.twice[split]])
        if (many := self.population.many(split)) is not None:
            yield many[self.place].pieces


class _AskedAgain(NamedTuple):
    how: Any
    device: str
    model: Any

    def __call__(self, ids: Tensor, **beside: Tensor) -> Tensor:
        given = {name: self._for_each(tensor) for name, tensor in beside.items()}
        return self.how.answer(self.model, self._for_each(ids), **given)

    def asked(self, question: str, *given: Tensor) -> Tensor:
        """What else such models can be asked: by the name of the question in their `Probing`."""
        return getattr(self.how, question)(self.model, *map(self._for_each, given))

    def going_on(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.how.carry_on(self.model, self._for_each(ids), state)

    def _for_each(self, given: Tensor) -> Tensor:
        """The same for every replica."""
        return given.to(self.device).expand(self.model.replicas, *given.shape[1:])
