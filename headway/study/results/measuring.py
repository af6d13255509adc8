"""Take the further measurements of a study (`design/measures.py`) once a run has ended.

The results are stored in the run's folder as measures.json, together with the request, so each is measured only once.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from headway.core import random
from headway.core.errors import UserError
from headway.core.files import as_json
from headway.core.reading import DAMAGED, UnreadableError
from headway.core.seal import read_sealed_json, rewriting
from headway.experiment.load import load_model
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.score import Score
from headway.study.design.measures import MIN_SENTENCES, GivenTargets, Measure, Sentences
from headway.tasks.abilities import ReadsSegments, Translates
from headway.tasks.task import Task

FILE = "measures.json"


def measure(folder: Path, recipe: Recipe, task: Task, measures: Sequence[Measure], meant: Sequence[Measure]) -> None:
    """Measure one finished run unless that is already done. `meant` are those of the study's measures for this run."""
    asked, known = _asked(measures), kept(folder)
    if known.get("measures") == asked and known.get("meant", asked) == _asked(meant):
        return
    scores: list[Score] = []
    if meant:
        run = Run(folder, recipe)
        model, _ = load_model(run)
        run.count_looks_at_test(*([one.split] for one in meant), once_for=f"measures {random.key(*map(str, asked))}")
        scores = [score for one in meant for score in one.scores(model, task)]
    found = {"measures": asked, "scores": {score.name: score.as_json() for score in scores}}
    with rewriting(folder) as new:
        new[FILE] = as_json(found if len(meant) == len(measures) else {**found, "meant": _asked(meant)})


def kept(folder: Path) -> dict[str, Any]:
    """The content of measures.json; empty if it is missing or unreadable, and then it is measured again."""
    try:
        found = read_sealed_json(folder / FILE, needed=False)
        return found if isinstance(found, dict) else {}
    except (FileNotFoundError, UserError):
        return {}


def measured_scores(folder: Path, measures: Sequence[Measure]) -> dict[str, Score]:
    """The stored scores of exactly these measures. Results of other measures (from before the study was changed, or
    from the study this run is reused from) are ignored."""
    found = kept(folder)
    scores = found.get("scores", {}) if found.get("measures") == _asked(measures) else {}
    try:
        return {name: Score.from_json(name, one) for name, one in scores.items()}
    except (TypeError, KeyError, ValueError, AttributeError):
        raise UnreadableError(folder / FILE, DAMAGED) from None


def measures_from(asked: Sequence[dict[str, Any]]) -> list[Measure]:
    """Parse measures from their JSON form, as in measures.json and in orders to worker processes."""
    return TypeAdapter(list[Measure]).validate_python(asked)


def _asked(measures: Sequence[Measure]) -> list[dict[str, Any]]:
    return [one.model_dump(mode="json") for one in measures]


# --- single sentences ------------------------------------------------------------------------------------------------


def sentence_scores(measure: Sentences, model: Any, task: ReadsSegments) -> Iterator[Score]:
    plain, order = sentences_in(task, measure), random.generator(0, "scrambled sentences")
    scrambled = [s[torch.randperm(len(s), generator=order)] for s in plain]
    together = MIN_SENTENCES
    joined = [torch.cat(plain[k : k + together]) for k in range(0, len(plain) - together + 1, together)]
    what = ("as they are", "tokens in random order", "eight joined together")
    for name, texts, how in zip(measure.splits, (plain, scrambled, joined), what, strict=True):
        nats = _nats(model, task, texts)
        mean = math.fsum(nats) / len(nats)
        label = f"{len(texts)} sentences of {measure.split}, {how}, read independently · {len(nats):,} tokens"
        kind = task.running(measure.split)[1].kind
        yield Score(f"{name}.loss", mean, f"nats per token ({kind}) · {label}")
        value = math.exp(mean) if mean < 700 else math.inf
        yield Score(f"{name}.perplexity", value, f"perplexity per token ({kind}) · {label}")


def sentences_in(task: Any, measure: Sentences) -> list[torch.Tensor]:
    """The token sequences between one full stop and the next."""
    ids, tokenizer = task.running(measure.split)
    stop = tokenizer.encode(".").ids.tolist()
    if len(stop) != 1:
        return []
    ends = (ids == stop[0]).nonzero().flatten().tolist()
    between = (ids[a + 1 : b + 1] for a, b in itertools.pairwise(ends))
    fitting = (s for s in between if measure.shortest <= len(s) <= measure.longest)
    return list(itertools.islice(fitting, measure.count))


def _nats(model: Any, task: ReadsSegments, texts: Sequence[torch.Tensor]) -> list[float]:
    """The nats of every token except the first of each text; texts of equal length form one batch."""
    found: list[float] = []
    device, context = next(model.parameters()).device, model.spec.context
    for length in sorted({len(text) for text in texts}):
        rows = torch.stack([text for text in texts if len(text) == length])[None, :, : context + 1].to(device)
        with torch.no_grad():
            found += task.nats(model, rows).double().flatten().tolist()
    return found


# --- given targets (teacher forcing) ---------------------------------------------------------------------------------


def scores_of_given(measure: GivenTargets, model: Any, task: Translates) -> Iterator[Score]:
    found = task.forced(model, measure.split, measure.tokens)
    tokens, right, n = int(found.tokens.sum()), int(found.right.sum()), len(found.tokens)
    given, padded = measure.splits
    how = f"{tokens:,} target tokens, including END, of {n:,} pairs of {measure.split}, with teacher forcing"
    yield Score(f"{given}.loss", found.loss, f"nats per token · {how}")
    yield Score(f"{given}.token_accuracy", found.accuracy, f"share of tokens that are the most likely · {how}")
    cut = [found.tokens[k : k + measure.batch] for k in range(0, n, measure.batch)]
    filled = sum(len(some) * int(some.max()) for some in cut) - tokens
    told = f"{filled:,} padding positions, in batches of {measure.batch}, counted as correct"
    yield Score(f"{padded}.token_accuracy", (right + filled) / (tokens + filled), f"not an accuracy: {told} · {how}")
