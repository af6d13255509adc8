"""A folder of others as a run: `headway import`, of a GPT-2, of a Llama and what is written as it is, of a
Marian, of a BERT; and of any other causal language model, which transformers then runs.

The run has a recipe, its tokenizers and one checkpoint, at step 0, without an optimizer: none has moved yet. It can be
scored, let write, trained on with --resume, and exported again, as any other run.
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
from headway.formats import bert, foreign, gguf, gpt2, lender, llama, marian, marian_tokenizers, packages
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

LONG = 1024
"""Tokens: as many are read at once, of a model that could read more, unless somebody asks for them."""
MAY_CHANGE = (
    *("model.dropout", "model.mixer.dropout", "model.mixer.backend"),
    *("model.label_smoothing", "model.penalty"),
)
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


class Arrived(NamedTuple):
    """What a folder holds, as Headway has it."""

    recipe: Recipe
    weights: Mapping[str, Tensor]
    tokenizers: Mapping[str, Tokenizer]
    """By the names they have in a run folder."""
    vocabulary: int
    notes: Sequence[str]
    facts: Mapping[str, Any] = {}
    """What the run folder must know beside."""


def located(source: str, name: str | None) -> tuple[Path, str | None]:
    """The folder, or the GGUF file, of a model given as a path, as `hub:owner/name` or as the name of a package; and
    the name that its run is to have."""
    if source in PACKAGES:
        return packages.located(source), name or source
    if not source.startswith("hub:"):
        return Path(source), name
    repository = source.removeprefix("hub:")
    return fetch_model(repository), name or repository.partition("@")[0].rsplit("/", 1)[-1]


def import_folder(folder: Path, name: str | None, runs: Path, changes: Sequence[str] = ()) -> Imported:
    """Make a run of what transformers, or `headway export`, wrote. All is read before the run is made."""
    is_file = folder.is_file() and folder.suffix == ".gguf"
    if not is_file and not folder.is_dir():
        raise UserError(
            f"there is no folder '{folder}'; expected one with config.json, {WEIGHTS} and {vocabulary.FILE}, a .gguf "
            f"file, or one of {', '.join(PACKAGES)}{did_you_mean(str(folder), PACKAGES)}"
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


def _finished(folder: Path, found: "Arrived", home: Path, changes: Sequence[str]) -> Imported:
    notes = list(found.notes)
    if not any(change.startswith("data.source") for change in changes):
        notes.append(
            f"data.source={found.recipe.data.source}, because no folder says what its model was trained on: "
            "data.source=… and data.path=… name the text to score or to train on"
        )
    run = _make(home, found, folder.resolve().name)
    return Imported(run, sum(w.numel() for w in found.weights.values()), found.vocabulary, notes)


def _read_gpt2(folder: Path, config: dict[str, Any], home: Path, changes: Sequence[str]) -> Arrived:
    model_tree, notes = gpt2.model_tree(config)
    tree = {"model": model_tree, "data": {"tokenizer": {"kind": "given", "path": str(home / "tokenizer.json")}}}
    recipe = from_tree(tree, str(folder / "config.json"), overrides=changes)
    rows = _rows(folder, config)
    tensors = read_weights(folder, "AutoModelForCausalLM")
    weights = gpt2.from_gpt2(tensors, gpt2.written(recipe.model), rows)
    tokenizer, more = vocabulary.read_tokenizer(folder / vocabulary.FILE, rows)
    return Arrived(recipe, weights, {"tokenizer.json": tokenizer}, rows, [*notes, *_narrow(tensors), *more])


def _read_llama(folder: Path, config: dict[str, Any], home: Path, changes: Sequence[str]) -> Arrived:
    tensors = read_weights(folder, "AutoModelForCausalLM")
    tokenizer, more = _tokenizer(folder, _rows(folder, config))
    return _as_llama(folder / "config.json", config, tensors, tokenizer, [*_narrow(tensors), *more], home, changes)


def _read_foreign(folder: Path, config: dict[str, Any], home: Path, changes: Sequence[str]) -> Arrived:
    """A language model of any other kind, as transformers runs it."""
    tree = foreign.decoder_tree(config)
    tokenizer, notes = _tokenizer(folder, _rows(folder, config))
    data, more = _data_of(tree["context"], home)
    recipe = from_tree({"model": tree, "data": data}, str(folder / "config.json"), overrides=changes)
    foreign.check_size(config, CAUSAL, folder, stored_in(folder))
    weights = foreign.read_decoder(folder)
    notes = [f"a '{config['model_type']}' is run by transformers: one replica at a time", *notes, *more]
    return Arrived(recipe, weights, {"tokenizer.json": tokenizer}, _rows(folder, config), notes)


def _tokenizer(folder: Path, rows: int) -> tuple[Tokenizer, list[str]]:
    try:
        return vocabulary.read_tokenizer(folder / vocabulary.FILE, rows)
    except UserError as problem:
        if not (folder / vocabulary.FILE).exists():
            raise
        found = lender.read_tokenizer(folder, rows)
        return found, [f"{problem}: scores per byte and what is written hold but for that"]


def _data_of(context: int, home: Path) -> tuple[dict[str, Any], list[str]]:
    """The data part of a recipe for a language model that could read so many tokens at once."""
    data: dict[str, Any] = {"tokenizer": {"kind": "given", "path": str(home / "tokenizer.json")}}
    if context <= LONG:
        return data, []
    return {**data, "segment": LONG}, [f"data.segment={LONG}, of {context:,} that it could read: that takes long"]


def _read_file(path: Path, home: Path, changes: Sequence[str]) -> Arrived:
    found = gguf.read_gguf(path)
    tokenizer, notes = adopted(found.tokenizer, str(path), found.config["vocab_size"])
    if found.rounded:
        notes.append(f"the weights were {', '.join(found.rounded)}, and are float32 now: what was rounded stays so")
    return _as_llama(path, found.config, found.tensors, tokenizer, notes, home, changes)


def _as_llama(
    where: Path,
    config: dict[str, Any],
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    notes: Sequence[str],
    home: Path,
    changes: Sequence[str],
) -> Arrived:
    model_tree = llama.model_tree(config, llama.is_biased(tensors))
    data, more = _data_of(model_tree["context"], home)
    notes = [*notes, *more]
    if (groups := llama.key_heads(config)) < (heads := model_tree["mixer"]["heads"]):
        notes.append(f"{heads} heads share {groups} keys and values; here each has its own, until trained on the same")
    recipe = from_tree({"model": model_tree, "data": data}, str(where), overrides=changes)
    assert isinstance(recipe.model, LanguageModelSpec)
    weights = llama.from_llama(tensors, recipe.model, config)
    return Arrived(recipe, weights, {"tokenizer.json": tokenizer}, config["vocab_size"], notes)


def _read_bert(folder: Path, config: dict[str, Any], home: Path, changes: Sequence[str]) -> Arrived:
    """As a classifier: with the classes and the head that it has, or with two that it has not learnt yet."""
    tokenizer = lender.read_tokenizer(folder, _rows(folder, config))
    tensors = read_weights(folder, "AutoModel")
    names = {int(k): str(name) for k, name in (config.get("id2label") or {}).items()}
    head = {f"head.output.{kind}": tensors.get(f"classifier.{kind}") for kind in ("weight", "bias")}
    is_whole = all(tensor is not None for tensor in head.values()) and any("pooler.dense" in name for name in tensors)
    classes = [names.get(k, str(k)) for k in range(len(head["head.output.bias"]))] if is_whole else ["0", "1"]  # pyright: ignore
    settled = bert.model_tree(config, tokenizer.number("separator"))
    check_shape(settled, config["vocab_size"], folder, stored_in(folder))
    parts = {"pooling": "pooler", "head": {"kind": "linear"}} if is_whole else {}
    given = {"kind": "given", "path": str(home / "tokenizer.json")}
    tree = {"model": {"kind": "classifier", **settled, **parts}, "data": {"kind": "labelled", "tokenizer": given}}
    recipe = from_tree(tree, str(folder / "config.json"), overrides=changes)
    assert isinstance(recipe.model, ClassifierSpec)
    taken = bert.from_bert(tensors, recipe.model, config)
    own = {name for name, _ in recipe.model.build(tokenizer.size, len(classes)).named_parameters()}
    weights = {name: tensor for name, tensor in taken.weights.items() if name in own}
    notes = _narrow({name: tensor for name, tensor in tensors.items() if not bert.BUFFERS.fullmatch(name)})
    if is_whole:
        weights |= {name: tensor.float() for name, tensor in head.items() if tensor is not None}
    else:
        left = f" ({', '.join(taken.left)} has no place here)" if taken.left else ""
        notes.append(
            f"it has no head that tells classes apart{left}: its attention is its own, its answers mean nothing"
        )
        notes.append("to train one: headway train with model.start={kind: pretrained, from: …}")
    return Arrived(recipe, weights, {"tokenizer.json": tokenizer}, tokenizer.size, notes, {"classes": classes})


def _rows(folder: Path, config: Mapping[str, Any]) -> int:
    rows = config.get(*gpt2.VOCABULARY)
    if not isinstance(rows, int) or rows < 1:
        raise UserError(f"{folder / 'config.json'}: vocab_size: expected a whole number of tokens, not {rows!r}")
    return rows


def _read_marian(folder: Path, config: dict[str, Any], home: Path, changes: Sequence[str]) -> Arrived:
    numbers = marian.numbering(config)
    tensors = read_weights(folder, "AutoModelForSeq2SeqLM")
    biased = marian.BIAS in tensors and bool(tensors[marian.BIAS].any())
    model_tree, notes = marian.model_tree(config, numbers, biased)
    generation = folder / marian_tokenizers.GENERATION
    decoding = marian.decoding_tree(config, read_json(generation) if generation.exists() else {})
    tokenizers, more = marian_tokenizers.read(folder, numbers)
    given = {name.removesuffix(".json"): {"kind": "given", "path": str(home / name)} for name in tokenizers}
    tree = {"model": model_tree, "data": {"kind": "pairs", **given}, "scoring": {"decoding": decoding}}
    recipe = from_tree(tree, str(folder / "config.json"), overrides=changes)
    weights = marian.from_marian(tensors, marian.written(recipe.model), numbers)
    return Arrived(recipe, weights, tokenizers, numbers.target, [*notes, *_narrow(tensors), *more])


_LOADERS = {"marian": "AutoModelForSeq2SeqLM", **dict.fromkeys(bert.FAMILIES, "AutoModel")}
READERS: dict[str, Callable[[Path, dict[str, Any], Path, Sequence[str]], Arrived]] = {
    "gpt2": _read_gpt2,
    "marian": _read_marian,
    **dict.fromkeys(llama.KINDS, _read_llama),
    **dict.fromkeys(bert.FAMILIES, _read_bert),
}
"""By the `model_type` of config.json."""


def _narrow(tensors: Mapping[str, Tensor]) -> list[str]:
    kept = sorted({str(t.dtype).removeprefix("torch.") for t in tensors.values()} - {"float32", "bool", "uint8"})
    return [f"the weights were {', '.join(kept)}, and are float32 now"] if kept else []


def _make(home: Path, found: Arrived, origin: str) -> Run:
    recipe = found.recipe
    run = Run.create(home, recipe, "cpu", imported_from=origin, **found.facts)
    try:
        for name, tokenizer in found.tokenizers.items():
            run.keep_tokenizers({name: tokenizer})
        model = tasks.of(recipe).rebuild(run, "cpu")
        drawn = {name: p[0].detach() for name, p in model.named_parameters()}  # a head that the folder does not have
        load_weights(model, 0, {**drawn, **found.weights} if found.facts else dict(found.weights))
        # Without an optimizer: one that has not moved yet is made as well as read.
        weights = {name: p[0].detach() for name, p in model.named_parameters()}
        run.save_checkpoint(Checkpoint(0, {"standing": ReplicaState().as_json()}, weights, {}, {}))
        run.note(**Status(State.IMPORTED, 0).as_json())
    except BaseException:  # half a run folder would only be in the way
        shutil.rmtree(home, ignore_errors=True)
        raise
    return run


def _check(changes: Sequence[str]) -> None:
    """The folder settles the model and the tokenizer; the rest of the recipe is free."""
    for key in (change.partition("=")[0].strip() for change in changes):
        may_change = any(f"{key}.".startswith(f"{one}.") for one in MAY_CHANGE)
        if key.split(".")[0] == "model" and not may_change:
            raise UserError(
                f"{key} is settled by config.json and the weights; of a model only {', '.join(MAY_CHANGE)} change"
            )
        if key == "data" or any(f"{key}.".startswith(f"data.{which}.") for which in ("tokenizer", "target_tokenizer")):
            raise UserError(f"{key} is settled by the folder's {vocabulary.FILE}")
