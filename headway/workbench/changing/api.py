"""`/api/ask/change`, `/api/change/…`: recipe forms, estimates of what changes take, and starting them."""

import shlex
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from headway.core.errors import UserError, did_you_mean
from headway.core.files import check_names, write_whole
from headway.recipe.library import packaged
from headway.workbench.bench import Bench, Here

router = APIRouter(tags=["change"])
READS = "headway.workbench.changing.changes"

Changes = Annotated[list[Annotated[str, Field(max_length=10_000)]], Field(max_length=200)]


class Changed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    recipe: str | None = None
    """A packaged recipe; or …"""
    run: str | None = None
    """… the recipe of a run."""
    changes: Changes = []
    """key.path=value, as on the command line."""


class ChangedStudy(Changed):
    seeds: int = Field(default=5, ge=1, le=64)
    name: str | None = Field(default=None, max_length=120)


class ChangedRun(Changed):
    name: str | None = Field(default=None, max_length=120)


@router.get("/api/recipes")
async def recipes(bench: Here) -> dict[str, str]:
    """The packaged recipes, each with a one-sentence description."""
    return await bench.readers.ask(f"{READS}:bases")


@router.post("/api/ask/change")
async def form(asked: Changed, bench: Here) -> dict[str, Any]:
    """The form, its errors, the differences from the original, the equivalent command, and where results would go:
    always into the served folder, since a page changes nothing elsewhere."""
    found = await bench.readers.ask(f"{READS}:form", **_given(asked, bench))
    return {**found, "goes_to": {"runs": bench.shown(bench.runs), "studies": bench.shown(bench.studies)}}


@router.post("/api/ask/change/takes")
async def takes(asked: ChangedStudy, bench: Here) -> dict[str, Any]:
    """Parameters, steps, seconds and memory of the original and of the change, measured on a few steps."""
    return await bench.planners.ask(f"{READS}:takes", seeds=asked.seeds, **_given(asked, bench))


@router.post("/api/ask/change/study")
async def study(asked: ChangedStudy, bench: Here) -> dict[str, str]:
    """A study that compares the change with the original, and the command to run it in a terminal."""
    text = await bench.readers.ask(f"{READS}:study_text", seeds=asked.seeds, **_given(asked, bench))
    words = _study_words(bench, asked.name or "my-change")
    return {"text": text, "command": shlex.join(["headway", *words])}


@router.post("/api/change/train")
async def train(asked: ChangedRun, bench: Here) -> dict[str, Any]:
    """Train the changed recipe. Returns the job, and the name of the run to come."""
    given = _given(asked, bench)
    found = await bench.readers.ask(f"{READS}:form", **given)
    if found["complaints"]:
        raise UserError("\n".join(one["line"] for one in found["complaints"]))
    name = _new(asked.name or found["name"], bench.runs, "a run")
    job = bench.jobs.start(["train", given["shown"], *asked.changes, "--name", name, "--runs", bench.shown(bench.runs)])
    return {**job, "run": bench.table.name_of(bench.runs / name)}


@router.post("/api/change/study")
async def start_study(asked: ChangedStudy, bench: Here) -> dict[str, Any]:
    """Run a study of the change and the original. Returns the job, and the name of the study."""
    given = _given(asked, bench)
    text = await bench.readers.ask(f"{READS}:study_text", seeds=asked.seeds, **given)
    found = await bench.readers.ask(f"{READS}:form", **given)
    home = bench.studies
    name = _new(asked.name or found["name"], home, "a study")
    try:
        home.mkdir(exist_ok=True)
        write_whole(home / f"{name}.yaml", text)
    except OSError as error:
        raise UserError(f"cannot write the study to {home}: {error.strerror}") from None
    return {**bench.jobs.start(_study_words(bench, name)), "study": bench.table.name_of(home / name)}


def _study_words(bench: Bench, name: str) -> list[str]:
    file, home = bench.shown(bench.studies / f"{name}.yaml"), bench.shown(bench.studies)
    return ["study", "run", file, "--studies", home]


def _given(asked: Changed, bench: Bench) -> dict[str, Any]:
    """The base recipe, as a path for a reader, and as a command in the served folder names it."""
    if (asked.recipe is None) == (asked.run is None):
        raise UserError("give either a recipe or a run to change")
    if asked.run is not None:
        run = bench.run(asked.run)
        return {"base": str(run / "recipe.yaml"), "shown": bench.recipe_of(run), "changes": asked.changes}
    if asked.recipe not in (known := packaged()):
        raise UserError(f"there is no recipe '{asked.recipe}'{did_you_mean(asked.recipe or '', known)}")
    return {"base": asked.recipe, "shown": asked.recipe, "changes": asked.changes}


def _new(name: str, home: Path, what: str) -> str:
    """Check that a name is valid and not used yet."""
    check_names([name], what)
    if (home / name).exists() or (home / f"{name}.yaml").exists():
        raise UserError(f"there is already {what} {name}: choose another name")
    return name
