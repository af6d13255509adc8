"""A GPT-2 folder as a run: `headway import`.

The run has a recipe, a tokenizer and one checkpoint, at step 0, with an optimizer that has not moved yet: it can be
scored, sampled, trained on with --resume, and exported again, as any other run.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from headway.core.errors import UserError
from headway.core.files import check_names
from headway.core.status import State, Status
from headway.data.tokenizers import Tokenizer
from headway.formats import gpt2
from headway.formats import tokenizer as vocabulary
from headway.formats.hub import fetch_model
from headway.recipe.recipe import Recipe, from_tree
from headway.run.folder import Run, check_new
from headway.training.averaging import Averages
from headway.training.population import Population, load_weights

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAY_CHANGE = ("model.dropout", "model.mixer.dropout", "model.mixer.backend")
"""What of a model is not settled by its weights."""


@dataclass(frozen=True)
class Imported:
    run: Run
    parameters: int
    vocabulary: int
    notes: Sequence[str]
    """What was chosen, and why."""

    def as_json(self) -> dict[str, Any]:
        counts = {"parameters": self.parameters, "vocabulary": self.vocabulary}
        return {"run": str(self.run.folder), **counts, "notes": list(self.notes)}


def located(source: str, name: str | None) -> tuple[Path, str | None]:
    """The folder of a model given as a path or as `hub:owner/name`, and the name its run is to have."""
    if not source.startswith("hub:"):
        return Path(source), name
    repository = source.removeprefix("hub:")
    return fetch_model(repository), name or repository.partition("@")[0].rsplit("/", 1)[-1]


def import_folder(folder: Path, name: str | None, runs: Path, changes: Sequence[str] = ()) -> Imported:
    """Make a run of a GPT-2 that transformers, or `headway export`, wrote. All is read before the run is made."""
    if not folder.is_dir():
        raise UserError(
            f"there is no folder '{folder}'; expected one with config.json, {WEIGHTS} and {vocabulary.FILE}"
        )
    name = name or folder.resolve().name
    check_names([name])
    home = runs / name
    check_new(home)
    config = _read_json(folder / "config.json")
    model_tree, notes = gpt2.model_tree(config)
    tree = {"model": model_tree, "data": {"tokenizer": {"kind": "given", "path": str(home / "tokenizer.json")}}}
    _check(changes)
    recipe = from_tree(tree, str(folder / "config.json"), overrides=changes)
    if not any(change.startswith("data.source") for change in changes):
        notes.append(
            f"data.source={recipe.data.source}, because no folder says what its model was trained on: "
            "data.source=… and data.path=… name the text to score or to train on"
        )
    rows = config.get(*gpt2.VOCABULARY)
    if not isinstance(rows, int) or rows < 1:
        raise UserError(f"{folder / 'config.json'}: vocab_size: expected a whole number of tokens, not {rows!r}")
    tensors = _read_weights(folder)
    weights = gpt2.from_gpt2(tensors, gpt2.written(recipe), rows)
    if kept := sorted({str(t.dtype).removeprefix("torch.") for t in tensors.values()} - {"float32", "bool", "uint8"}):
        notes.append(f"the weights were {', '.join(kept)}, and are float32 now")
    tokenizer, more = vocabulary.read_tokenizer(folder / vocabulary.FILE, rows)
    run = _make(home, recipe, tokenizer, weights, folder.resolve().name)
    return Imported(run, sum(w.numel() for w in weights.values()), rows, [*notes, *more])


def _make(home: Path, recipe: Recipe, tokenizer: Tokenizer, weights: dict[str, Tensor], origin: str) -> Run:
    model = gpt2.written(recipe).build(tokenizer.size, [recipe.seed])
    load_weights(model, 0, weights)
    spec, averaging = recipe.training.optimizer, recipe.training.averaging
    parameters = dict(model.named_parameters())
    optimizer = spec.build(parameters, [spec.learning_rate], [spec.weight_decay])
    averages = averaging and Averages(averaging, parameters, total=0)
    run = Run.create(home, recipe, "cpu", imported_from=origin)
    try:
        run.tokenizer = tokenizer
        run.save_checkpoint(Population(model, optimizer, 1, averages=averages).slice(0, 0))
        run.note(**Status(State.IMPORTED, 0).as_json())
    except BaseException:  # half a run folder would only be in the way
        shutil.rmtree(home, ignore_errors=True)
        raise
    return run


def _check(changes: Sequence[str]) -> None:
    """The folder settles the model and the tokenizer; the rest of the recipe is free."""
    for key in (change.partition("=")[0].strip() for change in changes):
        if key.split(".")[0] == "model" and key not in MAY_CHANGE:
            raise UserError(
                f"{key} is settled by config.json and the weights; of a model only {', '.join(MAY_CHANGE)} change"
            )
        if key == "data" or f"{key}.".startswith("data.tokenizer."):
            raise UserError(f"{key} is settled by the folder's {vocabulary.FILE}")


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors, from one file or from the several that an index names."""
    if (folder / WEIGHTS).exists():
        return _read_safetensors(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise UserError(_why_no_weights(folder))
    named = _read_json(folder / INDEX).get("weight_map")
    parts = sorted(set(named.values())) if isinstance(named, dict) else []
    if not parts or not all(isinstance(part, str) and Path(part).name == part for part in parts):
        raise UserError(f"{folder / INDEX} names no files of this folder (weight_map)")
    return {key: tensor for part in parts for key, tensor in _read_safetensors(folder / part).items()}


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing, but {INDEX} names it") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _why_no_weights(folder: Path) -> str:
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in folder.glob(pattern))
    if not pickles:
        return f"{folder} has no {WEIGHTS}"
    again = f"AutoModelForCausalLM.from_pretrained('{folder}').save_pretrained('{folder}')"
    return (
        f"{folder} has its weights only as pickle ({pickles[0]}), which is not read: unpickling runs whatever code "
        f"the file holds. If you trust it, transformers writes {WEIGHTS} with {again}"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: is this the folder of a model?") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected keys and values")
    return content
