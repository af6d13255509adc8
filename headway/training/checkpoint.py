"""One replica at one step, as a folder: weights and optimizer as safetensors, the rest as JSON with checksums.

    step-00001000/
      weights.safetensors      no replica axis: any population, or none, can take it up
      optimizer.safetensors
      checkpoint.json          step, standing, and the sha256 of all three

Sampler, schedule and every random stream are functions of (seed, step), so the step is all there is to save of them.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
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
        # Not by save_file, which hides a full disk in an error of its own.
        (partial / WEIGHTS).write_bytes(safetensors.torch.save(checkpoint.weights))
        (partial / OPTIMIZER).write_bytes(safetensors.torch.save(checkpoint.optimizer))
        sums = {name: checksum(partial / name) for name in (WEIGHTS, OPTIMIZER)}
        facts = {"step": checkpoint.step, **checkpoint.facts}
        write_json(partial / FACTS, {**facts, "sha256": {**sums, FACTS: _sum_of(facts)}})

    write_folder_whole(folder, fill)


def load(folder: Path) -> Checkpoint:
    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        sums = facts.pop("sha256")
        found = {name: checksum(folder / name) for name in (WEIGHTS, OPTIMIZER)} | {FACTS: _sum_of(facts)}
        for name in found:
            if found[name] != sums[name]:
                raise BrokenCheckpointError(f"{folder / name} is not what was saved: its checksum differs")
        step = facts.pop("step")
        weights, optimizer = (safetensors.torch.load_file(folder / name) for name in (WEIGHTS, OPTIMIZER))
        return Checkpoint(step, facts, weights, optimizer)
    except FileNotFoundError as error:
        raise BrokenCheckpointError(f"{error.filename} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise BrokenCheckpointError(f"{folder} cannot be read: {error}") from None


def pack(checkpoint: Checkpoint) -> bytes:
    """As one piece, to be sent to another process."""
    weights, optimizer = (safetensors.torch.save(t) for t in (checkpoint.weights, checkpoint.optimizer))
    head = json.dumps({"step": checkpoint.step, "facts": checkpoint.facts, "weights": len(weights)})
    return b"\n".join((head.encode(), weights + optimizer))


def unpack(packed: bytes) -> Checkpoint:
    head, _, tensors = packed.partition(b"\n")
    known = json.loads(head)
    cut = known["weights"]
    weights, optimizer = (safetensors.torch.load(part) for part in (tensors[:cut], tensors[cut:]))
    return Checkpoint(known["step"], known["facts"], weights, optimizer)


def _sum_of(facts: dict[str, Any]) -> str:
    """Of the facts themselves, which stand beside it in the same file."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def step_folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08d}"


def saved_steps(checkpoints: Path) -> list[int]:
    """The steps that checkpoints exist for, newest first; whether they are good is seen on loading."""
    found = [f.name.removeprefix("step-") for f in checkpoints.glob("step-*") if f.is_dir()]
    return sorted((int(step) for step in found if step.isdigit()), reverse=True)
