"""All cases in one document: what was reported, what was measured, and whether the report's conclusion holds.

Made only from the studies that `headway case ID` and `headway case ID --quick` have written. Other cases are listed as
not run.
"""

from dataclasses import dataclass
from pathlib import Path

from headway.cases.catalogue import conclusion_of, folder_of, packaged, title_of
from headway.cases.exercise import reach_table
from headway.cases.exercise_report import read_verdicts
from headway.study.conclude import so_far
from headway.study.design.study import Study
from headway.study.report.tables import Table, TableRow, asked_scores, estimate, markdown, remark, reported_figure
from headway.study.results.results import Results
from headway.study.verdicts.judgement import overall
from headway.study.verdicts.wording import sentence

HEAD = """# Cases

Reported experiments, repeated with several seeds and audits. *Reported* is one run each, as far as the reports say.
*Measured* is the mean over seeds with its 95 % interval. A conclusion is judged by its claims (questions with verdicts,
audits that must pass) and gets the worst status among them: **holds**, **does not hold**, **not shown** (these seeds
cannot decide), or cannot say. The quick size is a different, smaller experiment on other text, so its figures are not
comparable with the report's; it shows what can be found in two minutes.

B1, B2, D1, D2, D3, D8 and E1 are exercises: solved by hand and checked on random instances, with a proof if something
is impossible (D8 trains a model for it). Their quick size is the same with fewer instances.

Made by `headway cases --table`, from what `headway case ID` and `headway case ID --quick` measured.
"""


@dataclass(frozen=True)
class Done:
    """The results of one size of a case."""

    status: str
    where: str
    """The device, and the number of seeds or instances."""
    measured: Table
    said: list[str]
    """The status of every claim, then the answers to the other questions."""


def case_table(studies: Path) -> str:
    """The document in Markdown."""
    found = {name: {quick: carried_out(studies, name, quick) for quick in (False, True)} for name in packaged()}
    rows = []
    for name, sizes in found.items():
        cells = [title_of(name), conclusion_of(name), *(_status(sizes[quick]) for quick in (False, True))]
        rows.append(TableRow(f"[{name}](#{name.lower()})", cells))
    head = markdown(Table("", ["case", "question", "the report's conclusion", "full size", "quick size"], rows))
    return "\n".join([HEAD, head, *(_section(name, sizes) for name, sizes in found.items())])


def carried_out(studies: Path, name: str, quick: bool) -> Done | None:
    """The results of one size of a case; None if it was not run."""
    folder = studies / folder_of(name, quick)
    return _study(folder) if (folder / "study.yaml").exists() else _exercise(folder)


def _study(folder: Path) -> Done | None:
    found = so_far(folder)
    if not found.results.runs:
        return None
    claimed = [claim.ask for claim in found.results.study.claims]
    besides = [verdict for verdict in found.verdicts if verdict.question not in claimed]
    device = found.results.runs[0].environment.get("device", "unknown device")
    return Done(
        overall(found.judgements) if found.judgements else "nothing claimed",
        f"{device}, {len(found.results.study.seeds)} seeds",
        _measured(found.results),
        [f"- {j.claim.says}: **{j.status}**. {j.why}" for j in found.judgements]
        + [f"- *{verdict.question}* {verdict.sentence}" for verdict in besides],
    )


def _exercise(folder: Path) -> Done | None:
    found = read_verdicts(folder)
    if found is None:
        return None
    return Done(
        found["standing"],
        f"cpu, up to {found['instances']:,} instances of each kind",
        reach_table(found["rows"]),
        [f"- {one['says']}: **{one['standing']}**. {sentence(one['why'])}" for one in found["claims"]]
        + [f"- *{one['asks']}* {sentence(one['answer'])}" for one in found["answers"]],
    )


def _status(done: Done | None) -> str:
    return f"**{done.status}**" if done else "not run"


def _section(name: str, sizes: dict[bool, Done | None]) -> str:
    parts = [f"## {name}\n{title_of(name)}\n"]
    for quick, done in sizes.items():
        size = "Quick size" if quick else "Full size"
        if done is None:
            parts.append(f"{size}: not run.\n")
            continue
        where = f"{done.where}, `headway case {name}{' --quick' if quick else ''}`"
        parts += [f"**{size}** ({where})\n\n{markdown(done.measured)}", *done.said, ""]
    return "\n".join(parts)


def _measured(results: Results) -> Table:
    study: Study = results.study
    figures = study.reported.figures if study.reported else {}
    rows = []
    for arm in results.arms:
        scores = dict.fromkeys([*figures.get(arm, {}), *(s for s in asked_scores(results))])
        for k, score in enumerate(scores):
            measured = estimate(results, arm, score) if score in results.score_names else None
            said = figures.get(arm, {}).get(score)
            cells = [
                score,
                "" if said is None else reported_figure(said),
                str(measured) if measured else "not measured",
            ]
            rows.append(TableRow("" if k else arm, cells, "" if k else remark(results, arm)))
    return Table("", ["arm", "score", "reported", "measured"], rows)
