"""`/api/ask/look/…`: what a page, or a program, asks of a run's model. Answers are frames (`frames.py`)."""

from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from headway.draw.colours import DIFFERENCES, WEIGHTS
from headway.workbench.bench import Here

router = APIRouter(prefix="/api/ask/look", tags=["look"])

Question = Literal[
    "about",
    "maps",
    "numbers",
    "map",
    "rollout",
    "losses",
    "each_off",
    "gradients",
    "classify",
    "translate",
    "fill",
    "write",
    "match",
]


class AskedOfModel(BaseModel):
    """What each question needs besides the run; the rest is left out."""

    model_config = ConfigDict(extra="forbid")

    run: str
    checkpoint: str = "auto"
    text: str | None = Field(default=None, max_length=200_000)
    stack: str | None = None
    layer: int | None = None
    head: int | None = None
    row: int | None = None
    """Of gradients: after which token."""
    off: list[tuple[str, int, int]] | None = Field(default=None, max_length=4096)
    """Heads to be switched off: stack, layer, head."""
    image: str | None = Field(default=None, max_length=200)
    """Of the run's own data: test:3; or …"""
    picture: str | None = Field(default=None, max_length=900_000)
    """… anybody's: a PNG, JPEG or the like, its bytes in base64."""
    seed: int | None = None


@router.post("/{question}", response_class=Response, responses={200: {"content": {"application/octet-stream": {}}}})
async def look(question: Question, asked: AskedOfModel, bench: Here) -> Response:
    """Maps of all heads (small), one of them whole, rollout, losses with heads off, gradients; what the model does."""
    given: dict[str, Any] = asked.model_dump(exclude={"run"}, exclude_none=True)
    folder = str(bench.run(asked.run))
    given |= {"folder": folder, "question": question}
    frame = await bench.models.ask("headway.workbench.looking.kept:answer", about=folder, **given)
    return Response(frame, media_type="application/octet-stream")


@router.get("/colours")
def colours() -> dict[str, list[list[int]]]:
    """What weights and differences are painted in, here as in every picture: 256 steps each."""
    return {"weights": WEIGHTS.colours.tolist(), "differences": DIFFERENCES.colours.tolist()}
