"""`headway export`: writes a run as a folder that other libraries load.

FOLDER/
  model.safetensors       with the names and layout of GPT-2, Marian or BERT
  config.json             and for Marian generation_config.json: how the recipe decodes
  tokenizer.json          text to ids, as in the run; for an imported Marian, the files it came with
  tokenizer_config.json
  README.md               what the model is, what it scored, and how to load it
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from headway import __version__
from headway.core.errors import UserError, did_you_mean
from headway.core.files import write_folder_whole
from headway.core.format import number
from headway.experiment.load import load_model
from headway.formats import bert, bert_config, gpt2, marian, marian_config, marian_tokenizers, tokenizer
from headway.formats.misfit import Misfit
from headway.models.classifier import ClassifierSpec
from headway.models.masked_language_model import MaskedLanguageModelSpec
from headway.models.spec import ModelSpec
from headway.recipe.recipe import Recipe
from headway.recipe.text import annotated
from headway.run.folder import Run
from headway.scoring.score import Score
from headway.tasks.classification import classes_of
from headway.tasks.translation import tokenizers_of


@dataclass(frozen=True)
class Exported:
    run: Run
    folder: Path
    step: int
    files: Sequence[str]
    format: str

    def as_json(self) -> dict[str, Any]:
        return {"run": str(self.run.folder), "folder": str(self.folder), "step": self.step, "files": list(self.files)}

    @property
    def loads(self) -> str:
        """The classes of transformers that load it."""
        return FORMATS[self.format].loads


@dataclass(frozen=True)
class Format:
    """A model format of other libraries."""

    why_not: Callable[[ModelSpec], list[Misfit]]
    """Everything about a model that the format cannot represent."""
    files: Callable[[Run, Mapping[str, Tensor]], dict[str, bytes]]
    """All files except the model card, from the weights of a run."""
    what: str
    """The model's name, such as GPT-2."""
    loads: str
    pipeline: str


def export_run(run: Run, to: str | None, folder: Path | None, which: str = "auto") -> Exported:
    """Write a run's model in another format; None = the usual one for its kind. Everything is prepared before anything
    is written."""
    usual = "bert" if run.recipe.model.reads_rows else "gpt2"
    usual = "bert-encoder" if isinstance(run.recipe.model, ClassifierSpec) else usual
    to = to or (usual if run.recipe.data.kind != "pairs" else "marian")
    if to not in FORMATS:
        raise UserError(f"unknown export format '{to}'{did_you_mean(to, FORMATS)}")
    if (body := getattr(run.recipe.model, "body", None)) is not None:
        kind = body.config.get("model_type")
        raise UserError(f"{run.name} is a '{kind}' that runs in transformers: no export format fits it")
    form = FORMATS[to]
    if misfits := form.why_not(run.recipe.model):
        reasons = "\n".join(f"  {misfit}" for misfit in misfits)
        raise UserError(f"{run.name} cannot be written as {form.what}:\n{reasons}{_what_would_fit(run.recipe, form)}")
    folder = folder or Path(f"{run.name}-{to}")
    if folder.exists():
        raise UserError(f"{folder} exists: remove it, or choose another folder with -o")
    _, saved = load_model(run, which)
    scores = run.scores() if which == "auto" else []
    files = {**form.files(run, saved.weights), "README.md": _card(run, saved.step, scores, to).encode()}

    def fill(partial: Path) -> None:
        for name, content in files.items():
            (partial / name).write_bytes(content)

    try:
        write_folder_whole(folder, fill)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; nothing was left behind") from None
    return Exported(run, folder, saved.step, sorted(files), to)


def _what_would_fit(recipe: Recipe, form: Format) -> str:
    """The changes of a recipe with which it can be written, as a line; empty if there are none, or not known."""
    changes = [misfit.change for misfit in form.why_not(recipe.model)]
    known = [change for change in changes if change is not None]
    try:
        fits = len(known) == len(changes) and not form.why_not(recipe.with_changes(known).model)
    except UserError:  # something else in the recipe needs what the format lacks
        return ""
    return f"\nTrained with {shlex.join(known)} it could be written." if fits else ""


def _as_gpt2(run: Run, weights: Mapping[str, Tensor]) -> dict[str, bytes]:
    library = tokenizer.library_of(run.tokenizer)
    spec = gpt2.written(run.recipe.model)
    config = gpt2.config_of(spec, run.tokenizer.size, library.token_to_id(tokenizer.END_OF_TEXT))
    return {
        "model.safetensors": _saved(gpt2.to_gpt2(weights, spec)),
        "config.json": _json(config),
        tokenizer.FILE: library.to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(tokenizer.tokenizer_config(library, spec.context)),
    }


def _as_marian(run: Run, weights: Mapping[str, Tensor]) -> dict[str, bytes]:
    spec, both = marian_config.written(run.recipe.model), tokenizers_of(run)
    numbers = marian_tokenizers.numbering(*both)
    return {
        "model.safetensors": _saved(marian.to_marian(weights, spec, numbers)),
        "config.json": _json(marian_config.config_of(spec, numbers)),
        marian_tokenizers.GENERATION: _json(marian_config.generation_of(spec, numbers, run.recipe.scoring.decoding)),
        **marian_tokenizers.files_of(*both, spec.begin, spec.context),
    }


def _as_bert(run: Run, weights: Mapping[str, Tensor]) -> dict[str, bytes]:
    spec, marks = run.recipe.model, run.tokenizer.marks
    assert marks is not None and isinstance(spec, MaskedLanguageModelSpec)
    library = tokenizer.with_template(run.tokenizer)
    config = bert_config.config_of(spec, run.tokenizer.size, marks.pad, "bert")
    return {
        "model.safetensors": _saved(bert.to_masked_bert(weights, spec, marks.pad)),
        "config.json": _json({**config, "architectures": ["BertForMaskedLM"], "tie_word_embeddings": True}),
        tokenizer.FILE: library.to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(tokenizer.marked_config(run.tokenizer, spec.context)),
    }


def _why_no_bert(model: Any) -> list[Misfit]:
    if isinstance(model, MaskedLanguageModelSpec):
        return bert_config.why_not(model)
    other = "; --to bert-encoder writes its encoder" if isinstance(model, ClassifierSpec) else ""
    why = f"a BERT that predicts masked tokens is a masked-language-model, not a {model.kind}{other}"
    return [Misfit("model.kind", why)]


def _as_encoder(run: Run, weights: Mapping[str, Tensor]) -> dict[str, bytes]:
    spec, marks = run.recipe.model, run.tokenizer.marks
    assert isinstance(spec, ClassifierSpec)
    padding = max(0, marks.pad) if marks is not None else 0
    config = bert_config.config_of(spec, run.tokenizer.size, padding, "bert")
    tensors = bert.to_bert(weights, spec, padding, "bert")
    if _is_whole(spec):
        tensors = {f"{bert.FAMILIES['bert'].prefix}{name}": tensor for name, tensor in tensors.items()}
        tensors |= {f"classifier.{kind}": weights[f"head.output.{kind}"] for kind in ("weight", "bias")}
        classes = {str(k): name for k, name in enumerate(classes_of(run))}
        config |= {"architectures": ["BertForSequenceClassification"], "id2label": classes}
        config |= {"label2id": {name: int(k) for k, name in classes.items()}}
        config["classifier_dropout"] = spec.head.dropout
    return {
        "model.safetensors": _saved(tensors),
        "config.json": _json(config),
        tokenizer.FILE: _marked(run).to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(
            tokenizer.tokenizer_config(tokenizer.library_of(run.tokenizer), spec.context)
            if marks is None
            else tokenizer.marked_config(run.tokenizer, spec.context)
        ),
    }


def _marked(run: Run) -> Any:
    """The tokenizer with its special tokens: a pretrained one has them already, ours are added."""
    own = run.tokenizer
    return tokenizer.library_of(own) if own.marks is None or own.kind == "borrowed" else tokenizer.with_template(own)


def _is_whole(model: Any) -> bool:
    """Whether pooling and head are those of BERT: then the export contains the whole classifier."""
    return model.pooling.kind == "pooler" and model.head.kind == "linear"


def _why_no_encoder(model: Any) -> list[Misfit]:
    if not isinstance(model, ClassifierSpec):
        return [Misfit("model.kind", f"only a classifier's encoder can be written by itself, not a {model.kind}")]
    if model.body is not None:
        return [Misfit("model.body", f"this encoder is a '{model.body.config.get('model_type')}', not a BERT")]
    return bert_config.why_not(model)


FORMATS = {
    "bert-encoder": Format(_why_no_encoder, _as_encoder, "BERT", "AutoModel and AutoTokenizer", "feature-extraction"),
    "bert": Format(_why_no_bert, _as_bert, "BERT", "AutoModelForMaskedLM and AutoTokenizer", "fill-mask"),
    "gpt2": Format(gpt2.why_not, _as_gpt2, "GPT-2", "AutoModelForCausalLM and AutoTokenizer", "text-generation"),
    "marian": Format(
        marian_config.why_not, _as_marian, "Marian", "AutoModelForSeq2SeqLM and AutoTokenizer", "translation"
    ),
}


def _saved(tensors: dict[str, Tensor]) -> bytes:
    # From this metadata, transformers knows the framework of the tensors.
    return safetensors.torch.save(tensors, {"format": "pt"})


def _card(run: Run, step: int, scores: Sequence[Score], to: str) -> str:
    recipe, shape, heads = run.recipe, run.recipe.model, run.recipe.model.mixers[0].number_of_heads
    told = "\n".join(f"- **{s.name}** {number(s.value)}: {s.label}" for s in scores)
    unscored = "This checkpoint was not scored: score it with `headway score`."
    form, fence = FORMATS[to], "```"
    classes = form.loads.replace(" and ", ", ")
    return f"""---
library_name: transformers
pipeline_tag: {form.pipeline}
tags: [headway, {to}]
---
# {run.name}

A {form.what} of {shape.layers} layers, {heads} heads and width {shape.width}, from Headway {__version__}:
{_history(run, step)}, recipe {recipe.hash}.

{fence}python
from transformers import {classes}

model, tokenizer = (kind.from_pretrained("FOLDER") for kind in ({classes}))
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
    "char": "One token per character. A character missing from the training text is an error, not an unknown token.",
    "word": "One token per word and one per line end; other words become `<unk>`. Decoding puts single spaces between "
    "words.",
    "bpe": "Byte pairs: any text can be encoded, and decoding gives it back byte for byte (in lower case if the recipe "
    "says `lower`).",
    "sentencepiece": "SentencePiece pieces; what it lacks becomes `<unk>`.",
    "borrowed": "The tokenizer of the pretrained model that training started from, unchanged.",
}


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
