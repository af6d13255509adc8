"""What can be asked of a finished run: scores of splits, files, sentences; samples; classes. Reads run folders only."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headway import tasks
from headway.audit.audit import Report, read_report, write_report
from headway.audit.runner import audit_run
from headway.core import random
from headway.core.errors import UserError
from headway.data.labelled.dataset import LabelledSet
from headway.data.running.sources import read_text
from headway.experiment.train import load_model
from headway.models.language_model import LanguageModel
from headway.run.folder import Run
from headway.scoring.accuracy import Predictions, class_chances, predict
from headway.scoring.decoding import sample
from headway.scoring.likelihood import surprise
from headway.scoring.score import Score
from headway.scoring.sentence import ScoredText, score_text
from headway.tasks.classification import classes_of


def score_splits_again(
    run: Run, splits: Sequence[str] | None, segment: int | None, stride: int | None, which: str
) -> list[Score]:
    """The splits asked for (or those of the recipe), whole. Asked for as the recipe says, the scores are stored."""
    task = tasks.load_for(run)
    named = list(splits) if splits else task.scored_splits
    for split in named:
        task.check_split(split)
    if segment or stride:
        _check_language_model(run, "segments and strides are")
    model, _ = load_model(run, which)
    if segment or stride:
        window = _window(run, model, segment, stride)
        changed = task.recipe.scoring.model_copy(update={"segment": window[0], "stride": window[1]})
        task = replace(task, recipe=task.recipe.model_copy(update={"scoring": changed}))
    scores = task.score(model, named)[0]
    try:
        run.count_looks_at_test(named)
        if splits is None and segment is None and stride is None and which == "auto":
            run.save_scores(scores)
    except OSError as error:  # the scores themselves are good
        print(f"the scores could not be stored in {run.folder}: {error.strerror}", file=sys.stderr)
    return scores


def audited(run: Run) -> Report:
    """What the audits found when the run was trained. Where that was not kept, they are made now; and where they cannot
    be, because the data are gone, the report says so."""
    stored = read_report(run.folder)
    if stored is not None:
        return stored
    try:
        report = audit_run(run)
    except UserError as problem:
        return Report(not_run={"every audit": str(problem)})
    try:
        write_report(run.folder, report)
    except OSError as error:
        print(f"the audits could not be stored in {run.folder}: {error.strerror}", file=sys.stderr)
    return report


def score_file(run: Run, path: Path, segment: int | None, stride: int | None, which: str) -> list[Score]:
    _check_language_model(run, "the perplexity of a file is")
    tokens = run.tokenizer.encode(read_text(path))
    model, _ = load_model(run, which)
    window, tokenizer = _window(run, model, segment, stride), run.tokenizer
    found = surprise(model, tokens, *window, tokenizer.kind, unknown=tokenizer.unknown)
    return found[0].scores(path.name)


def score_sentence(
    run: Run, text: str, segment: int | None, stride: int | None, which: str
) -> tuple[ScoredText, list[Score]]:
    _check_language_model(run, "the perplexity of a sentence is")
    model, _ = load_model(run, which)
    tokenizer = run.tokenizer
    scored = score_text(model, tokenizer, text, *_window(run, model, segment, stride), tokenizer.kind)
    return scored, scored.surprise.scores("text")


def sample_text(
    run: Run,
    prompt: str,
    tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    which: str,
    show: Callable[[str], object],
) -> tuple[str, str | None]:
    """The prompt and what follows it, shown piece by piece; and why it was slow, if it was."""
    _check_language_model(run, "to write is")
    tokenizer = run.tokenizer
    ids = tokenizer.encode(prompt).ids.tolist()
    model, _ = load_model(run, which)
    generator = random.generator(seed, "sample")
    drawn, text, longer = list(ids), "", ""
    for token in sample(model, torch.tensor(ids, dtype=torch.int64), tokens, temperature, top_k, top_p, generator):
        drawn.append(token)
        # A piece can change what stands before it (half a character of a byte-level vocabulary): show what is settled.
        longer = tokenizer.decode(drawn)
        if not longer.endswith("\ufffd"):
            show(longer[len(text) :])
            text = longer
    show(longer[len(text) :])
    note = model.why_no_cache and f"without a cache: {model.why_no_cache}"
    return longer, note


@dataclass(frozen=True)
class Classified:
    """What a classifier makes of a text somebody typed."""

    chances: dict[str, float]
    """The probability of each class, likeliest first."""
    tokens: int
    unknown: int
    """How many of the tokens stand for words outside the vocabulary."""
    notes: list[str]
    """What should be known before the answer is believed."""

    def as_json(self) -> dict[str, Any]:
        return {"classes": self.chances, "tokens": self.tokens, "unknown": self.unknown, "notes": self.notes}


def classify_text(run: Run, text: str, which: str) -> Classified:
    _check_classifier(run)
    model, _ = load_model(run, which)
    tokenizer = run.tokenizer
    ids = torch.as_tensor(tokenizer.encode(text).ids)
    if not len(ids):
        raise UserError("the text is empty: there is nothing to classify")
    model.check_length(len(ids))
    chances = class_chances(model, ids[None], torch.tensor([len(ids)]))[0, 0].tolist()
    unknown = int((ids == tokenizer.unknown).sum()) if tokenizer.unknown is not None else 0
    notes = []
    if unknown == len(ids):
        notes.append(f"no word of it is known ({unknown} unknown): the answer would be the same for any such words")
    elif unknown:
        notes.append(f"{unknown} of {len(ids)} tokens are unknown words")
    if len(ids) > (context := run.recipe.model.context):
        notes.append(f"{len(ids)} tokens are more than the model was trained to read ({context})")
    ranked = sorted(zip(classes_of(run), chances, strict=True), key=lambda pair: -pair[1])
    return Classified(dict(ranked), len(ids), unknown, notes)


def predictions(run: Run, split: str, which: str = "auto") -> Predictions:
    """What a classifier says of every text of a split: to compare runs row by row."""
    _check_classifier(run)
    data = tasks.load_for(run).data
    assert isinstance(data, LabelledSet)
    texts = data.split(split)
    model, _ = load_model(run, which)
    return predict(model, texts, data.classes)[0]


def _check_classifier(run: Run) -> None:
    if (kind := run.recipe.model.kind) != "classifier":
        ask = f'headway score {run.name} --text "…"'
        raise UserError(f"classes are asked of classifiers, and {run.name} is a {kind}; try {ask}")


def _check_language_model(run: Run, what_is: str) -> None:
    if run.recipe.model.kind != "language-model":
        ask = f'headway classify {run.name} "…"'
        raise UserError(f"{what_is} asked of language models, and {run.name} is a {run.recipe.model.kind}; try {ask}")


def _window(run: Run, model: LanguageModel, segment: int | None, stride: int | None) -> tuple[int, int]:
    """Segment and stride: those asked for, else the recipe's."""
    length = segment or run.recipe.scoring_segment
    if model.positions.limit is not None and length > model.positions.limit:
        raise UserError(f"a segment of {length} tokens, but the learned positions end at {model.positions.limit}")
    step = stride or (length if segment else run.recipe.stride)
    if step > length:
        raise UserError(f"a stride of {step} would skip tokens between segments of {length}")
    return length, step
