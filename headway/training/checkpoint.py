"""One replica at one step, as a folder: weights and optimizer as safetensors, the rest as JSON with checksums.

    step-00001000/
      weights.safetensors      no replica axis: any population, or none, can take it up
      optimizer.safetensors
      checkpoint.json          step, standing, and the sha256 of the two files

Sampler, schedule and every random stream are functions of (seed, step), so the step is all there is to save of them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.errors import UserError
from headway.files import checksum, write_folder_whole, write_json

WEIGHTS, OPTIMIZER, FACTS = "weights.safetensors", "optimizer.safetensors", "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    step: int
    facts: dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


class BrokenCheckpointError(UserError):
    """A checkpoint that cannot be trusted; the message names the file and what is wrong with it."""


def save(folder: Path, checkpoint: Checkpoint) -> None:
    def fill(partial: Path) -> None:
        save_file(checkpoint.weights, partial / WEIGHTS)
        save_file(checkpoint.optimizer, partial / OPTIMIZER)
        sums = {name: checksum(partial / name) for name in (WEIGHTS, OPTIMIZER)}
        write_json(partial / FACTS, {"step": checkpoint.step, **checkpoint.facts, "sha256": sums})

    write_folder_whole(folder, fill)


def load(folder: Path) -> Checkpoint:
    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        step, sums = facts.pop("step"), facts.pop("sha256")
        for name in (WEIGHTS, OPTIMIZER):
            if checksum(folder / name) != sums[name]:
                raise BrokenCheckpointError(f"{folder / name} is not what was saved: its checksum differs")
        return Checkpoint(step, facts, load_file(folder / WEIGHTS), load_file(folder / OPTIMIZER))
    except FileNotFoundError as error:
        raise BrokenCheckpointError(f"{error.filename} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise BrokenCheckpointError(f"{folder} cannot be read: {error}") from None


def step_folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08d}"


def saved_steps(checkpoints: Path) -> list[int]:
    """The steps that checkpoints exist for, newest first; whether they are good is seen on loading."""
    found = [f.name.removeprefix("step-") for f in checkpoints.glob("step-*") if f.is_dir()]
    return sorted((int(step) for step in found if step.isdigit()), reverse=True)
