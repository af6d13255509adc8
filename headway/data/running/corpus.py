"""Load a corpus: text from a source, a vocabulary learnt on its train split, and every split as tokens.

Tokens are cached between runs (`data/cache.py`).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from headway.core.errors import UserError, did_you_mean
from headway.data import cache
from headway.data.running import sources
from headway.data.tokenizers import Tokenizer
from headway.data.tokens import KeptTokens, Tokens
from headway.data.vocabularies import TokenizerSpec

Held = TypeVar("Held")


@dataclass(frozen=True, eq=False)
class TextBySplit(Generic[Held]):
    """Running text by split, as tokens or rows."""

    name: str
    tokenizer: Tokenizer
    splits: Mapping[str, Held]
    """By name; "train" is always the first."""
    identity: str
    """A fingerprint of the texts and the tokenizer's spec."""
    texts: Mapping[str, str]
    """The original texts, by split."""

    def split(self, name: str) -> Held:
        if name not in self.splits:
            raise UserError(f"corpus '{self.name}' has no split '{name}'{did_you_mean(name, self.splits)}")
        return self.splits[name]


class Corpus(TextBySplit[Tokens]):
    """Text by split, as tokens."""


def load(
    source: str, path: str | None, valid_fraction: float, tokenizer: TokenizerSpec, encoding: str | None = None
) -> Corpus:
    """Read the text and tokenise it, or take the tokens from the cache. The vocabulary is learnt on train only."""
    texts = sources.read_splits(source, path, valid_fraction, encoding)
    name = Path(path).name if path else source
    identity = _identity(texts, tokenizer)
    names = [f"{split}/{part}" for split in texts for part in KeptTokens.names]
    made, arrays = cache.tokenised(f"text-{identity}", names, lambda: _tokenise(name, texts, tokenizer))
    splits = {
        split: KeptTokens(made, {part: arrays[f"{split}/{part}"] for part in KeptTokens.names}) for split in texts
    }
    return Corpus(name, made, splits, identity, texts)


def check_not_constant(data: Any) -> None:
    """Raise an error if train is a single token repeated, which leaves nothing to predict."""
    ids = data.split("train").ids
    if len(ids) and (ids[: 1 << 16] == ids[0]).all() and (ids == ids[0]).all():
        (token,) = data.tokenizer.pieces(ids[:1])
        raise UserError(
            f"the train split of '{data.name}' is {len(ids):,} times the same token, '{token}': there is nothing to "
            "predict"
        )


def _tokenise(name: str, texts: dict[str, str], spec: TokenizerSpec) -> tuple[Tokenizer, cache.MakePieces]:
    tokenizer = spec.learn(texts["train"])
    return tokenizer, lambda: _pieces(name, texts, tokenizer)


def _pieces(name: str, texts: dict[str, str], tokenizer: Tokenizer) -> cache.Pieces:
    for split, text in texts.items():
        try:
            for part, piece in KeptTokens.stored(tokenizer, text, f"{name}, {split}: tokens"):
                yield f"{split}/{part}", piece
        except UserError as problem:
            raise UserError(f"corpus '{name}', split '{split}': {problem}") from None


def _identity(texts: dict[str, str], spec: TokenizerSpec) -> str:
    """A hash (32 hex digits) of everything the tokens depend on."""
    digest = cache.fingerprint(spec)
    for split, text in texts.items():
        # Digests have a fixed length, so moving text from one split to the next changes the hash.
        of_text = hashlib.sha256()
        for begin in range(0, len(text), 1 << 22):
            of_text.update(text[begin : begin + (1 << 22)].encode())
        digest.update(hashlib.sha256(split.encode()).digest() + of_text.digest())
    return digest.hexdigest()[:32]
