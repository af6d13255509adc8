"""`headway import`: makes a run of a model folder of another library: GPT-2, Llama and models with its format, Marian,
BERT; and any other causal language model, which then runs in transformers.

The run has a recipe, its tokenizers and one checkpoint at step 0, without optimizer state. Like any other run, it can
be scored, generate text, be trained with --resume, and be exported again.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from headway import tasks
from headway.core.errors import UserError, did_you_mean
from headway.core.files import check_names
from headway.core.status import State, Status
from headway.data.library import adopted
from headway.data.tokenizers import Tokenizer
from headway.formats import (
    bert,
    bert_config,
    foreign,
    gguf,
    gpt2,
    lender,
    llama,
    marian,
    marian_config,
    marian_tokenizers,
    packages,
)
from headway.formats import tokenizer as vocabulary
from headway.formats.hub import fetch_model
from headway.formats.packages import PACKAGES
from headway.formats.weights import WEIGHTS, check_shape, check_stored, read_json, read_weights, stored_in
from headway.models.borrowed.module import CAUSAL
from headway.models.classifier import ClassifierSpec
from headway.models.language_model import LanguageModelSpec
from headway.recipe.recipe import Recipe, from_tree
from headway.run.folder import Run, check_new
from headway.training.checkpoint import Checkpoint
from headway.training.loop import ReplicaState
from headway.training.population import load_weights

DEFAULT_SEGMENT = 1024
"""The segment length in tokens for a model that could read more, unless the user chooses one."""
MAY_CHANGE = (
    *("model.dropout", "model.mixer.dropout", "model.mixer.backend"),
    *("model.label_smoothing", "model.penalty"),
)
"""Keys of a model that its weights do not determine."""


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


class ConvertedModel(NamedTuple):
    """The contents of a model folder, converted."""

    recipe: Recipe
    weights: Mapping[str, Tensor]
    tokenizers: Mapping[str, Tokenizer]
    """By their file names in a run folder."""
    vocabulary: int
    notes: Sequence[str]
    facts: Mapping[str, Any] = {}
    """Further facts for the run folder."""


def located(source: str, name: str | None) -> tuple[Path, str | None]:
    """The folder or GGUF file of a model given as a path, `hub:owner/name` or a package's name; and the name of its
    run."""
    if source in PACKAGES:
        return packages.located(source), name or source
    if not source.startswith("hub:"):
        return Path(source), name
    repository = source.removeprefix("hub:")
    return fetch_model(repository), name or repository.partition("@")[0].rsplit("/", 1)[-1]


def import_folder(folder: Path, name: str | None, runs: Path, changes: Sequence[str] = ()) -> Imported:
    """Make a run of a folder written by transformers or `headway export`. Everything is read before the run is
    created."""
    is_file = folder.is_file() and folder.suffix == ".gguf"
    if not is_file and not folder.is_dir():
        raise UserError(
            f"there is no folder '{folder}'; expected a folder with config.json, {WEIGHTS} and {vocabulary.FILE}, a "
            f".gguf file, or one of {', '.join(PACKAGES)}{did_you_mean(str(folder), PACKAGES)}"
        )
    name = name or (folder.stem if is_file else folder.resolve().name)
    check_names([name])
    home = runs / name
    check_new(home)
    if is_file:
        _check(changes)
        return _finished(folder, _read_file(folder, home, changes), home, changes)
    config = read_json(folder / "config.json")
    kind = config.get("model_type")
    _check(changes)
    check_stored(folder, config, _LOADERS.get(str(kind), CAUSAL))
    try:
        found = READERS.get(str(kind), _read_foreign)(folder, config, home, changes)
    except foreign.NotOursError as reason:
        found = _read_foreign(folder, config, home, changes)
        found = found._replace(notes=[str(reason), *found.notes])
    return _finished(folder, found, home, changes)


def _finished(folder: Path, found: "ConvertedModel", home: Path, changes: Sequence[str]) -> Imported:
    notes = list(found.notes)
    if not any(change.startswith("data.source") for change in changes):
        notes.append(
            f"data.source={found.recipe.data.source}, since the folder does not say what the model was trained on: "
            "choose the text to score or train on with data.source=… and data.path=…"
        )
    run = _make(home, found, folder.resolve().name)
    return Imported(run, sum(w.numel() for w in found.weights.values()), found.vocabulary, notes)


def _read_gpt2(folder: Path, config: dict[str, Any], home: Path, changes: Sequence[str]) -> ConvertedModel:
    model_tree, notes = gpt2.model_tree(config)
    tree = {"model": model_tree, "data": {"tokenizer": {"kind": "given", "path": str(home / "tokenizer.json")}}}
    recipe = from_tree(tree, str(folder / "config.json"), overrides=changes)
    rows = _rows(folder, config)
    tensors = read_weights(folder, "AutoModelForCausalLM")
    weights = gpt2.from_gpt2(tensors, gpt2.written(recipe.model), rows)
    tokenizer, more = vocabulary.read_tokenizer(folder / vocabulary.FILE, rows)
    return ConvertedModel(
        recipe, weights, {"tokenizer.json": tokenizer}, rows, [*notes, *_precision_notes(tensors), *more]
    )


def _read_llama(folder: Path, config: dict[str, Any], home: Path, changes: Sequence[str]) -> ConvertedModel:
    tensors = read_weights(folder, "AutoModelForCausalLM")
    tokenizer, more = _tokenizer(folder, _rows(folder, config))
    return _as_llama(
        folder / "config.json", config, tensors, tokenizer, [*_precision_notes(tensors), *more], home, changes
    )


def _read_foreign(folder: Path, config: dict[str, Any], home: Path, changes: Sequence[str]) -> ConvertedModel:
    """Read a language model of any other kind, which runs in transformers."""
    tree = foreign.decoder_tree(config)
    tokenizer, notes = _tokenizer(folder, _rows(folder, config))
    data, more = _data_of(tree["context"], home)
    recipe = from_tree({"model": tree, "data": data}, str(folder / "config.json"), overrides=changes)
    foreign.check_size(config, CAUSAL, folder, stored_in(folder))
    weights = foreign.read_decoder(folder)
    notes = [f"a '{config['model_type']}' runs in transformers, one replica at a time", *notes, *more]
    return ConvertedModel(recipe, weights, {"tokenizer.json": tokenizer}, _rows(folder, config), notes)


def _tokenizer(folder: Path, rows: int) -> tuple[Tokenizer, list[str]]:
    try:
        return vocabulary.read_tokenizer(folder / vocabulary.FILE, rows)
    except UserError as problem:
        if not (folder / vocabulary.FILE).exists():
            raise
        found = lender.read_tokenizer(folder, rows)
        return found, [f"{problem}: scores per byte and generated text may be off"]


def _data_of(context: int, home: Path) -> tuple[dict[str, Any], list[str]]:
    """The data part of a recipe for a language model with this context."""
    data: dict[str, Any] = {"tokenizer": {"kind": "given", "path": str(home / "tokenizer.json")}}
    if context <= DEFAULT_SEGMENT:
        return data, []
    return {**data, "segment": DEFAULT_SEGMENT}, [
        f"data.segment={DEFAULT_SEGMENT} of {context:,} possible tokens, since more takes long"
    ]


def _read_file(path: Path, home: Path, changes: Sequence[str]) -> ConvertedModel:
    found = gguf.read_gguf(path)
    tokenizer, notes = adopted(found.tokenizer, str(path), found.config["vocab_size"])
    if found.rounded:
        notes.append(f"the weights were {', '.join(found.rounded)} and are float32 now; their rounding remains")
    return _as_llama(path, found.config, found.tensors, tokenizer, notes, home, changes)


def _as_llama(
    where: Path,
    config: dict[str, Any],
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    notes: Sequence[str],
    home: Path,
    changes: Sequence[str],
) -> ConvertedModel:
    model_tree = llama.model_tree(config, llama.is_biased(tensors))
    data, more = _data_of(model_tree["context"], home)
    notes = [*notes, *more]
    if (groups := llama.key_heads(config)) < (heads := model_tree["mixer"]["heads"]):
        notes.append(f"{heads} heads share {groups} keys and values; here each has its own copy, equal until trained")
    recipe = from_tree({"model": model_tree, "data": data}, str(where), overrides=changes)
    assert isinstance(recipe.model, LanguageModelSpec)
    weights = llama.from_llama(tensors, recipe.model, config)
    return ConvertedModel(recipe, weights, {"tokenizer.json": tokenizer}, config["vocab_size"], notes)


def _read_bert(folder: Path, config: dict[str, Any], home: Path, changes: Sequence[str]) -> ConvertedModel:
    """Read an encoder as a classifier: with its own classes and head, or with two classes and an untrained head."""
    tokenizer = lender.read_tokenizer(folder, _rows(folder, config))
    tensors = read_weights(folder, "AutoModel")
    names = {int(k): str(name) for k, name in (config.get("id2label") or {}).items()}
    head = {f"head.output.{kind}": tensors.get(f"classifier.{kind}") for kind in ("weight", "bias")}
    is_whole = all(tensor is not None for tensor in head.values()) and any("pooler.dense" in name for name in tensors)
    classes = [names.get(k, str(k)) for k in range(len(head["head.output.bias"]))] if is_whole else ["0", "1"]  # pyright: ignore
    settled = bert_config.model_tree(config, tokenizer.number("separator"))
    check_shape(settled, config["vocab_size"], folder, stored_in(folder))
    parts = {"pooling": "pooler", "head": {"kind": "linear"}} if is_whole else {}
    given = {"kind": "given", "path": str(home / "tokenizer.json")}
    tree = {"model": {"kind": "classifier", **settled, **parts}, "data": {"kind": "labelled", "tokenizer": given}}
    recipe = from_tree(tree, str(folder / "config.json"), overrides=changes)
    assert isinstance(recipe.model, ClassifierSpec)
    taken = bert.from_bert(tensors, recipe.model, config)
    own = {name for name, _ in recipe.model.build(tokenizer.size, len(classes)).named_parameters()}
    weights = {name: tensor for name, tensor in taken.weights.items() if name in own}
    notes = _precision_notes({name: tensor for name, tensor in tensors.items() if not bert.BUFFERS.fullmatch(name)})
    if is_whole:
        weights |= {name: tensor.float() for name, tensor in head.items() if tensor is not None}
    else:
        left = f" ({', '.join(taken.left)} was left out)" if taken.left else ""
        notes.append(f"it has no classification head{left}: its attention is pretrained, but its answers mean nothing")
        notes.append("to train a head: headway train with model.start={kind: pretrained, from: …}")
    return ConvertedModel(recipe, weights, {"tokenizer.json": tokenizer}, tokenizer.size, notes, {"classes": classes})


def _rows(folder: Path, config: Mapping[str, Any]) -> int:
    rows = config.get(*gpt2.VOCABULARY)
    if not isinstance(rows, int) or rows < 1:
        raise UserError(f"{folder / 'config.json'}: vocab_size: expected a whole number of tokens, not {rows!r}")
    return rows


def _read_marian(folder: Path, config: dict[str, Any], home: Path, changes: Sequence[str]) -> ConvertedModel:
    numbers = marian_config.numbering(config)
    tensors = read_weights(folder, "AutoModelForSeq2SeqLM")
    biased = marian.BIAS in tensors and bool(tensors[marian.BIAS].any())
    model_tree, notes = marian_config.model_tree(config, numbers, biased)
    generation = folder / marian_tokenizers.GENERATION
    decoding = marian_config.decoding_tree(config, read_json(generation) if generation.exists() else {})
    tokenizers, more = marian_tokenizers.read(folder, numbers)
    given = {name.removesuffix(".json"): {"kind": "given", "path": str(home / name)} for name in tokenizers}
    tree = {"model": model_tree, "data": {"kind": "pairs", **given}, "scoring": {"decoding": decoding}}
    recipe = from_tree(tree, str(folder / "config.json"), overrides=changes)
    weights = marian.from_marian(tensors, marian_config.written(recipe.model), numbers)
    return ConvertedModel(recipe, weights, tokenizers, numbers.target, [*notes, *_precision_notes(tensors), *more])


_LOADERS = {"marian": "AutoModelForSeq2SeqLM", **dict.fromkeys(bert.FAMILIES, "AutoModel")}
READERS: dict[str, Callable[[Path, dict[str, Any], Path, Sequence[str]], ConvertedModel]] = {
    "gpt2": _read_gpt2,
    "marian": _read_marian,
    **dict.fromkeys(llama.KINDS, _read_llama),
    **dict.fromkeys(bert.FAMILIES, _read_bert),
}
"""Readers by the `model_type` in config.json."""


def _precision_notes(tensors: Mapping[str, Tensor]) -> list[str]:
    kept = sorted({str(t.dtype).removeprefix("torch.") for t in tensors.values()} - {"float32", "bool", "uint8"})
    return [f"the weights were {', '.join(kept)} and are float32 now"] if kept else []


def _make(home: Path, found: ConvertedModel, origin: str) -> Run:
    recipe = found.recipe
    run = Run.create(home, recipe, "cpu", imported_from=origin, **found.facts)
    try:
        for name, tokenizer in found.tokenizers.items():
            run.keep_tokenizers({name: tokenizer})
        model = tasks.of(recipe).rebuild(run, "cpu")
        drawn = {name: p[0].detach() for name, p in model.named_parameters()}  # for a head that the folder lacks
        load_weights(model, 0, {**drawn, **found.weights} if found.facts else dict(found.weights))
        # Without optimizer state: before the first step, it can be created anew.
        weights = {name: p[0].detach() for name, p in model.named_parameters()}
        run.save_checkpoint(Checkpoint(0, {"standing": ReplicaState().as_json()}, weights, {}, {}))
        run.note(**Status(State.IMPORTED, 0).as_json())
    except BaseException:  # do not leave half a run folder behind
        shutil.rmtree(home, ignore_errors=True)
        raise
    return run


def _check(changes: Sequence[str]) -> None:
    """Refuse changes to what the folder determines: the model and the tokenizer."""
    for key in (change.partition("=")[0].strip() for change in changes):
        may_change = any(f"{key}.".startswith(f"{one}.") for one in MAY_CHANGE)
        if key.split(".")[0] == "model" and not may_change:
            raise UserError(
                f"{key} is determined by config.json and the weights; only {', '.join(MAY_CHANGE)} may change"
            )
        if key == "data" or any(f"{key}.".startswith(f"data.{which}.") for which in ("tokenizer", "target_tokenizer")):
            raise UserError(f"{key} is determined by the folder's {vocabulary.FILE}")
