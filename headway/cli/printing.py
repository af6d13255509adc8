"""Prints tables and coloured text on the terminal."""

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.answers.run_summaries import headline_of, kept
from headway.audit.audit import Audit, Finding, Report
from headway.core.format import duration, number
from headway.core.status import State
from headway.run.index import ListedRun, listed
from headway.run.record import RunRecord
from headway.scoring.metrics import METRICS, metric_of, parsed
from headway.scoring.score import Score

if TYPE_CHECKING:
    from headway.experiment.self_test import Tested
    from headway.scoring.sentence import ScoredText

MAX_WRAPPED_ROWS = 200
"""Tables with more rows than this are printed without wrapping."""


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as wide as the terminal. Without a terminal, each row is one line as long as needed."""
    console = Console(highlight=False)
    numeric = [bool(rows) and all(row[k][:1].isdigit() for row in rows if row[k]) for k in range(len(columns))]
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    if len(rows) > MAX_WRAPPED_ROWS or not _is_wrapped():
        _show_unwrapped([columns, *rows], widths, numeric)
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    tight = sum(widths) + 2 * len(widths) > console.width
    for k, column in enumerate(columns):
        # In a narrow terminal, break valid.perplexity at the dot, and names not at all if possible.
        header = column.replace(".", ".\n", 1) if tight else column
        whole = k == 0 and 2 * widths[0] <= console.width
        table.add_column(header, justify="right" if numeric[k] else "left", overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*map(Text, row))  # as Text: in a string, [brackets] would be markup
    console.print(table)


def show_note(text: str) -> None:
    """Print what the columns of a table mean, below it."""
    if text:
        Console(highlight=False, soft_wrap=not _is_wrapped()).print(Text(text, style="dim"))


def _is_wrapped() -> bool:
    return Console().is_terminal or "COLUMNS" in os.environ


def _show_unwrapped(lines: Sequence[Sequence[str]], widths: Sequence[int], numeric: Sequence[bool]) -> None:
    """Print one line per row, for files, pipes and thousands of rows, which are slow to wrap."""
    for line in lines:
        padded = [
            " " * (wide - cell_len(cell)) + cell if right else cell + " " * (wide - cell_len(cell))
            for cell, wide, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(padded).rstrip())


def show_labelled(scores: Sequence[Score], report: Report, weights: dict[str, Any] | None = None) -> None:
    """Print one line per score: the value, then its full label, then baselines below it. Scores of parts of a split,
    such as one class, follow as tables, and audits that warn or fail come last."""
    console = Console(highlight=False, soft_wrap=True)
    for score in scores:
        if not parsed(score.name).part:
            console.print(Text.assemble((f"{number(score.value):>10}", "bold"), "  ", score.label))
            beside = [f"{b.method} {number(b.score.value)}" for b in report.baselines if b.score.name == score.name]
            if beside:
                console.print(Text(f"{'':12}baselines: {' · '.join(beside)}", style="dim"))
    if weights and weights.get("step") is not None:
        of = f" of {weights['of']:,}" if weights.get("of") else ""
        console.print(Text(f"weights of step {weights['step']:,}{of}: {weights['chosen']}", style="dim"))
    for split in dict.fromkeys(parsed(score.name).split for score in scores):
        show_parts(split, [score for score in scores if parsed(score.name).split == split])
    show_warnings_and_failures([report])


def show_parts(split: str, scores: Sequence[Score]) -> None:
    """Print one row per part of a split (a class) with its scores and, if there is a confusion matrix, the number of
    texts and how many of them were assigned to each class."""
    counted = next((score.confusion for score in scores if score.confusion is not None), None)
    few = counted is not None and len(counted.classes) <= 12
    counts = dict(zip(counted.classes, counted.totals[0], strict=True)) if counted else {}
    taken = dict(zip(counted.classes, counted.counts, strict=True)) if counted and few else {}
    by_part: dict[str, dict[str, float]] = {part: {} for part in counts}
    for score in scores:
        if part := parsed(score.name).part:
            by_part.setdefault(part, {})[metric_of(score.name).heading] = score.value
    if not by_part:
        return
    metrics = list(dict.fromkeys(metric for found in by_part.values() for metric in found))
    rows = []
    for k, (part, found) in enumerate(by_part.items(), 1):
        quality = [found.get(metric, math.nan) for metric in metrics]
        shown = ["" if math.isnan(value) else f"{value:.3f}" for value in quality]
        texts = [f"{counts[part]:,}"] if counts else []
        rows.append([f"{part} · {k}" if few else part, *texts, *shown, *map(str, taken.get(part, ()))])
    taken_for = [f"→{k}" for k in range(1, len(counts) + 1)] if few else []
    print()
    show_table([split, *(["texts"] if counts else []), *metrics, *taken_for], rows)
    if few and counted is not None:
        show_note("→1, →2 …: how many texts of this class were assigned to class 1, 2 …")


def show_probabilities(chances: dict[str, float]) -> None:
    show_table(["class", "probability", ""], [[n, f"{p:.4f}", "█" * round(30 * p)] for n, p in chances.items()])


def show_scores(runs: Sequence[RunRecord]) -> None:
    """After training: print the labelled scores of one run, or a table of several runs."""
    console = Console(highlight=False)
    if len(runs) == 1:
        show_labelled(runs[0].scores(), kept(runs[0]), runs[0].facts.get("weights"))
        found = kept(runs[0]).finding("diverged")  # would say the same
        if (status := runs[0].status).state is not State.FINISHED and (found is None or found.verdict != "fail"):
            console.print(str(status), style="yellow", markup=False)
    else:
        show_runs([listed(run.folder) for run in runs])
        for score in runs[0].scores()[:2]:
            console.print(f"{score.name}: {score.label}", style="dim", markup=False)
        show_warnings_and_failures([kept(run) for run in runs])
        alike = os.path.commonprefix([str(run.folder) for run in runs])  # noqa: RUF071 (of letters: runs/demo-seed-)
        console.print(f"learning curves: headway compare {alike}* -o curves.html", style="dim", markup=False)
    console.print(f"saved in {runs[0].folder.parent}/", style="dim", markup=False)


def show_warnings_and_failures(reports: Sequence[Report]) -> None:
    """Print the audits that warn about these runs, then those that fail: one line per audit, for all its runs."""
    console = Console(highlight=False, soft_wrap=True)
    if any(report.warnings or report.failures for report in reports):
        print()
    for verdict in ("warn", "fail"):
        found: dict[str, list[Finding]] = {}
        for finding in (f for report in reports for f in report.findings if f.verdict == verdict):
            found.setdefault(finding.audit, []).append(finding)
        for findings in found.values():
            of = f" ({len(findings)} of {len(reports)} runs)" if len(reports) > 1 else ""
            console.print(_line(findings[0], of))
    if all(not report.findings for report in reports) and reports and (why := reports[0].not_run.get("every audit")):
        console.print(Text(f"not audited: {why}", style="yellow"))


def show_report(report: Report) -> None:
    """Print one line per finding, failures last, where they are seen; then audits that were not run, and why."""
    console = Console(highlight=False, soft_wrap=True)
    for finding in sorted(report.findings, key=lambda f: list(_COLOURS).index(f.verdict)):
        console.print(_line(finding))
    for name, why in report.not_run.items():
        console.print(Text(f"{'–':<5}{name:<{_NAMES}} not run: {why}", style="dim"))
    seconds = sum(finding.seconds for finding in report.findings)
    counted = f"{len(report.findings)} audits in {seconds:.1f} s: {len(report.failures)} failed"
    console.print(f"{counted}, {len(report.warnings)} warned", style="dim")


_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}
_NAMES = 22  # the length of the longest audit name


def _line(finding: Finding, of: str = "") -> Text:
    verdict = (f"{finding.verdict:<5}", f"bold {_COLOURS[finding.verdict]}")
    return Text.assemble(verdict, f"{finding.audit:<{_NAMES}} {finding.sentence}{of}")


def show_explanation(audit: Audit) -> None:
    console = Console(highlight=False)
    console.print(Text.assemble((audit.name, "bold"), f" ({audit.subject}): {audit.about}\n"))
    paragraphs = (paragraph.replace("\n", " ") for paragraph in audit.explanation.split("\n\n"))
    console.print("\n\n".join(paragraphs), markup=False)


def show_runs(runs: Sequence[ListedRun]) -> None:
    rows, headlines = [], [run.headline or headline_of(RunRecord(run.folder)) for run in runs]
    headings = [METRICS[headline].heading if headline in METRICS else headline for headline in headlines]
    same = len(set(headings)) <= 1
    for run, headline, heading in zip(runs, headlines, headings, strict=True):
        named = {parsed(name): value for name, value in (run.scores or {}).items()}
        shown = [f"{n.split} {number(v)}" for n, v in named.items() if n.metric == headline and v is not None]
        assert run.state is not None  # damaged runs are listed elsewhere
        what = "" if same or not shown else f"{heading}: "
        rows.append([run.name, str(run.state), f"{run.state.step:,}", what + ", ".join(shown)])
    show_table(["run", "status", "steps", headings[0] if headings and same else "scores"], rows)


def show_sentence(
    scored: "ScoredText", scores: Sequence[Score], report: Report, weights: dict[str, Any] | None = None
) -> None:
    """Print the text with every token coloured by its loss, then the scores."""
    console = Console(highlight=False)
    line = Text()
    for piece, nats in zip(scored.pieces, scored.nats, strict=True):
        line.append(piece, style=_colour(nats))
        line.append("" if piece.endswith("\n") or len(piece) <= 1 else " ")
    console.print(line)
    console.print()
    if console.color_system:
        console.print(Text.assemble("nats  ", *[(f" {n} ", _colour(float(n))) for n in (0, 2, 4, 6, 8, 10)]))
    table_rows = [[p, "–" if n is None else f"{n:.2f}"] for p, n in zip(scored.pieces, scored.nats, strict=True)]
    if len(table_rows) <= 80:
        show_table(["token", "nats"], table_rows)
    if not scored.begins_a_line:
        console.print("the first token is not scored: it has no context", style="dim")
    if scored.unknown:
        console.print(f"{scored.unknown} of {len(scored.pieces)} words are unknown, scored as <unk>", style="yellow")
    show_labelled(scores, report, weights)


def _colour(nats: float | None) -> str:
    """A colour from green (expected) to red (surprising), readable on dark and light terminals."""
    if nats is None:
        return "dim"
    share = min(1.0, nats / 10)
    red, green = round(60 + 180 * share), round(180 - 130 * share)
    return f"black on rgb({red},{green},70)"


_OUTCOMES = {"cannot show": ("cannot show", "dim"), "seen": ("seen", "green"), "not seen": ("NOT SEEN", "bold red")}


def show_self_test(tested: "Tested") -> None:
    """Print one line per fault, undetected ones last, where they are seen; then a summary."""
    console = Console(highlight=False, soft_wrap=True)
    widest = max((len(trial.fault.words) for trial in tested.trials), default=0)
    order = list(_OUTCOMES)
    for trial in sorted(tested.trials, key=lambda trial: order.index(trial.outcome)):
        said, colour = _OUTCOMES[trial.outcome]
        line = f"{trial.fault.words:<{widest}}  {trial.fault.caught_by:<{_NAMES}} {trial.sentence}"
        console.print(Text.assemble((f"{said:<12}", colour), (line, "dim" if colour == "dim" else "")))
    if doubts := [*tested.clean.failures, *tested.clean.warnings]:
        console.print("\nwithout any planted fault:", style="dim")
        for finding in doubts:
            console.print(_line(finding))
    seen, unseen = tested.by("seen"), tested.by("not seen")
    text = f"{len(seen)} of {len(seen) + len(unseen)} faults are detected by the audit meant for them"
    others = sum(bool(trial.instead) for trial in unseen)
    text += f"; another {others} only by a different audit" if unseen else ""
    seconds = sum(trial.seconds for trial in tested.trials)
    console.print(
        f"{text}; {len(tested.by('cannot show'))} faults do not apply to this recipe ({duration(seconds)})", style="dim"
    )
