"""A checkpoint of one replica: weights and optimizer as safetensors, the rest as JSON with checksums.

    step-00001000/
      weights.safetensors      no replica axis, so that it can be loaded into any population, or a single model
      optimizer.safetensors
      state.safetensors        only for a model that carries a state from batch to batch: the state of every row
      checkpoint.json          step, standing, and the sha256 of all files

Sampler, schedule and all random streams are functions of (seed, step), so only the step is saved.
"""

import hashlib
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from headway.core.errors import UserError
from headway.core.files import as_json, checksum, write_folder_whole
from headway.core.reading import UnreadableError, read_bytes, read_json

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.safetensors"
FACTS = "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    step: int
    facts: dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Tensor] = field(default_factory=dict)
    """The state that the model carries from batch to batch, [B, …]; empty if there is none."""

    @property
    def files(self) -> dict[str, dict[str, Tensor]]:
        return {WEIGHTS: self.weights, OPTIMIZER: self.optimizer, **({STATE: self.state} if self.state else {})}


class BrokenCheckpointError(UserError):
    """A checkpoint that cannot be trusted; the message names the file and what is wrong with it."""


def save(folder: Path, checkpoint: Checkpoint) -> None:
    def fill(partial: Path) -> None:
        sums = {}
        for name, tensors in checkpoint.files.items():
            content = safetensors.torch.save(tensors)  # not save_file, which hides a full disk in an error of its own
            (partial / name).write_bytes(content)
            sums[name] = checksum(content)
        facts = {"step": checkpoint.step, **checkpoint.facts}
        (partial / FACTS).write_bytes(as_json({**facts, "sha256": {**sums, FACTS: _sum_of(facts)}}).encode())

    write_folder_whole(folder, fill)


def load(folder: Path) -> Checkpoint:
    try:
        facts = read_json(folder / FACTS)
        sums = facts.pop("sha256")
        contents = {name: read_bytes(folder / name, None) for name in (WEIGHTS, OPTIMIZER, STATE) if name in sums}
        found = {FACTS: _sum_of(facts)} | {name: checksum(content) for name, content in contents.items()}
        for name in found:
            if found[name] != sums[name]:
                raise BrokenCheckpointError(f"{folder / name} is damaged: its checksum differs")
        step = facts.pop("step")
        if folder.name[-8:].isdigit() and int(folder.name.rpartition("-")[2]) != step:
            raise BrokenCheckpointError(f"{folder} does not match its name: it holds step {step}")
        return Checkpoint(step, facts, *(safetensors.torch.load(content) for content in contents.values()))
    except FileNotFoundError as error:
        raise BrokenCheckpointError(f"{error.filename} is missing") from None
    except UnreadableError as error:
        raise BrokenCheckpointError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise BrokenCheckpointError(f"{folder} cannot be read: {error}") from None


def pack(checkpoint: Checkpoint) -> bytes:
    """The checkpoint as bytes, to send it to another process."""
    contents = [safetensors.torch.save(tensors) for tensors in checkpoint.files.values()]
    head = json.dumps({"step": checkpoint.step, "facts": checkpoint.facts, "sizes": [len(c) for c in contents]})
    return b"\n".join((head.encode(), b"".join(contents)))


def unpack(packed: bytes) -> Checkpoint:
    head, _, tensors = packed.partition(b"\n")
    known = json.loads(head)
    ends = list(itertools.accumulate(known["sizes"], initial=0))
    contents = (tensors[begin:end] for begin, end in itertools.pairwise(ends))
    return Checkpoint(known["step"], known["facts"], *(safetensors.torch.load(content) for content in contents))


def _sum_of(facts: dict[str, Any]) -> str:
    """The checksum of the facts, which is stored beside them in the same file."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def step_folder(checkpoints: Path, step: int, kind: str = "step") -> Path:
    return checkpoints / f"{kind}-{step:08d}"


def saved_steps(checkpoints: Path, kind: str = "step") -> list[int]:
    """The steps that have checkpoints, newest first; whether they are intact is checked on loading."""
    found = {f.name: f.name.removeprefix(f"{kind}-") for f in checkpoints.glob(f"{kind}-*") if f.is_dir()}
    steps = {name: int(step) for name, step in found.items() if step.isdecimal()}
    return sorted((n for name, n in steps.items() if step_folder(checkpoints, n, kind).name == name), reverse=True)
