"""Uses finished runs: scores splits, files and texts; generates, classifies, translates. Reads only run folders."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway import tasks
from headway.audit.audit import Report, read_report, write_report
from headway.core.errors import UserError
from headway.core.plugins import reason_of
from headway.experiment.audit import audit_run
from headway.experiment.ensemble import check_together
from headway.experiment.load import load_usable
from headway.run.folder import Run
from headway.scoring.accuracy import Predictions
from headway.scoring.decoding import DecodingSpec
from headway.scoring.score import Score
from headway.scoring.sentence import ScoredText
from headway.tasks.abilities import (
    Classified,
    Classifies,
    Draw,
    Filled,
    FillsIn,
    GivenFile,
    ReadingWindow,
    ReadsSegments,
    ScoresFiles,
    ScoresText,
    Translates,
    Translation,
    Writes,
)

AS_THE_RECIPE_SAYS = ReadingWindow()


def score_splits_again(
    run: Run, splits: Sequence[str] | None = None, window: ReadingWindow = AS_THE_RECIPE_SAYS, which: str = "auto"
) -> list[Score]:
    """Score whole splits: those given, or those of the recipe. With the recipe's own settings, scores are stored."""
    task = tasks.load_for(run)
    named = list(splits) if splits else task.scored_splits
    for split in named:
        task.check_split(split)
    if any(window):
        tasks.able(run, ReadsSegments)
    model, _ = load_usable(run, which)
    if any(window) and isinstance(task, ReadsSegments):
        task = task.in_segments(model, window)
    scores = task.score(model, named)[0]
    with _unless_it_cannot_be_written(run, "scores"):  # the scores are valid even if they cannot be stored
        if splits is None and window == AS_THE_RECIPE_SAYS and which == "auto":
            run.save_scores(scores)
        run.count_looks_at_test(named)  # directly before the scores are shown
    return scores


@contextmanager
def _unless_it_cannot_be_written(run: Run, what: str) -> Iterator[None]:
    """Continue with a note if a run's folder is read-only."""
    try:
        yield
    except (OSError, UserError) as error:
        print(f"the {what} could not be stored in {run.folder}: {reason_of(error)}", file=sys.stderr)


def audited(run: Run) -> Report:
    """The audits made when the run was trained. If they were not stored, run them now; if that fails because the data
    are gone, the report says so."""
    stored = read_report(run.folder)
    if stored is not None:
        return stored
    try:
        report = audit_run(run)
    except UserError as problem:
        return Report(not_run={"every audit": str(problem)})
    with _unless_it_cannot_be_written(run, "audits"):
        write_report(run.folder, report)
    return report


def with_baselines_in(run: Run, report: Report, window: ReadingWindow, which: str = "auto") -> Report:
    """The report with baselines that see as little context as the model does when it scores in this window."""
    if not any(window) or not report.baselines:
        return report
    tasks.able(run, ReadsSegments)
    task = tasks.load_for(run)
    assert isinstance(task, ReadsSegments)
    task = task.in_segments(load_usable(run, which)[0], window)
    return replace(report, baselines=tuple(task.evidence.baselines))  # pyright: ignore[reportAttributeAccessIssue]


def score_file(
    run: Run, file: GivenFile | Path, window: ReadingWindow = AS_THE_RECIPE_SAYS, which: str = "auto"
) -> list[Score]:
    """Score a text file; for a classifier, a table of texts with labels."""
    task = tasks.able(run, ScoresFiles)
    model, _ = load_usable(run, which)
    return task.score_file(run, model, GivenFile(file) if isinstance(file, Path) else file, window)


def score_sentence(
    run: Run, text: str, window: ReadingWindow = AS_THE_RECIPE_SAYS, which: str = "auto"
) -> tuple[ScoredText, list[Score]]:
    task = tasks.able(run, ScoresText)
    model, _ = load_usable(run, which)
    scored = task.score_text(run, model, text, window)
    return scored, scored.surprise.scores("text")


def sample_text(run: Run, prompt: str, how: Draw, which: str, show: Callable[[str], object]) -> tuple[str, str | None]:
    """Continue the prompt, showing the text piece by piece. Returns the text, and why it was slow, if it was."""
    task = tasks.able(run, Writes)
    model, _ = load_usable(run, which)
    return task.write(run, model, prompt, how, show)


def sample_texts(run: Run, prompt: str, how: Draw, which: str, count: int) -> list[str]:
    """Several continuations of the prompt, sampled as one batch."""
    task = tasks.able(run, Writes)
    model, _ = load_usable(run, which)
    return task.write_many(run, model, prompt, how, count)


def classify_text(run: Run, text: str, which: str) -> Classified:
    task = tasks.able(run, Classifies)
    model, _ = load_usable(run, which)
    return task.classify(run, model, text)


def fill_text(run: Run, text: str, most: int, which: str) -> Filled:
    """Predict the tokens at [MASK]."""
    task = tasks.able(run, FillsIn)
    model, _ = load_usable(run, which)
    return task.fill_in(run, model, text, most)


def translate_texts(
    runs: Sequence[Run],
    texts: Sequence[str],
    how: DecodingSpec,
    which: str,
    told: Callable[[int], object] = lambda done: None,
) -> list[Translation]:
    """Translate with one run or an ensemble. `told` is called with the number of texts done."""
    task = tasks.able(runs[0], Translates)
    return task.translate(runs[0], _translator(runs, which), texts, how, told)


def translated_split(runs: Sequence[Run], split: str, how: DecodingSpec, which: str) -> list[list[str]]:
    """A table with one row per pair of a split: source, reference, translation, and its quality."""
    tasks.able(runs[0], Translates)
    task = tasks.load_for(runs[0])
    assert isinstance(task, Translates)
    task.check_split(split)
    model = _translator(runs, which)
    rows = task.sentences(model, split, how)
    for run in runs:
        with _unless_it_cannot_be_written(run, "looks at test"):
            run.count_looks_at_test([split])
    return rows


def _translator(runs: Sequence[Run], which: str) -> Any:
    if len(runs) > 1:
        check_together(runs)
    models = [load_usable(run, which)[0] for run in runs]
    return models[0] if len(runs) == 1 else tasks.able(runs[0], Translates).joined(models)


def predictions(run: Run, split: str, which: str = "auto") -> Predictions:
    """A classifier's predictions for every text of a split, for comparing runs row by row."""
    tasks.able(run, Classifies)
    task = tasks.load_for(run)
    assert isinstance(task, Classifies)
    task.check_split(split)
    model, _ = load_usable(run, which)
    return task.predict(model, split)
