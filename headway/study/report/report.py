"""The report of a study: one HTML file that reads like a short paper, and its tables for other papers.

report.html   everything in one file: no network, no scripts, readable on screen and in print
report.md     the same as text and tables
table.tex     the first table, for LaTeX (booktabs)
scores.csv    every score of every run, unrounded
"""

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.audit.audit import Finding
from headway.core.errors import UserError
from headway.core.files import write_whole
from headway.core.format import duration
from headway.draw.charts import interval_mark
from headway.draw.colours import CURVES, CURVES_ON_DARK, curve_variables
from headway.draw.layout import arrange
from headway.draw.svg import svg
from headway.experiment.inspect import look_at
from headway.run.folder import Run
from headway.study.report import tables
from headway.study.report.figures import Figure, figures
from headway.study.report.scaling import LawInReport, laws_in_report
from headway.study.results.results import Results
from headway.study.verdicts.analysis import Verdict, notes_once
from headway.study.verdicts.effects import is_beyond_units
from headway.study.verdicts.judgement import ClaimStatus, Judgement, overall
from headway.study.verdicts.wording import amount, chance, large, listed, percent, sentence, times

STATUS_SENTENCES: dict[ClaimStatus, str] = {
    "holds": "This holds:",
    "does not hold": "This does not hold:",
    "not shown": "This is not shown:",
    "cannot say": "This cannot be judged:",
}


def write_report(results: Results, verdicts: Sequence[Verdict], judgements: Sequence[Judgement] = ()) -> Path:
    """Write all files into the study's folder; returns the HTML file."""
    paper = Paper(results, verdicts, judgements)
    page = results.folder / "report.html"
    write_whole(page, rendered("report.html", paper=paper, study=paper.study))
    write_whole(results.folder / "report.md", rendered("report.md", paper=paper, study=paper.study))
    write_whole(results.folder / "table.tex", tables.latex(paper.scores, results.folder.name))
    write_whole(results.folder / "scores.csv", tables.as_csv(results))
    return page


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question with its verdict, as shown in the report."""

    verdict: Verdict
    effect: str
    notes: Sequence[str]
    """The notes that no verdict above has."""


@dataclass(frozen=True)
class AuditLine:
    """The finding of one audit in several runs."""

    finding: Finding
    arms: str


@dataclass(frozen=True)
class Paper:
    """The data of all templates."""

    results: Results
    verdicts: Sequence[Verdict]
    judgements: Sequence[Judgement]

    @property
    def study(self) -> Any:
        return self.results.study

    @property
    def name(self) -> str:
        return self.results.folder.name

    def say(self, text: str) -> str:
        """Add a full stop, and a capital letter unless the text begins with the name of an arm."""
        return sentence(text, self.results.arms)

    @property
    def status(self) -> ClaimStatus | None:
        """Whether the report's conclusion holds; None if the study is no case."""
        return overall(self.judgements) if self.judgements else None

    @property
    def short(self) -> str:
        """The answer in one sentence."""
        if self.judgements:
            return weakest_of(self.judgements, self.say)
        if self.verdicts:
            return self.say(self.verdicts[0].sentence)
        return "This study asks no questions. Its measurements are below."

    @cached_property
    def scores(self) -> tables.Table:
        return tables.scores_table(self.results)

    @cached_property
    def more_scores(self) -> tables.Table | None:
        return tables.more_scores_table(self.results)

    @cached_property
    def early_tokens(self) -> tables.Table | None:
        return tables.early_tokens_table(self.results)

    @cached_property
    def ensembles(self) -> tables.Table | None:
        return tables.ensembles_table(self.results)

    @cached_property
    def reported(self) -> tables.Table | None:
        return tables.reported_table(self.results)

    @cached_property
    def asked(self) -> list[AnsweredQuestion]:
        return [AnsweredQuestion(verdict, _effect(verdict), notes) for verdict, notes in notes_once(self.verdicts)]

    @cached_property
    def audits(self) -> list[AuditLine]:
        """Failed audits, then warnings: one line per audit, with the arms concerned."""
        found: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
        for run in self.results.runs:
            for finding in run.audit.findings if run.audit else ():
                if finding.verdict != "pass":
                    found.setdefault((finding.verdict, finding.audit), []).append((run.arm, finding))
        return [AuditLine(told[0][1], self._arms([arm for arm, _ in told])) for _, told in sorted(found.items())]

    def _arms(self, arms: Sequence[str]) -> str:
        counts = {arm: (arms.count(arm), len(self.results.of(arm))) for arm in dict.fromkeys(arms)}
        if len(counts) == len(self.results.arms) > 1:
            every = len(self.results.runs)
            return "all arms" if len(arms) == every else f"all arms ({len(arms)} of {every} runs)"
        return listed(arm if some == all_ else f"{arm} ({some} of {all_} runs)" for arm, (some, all_) in counts.items())

    @property
    def passed(self) -> int:
        """How many audits passed in every run."""
        every = {f.audit for run in self.results.runs if run.audit for f in run.audit.findings}
        return len(every - {said.finding.audit for said in self.audits})

    @property
    def not_audited(self) -> list[str]:
        return [run.folder.name for run in self.results.runs if run.audit is None or not run.audit.findings]

    @cached_property
    def figures(self) -> list[Figure]:
        return figures(self.results)

    @cached_property
    def laws(self) -> list[LawInReport]:
        """The fitted scaling laws, if the study is a ladder."""
        return laws_in_report(self.results)

    @cached_property
    def maps(self) -> list[Figure]:
        """Attention maps of the first seed of an arm, for the sentences that the study names."""
        found = []
        for look in self.study.look:
            arm = look.arm or self.study.arms[0].name
            runs = self.results.of(arm)
            if not runs:
                continue
            recipe = self.study.recipes[arm].model_copy(update={"seed": runs[0].seed})
            try:
                picture = look_at(Run(runs[0].folder, recipe), look.text).draw(look.layer)
            except UserError as error:
                found.append(Figure("", f"No attention maps of {arm} on “{look.text}”: {error}"))
                continue
            caption = f"Attention of {runs[0].folder.name} on “{look.text}”. {picture.subtitle}"
            found.append(Figure(svg(arrange(picture), caption), caption))
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The environment of the first run made here; of the first run at all if none was."""
        return min(self.results.runs, key=lambda run: run.taken_from is not None).environment

    @property
    def command(self) -> str:
        made_here = any(run.taken_from is None for run in self.results.runs)
        words = self.environment.get("command", []) if made_here else []
        return shlex.join(["headway", *words[1:]]) if words else f"headway study run {self.results.folder}/study.yaml"

    @property
    def costs(self) -> list[str]:
        """The total cost of all runs."""
        runs = self.results.runs
        seconds, flops = sum(run.seconds for run in runs), sum(run.flops or 0 for run in runs)
        found = [f"{len(runs)} runs, {sum(run.steps for run in runs):,} training steps"]
        if flops:
            found.append(f"{large(flops)} training FLOPs (counted, not measured)")
        together = " (a run trained in a population counts the whole population)" if _together(runs) else ""
        found.append(f"{duration(seconds)} of training time, summed over the runs{together}")
        taken = Counter((run.taken_from, run.environment.get("device")) for run in runs if run.taken_from)
        return [*found, *(self._made_elsewhere(*origin, count) for origin, count in taken.items())]

    def _made_elsewhere(self, study: str, device: str | None, count: int) -> str:
        on = "" if device == self.environment.get("device") else f", on {device or 'an unknown device'}"
        return f"{count} of these runs {'were' if count > 1 else 'was'} reused from {study}{on}"


def weakest_of(judgements: Sequence[Judgement], say: Callable[[str], str]) -> str:
    """The claim that decides whether the conclusion holds: the first with the worst status."""
    weakest = next(one for one in judgements if one.status == overall(judgements))
    return f"“{say(weakest.claim.says)}” {STATUS_SENTENCES[weakest.status]} {say(weakest.why)}"


def rendered(template: str, **given: Any) -> str:
    """Render a template with these variables."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    is_html = template.endswith(".html")
    pages = Environment(
        loader=PackageLoader("headway.study.report", "templates"),
        autoescape=is_html,
        finalize=None if is_html else tables.plain_in_markdown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.globals |= {
        "markdown": lambda t: tables.markdown(tables.literal(t)),
        "marked": tables.Marked,
        "mark": interval_mark,
        "curves_on_paper": curve_variables(CURVES),
        "curves_on_dark": curve_variables(CURVES_ON_DARK),
    }
    return pages.get_template(template).render(given)


def _effect(verdict: Verdict) -> str:
    """The numbers of a verdict on one line."""
    if verdict.effect is None or verdict.interval is None:
        return ""
    if verdict.factor is not None and verdict.factor_interval is not None and is_beyond_units(vars(verdict)):
        found = [f"{times(verdict.factor, verdict.factor_interval, verdict.unit)}, above 1 if better"]
    else:
        found = [amount(verdict.effect, verdict.interval, verdict.unit)]
    if verdict.relative is not None:
        found.append(f"{'+' * (verdict.relative >= 0)}{percent(verdict.relative)}")
    if verdict.p_corrected is not None:
        found.append(f"{chance(verdict.p_corrected)}, corrected for all questions")
    return " · ".join([*found, verdict.method])


def _together(runs: Sequence[Any]) -> bool:
    return len(runs) > 1 and len({run.seconds for run in runs}) < len(runs) / 2
