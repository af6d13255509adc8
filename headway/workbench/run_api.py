"""The API of runs: the table, single runs, their curves, comparisons; and a stream of events."""

import shlex
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from headway import __version__
from headway.answers.run_summaries import listed_as_json
from headway.answers.runs import RunsSchema, SampleSchema
from headway.answers.workbench import (
    AboutSchema,
    ComparedSchema,
    CurvesSchema,
    JobSchema,
    OpenedRunSchema,
    RecipeDifferenceSchema,
    RunTableSchema,
    StoppedSchema,
)
from headway.core.errors import UserError
from headway.core.events import read_events
from headway.run.record import RunRecord, read_json
from headway.run.status import state_of
from headway.workbench.bench import Bench, Here
from headway.workbench.jobs import stop
from headway.workbench.paths import check_links
from headway.workbench.recipes import compared, keys_of
from headway.workbench.runs import recipe_of, word_of

router = APIRouter(prefix="/api", tags=["runs"])
Names = Annotated[list[str], Query(alias="run", description="May be repeated.", max_length=100)]
Points = Annotated[int, Query(ge=2, le=20_000, description="The most points per curve.")]


@router.get("/about", response_model=AboutSchema)
def about(bench: Here) -> Any:
    """What this server shows."""
    return {"folder": str(bench.folder), "read_only": bench.read_only, "headway": __version__}


@router.get("/table", response_model=RunTableSchema)
async def table(bench: Here) -> Any:
    """A row for every run below the folder, as listed on the page."""
    await run_in_threadpool(bench.table.refresh)
    bench.table.read_on()
    return Response(bench.table.as_json(), media_type="application/json")


@router.get("/runs", response_model=RunsSchema, response_model_exclude_unset=True)
def runs(
    bench: Here, offset: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Any:
    """Runs with all their facts, as in `headway runs --json`."""
    bench.table.refresh()
    found = []
    for path in sorted(bench.table.rows)[offset : offset + limit]:
        try:
            check_links(bench.folder, path)
            found.append(listed_as_json(RunRecord(path)))
        except UserError:  # the table shows the reason
            continue
    return {"runs": found}


@router.get("/run/{name:path}", response_model=OpenedRunSchema, response_model_exclude_unset=True)
def run(name: str, bench: Here) -> Any:
    """One run: its state, scores, audits, recipe key by key, environment, and the command that makes it again."""
    folder = bench.run(name)
    record, state = RunRecord(folder), state_of(folder)
    above = [one for one in folder.parents if one.is_relative_to(bench.folder)]
    study = next((one for one in above if (one / "study.yaml").is_file()), None)
    environment = read_json(folder / "environment.json") if (folder / "environment.json").exists() else {}
    return {
        **listed_as_json(record),
        "name": name,
        "said": str(state),
        "word": word_of(state),
        "study": study and bench.table.name_of(study),
        "recipe": [key.as_json() for key in keys_of(record.recipe_text())],
        "environment": environment,
        "began_from": recipe_of(folder),
        "command": command_of(bench, folder, environment),
        "events": [event.as_json() for event in read_events(folder)][-200:],
    }


def command_of(bench: Bench, folder: Path, environment: dict[str, Any]) -> str:
    """The command that makes this run again: its own if there is one, otherwise one that uses its recipe.yaml."""
    words = environment.get("command")
    if isinstance(words, list) and words[1:2] == ["train"] and "--vary" not in words:
        return shlex.join(["headway", *map(str, words[1:])])
    return shlex.join(["headway", "train", bench.recipe_of(folder), "--name", f"{folder.name}-again"])


@router.get("/metrics/{name:path}", response_model=CurvesSchema)
def metrics(name: str, bench: Here, points: Points = 2000) -> Any:
    """All curves of one run."""
    return bench.curves.of(bench.run(name)).as_json(points)


@router.get("/curves")
def curves(bench: Here, run: Names, points: Points = 40, column: str = "loss") -> dict[str, Any]:
    """One small curve for each of several runs: the rows visible on the screen."""
    found = {}
    for name in run:
        columns = bench.curves.of(bench.run(name)).as_json(points)["columns"]
        found[name] = columns.get(column) or next(iter(columns.values()), {"steps": [], "values": []})
    return found


@router.get("/compare", response_model=ComparedSchema)
def compare(bench: Here, run: Names) -> Any:
    """Differences between the recipes of several runs."""
    return {"runs": run, "keys": compared([keys_of(RunRecord(bench.run(name)).recipe_text()) for name in run])}


@router.get("/difference/{name:path}", response_model=RecipeDifferenceSchema)
async def difference(name: str, bench: Here) -> Any:
    """Differences between a run's recipe and the packaged recipe that its command named, as it is now."""
    folder = bench.run(name)
    base = recipe_of(folder)
    if base is None:
        raise UserError("the recipe that this run started from is unknown")
    whole = await bench.readers.ask("headway.workbench.recipes:packaged_whole", name=base)
    return {"base": base, "keys": compared([keys_of(whole), keys_of(RunRecord(folder).recipe_text())])}


@router.get("/events")
async def events(bench: Here, topic: Annotated[list[str], Query(max_length=50)]) -> StreamingResponse:
    """Events as server-sent events: `runs`, `run:NAME@BYTE`, `study:NAME`."""
    told = bench.hub.listen(topic)
    first = await anext(told)  # an unknown topic is answered with an error instead of a stream

    async def stream():
        try:
            yield first
            async for message in told:
                yield message
        finally:
            await told.aclose()

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


@router.post("/stop/run/{name:path}", response_model=StoppedSchema)
def stop_run(name: str, bench: Here) -> Any:
    """Ask the process that trains it to save and stop, like Ctrl-C."""
    return {"stopped": name, "process": stop(bench.run(name))}


@router.post("/resume/run/{name:path}", response_model=JobSchema)
def resume_run(name: str, bench: Here) -> Any:
    """Resume from its last checkpoint, in a separate process."""
    folder = bench.run(name)
    words = ["train", bench.recipe_of(folder), "--name", folder.name, "--runs", str(folder.parent), "--resume"]
    return bench.jobs.start(words)


class SampleWanted(BaseModel):
    prompt: str = "\n"
    tokens: int = Field(default=200, ge=1, le=2000)
    temperature: float = Field(default=0.8, ge=0, le=10)
    seed: int = Field(default=0, ge=0)


@router.post("/ask/sample/{name:path}", response_model=SampleSchema, response_model_exclude_unset=True)
async def sample(name: str, wanted: SampleWanted, bench: Here) -> Any:
    """Generate text, as with `headway sample --json`."""
    folder = str(bench.run(name))
    given = {"folder": folder, **wanted.model_dump()}
    return await bench.models.ask("headway.workbench.sampled:sample", about=folder, **given)
