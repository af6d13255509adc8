"""The tables of a report: their contents, and how they are written as Markdown, CSV and LaTeX."""

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
from headway.study.verdicts.wording import amount, large, listed, plain

MAX_SCORES = 3
"""How many scores fit in the first table; the others go into a second one."""


@dataclass(frozen=True)
class Estimate:
    """The mean over an arm's seeds, and its confidence interval."""

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
    """Why not to trust it: an audit that failed."""
    beside: bool = False
    """Whether it is a baseline rather than an arm."""


@dataclass(frozen=True)
class Table:
    caption: str
    columns: Sequence[str]
    """The first one holds the names of the rows."""
    rows: Sequence[TableRow]
    notes: Sequence[str] = ()


def estimate(results: Results, arm: str, score: str) -> Estimate | None:
    """The mean over one arm's valid runs, averaged on the scale where effects are additive."""
    scale = metric_of(score)
    values = column(results.table(score).get(arm, {}), results.arms[arm], scale).values
    if not values:
        return None
    mean, ends = _mean(values)
    low, high = (scale.possible(scale.back(end)) for end in ends or (mean, mean))
    return Estimate(scale.back(mean), ends and (low, high), len(values))


def _mean(values: Mapping[int, float]) -> tuple[float, tuple[float, float] | None]:
    """The mean over seeds, with its interval if they differ."""
    found = contrast([values], [1.0])
    ends = None if found is None or not found.has_spread else found.interval()
    return statistics.mean(values.values()), ends


def asked_scores(results: Results) -> list[str]:
    """The scores of the questions, then those reported; if there are neither, the headline score of every split."""
    study = results.study
    asked = [score for question in study.asked for score in question.scores]
    reported = [score for figures in (study.reported.figures.values() if study.reported else ()) for score in figures]
    wanted = dict.fromkeys([*asked, *reported]) or dict.fromkeys(_main(results))
    return [score for score in wanted if score in results.score_names]


def _main(results: Results) -> list[str]:
    """The headline score of every split; all arms of a study have the same kind of task."""
    recipe = next(iter(results.study.recipes.values()))
    headline = tasks.of(recipe).headline_of(recipe)
    return [name for name in results.score_names if parsed(name)[1:] == (headline.name, "")]


def scores_table(results: Results) -> Table:
    """One row per arm: its scores, seeds, costs and failed audits."""
    scores = asked_scores(results)[:MAX_SCORES]
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
    how = f"Student's t; means of {listed(ratios)} are geometric" if ratios else "Student's t"
    caption = f"Each arm: mean over seeds with 95 % confidence interval ({how})"
    caption += ", and the cost of one run" + ("; baselines below" if rows[-1].beside else "")
    return Table(caption, ["arm", *scores, "seeds", "parameters", "FLOPs", "seconds"], rows, notes)


def more_scores_table(results: Results) -> Table | None:
    """The scores that do not fit in the first table."""
    scores = asked_scores(results)[MAX_SCORES:]
    told = [one for one in results.study.measures if not isinstance(one, Sliding)]  # they have their own table
    measured = [name for measure in told for name in measure.told if name in results.score_names]
    scores = list(dict.fromkeys([*scores, *(s for s in measured if s not in asked_scores(results))]))
    if not scores:
        return None
    rows = [TableRow(arm, _estimates(results, arm, scores), remark(results, arm)) for arm in results.arms]
    notes = [f"{score}: {results.label(score)}." for score in scores]
    return Table("More scores", ["arm", *scores], [*rows, *_cheap(results, scores, [])], notes)


def early_tokens_table(results: Results) -> Table | None:
    """Segments compared with sliding windows of the same length, in which every token has context."""
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
        "Perplexity in segments and in sliding windows of the same length; the difference of the losses, in nats per "
        "token, is the cost of early tokens"
    )
    return Table(caption, ["arm", "tokens", "segments", "sliding", "early tokens"], rows)


def ensembles_table(results: Results) -> Table | None:
    """The seeds of every arm as an ensemble, compared with the mean run, if the study asks for it."""
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
    caption = "The seeds of each arm as an ensemble (the mean of their probabilities), compared with the mean run"
    notes = [
        "Gain: above 0 is better for every score. The 95 % interval is over pieces of the split: it covers other text "
        "of the same kind, but not other training runs."
    ]
    return Table(caption, ["arm", "score", "mean run", "ensemble", "gain", "seeds"], rows, notes)


def _gained(score: str, found: Mapping[str, Any]) -> Iterator[list[str]]:
    """The table rows of one gain; for a loss also in perplexity."""
    ends, value, split = found["interval"], found["gain"], parsed(score).split
    between = "" if ends is None else f" [{ends[0]:.4f}, {ends[1]:.4f}]"
    yield [score, plain(found["mean"]), plain(found["ensemble"]), f"{value:.4f}{between}"]
    if parsed(score).metric == LOSS.name:
        mean, ensemble = math.exp(found["mean"]), math.exp(found["ensemble"])
        yield [f"{split}.{PERPLEXITY.name}", plain(mean), plain(ensemble), f"{1 - ensemble / mean:.1%}"]


def reported_table(results: Results) -> Table | None:
    """Every reported figure next to the measured one."""
    reported = results.study.reported
    if reported is None or not reported.figures:
        return None
    rows = []
    for arm, figures in reported.figures.items():
        for k, (score, value) in enumerate(figures.items()):
            found = estimate(results, arm, score) if score in results.score_names else None
            cells = [score, reported_figure(value), str(found) if found else "not measured"]
            rows.append(TableRow("" if k else arm, cells, "" if k else remark(results, arm)))
    return Table("Reported figures, and what was measured here", ["arm", "score", "reported", "measured"], rows)


def reported_figure(value: float) -> str:
    return plain(value) if value < 1e6 else f"{value:.2g}"


def remark(results: Results, arm: str) -> str:
    """The failures of an arm in short form: 'sees the future'."""
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
"""Characters to escape. An underscore within a word is plain text, and so are brackets without an address."""


class Marked(str):
    """Text that already is Markdown."""


def plain_in_markdown(text: object) -> str:
    """Escape text such as names, which may contain characters with a meaning in Markdown or HTML."""
    return text if isinstance(text, Marked) else MEANT_IN_MARKDOWN.sub(r"\\\g<0>", str(text))


def literal(table: Table) -> Table:
    """A table with all its text escaped for Markdown."""
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
    """One line per run and score, unrounded."""
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
    """The table in LaTeX with booktabs."""
    wide = "l" + "r" * (len(table.columns) - 1)
    lines = ["\\begin{table}", "\\centering", f"\\begin{{tabular}}{{{wide}}}", "\\toprule", _latex_row(table.columns)]
    lines.append("\\midrule")
    for before, row in zip([None, *table.rows], table.rows, strict=False):
        if row.beside and before is not None and not before.beside:
            lines.append("\\midrule")
        lines.append(_latex_row([row.name + (f" ({row.remark})" if row.remark else ""), *row.cells]))
    label = re.sub("[^A-Za-z0-9.-]+", "-", label)  # special characters are not allowed in a label, not even escaped
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
