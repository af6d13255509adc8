"""Prints plans and results of studies on the terminal."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from headway.cases.exercise import WorkedExercise
from headway.cli.printing import show_table
from headway.core.format import duration
from headway.study.conclude import Conclusion
from headway.study.execution.plan import Plan
from headway.study.report.tables import estimate
from headway.study.results.ensembles import ArmAsOne
from headway.study.results.results import Results
from headway.study.verdicts.analysis import Verdict, notes_once
from headway.study.verdicts.judgement import Judgement, overall
from headway.study.verdicts.wording import sentence


def show_ensembles(arms: Sequence[ArmAsOne], none: Mapping[str, str]) -> None:
    rows = [[one.arm, f"{len(one.seeds)}", *gain.told] for one in arms for gain in one.ensemble.gains]
    show_table(["arm", "runs", "", "each run", "mean", "ensemble", "gain"], rows)
    print("gain: of the ensemble over the mean run; 95 % intervals from resampling pieces of the split, for these runs")
    for one in arms:
        if one.failed:
            print(f"{one.arm} fails {', '.join(one.failed)}")
    for arm, why in none.items():
        print(f"{arm}: {why}")


def show_plan(plan: Plan) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(plan.title, style="bold", markup=False)
    rows = [
        [name, f"{arm.parameters:,}", f"{arm.steps:,}", f"{arm.tokens:,}", f"{arm.flops:.3g}", duration(arm.seconds)]
        for name, arm in plan.arms.items()
    ]
    show_table(["arm", "parameters", "steps", "tokens", "FLOPs", "time per run"], rows)
    shapes = f"{len(plan.populations)} model shape{'s' * (len(plan.populations) > 1)}"
    processes, gpus = plan.workforce.processes, plan.workforce.gpus
    if gpus:
        most = max(population.at_once for population in plan.populations)
        over = f"distributed over {gpus} GPU{'s' * (gpus > 1)}, "
        where = over + ("one process each" if processes == gpus else f"shared by {processes} processes")
        memory = f"{_size(plan.memory)} of {'the memory of each' if gpus > 1 else 'GPU memory'}"
        how = f"{shapes}, as populations of up to {most} {where if processes > 1 else 'in this process'}; {memory}"
    else:
        busy = min(processes, len(plan.runs))
        how = f"{shapes}; {busy} process{'es' * (busy > 1)} with one thread each; {_size(plan.memory)} of memory in all"
    count = f"{len(plan.runs)} run{'s' * (len(plan.runs) > 1)}"
    console.print(f"\n{count}: {how}; about {duration(plan.seconds)}", markup=False)
    questions: dict[str, list[str]] = {}  # by sentence, because many have the same one
    for one in plan.power:
        questions.setdefault(sentence(one.sentence), []).append(str(one.question))
    for said, of_these in questions.items():
        console.print(Text.assemble("\n", ("\n".join(of_these), "bold"), f"\n{said}"))
    for warning in plan.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def show_results(results: Results) -> None:
    """Print one row per arm, with the scores that the questions need, or all."""
    console = Console(highlight=False, soft_wrap=True)
    names = (
        list(dict.fromkeys(score for question in results.study.asked for score in question.scores))
        or results.score_names[:4]
    )
    names = [name for name in names if name in results.score_names]
    rows = []
    for arm in results.arms:
        cells = [str(estimate(results, arm, name) or "–") for name in names]
        rows.append([arm, f"{len(results.of(arm))} of {len(results.study.seeds)}", *cells])
    show_table(["arm", "seeds", *names], rows)
    for name in names:
        console.print(f"{name}: mean [95 % interval]; {results.label(name)}", style="dim", markup=False)
    for run, why in list(results.missing.items())[:10]:
        console.print(f"{run}: {why}", style="yellow", markup=False)
    if len(results.missing) > 10:
        console.print(f"and {len(results.missing) - 10} more are missing", style="yellow")
    console.print(f"saved in {results.folder}/", style="dim", markup=False)


def show_verdicts(verdicts: Sequence[Verdict]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for verdict, notes in notes_once(verdicts):
        console.print(Text.assemble("\n", (str(verdict.question), "bold"), f"\n{verdict.sentence}"))
        for note in notes:
            console.print(Text(f"· {note}", style="dim"))


def show_conclusion(conclusion: Conclusion) -> None:
    """After a study: print the results, the verdicts, the judged claims, and the report's place."""
    show_results(conclusion.results)
    show_verdicts(conclusion.verdicts)
    if conclusion.judgements:
        reported = conclusion.results.study.reported
        show_claims(f"“{reported.conclusion}”: " if reported else "", conclusion.judgements)
    if conclusion.report:
        Console(highlight=False, soft_wrap=True).print(f"\nreport: {conclusion.report}", markup=False)


def show_outcome(outcome: WorkedExercise, report: Path) -> None:
    """After an exercise: print each method's results, why claims hold or fail, and the answers to its questions."""
    console = Console(highlight=False, soft_wrap=True)
    rows = []
    for quantity, group in groupby(outcome.rows, key=lambda row: row.quantity):  # one block each: terminals are narrow
        rows.append([quantity, "", "", "", ""])
        rows += [[f"  {r.of}", f"{r.instances:,}", r.reported, r.headway, r.possible] for r in group]
    show_table(["", *outcome.table.columns[2:]], rows)
    answered = zip(outcome.exercise.questions, outcome.answers, strict=True)
    told = [(one.claim.says, one.why) for one in outcome.judgements] + [(q.asks, found.why) for q, found in answered]
    for head, text in told:
        console.print(Text.assemble("\n", (sentence(head), "bold"), f"\n{sentence(text)}"))
    show_claims(f"“{outcome.exercise.reported.conclusion}”: ", outcome.judgements)
    console.print(f"\nreport: {report}", markup=False)


def show_claims(said: str, judgements: Sequence[Judgement]) -> None:
    """Print whether each claim of a report holds."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text.assemble("\n", (f"The report: {said}{overall(judgements)}", "bold")))
    for one in judgements:
        console.print(Text.assemble((f"{one.status:<14}", _COLOURS[one.status]), one.claim.says))


_COLOURS = {"holds": "green", "does not hold": "bold red", "not shown": "yellow", "cannot say": "yellow"}


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
