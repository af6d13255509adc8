"""A pretrained encoder in a folder as `transformers` writes it: the shape from config.json, its tokenizer, its weights.

Weights are read from safetensors only, and no code in the folder is run.
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from headway.core.errors import UserError
from headway.core.reading import read_text
from headway.data.borrowed import BorrowedTokenizer, word_piece
from headway.formats import bert, bert_config, foreign
from headway.formats.own_run import OwnRun, is_run
from headway.formats.packages import located
from headway.formats.weights import (
    Taken,
    check_finite,
    check_shape,
    check_stored,
    files_of,
    library_text,
    read_json,
    read_weights,
)
from headway.models.borrowed.module import ENCODER, weights_of
from headway.models.encoder import EncoderSpec

_SPECIAL = {"sep_token": "separator", "mask_token": "mask", "pad_token": "padding", "cls_token": "first"}


@dataclass(frozen=True)
class Borrowed:
    """A folder with a pretrained model."""

    name: str
    """As the user wrote it."""
    folder: Path

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        return read_json(self.folder / "config.json")

    @property
    def is_of_our_shape(self) -> bool:
        """Whether Headway's own encoder can represent it; otherwise it runs in transformers."""
        return self.config.get("model_type") in bert.FAMILIES and bert_config.is_ours(self.config)

    @property
    def vocabulary(self) -> int:
        rows = self.config.get("vocab_size")
        if not isinstance(rows, int) or rows < 1:
            raise UserError(f"{self.folder / 'config.json'}: vocab_size: expected a number of tokens, not {rows!r}")
        return rows

    @functools.cached_property
    def tokenizer(self) -> BorrowedTokenizer:
        return read_tokenizer(self.folder, self.vocabulary)

    @functools.cached_property
    def settled(self) -> dict[str, Any]:
        """The model part of a recipe, as far as the weights determine it."""
        if not isinstance(self.config.get("model_type"), str):
            raise UserError(f"{self.folder / 'config.json'} does not say what kind of model it is (model_type)")
        separator, stored = self.tokenizer.number("separator"), check_stored(self.folder, self.config)
        try:
            tree = (bert_config.model_tree if self.is_of_our_shape else foreign.encoder_tree)(self.config, separator)
            check_shape(tree, self.vocabulary, self.folder, stored)
            if not self.is_of_our_shape:
                foreign.check_size(self.config, ENCODER, self.folder, stored)
            return tree
        except UserError as problem:
            raise problem if str(self.folder) in str(problem) else UserError(f"{self.name}: {problem}") from None
        except (TypeError, ValueError) as problem:
            raise UserError(f"{self.folder / 'config.json'} cannot be read: {problem}") from None

    def take(self, model: EncoderSpec) -> Taken:
        """The weights of the encoder for a model of this shape; none may be missing."""
        if self.is_of_our_shape:
            return bert.from_bert(read_weights(self.folder, "AutoModel"), model, self.config)
        files_of(self.folder)  # raises an error if there are no safetensors
        found, left = weights_of(self.folder)
        check_finite(found)
        return Taken({f"body.{name}": tensor for name, tensor in found.items()}, left)

    @property
    def was(self) -> str:
        return ", ".join(map(str, self.config.get("architectures") or ["a bare encoder"]))

    @functools.cached_property
    def checksum(self) -> str:
        digest = hashlib.sha256()
        for file in files_of(self.folder):
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        return digest.hexdigest()


@functools.lru_cache(maxsize=8)
def _opened(name: str, folder: Path, changed: int) -> Borrowed:
    return Borrowed(name, folder)


def borrowed(name: str) -> Borrowed | OwnRun:
    """The model of this name; the UserError for a missing one says how to get it."""
    folder = located(name)
    if folder.is_file():
        raise UserError(
            f"'{name}' is a file with a language model, not an encoder: make a run of it with headway import {name}"
        )
    if is_run(folder):
        return OwnRun(name, folder)
    config = folder / "config.json"
    return _opened(name, folder, config.stat().st_mtime_ns if config.exists() else 0)


def read_tokenizer(folder: Path, rows: int) -> BorrowedTokenizer:
    """Read a folder's tokenizer, for a model with `rows` embeddings."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            settings |= {key: value for key, value in read_json(folder / name).items() if value is not None}
    path, pieces = folder / "tokenizer.json", folder / "vocab.txt"
    try:
        if path.exists():
            library = tokenizers.Tokenizer.from_str(library_text(path))
        elif pieces.exists():
            path, library = pieces, word_piece(read_text(pieces, through_links=True).splitlines(), settings)
        else:
            again = f"AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')"
            raise UserError(f"{path} is missing, but needed to tokenize text; transformers writes one with {again}")
        names = {key: value["content"] if isinstance(value, dict) else value for key, value in settings.items()}
        named = {use: names[key] for key, use in _SPECIAL.items() if isinstance(names.get(key), str)}
        return BorrowedTokenizer(library, rows, named)
    except UserError as problem:
        raise problem if str(path) in str(problem) else UserError(f"{path}: {problem}") from None
    except Exception as problem:  # the library raises only plain Exceptions
        raise UserError(f"{path} cannot be read: {problem}") from None
