"""A run as a folder that others read: `headway export`.

FOLDER/
  model.safetensors       GPT-2's names and layout
  config.json
  tokenizer.json          text to ids, as the run did it
  tokenizer_config.json
  README.md               what the model is, what it scored, and how to load it
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch

from headway import __version__
from headway.core.errors import UserError, did_you_mean
from headway.core.files import write_folder_whole
from headway.core.format import number
from headway.experiment.train import load_model
from headway.formats import gpt2, tokenizer
from headway.recipe.text import annotated
from headway.run.folder import Run
from headway.scoring.score import Score

FORMATS = ("gpt2",)


@dataclass(frozen=True)
class Exported:
    run: Run
    folder: Path
    step: int
    files: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        return {"run": str(self.run.folder), "folder": str(self.folder), "step": self.step, "files": list(self.files)}


def export_run(run: Run, to: str, folder: Path | None, which: str = "auto") -> Exported:
    """Write a run's model in another format. All of it is made before anything is written."""
    if to not in FORMATS:
        raise UserError(f"there is no format '{to}' to export to{did_you_mean(to, FORMATS)}")
    if reasons := gpt2.why_not(run.recipe):
        raise UserError(f"{run.name} has no GPT-2 form:\n" + "\n".join(f"  {reason}" for reason in reasons))
    folder = folder or Path(f"{run.name}-{to}")
    if folder.exists():
        raise UserError(f"{folder} exists: remove it, or name another folder with -o")
    model, saved = load_model(run, which)
    library = tokenizer.library_of(run.tokenizer)
    spec = gpt2.written(run.recipe)
    config = gpt2.config_of(spec, model.vocabulary, library.token_to_id(tokenizer.END_OF_TEXT))
    scores = run.scores() if which == "auto" else []
    files: dict[str, bytes] = {
        # The metadata is what transformers goes by to know whose layout the tensors have.
        "model.safetensors": safetensors.torch.save(gpt2.to_gpt2(saved.weights, spec), {"format": "pt"}),
        "config.json": _json(config),
        tokenizer.FILE: library.to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(tokenizer.tokenizer_config(library, spec.context)),
        "README.md": _card(run, saved.step, scores).encode(),
    }

    def fill(partial: Path) -> None:
        for name, content in files.items():
            (partial / name).write_bytes(content)

    try:
        write_folder_whole(folder, fill)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; nothing was left behind") from None
    return Exported(run, folder, saved.step, sorted(files))


def _card(run: Run, step: int, scores: Sequence[Score]) -> str:
    recipe, shape, heads = run.recipe, run.recipe.model, run.recipe.model.mixers[0].number_of_heads
    told = "\n".join(f"- **{s.name}** {number(s.value)}: {s.label}" for s in scores)
    unscored = "This checkpoint was not scored: `headway score` does that."
    fence = "```"
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [headway, gpt2]
---
# {run.name}

A GPT-2 of {shape.layers} layers, {heads} heads and width {shape.width}, from Headway {__version__}:
{_history(run, step)}, recipe {recipe.hash}.

{fence}python
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = (kind.from_pretrained("FOLDER") for kind in (AutoModelForCausalLM, AutoTokenizer))
{fence}

## Scores
{told or unscored}

## Text
{_ABOUT_TEXT[run.tokenizer.kind]} The longest sequence is {shape.context} tokens.

## Recipe
{fence}yaml
{annotated(recipe)}{fence}
"""


def _history(run: Run, step: int) -> str:
    facts, recipe = run.facts, run.recipe
    origin = f"imported from {facts['imported_from']}, " if "imported_from" in facts else ""
    trained = f"trained on {recipe.data.source}, seed {recipe.seed}, step {step:,} ({run.status})"
    return origin + (trained if step else "not trained here")


_ABOUT_TEXT = {
    "char": "One token per character. A character that the training text lacked is an error, not an unknown token.",
    "word": "One token per word and one per line end; other words become `<unk>`. Decoding puts single spaces between "
    "words, whatever stood there.",
    "bpe": "Byte pairs: any text can be encoded, and decoding gives it back byte for byte.",
}


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
