"""The models that pages looked at recently, kept loaded in a worker (`bench.models`).

A run in training gets new weights from time to time, so the cache key includes its checkpoints.
"""

from collections import OrderedDict
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.workbench.looking.subject import Subject
from headway.workbench.workers import MODELS

QUESTIONS = ("about", "maps", "numbers", "map", "rollout", "losses", "each_off", "gradients")
QUESTIONS += ("classify", "translate", "fill", "write", "match")

_KEPT: OrderedDict[tuple[str, ...], Subject] = OrderedDict()


def answer(folder: str, question: str, checkpoint: str = "auto", trust: bool = False, **given: Any) -> bytes:
    """Answer a question about a run's model, as a frame (`frames.py`)."""
    if question not in QUESTIONS:
        raise UserError(f"unknown question '{question}'; there are: {', '.join(QUESTIONS)}")
    try:
        return getattr(_subject(Path(folder), checkpoint, trust), question)(**given)
    except (MemoryError, RuntimeError) as fault:
        if not isinstance(fault, MemoryError) and "memory" not in str(fault):
            raise
        _KEPT.clear()
        raise UserError("not enough memory: try a shorter text or a smaller model") from None


def _subject(folder: Path, checkpoint: str, trust: bool) -> Subject:
    key = (str(folder), checkpoint, *_saved(folder))
    if key not in _KEPT:
        for other in [other for other in _KEPT if other[:2] == key[:2]]:
            del _KEPT[other]
        while len(_KEPT) >= MODELS:
            _KEPT.popitem(last=False)
        _KEPT[key] = Subject(folder, checkpoint, trust)
    _KEPT.move_to_end(key)
    return _KEPT[key]


def _saved(folder: Path) -> list[str]:
    home = folder / "checkpoints"
    return sorted(f"{one.name} {one.stat().st_mtime_ns}" for one in home.iterdir()) if home.is_dir() else []
