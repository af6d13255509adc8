"""The tables of a report: what stands in them, and how they are written as Markdown, CSV and LaTeX."""

import csv
import io
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway import tasks
from headway.scoring.metrics import LOSS, PERPLEXITY, metric_of, parsed
from headway.stats.intervals import contrast
from headway.study.design.measures import Segments, Sliding
from headway.study.results.ensembles import kept
from headway.study.results.evidence import column
from headway.study.results.results import Results
from headway.study.verdicts.wording import amount, large, plain

MOST_SCORES = 3
"""In the first table; the others have one of their own."""


@dataclass(frozen=True)
class Estimate:
    """The mean of an arm's seeds, and where other seeds would put it."""

    mean: float
    interval: tuple[float, float] | None
    seeds: int

    def __str__(self) -> str:
        return plain(self.mean) if self.interval is None else amount(self.mean, self.interval)


@dataclass(frozen=True)
class TableRow:
    name: str
    cells: Sequence[str]
    remark: str = ""
    """What stands against believing it: an audit that failed."""
    beside: bool = False
    """Not one of the arms, but what they are set beside."""


@dataclass(frozen=True)
class Table:
    caption: str
    columns: Sequence[str]
    """The first is of the rows' names."""
    rows: Sequence[TableRow]
    notes: Sequence[str] = ()


def estimate(results: Results, arm: str, score: str) -> Estimate | None:
    """Of one arm's runs that count, averaged where effects add up."""
    scale = metric_of(score)
    values = column(results.table(score).get(arm, {}), results.arms[arm], scale).values
    if not values:
        return None
    mean, ends = _mean(values)
    low, high = (scale.possible(scale.back(end)) for end in ends or (mean, mean))
    return Estimate(scale.back(mean), ends and (low, high), len(values))


def _mean(values: Mapping[int, float]) -> tuple[float, tuple[float, float] | None]:
    """Over seeds, with its interval, where they differ."""
    found = contrast([values], [1.0])
    ends = None if found is None or not found.has_spread else found.interval()
    return statistics.mean(values.values()), ends


def asked_scores(results: Results) -> list[str]:
    """What is asked about first, then what a report gave; else everything that every run has."""
    study = results.study
    asked = [score for question in study.asked for score in question.scores]
    reported = [score for figures in (study.reported.figures.values() if study.reported else ()) for score in figures]
    wanted = dict.fromkeys([*asked, *reported]) or dict.fromkeys(_main(results))
    return [score for score in wanted if score in results.score_names]


def _main(results: Results) -> list[str]:
    """The headline of every split: the arms of a study are of one kind."""
    recipe = next(iter(results.study.recipes.values()))
    headline = tasks.of(recipe).headline_of(recipe)
    return [name for name in results.score_names if parsed(name)[1:] == (headline.name, "")]


def scores_table(results: Results) -> Table:
    """An arm a row: its scores, its seeds, what it cost, and which audits it failed."""
    scores = asked_scores(results)[:MOST_SCORES]
    rows = []
    for arm, about in results.arms.items():
        runs = results.of(arm)
        cost = [large(v) if v is not None else "–" for v in (about.parameters, about.flops)]
        seconds = "–" if about.seconds is None else f"{about.seconds:.3g}"
        seeds = (
            f"{len(runs)}" if len(runs) == len(results.study.seeds) else f"{len(runs)} of {len(results.study.seeds)}"
        )
        rows.append(TableRow(arm, [*_estimates(results, arm, scores), seeds, *cost, seconds], remark(results, arm)))
    rows += _cheap(results, scores, ["", "", "", ""])
    notes = [f"{score}: {results.label(score)}." for score in scores]
    ratios = [score for score in scores if metric_of(score).is_ratio]
    how = f"Student's t; means of {' and '.join(ratios)} are geometric" if ratios else "Student's t"
    caption = f"Every arm: the mean of its seeds and its 95 % interval ({how})"
    caption += ", and what one run costs" + ("; below, what cheap methods get" if rows[-1].beside else "")
    return Table(caption, ["arm", *scores, "seeds", "parameters", "FLOPs", "seconds"], rows, notes)


def more_scores_table(results: Results) -> Table | None:
    """The scores that the first table has no room for."""
    scores = asked_scores(results)[MOST_SCORES:]
    told = [one for one in results.study.measures if not isinstance(one, Sliding)]  # those have a table of their own
    measured = [name for measure in told for name in measure.told if name in results.score_names]
    scores = list(dict.fromkeys([*scores, *(s for s in measured if s not in asked_scores(results))]))
    if not scores:
        return None
    rows = [TableRow(arm, _estimates(results, arm, scores), remark(results, arm)) for arm in results.arms]
    notes = [f"{score}: {results.label(score)}." for score in scores]
    return Table("More scores", ["arm", *scores], [*rows, *_cheap(results, scores, [])], notes)


def early_tokens_table(results: Results) -> Table | None:
    """Segments beside windows of the same length, which leave no token without a past."""
    kinds = ([m for m in results.study.measures if isinstance(m, kind)] for kind in (Segments, Sliding))
    apart, sliding = ({n: s for m in some for n, s in zip(m.lengths, m.splits, strict=True)} for some in kinds)
    names = {n: [f"{split}.{LOSS.name}" for split in (apart[n], sliding[n])] for n in sorted(apart.keys() & sliding)}
    rows = []
    for arm in results.arms:
        for n in (n for n, both in names.items() if set(both).issubset(results.score_names)):
            more, less = (results.table(name)[arm] for name in names[n])
            lost = {seed: more[seed] - less[seed] for seed in more.keys() & less.keys()}
            if lost:
                mean, ends = _mean(lost)
                cells = _estimates(results, arm, [f"{one[n]}.{PERPLEXITY.name}" for one in (apart, sliding)])
                cells = [str(n), *cells, amount(mean, ends) if ends else plain(mean)]
                rows.append(TableRow(arm, cells, remark(results, arm)) if n == min(names) else TableRow("", cells))
    if not rows:
        return None
    caption = (
        "Segments beside sliding windows of the same length: what segments lose, in nats per token, is early tokens"
    )
    return Table(caption, ["arm", "tokens", "segments", "sliding", "early tokens"], rows)


def ensembles_table(results: Results) -> Table | None:
    """The seeds of every arm as one beside the mean run, where somebody asked for it."""
    rows = []
    for one in kept(results):
        for k, (score, found) in enumerate(one["gains"].items()):
            rows += [
                TableRow(
                    "" if k or n else one["arm"],
                    [*cells, str(len(one["seeds"]))],
                    "" if k or n else remark(results, one["arm"]),
                )
                for n, cells in enumerate(_gained(score, found))
            ]
    if not rows:
        return None
    caption = "The seeds of every arm as one model, the mean of their probabilities, beside the mean run"
    notes = [
        "Gained: above 0 is better, whichever way the score runs; with a 95 % interval over pieces of the split: for "
        "other text of its kind, and these runs."
    ]
    return Table(caption, ["arm", "score", "mean run", "as one", "gained", "seeds"], rows, notes)


def _gained(score: str, found: Mapping[str, Any]) -> Iterator[list[str]]:
    """Of a loss, in perplexity as well."""
    ends, value, split = found["interval"], found["gain"], parsed(score).split
    between = "" if ends is None else f" [{ends[0]:.4f}, {ends[1]:.4f}]"
    yield [score, plain(found["mean"]), plain(found["ensemble"]), f"{value:.4f}{between}"]
    if parsed(score).metric == LOSS.name:
        mean, ensemble = math.exp(found["mean"]), math.exp(found["ensemble"])
        yield [f"{split}.{PERPLEXITY.name}", plain(mean), plain(ensemble), f"{1 - ensemble / mean:.1%}"]


def reported_table(results: Results) -> Table | None:
    """What the report says beside what was measured, for every figure it gives."""
    reported = results.study.reported
    if reported is None or not reported.figures:
        return None
    rows = []
    for arm, figures in reported.figures.items():
        for k, (score, value) in enumerate(figures.items()):
            found = estimate(results, arm, score) if score in results.score_names else None
            cells = [score, reported_figure(value), str(found) if found else "not measured"]
            rows.append(TableRow("" if k else arm, cells, "" if k else remark(results, arm)))
    return Table("What was reported, and what was measured here", ["arm", "score", "reported", "measured"], rows)


def reported_figure(value: float) -> str:
    return plain(value) if value < 1e6 else f"{value:.2g}"


def remark(results: Results, arm: str) -> str:
    """The failures of an arm, in short: 'sees the future'."""
    return ", ".join(dict.fromkeys(finding.remark for run in results.of(arm) for finding in run.failures))


def _estimates(results: Results, arm: str, scores: Sequence[str]) -> list[str]:
    return [str(found) if (found := estimate(results, arm, score)) else "–" for score in scores]


def _cheap(results: Results, scores: Sequence[str], rest: Sequence[str]) -> list[TableRow]:
    cheap: Mapping[str, Mapping[str, float]] = {score: results.cheap(score) for score in scores}
    methods = dict.fromkeys(method for found in cheap.values() for method in found)
    return [
        TableRow(m, [plain(cheap[s][m]) if m in cheap[s] else "" for s in scores] + list(rest), beside=True)
        for m in methods
    ]


# --- as files --------------------------------------------------------------------------------------------------------


MEANT_IN_MARKDOWN = re.compile(r"[\\`*<|$]|\b_|_\b|\](?=\()")
"""Within words an underscore means nothing, and so do brackets without an address."""


class Marked(str):
    """Text in which signs of Markdown are meant as such."""


def plain_in_markdown(text: object) -> str:
    """What people have named, as it stands: a name may hold signs that mean something in Markdown or HTML."""
    return text if isinstance(text, Marked) else MEANT_IN_MARKDOWN.sub(r"\\\g<0>", str(text))


def literal(table: Table) -> Table:
    """A table of what people have named, for Markdown."""
    say = plain_in_markdown
    rows = [replace(r, name=say(r.name), cells=list(map(say, r.cells)), remark=say(r.remark)) for r in table.rows]
    return Table(say(table.caption), list(map(say, table.columns)), rows, list(map(say, table.notes)))


def markdown(table: Table) -> Marked:
    head = [f"| {' | '.join(table.columns)} |", "|" + "---|" * len(table.columns)]
    rows = [f"| {' | '.join([_named(row), *row.cells])} |" for row in table.rows]
    return Marked("\n".join([*head, *rows, "", *(f"{note}  " for note in table.notes)]).rstrip() + "\n")


def _named(row: TableRow) -> str:
    return f"*{row.name}*" if row.beside else f"{row.name} (**{row.remark}**)" if row.remark else row.name


def as_csv(results: Results) -> str:
    """A line for every run and score: what others compute with, unrounded."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["arm", "seed", "score", "value", "steps", "parameters", "flops", "seconds", "failed audits"])
    for run in results.runs:
        failed = " ".join(finding.audit for finding in run.failures)
        for name, score in run.scores.items():
            writer.writerow(
                [run.arm, run.seed, name, score.value, run.steps, run.parameters, run.flops, run.seconds, failed]
            )
    return out.getvalue()


def latex(table: Table, label: str) -> str:
    """For booktabs."""
    wide = "l" + "r" * (len(table.columns) - 1)
    lines = ["\\begin{table}", "\\centering", f"\\begin{{tabular}}{{{wide}}}", "\\toprule", _latex_row(table.columns)]
    lines.append("\\midrule")
    for before, row in zip([None, *table.rows], table.rows, strict=False):
        if row.beside and before is not None and not before.beside:
            lines.append("\\midrule")
        lines.append(_latex_row([row.name + (f" ({row.remark})" if row.remark else ""), *row.cells]))
    label = re.sub("[^A-Za-z0-9.-]+", "-", label)  # which takes no signs of LaTeX, not even escaped
    caption = _latex_text(" ".join([f"{table.caption}.", *table.notes]))
    lines += [
        "\\bottomrule",
        "\\end{tabular}",
        f"\\caption{{{caption}}}",
        f"\\label{{tab:{label}}}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex_text, cells)) + " \\\\"


_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "–": "--",
    "·": "$\\cdot$",
    "≥": "$\\geq$",
    "−": "$-$",
}


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
