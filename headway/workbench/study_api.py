"""The API of studies and cases: lists, progress, results; start, stop, resume; reports."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import FileResponse
from pydantic import BaseModel

from headway.answers.studies import CasesSchema, ConclusionSchema, PlanSchema
from headway.answers.workbench import (
    JobSchema,
    JobsSchema,
    OpenedCaseSchema,
    OpenedStudySchema,
    StandingsSchema,
    StoppedSchema,
    StudiesSchema,
    StudyPageSchema,
)
from headway.cases.catalogue import folder_of, packaged, takes, title_of
from headway.core.errors import did_you_mean
from headway.workbench.bench import Here
from headway.workbench.jobs import stop
from headway.workbench.paths import NotThereError, check_links, folder_with
from headway.workbench.studies import listed, opened

router = APIRouter(prefix="/api")
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
"""The policy of reports, whose styles are inline: no script runs in them, and nothing is loaded."""


@router.get("/studies", response_model=StudiesSchema, tags=["studies"])
def studies(bench: Here) -> Any:
    """Every study below the folder, newest first."""
    bench.table.refresh()
    found = []
    for path in list(bench.table.studies):
        try:
            check_links(bench.folder, path)
            found.append(listed(bench.table, path))
        except (OSError, NotThereError):  # removed since, or not allowed
            continue
    return {"studies": sorted(found, key=lambda one: -one["changed"])}


@router.get("/study/{name:path}", response_model=OpenedStudySchema, response_model_exclude_unset=True, tags=["studies"])
def study(name: str, bench: Here) -> Any:
    """Arms and seeds, the state of every run, and the time left."""
    folder = bench.study(name)
    bench.table.refresh(seconds=10)
    return opened(bench.table, folder)


@router.get("/results/{name:path}", response_model=ConclusionSchema, tags=["studies"])
async def results(name: str, bench: Here) -> Any:
    """What was measured and what follows from it so far, as in `headway study results --json`."""
    found = await bench.readers.ask("headway.workbench.studied:conclusion", folder=str(bench.study(name)))
    return found["told"]


@router.get("/conclusion/{name:path}", response_model=StudyPageSchema, tags=["studies"])
async def conclusion(name: str, bench: Here) -> Any:
    """The same with tables, figures, and drawings of the intervals."""
    return await bench.readers.ask("headway.workbench.studied:conclusion", folder=str(bench.study(name)))


@router.get("/plan/{name:path}", response_model=PlanSchema, tags=["studies"])
async def plan(name: str, bench: Here) -> Any:
    """What the whole study takes, as in `headway study plan --json`; every shape is measured briefly."""
    return await bench.planners.ask("headway.workbench.studied:plan", folder=str(bench.study(name)))


@router.get("/report/{name:path}", tags=["studies"])
def report(name: str, bench: Here) -> FileResponse:
    """The report of a study or exercise: one HTML file."""
    path = folder_with(bench.folder, name, "report.html", "report of") / "report.html"
    return FileResponse(path, media_type="text/html", headers={"content-security-policy": REPORT_POLICY})


@router.post("/resume/study/{name:path}", response_model=JobSchema, tags=["studies"])
def resume(name: str, bench: Here) -> Any:
    """Train the unfinished runs in a separate process."""
    folder = bench.study(name)
    return bench.jobs.start(["study", "run", folder.name, "--studies", str(folder.parent)])


@router.post("/stop/study/{name:path}", response_model=StoppedSchema, tags=["studies"])
def stop_study(name: str, bench: Here) -> Any:
    """Ask the process that trains it to save and stop, like Ctrl-C."""
    return {"stopped": name, "process": stop(bench.study(name))}


@router.get("/cases", response_model=CasesSchema, tags=["cases"])
def cases() -> Any:
    """The reported experiments and exercises, as in `headway cases --json`."""
    sizes = {name: {"quick": takes(name, True), "full": takes(name, False)} for name in packaged()}
    return {"cases": {name: {"title": title_of(name), **found} for name, found in sizes.items()}}


@router.get("/standings", response_model=StandingsSchema, response_model_exclude_unset=True, tags=["cases"])
async def standings(bench: Here) -> Any:
    """Every reported conclusion, and whether it holds in the studies of this folder."""
    where = {"studies": str(bench.studies), "home": str(bench.folder)}
    return {"cases": await bench.readers.ask("headway.workbench.studied:standings", **where)}


@router.get("/case/{name}", response_model=OpenedCaseSchema, response_model_exclude_unset=True, tags=["cases"])
async def case(name: str, bench: Here) -> Any:
    """One case: reported and measured results side by side."""
    _check(name)
    for folder in (bench.studies / folder_of(name, quick) for quick in (True, False)):
        if folder.is_dir():
            check_links(bench.folder, folder)
    found = await bench.readers.ask("headway.workbench.studied:case", studies=str(bench.studies), name=name)
    return {**found, "studies": bench.studies.relative_to(bench.folder).as_posix().removeprefix(".")}


class CaseWanted(BaseModel):
    quick: bool = True


@router.post("/case/{name}", response_model=JobSchema, tags=["cases"])
def run_case(name: str, wanted: CaseWanted, bench: Here) -> Any:
    """Run a case in a separate process."""
    _check(name)
    return bench.jobs.start(["case", name, *(["--quick"] if wanted.quick else []), "--studies", str(bench.studies)])


def _check(name: str) -> None:
    if name not in packaged():
        raise NotThereError(f"there is no case '{name}'{did_you_mean(name, packaged())}")


@router.get("/jobs", response_model=JobsSchema, tags=["jobs"])
def jobs(bench: Here) -> Any:
    """Jobs started from the page, newest first."""
    return {"jobs": bench.jobs.all()}


@router.get("/job/{name}", response_model=JobSchema, tags=["jobs"])
def job(name: str, bench: Here) -> Any:
    """One job: whether it runs, and its output."""
    return bench.jobs.told(name)


class TrainingWanted(BaseModel):
    recipe: str
    """A packaged recipe, or the name of a run or recipe file in the folder."""
    changes: list[str] = []
    name: str | None = None


@router.post("/train", response_model=JobSchema, tags=["jobs"])
def train(wanted: TrainingWanted, bench: Here) -> Any:
    """Start a training: `headway train RECIPE KEY=VALUE …`."""
    return bench.jobs.start(bench.training(wanted.recipe, wanted.changes, wanted.name))
