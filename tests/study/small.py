"""A study that trains in a moment: one layer, a few steps, a text of sixty lines."""

from pathlib import Path
from typing import Any

from tiny import tiny_recipe

from headway.study.design.study import Study

QUICK = ["training.duration=4 steps", "training.schedule.warmup=1 step", "training.checkpoint_every=2 steps"]


def small_study(text: Path, **changed: Any) -> Study:
    given: dict[str, Any] = {
        "title": "Do learned positions help?",
        "base": tiny_recipe(text).model_dump(mode="json"),
        "changes": QUICK,
        "arms": {"none": ["model.positions=none"], "learned": []},
        "seeds": 2,
        "questions": [{"kind": "better", "arm": "learned", "than": "none"}],
    }
    return Study.model_validate({**given, **changed})
