"""`/api/ask/look/…`: questions about a run's model. Answers are frames (`frames.py`)."""

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
    """The parameters of all questions; each uses some of them."""

    model_config = ConfigDict(extra="forbid")

    run: str
    checkpoint: str = "auto"
    text: str | None = Field(default=None, max_length=200_000)
    stack: str | None = None
    layer: int | None = None
    head: int | None = None
    row: int | None = None
    """For gradients: the token after which the prediction is made."""
    off: list[tuple[str, int, int]] | None = Field(default=None, max_length=4096)
    """Heads to switch off: stack, layer, head."""
    image: str | None = Field(default=None, max_length=200)
    """A picture of the run's own data: test:3; or …"""
    picture: str | None = Field(default=None, max_length=900_000)
    """… any picture: the bytes of a PNG, JPEG or similar file in base64."""
    seed: int | None = None


@router.post("/{question}", response_class=Response, responses={200: {"content": {"application/octet-stream": {}}}})
async def look(question: Question, asked: AskedOfModel, bench: Here) -> Response:
    """Small maps of all heads, one full map, rollout, losses with heads off, gradients; and what the model outputs."""
    given: dict[str, Any] = asked.model_dump(exclude={"run"}, exclude_none=True)
    folder = str(bench.run(asked.run))
    given |= {"folder": folder, "question": question}
    frame = await bench.models.ask("headway.workbench.looking.kept:answer", about=folder, **given)
    return Response(frame, media_type="application/octet-stream")


@router.get("/colours")
def colours() -> dict[str, list[list[int]]]:
    """The colour scales of weights and differences, the same as in every picture: 256 steps each."""
    return {"weights": WEIGHTS.colours.tolist(), "differences": DIFFERENCES.colours.tolist()}
