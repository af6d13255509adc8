"""What can be asked of a finished run: scores of splits, files, sentences; samples; classes. Reads run folders only."""

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
from headway.experiment.train import load_usable
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
    """The splits asked for (or those of the recipe), whole. Asked for as the recipe says, the scores are stored."""
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
    with _unless_it_cannot_be_written(run, "scores"):  # they are good all the same
        if splits is None and window == AS_THE_RECIPE_SAYS and which == "auto":
            run.save_scores(scores)
        run.count_looks_at_test(named)  # the last thing before they are shown
    return scores


@contextmanager
def _unless_it_cannot_be_written(run: Run, what: str) -> Iterator[None]:
    """A run that nobody may change can be asked all the same."""
    try:
        yield
    except (OSError, UserError) as error:
        print(f"the {what} could not be stored in {run.folder}: {reason_of(error)}", file=sys.stderr)


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
    with _unless_it_cannot_be_written(run, "audits"):
        write_report(run.folder, report)
    return report


def read_otherwise(run: Run, report: Report, window: ReadingWindow, which: str = "auto") -> Report:
    """The report, with what cheap methods get where they see no more of a text than the model does in this window."""
    if not any(window) or not report.baselines:
        return report
    tasks.able(run, ReadsSegments)
    task = tasks.load_for(run)
    assert isinstance(task, ReadsSegments)
    read_so = task.in_segments(load_usable(run, which)[0], window)
    return replace(report, baselines=tuple(read_so.evidence.baselines))  # pyright: ignore[reportAttributeAccessIssue]


def score_file(
    run: Run, file: GivenFile | Path, window: ReadingWindow = AS_THE_RECIPE_SAYS, which: str = "auto"
) -> list[Score]:
    """Of a text file; or of a table of texts with labels, by a classifier."""
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
    """The prompt and what follows it, shown piece by piece; and why it was slow, if it was."""
    task = tasks.able(run, Writes)
    model, _ = load_usable(run, which)
    return task.write(run, model, prompt, how, show)


def sample_texts(run: Run, prompt: str, how: Draw, which: str, count: int) -> list[str]:
    """Several texts that begin with the prompt, drawn side by side."""
    task = tasks.able(run, Writes)
    model, _ = load_usable(run, which)
    return task.write_many(run, model, prompt, how, count)


def classify_text(run: Run, text: str, which: str) -> Classified:
    task = tasks.able(run, Classifies)
    model, _ = load_usable(run, which)
    return task.classify(run, model, text)


def fill_text(run: Run, text: str, most: int, which: str) -> Filled:
    """What may stand where a text has [MASK]."""
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
    """By one run, or by several as one. `told` hears how many are done."""
    task = tasks.able(runs[0], Translates)
    return task.translate(runs[0], _translator(runs, which), texts, how, told)


def translated_split(runs: Sequence[Run], split: str, how: DecodingSpec, which: str) -> list[list[str]]:
    """A table with a row for every pair of a split: source, reference, translation, and how good it is."""
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
    """What a classifier says of every text of a split: to compare runs row by row."""
    tasks.able(run, Classifies)
    task = tasks.load_for(run)
    assert isinstance(task, Classifies)
    task.check_split(split)
    model, _ = load_usable(run, which)
    return task.predict(model, split)
