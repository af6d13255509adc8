"""What is measured of a finished run beside the scores of its recipe: shorter segments, single sentences.

A model is trained on segments of one length, and people read it on others. Whatever depends on the length (learned
positions nobody trained, a norm that runs over the sequence) shows there, and nowhere else.

What was found is kept in the run's folder as measures.json, with what was asked for, so that it is measured once.
"""

import itertools
import json
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from headway.core import random
from headway.core.errors import UserError
from headway.core.files import write_json
from headway.core.spec import Problem
from headway.core.variants import Variant
from headway.experiment.train import load_model
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.metrics import LOSS, PERPLEXITY, Metric, parsed
from headway.scoring.score import Score
from headway.tasks.abilities import ReadsSegments
from headway.tasks.task import Task

FILE = "measures.json"


class Measure(Variant):
    """What is measured of a finished run beside the scores of its recipe."""

    metrics: ClassVar[tuple[Metric, ...]]
    """What each of its `splits` is measured in."""

    split: str = "valid"
    """Where the text comes from."""

    @abstractmethod
    def check(self, task: Task) -> None:
        """That it can be measured there, before anything is trained."""

    @property
    @abstractmethod
    def splits(self) -> list[str]:
        """What its scores are of: `valid-16` …"""

    @property
    def told(self) -> list[str]:
        """Scores that a report gives, whether or not they are asked about."""
        return []

    @abstractmethod
    def scores(self, model: Any, task: Any) -> Iterator[Score]:
        """Of one trained model."""


class OfText(Measure):
    """What every measure of running text has."""

    metrics = (LOSS, PERPLEXITY)

    def check(self, task: Task) -> None:
        """That it can be measured there, before anything is trained."""
        if not isinstance(task, ReadsSegments):
            raise UserError(f"measures: segments and sentences are of running text, not of a {task.kind}")
        task.check_split(self.split)


class Segments(OfText):
    """The perplexity of a split that is read in pieces of other lengths: `valid-16.perplexity`."""

    kind: Literal["segments"] = "segments"
    lengths: list[int] = Field(min_length=1)
    """In tokens, none longer than the model was trained on."""
    tokens: int = Field(default=8192, ge=2)
    """How much of the split is read, from its beginning."""

    def problems(self) -> Iterator[Problem]:
        if min(self.lengths) < 1 or len(set(self.lengths)) < len(self.lengths):
            yield Problem(("lengths",), f"expected different lengths of at least 1, not {self.lengths}")

    def check(self, task: Task) -> None:
        super().check(task)
        if max(self.lengths) > task.recipe.model.context:
            raise UserError(
                f"measures: segments of {max(self.lengths)} tokens, but model.context is {task.recipe.model.context}"
            )

    @property
    def splits(self) -> list[str]:
        return [f"{self.split}-{length}" for length in self.lengths]

    @property
    def told(self) -> list[str]:
        return [f"{split}.{PERPLEXITY.name}" for split in self.splits]

    def scores(self, model: Any, task: ReadsSegments) -> Iterator[Score]:
        names = [metric.name for metric in self.metrics]
        for length, name in zip(self.lengths, self.splits, strict=True):
            found = task.surprise(model, self.split, length, self.tokens).scores(name)
            yield from (score for score in found if parsed(score.name).metric in names)


class Sentences(OfText):
    """Single sentences, each read alone: as they are (`sentences`), with their tokens in random order (`scrambled`),
    and eight joined together (`joined`)."""

    kind: Literal["sentences"] = "sentences"
    count: int = Field(default=40, ge=8)
    """How many, from the beginning of the split."""
    shortest: int = Field(default=10, ge=2)
    longest: int = Field(default=40, ge=2)
    """Only sentences of so many tokens."""

    def check(self, task: Task) -> None:
        super().check(task)
        assert isinstance(task, ReadsSegments)
        found = len(self.found_in(task))
        if found < 8:
            lengths = f"{self.shortest} to {self.longest}"
            raise UserError(
                f"measures: '{self.split}' has {found} sentences of {lengths} tokens that end in '.', and 8 are needed"
            )

    @property
    def splits(self) -> list[str]:
        return ["sentences", "scrambled", "joined"]

    def found_in(self, task: ReadsSegments) -> list[torch.Tensor]:
        """What stands between one full stop and the next."""
        ids, tokenizer = task.running(self.split)
        stop = tokenizer.encode(".").ids.tolist()
        if len(stop) != 1:
            return []
        ends = (ids == stop[0]).nonzero().flatten().tolist()
        between = (ids[a + 1 : b + 1] for a, b in itertools.pairwise(ends))
        return list(itertools.islice((s for s in between if self.shortest <= len(s) <= self.longest), self.count))

    def scores(self, model: Any, task: ReadsSegments) -> Iterator[Score]:
        plain, order = self.found_in(task), random.generator(0, "scrambled sentences")
        scrambled = [s[torch.randperm(len(s), generator=order)] for s in plain]
        joined = [torch.cat(plain[k : k + 8]) for k in range(0, len(plain) - 7, 8)]
        what = ("as they are", "their tokens in random order", "eight joined together")
        for name, texts, how in zip(self.splits, (plain, scrambled, joined), what, strict=True):
            nats = _nats(model, task, texts)
            mean = math.fsum(nats) / len(nats)
            label = f"{len(texts)} sentences of {self.split}, {how}, each read alone · {len(nats):,} tokens"
            kind = task.running(self.split)[1].kind
            yield Score(f"{name}.loss", mean, f"nats per token ({kind}) · {label}")
            value = math.exp(mean) if mean < 700 else math.inf
            yield Score(f"{name}.perplexity", value, f"perplexity per token ({kind}) · {label}")


def _nats(model: Any, task: ReadsSegments, texts: Sequence[torch.Tensor]) -> list[float]:
    """Of every token but the first of each; texts of one length are read together."""
    found: list[float] = []
    device, context = next(model.parameters()).device, model.spec.context
    for length in sorted({len(text) for text in texts}):
        rows = torch.stack([text for text in texts if len(text) == length])[None, :, : context + 1].to(device)
        with torch.no_grad():
            found += task.nats(model, rows).double().flatten().tolist()
    return found


# --- of the runs of a study ------------------------------------------------------------------------------------------


def kept(folder: Path) -> dict[str, Any]:
    """What measures.json holds; empty where there is none, or none that can be read: it is measured again."""
    try:
        found = json.loads((folder / FILE).read_text("utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def measured_scores(folder: Path, measures: Sequence[Measure]) -> dict[str, Score]:
    """What these measures gave. What others gave, of this study before it was changed or of one whose run this was,
    nobody asks for."""
    found = kept(folder)
    scores = found.get("scores", {}) if found.get("measures") == _asked(measures) else {}
    return {name: Score.from_json(name, one) for name, one in scores.items()}


def measure(folder: Path, recipe: Recipe, task: Task, measures: Sequence[Measure]) -> None:
    """Measure one finished run, unless that was done before."""
    asked = _asked(measures)
    if kept(folder).get("measures") == asked:
        return
    assert isinstance(task, ReadsSegments)  # as was checked before anything was trained
    run = Run(folder, recipe)
    model, _ = load_model(run)
    run.count_looks_at_test(*([one.split] for one in measures))
    scores = [score for one in measures for score in one.scores(model, task)]
    write_json(folder / FILE, {"measures": asked, "scores": {score.name: score.as_json() for score in scores}})


def _asked(measures: Sequence[Measure]) -> list[dict[str, Any]]:
    return [one.model_dump(mode="json") for one in measures]
