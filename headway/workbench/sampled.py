"""Generates text in the worker that keeps models loaded."""

from pathlib import Path
from typing import Any


def sample(folder: str, prompt: str, tokens: int, temperature: float, seed: int) -> dict[str, Any]:
    """The answer of `headway sample --json`."""
    from headway.experiment.evaluate import sample_text
    from headway.run.folder import open_run
    from headway.tasks.abilities import Draw

    run = open_run(folder, Path())
    text, note = sample_text(run, prompt, Draw(tokens, temperature, None, None, seed), "auto", lambda piece: None)
    return {"run": folder, "prompt": prompt, "text": text, "note": note}
