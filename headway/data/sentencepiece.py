"""SentencePiece unigram vocabularies, read from the .spm files that Marian models come with.

Such a file lists the pieces with their log-probabilities (https://arxiv.org/abs/1804.10959) and says how text is
normalised. The `tokenizers` library does the splitting. The id of a piece is not its position in the file: ids come
from a separate list, so that the files of two languages can share one numbering.
"""

import base64
import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from headway.core.errors import UserError
from headway.data.tokenizers import UNKNOWN, Tokenizer
from headway.data.tokens import Tokens

BLANK = "▁"  # stands for a space, also before the first word
_LANGUAGE = re.compile(r">>\S+<<")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTES = range(1, 7)
_UNIGRAM = 1
_KINDS = {2: "BPE", 3: "word", 4: "char"}
_NEVER = "\ufdd0"  # occurs in no text; a prefix for pieces that must never match text


class SentencePieceTokenizer(Tokenizer):
    kind = "sentencepiece"

    def __init__(self, model: bytes, vocabulary: Sequence[str], end: int):
        """`vocabulary` lists the token names by their original ids. `end` is the id of END, which is not part of a
        tokenizer here."""
        self.model, self.vocabulary, self.end = model, list(vocabulary), end
        pieces = parsed(model)
        ours = [name for k, name in enumerate(self.vocabulary) if k != end]
        self._number = {name: k for k, name in enumerate(ours)}
        if UNKNOWN not in self._number:
            raise UserError(f"the vocabulary has no token {UNKNOWN}")
        self.unknown, self.size, self.line_end = self._number[UNKNOWN], len(ours), None
        self._library = pieces.library([name for name in ours if _LANGUAGE.fullmatch(name)])
        self._meaning = [self._bytes_of(name) for name in ours]

    def parts(self, text: str) -> Iterator[Tokens]:
        return self._whole(text)

    def to_json(self) -> str:
        model = base64.b64encode(self.model).decode()
        content = {"headway_tokenizer": 1, "kind": self.kind, "model": model, "vocabulary": self.vocabulary}
        return json.dumps({**content, "end": self.end}, ensure_ascii=False)

    @classmethod
    def restored(cls, content: dict[str, Any]) -> "SentencePieceTokenizer":
        return cls(base64.b64decode(content["model"]), content["vocabulary"], content["end"])

    def with_marks(self) -> Tokenizer:
        raise UserError("special tokens such as [MASK] cannot be added to a translator's SentencePiece vocabulary")

    def _ids(self, encoding: tokenizers.Encoding) -> np.ndarray:
        # Matched by name: a piece that is not in the list becomes the unknown token.
        return np.array([self._number.get(token, self.unknown) for token in encoding.tokens], dtype=np.int32)

    def _token_ends(
        self, ids: np.ndarray, encoding: tokenizers.Encoding, chunk: str, letter_ends: np.ndarray
    ) -> np.ndarray:
        # The space that is added before a text is not part of it and covers no bytes.
        ends = np.concatenate(([0], letter_ends))[[end for _, end in encoding.offsets]]
        return np.maximum.accumulate(ends) if len(ends) else np.zeros(0, np.int64)

    def _bytes_of(self, token: str) -> bytes:
        byte = _BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace(BLANK, " ").encode()

    def _join(self, meanings: list[bytes]) -> str:
        return super()._join(meanings).strip()


@dataclass
class Pieces:
    """The content of a SentencePiece file that is needed for tokenising."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    """Name, score and kind of each piece."""
    algorithm: int = _UNIGRAM
    byte_fallback: bool = False
    as_suffix: bool = False
    charsmap: bytes = b""
    dummy_prefix: bool = True
    collapse: bool = True
    escape: bool = True

    def library(self, languages: Sequence[str]) -> tokenizers.Tokenizer:
        """Build the library's tokenizer. `languages` are tokens such as >>fr<< that precede a text and are not
        pieces."""
        names = [name if kind in (_NORMAL, _BYTES) else _NEVER + name for name, _, kind in self.pieces]
        unknown = next((k for k, (_, _, kind) in enumerate(self.pieces) if kind == _UNKNOWN), None)
        scored = [(name, score) for name, (_, score, _) in zip(names, self.pieces, strict=True)]
        library = tokenizers.Tokenizer(models.Unigram(scored, unknown, self.byte_fallback))
        steps = [normalizers.Precompiled(self.charsmap)] if self.charsmap else []
        if self.collapse:
            steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        library.normalizer = normalizers.Sequence(steps)
        prefix = "always" if self.dummy_prefix else "never"
        # No split at words: pieces may span words, if they were learnt so.
        library.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prefix, split=False)
        library.add_tokens([AddedToken(name, normalized=False) for name in languages])
        return library


def parsed(model: bytes) -> Pieces:
    """Parse a .spm file, which is a protobuf message (sentencepiece_model.proto)."""
    found = Pieces()
    try:
        for number, value in _fields(model):
            if number == 1:
                piece = dict(_fields(value))
                (score,) = struct.unpack("<f", piece.get(2, b"\0\0\0\0"))
                found.pieces.append((piece[1].decode(), score, piece.get(3, _NORMAL)))
            elif number == 2:
                trainer = dict(_fields(value))
                found.algorithm = trainer.get(3, _UNIGRAM)
                found.as_suffix, found.byte_fallback = bool(trainer.get(24, 0)), bool(trainer.get(35, 0))
            elif number == 3:
                rules = dict(_fields(value))
                found.charsmap = rules.get(2, b"")
                found.dummy_prefix, found.collapse, found.escape = (bool(rules.get(key, 1)) for key in (3, 4, 5))
    except (IndexError, KeyError, ValueError, TypeError, struct.error, AttributeError) as problem:
        raise UserError(f"not a SentencePiece file ({problem})") from None
    if not found.pieces:
        raise UserError("not a SentencePiece file: it contains no pieces")
    if why := _why_not(found):
        raise UserError(f"a SentencePiece vocabulary {why}")
    return found


def _why_not(found: Pieces) -> str | None:
    if found.algorithm != _UNIGRAM:
        return f"of the kind {_KINDS.get(found.algorithm, found.algorithm)} (model_type) is not supported, only unigram"
    if user := [name for name, _, kind in found.pieces if kind == _USER_DEFINED]:
        return f"with user-defined symbols ({', '.join(user[:3])}) is not supported"
    if found.as_suffix or not found.escape:
        key = "treat_whitespace_as_suffix" if found.as_suffix else "escape_whitespaces: false"
        return f"with {key} is not supported"
    return None


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: numbers as int, everything else as bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
        else:
            length = {1: 8, 5: 4}.get(kind)
            if length is None:
                if kind != 2:
                    raise ValueError(f"a field of kind {kind}")
                length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError("it is truncated")
            value, at = message[at : at + length], at + length
        yield tag >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
