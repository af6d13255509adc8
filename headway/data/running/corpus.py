"""A corpus ready for use: text from a source, a vocabulary learnt on its train split, and every split as tokens.

Tokenised corpora are kept between runs under a name made of what they were made from (the text itself, the tokenizer's
spec, the versions that matter), so an edited file is a different corpus and nothing ever has to be invalidated.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
import tokenizers

from headway.core.errors import UserError, did_you_mean
from headway.data import cache
from headway.data.running import sources
from headway.data.tokenizers import Tokenizer, TokenizerSpec, Tokens

_FORMAT = 1  # of what is kept; raise it when the same spec gives other tokens than before


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text by split, as tokens of one vocabulary."""

    name: str
    tokenizer: Tokenizer
    splits: Mapping[str, Tokens]
    """By name; "train" is always there, and first."""
    identity: str
    """Stands for everything the tokens depend on: equal for equal text cut in the same way."""
    texts: Mapping[str, str]
    """What the tokens were made from, by split."""

    def split(self, name: str) -> Tokens:
        if name not in self.splits:
            raise UserError(f"corpus '{self.name}' has no split '{name}'{did_you_mean(name, self.splits)}")
        return self.splits[name]


def load(source: str, path: str | None, valid_fraction: float, tokenizer: TokenizerSpec) -> Corpus:
    """Reads the text and tokenises it, or finds that this was done before. Only the train split is learnt from."""
    texts = sources.read_splits(source, path, valid_fraction)
    name = Path(path).name if path else source
    identity = _identity(texts, tokenizer)
    entry = f"corpus-{identity}"
    kept = cache.fetch(entry)
    corpus = _unpack(kept, name, texts, identity) if kept else None
    if corpus is None:
        corpus = _tokenise(name, texts, tokenizer, identity)
        cache.store(entry, _pack(corpus))
    return corpus


def _tokenise(name: str, texts: dict[str, str], spec: TokenizerSpec, identity: str) -> Corpus:
    tokenizer = spec.learn(texts["train"])
    splits: dict[str, Tokens] = {}
    for split, text in texts.items():
        try:
            splits[split] = tokenizer.encode(text)
        except UserError as problem:
            raise UserError(f"corpus '{name}', split '{split}': {problem}") from None
    return Corpus(name, tokenizer, splits, identity, texts)


def _identity(texts: dict[str, str], spec: TokenizerSpec) -> str:
    """32 hex digits that stand for everything the tokens depend on."""
    digest = hashlib.sha256(f"{_FORMAT}\n{tokenizers.__version__}\n{spec.identity()}\n".encode())
    for split, text in texts.items():
        # Each text's own digest, because of its fixed length: text cannot move from one split to the next unnoticed.
        digest.update(hashlib.sha256(split.encode()).digest() + hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()[:32]


def _pack(corpus: Corpus) -> bytes:
    arrays = {"tokenizer": np.frombuffer(corpus.tokenizer.to_json().encode(), dtype=np.uint8)}
    for split, tokens in corpus.splits.items():
        arrays |= {f"{split}/ids": tokens.ids, f"{split}/bytes": tokens.bytes, f"{split}/starts": tokens.starts}
    return safetensors.numpy.save(arrays)


def _unpack(content: bytes, name: str, texts: dict[str, str], identity: str) -> Corpus | None:
    """None if this is not what `_pack` writes, although its checksum is right: some other version wrote it."""
    try:
        arrays = safetensors.numpy.load(content)
        tokenizer = Tokenizer.from_json(arrays["tokenizer"].tobytes().decode())
        # Copied because views of the file cannot be written to, and torch warns of such arrays.
        part = {key: array.copy() for key, array in arrays.items() if key != "tokenizer"}
        splits = {s: Tokens(part[f"{s}/ids"], part[f"{s}/bytes"], part[f"{s}/starts"]) for s in texts}
    except (safetensors.SafetensorError, KeyError, UserError, UnicodeDecodeError):
        return None
    return Corpus(name, tokenizer, splits, identity, texts)
