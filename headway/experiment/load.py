"""Loads the trained model of a run, and refuses weights that cannot be used."""

from typing import Any

import torch

from headway import tasks
from headway.core.errors import UserError
from headway.run.folder import Run
from headway.training.checkpoint import Checkpoint
from headway.training.population import load_weights


def load_model(run: Run, which: str = "auto", device: str | None = None) -> tuple[Any, Checkpoint]:
    """The trained model of a run, as a population of one, and its checkpoint."""
    saved = run.checkpoint(which)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = tasks.of(run.recipe).rebuild(run, device)
    load_weights(model, 0, saved.weights)
    model.eval()
    return model, saved


def load_usable(run: Run, which: str = "auto") -> tuple[Any, Checkpoint]:
    """Load a model for evaluation. Refuses the weights of a diverged training."""
    model, saved = load_model(run, which)
    check_usable(run, saved)
    return model, saved


def check_usable(run: Run, saved: Checkpoint) -> None:
    """Refuse the weights of a diverged training."""
    status = run.status
    if status.is_diverged and saved.step >= (status.step or 0):
        other = "; --checkpoint best has the best weights before that" if run.has_best else ""
        remedy = "train it again with a lower training.optimizer.learning_rate or a longer warm-up"
        raise UserError(f"{run.name} {status}: its weights cannot be used; {remedy}{other}")
