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

from headway.core.errors import UserError
from headway.core.files import checksum, write_folder_whole, write_json

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
        sums = {}
        for name, tensors in ((WEIGHTS, checkpoint.weights), (OPTIMIZER, checkpoint.optimizer)):
            content = safetensors.torch.save(tensors)  # not save_file, which hides a full disk in an error of its own
            (partial / name).write_bytes(content)
            sums[name] = checksum(content)
        facts = {"step": checkpoint.step, **checkpoint.facts}
        write_json(partial / FACTS, {**facts, "sha256": {**sums, FACTS: _sum_of(facts)}})

    write_folder_whole(folder, fill)


def load(folder: Path) -> Checkpoint:
    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        sums = facts.pop("sha256")
        contents = {name: (folder / name).read_bytes() for name in (WEIGHTS, OPTIMIZER)}
        found = {FACTS: _sum_of(facts)} | {name: checksum(content) for name, content in contents.items()}
        for name in found:
            if found[name] != sums[name]:
                raise BrokenCheckpointError(f"{folder / name} is not what was saved: its checksum differs")
        step = facts.pop("step")
        if folder.name[-8:].isdigit() and int(folder.name.rpartition("-")[2]) != step:
            raise BrokenCheckpointError(f"{folder} is not what was saved: it holds step {step}")
        return Checkpoint(step, facts, *(safetensors.torch.load(content) for content in contents.values()))
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


def step_folder(checkpoints: Path, step: int, kind: str = "step") -> Path:
    return checkpoints / f"{kind}-{step:08d}"


def saved_steps(checkpoints: Path, kind: str = "step") -> list[int]:
    """The steps that checkpoints exist for, newest first; whether they are good is seen on loading."""
    found = [f.name.removeprefix(f"{kind}-") for f in checkpoints.glob(f"{kind}-*") if f.is_dir()]
    return sorted((int(step) for step in found if step.isdigit()), reverse=True)
