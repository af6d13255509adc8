"""Tokenizers: text to ids and back.

The work is done by the `tokenizers` library. Headway adds which part of the text each token covers (`Tokens` in
`tokens.py`). Character, word, BPE and byte tokenizers are in `tokenizer_kinds.py`, the specs for learning them in
`vocabularies.py`.
"""

import functools
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import tokenizers
from tokenizers import AddedToken

from headway.core.errors import UserError
from headway.data import marks
from headway.data.letters import (
    CHUNK,
    LINE_END,
    PIECE,
    chunks,
    codes_of,
    letter_sizes,
    place,
    show,
    white_in,
)
from headway.data.marks import Marks
from headway.data.memo import CutText, UnitMemo
from headway.data.tokens import Tokens

UNKNOWN = "<unk>"

_CHUNKS_AT_ONCE = 256
_STRANGE_WHITE = re.compile("[\x1c-\x1f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer(ABC):
    """A vocabulary, and how to split text into its tokens."""

    kind: ClassVar[str]
    size: int
    """The vocabulary size."""
    line_end: int | None
    """The id of the token that is a single line end, if there is one."""
    unknown: int | None = None
    """The id of the unknown token, if there is one."""
    marks: Marks | None = None
    """The special tokens, if the vocabulary has them; they are then put around texts to make rows."""
    takes_blank: bool = False
    """Whether the space before a word belongs to the word's token."""

    def __init__(self, library: tokenizers.Tokenizer):
        self._library = library
        vocabulary, more = library.get_vocab(), library.get_added_tokens_decoder()
        added = {token.content for token in more.values()}  # such as <|endoftext|>, taken literally
        self.marks = marks.found_in({token.content: k for k, token in more.items() if token.special})
        if self.marks is not None:
            library.encode_special_tokens = True  # special tokens in a text are read as ordinary characters
        # The meaning of a token is bytes, not characters, because a BPE token may be part of a character.
        self._meaning = [
            token.encode() if token in added else self._bytes_of(token)
            for token in sorted(vocabulary, key=vocabulary.__getitem__)
        ]
        self._lengths = np.array([len(meaning) for meaning in self._meaning], dtype=np.int64)
        self.size = len(vocabulary)
        self.line_end = next((i for i, meaning in enumerate(self._meaning) if meaning == LINE_END.encode()), None)

    def encode(self, text: str) -> Tokens:
        """Tokenise the whole text."""
        parts = [Tokens(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.bool_)), *self.parts(text)]
        return Tokens(*(np.concatenate([getattr(part, what) for part in parts]) for what in ("ids", "bytes", "starts")))

    def parts(self, text: str) -> Iterator[Tokens]:
        """Tokenise piece by piece, so that a corpus can be written to a file as it is processed."""
        # Bytes that no token covers count with the token after them, or with the last token of the text. So each part
        # is held back until the next one is known.
        waiting: Tokens | None = None
        left = 0
        for piece in chunks(text, PIECE):
            try:
                found, behind = self._part(piece)
            except UserError:
                self._refuse(text)  # gives the position in the whole text
                raise
            if len(found):
                found.bytes[0] += left
                left = 0
                if waiting is not None:
                    yield waiting
                waiting = found
            left += behind
        if waiting is not None:
            waiting.bytes[-1] += left
            yield waiting

    def _part(self, piece: str) -> tuple[Tokens, int]:
        """The tokens of a piece that begins after a word, and how many bytes at its end no token covers."""
        self._refuse(piece)
        if _STRANGE_WHITE.search(piece):  # which other vocabularies may treat as characters
            found = self._by_library(piece)
            return found, len(piece.encode()) - int(found.bytes.sum())
        found, left = self._memo.cut(piece)
        return Tokens(*found), left

    @functools.cached_property
    def _memo(self) -> UnitMemo:
        return UnitMemo(self._units)

    def _units(self, units: Sequence[str]) -> list[CutText]:
        """Tokenise each unit by itself. Many are passed to the library at once, because each call has overhead."""
        found: list[CutText] = []
        first = 0
        while first < len(units):
            last, letters = first, 0
            # A unit that does not begin with white space would be merged with the unit before it.
            while last < len(units) and letters < CHUNK and (last == first or units[last][0].isspace()):
                letters += len(units[last])
                last += 1
            found += self._together(units[first:last])
            first = last
        return found

    def _together(self, units: Sequence[str]) -> list[CutText]:
        (both,) = self._library.encode_batch([chunk := "".join(units)], add_special_tokens=False)
        tokens = self._measure(chunk, both)
        ends, unit_ends = np.cumsum(tokens.bytes), np.cumsum([len(unit.encode()) for unit in units])
        behind = np.searchsorted(ends, unit_ends, side="right")  # number of tokens up to the end of each
        if len(units) > 1 and not np.array_equal(np.concatenate(([0], ends))[behind], unit_ends):
            # some bytes are not covered by a token: find out whose
            return [one for unit in units for one in self._together([unit])]
        begins = np.concatenate(([0], behind[:-1]))
        return [
            CutText(tokens.ids[a:b], tokens.bytes[a:b], tokens.starts[a:b]) for a, b in zip(begins, behind, strict=True)
        ]

    def _whole(self, text: str) -> Iterator[Tokens]:
        """Tokenise in one go, for vocabularies whose tokens may depend on more than one word."""
        self._refuse(text)
        found = self._by_library(text) if text else None
        if found is not None and len(found):
            found.bytes[-1] += len(text.encode()) - found.bytes.sum()
            yield found

    def _by_library(self, text: str) -> Tokens:
        parts = [self._measure(chunk, encoding) for chunk, encoding in self._encodings(text)]
        return Tokens(*(np.concatenate([getattr(part, what) for part in parts]) for what in ("ids", "bytes", "starts")))

    def numbers(self, text: str) -> Iterator[np.ndarray] | None:
        """Only the ids, piece by piece, if sizes and word starts can be computed from them; else None."""
        return None

    def sizes_of(self, ids: np.ndarray) -> np.ndarray | None:
        """The number of bytes of these tokens, if the ids alone determine it; else None."""
        return None

    def starts_of(self, ids: np.ndarray) -> np.ndarray | None:
        """Whether a word begins in each of these tokens of a whole text, if the ids alone determine it; else None."""
        return None

    @property
    def id_type(self) -> type:
        """The smallest integer dtype for all ids, among those that every device supports."""
        return np.uint8 if self.size <= 1 << 8 else np.int16 if self.size <= 1 << 15 else np.int32

    def with_marks(self) -> "Tokenizer":
        """The same vocabulary with special tokens appended."""
        if self.marks is not None:
            return self
        library = tokenizers.Tokenizer.from_str(self._library.to_str())
        known = library.get_vocab()
        names = next((names for names in marks.NAMES if not any(name in known for name in names)), None)
        if names is None:
            raise UserError("cannot add special tokens: the vocabulary already has words such as [CLS] and <s>")
        library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        return type(self)(library)

    def lacks(self, text: str) -> bool:
        """Whether the text has characters that the vocabulary cannot represent."""
        return False

    @property
    def mask_name(self) -> str:
        """How a user writes the mask token in a text."""
        return "" if self.marks is None else self._meaning[self.marks.mask].decode()

    @property
    def words(self) -> np.ndarray:
        """The ids of all tokens except special ones (int64)."""
        return np.setdiff1d(np.arange(self.size), [] if self.marks is None else self.marks.all)

    def encode_with_masks(self, text: str) -> Tokens:
        """Tokenise a text typed by a user, reading [MASK] as the mask token. If tokens include the space before them,
        so does the mask."""
        assert self.marks is not None
        mask, name = np.array([self.marks.mask], dtype=np.int32), self.mask_name
        first, *others = text.split(name) if name else [text]
        parts = [self.encode(first)]
        for before, piece in zip([first, *others], others, strict=False):
            blank = self.takes_blank and before.endswith(" ")
            if blank:
                parts[-1] = self.encode(before[:-1])
            size = np.array([len(name.encode()) + blank], dtype=np.int32)
            parts += [Tokens(mask, size, np.ones(1, np.bool_)), self.encode(piece)]
        return Tokens(*(np.concatenate([getattr(part, what) for part in parts]) for what in ("ids", "bytes", "starts")))

    def encode_row(self, text: str) -> Tokens:
        """Tokenise a text typed by a user, or a pair joined by BETWEEN, as a row with the special tokens that the
        vocabulary has."""
        if self.marks is None:
            return self.encode(text)
        parts = [self.encode_with_masks(part) for part in text.split(marks.BETWEEN)]
        row = self.marks.around([part.ids for part in parts]).astype(np.int32)
        sizes, starts = np.zeros(len(row), np.int32), np.zeros(len(row), np.bool_)
        at, between = self.marks.before, self.marks.room(2) - self.marks.room(1)
        for part in parts:
            sizes[at : at + len(part)], starts[at : at + len(part)] = part.bytes, part.starts
            at += len(part) + between
        return Tokens(row, sizes, starts)

    def rows_of(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Tokenise many texts or pairs as rows (int32) with the special tokens that the vocabulary has."""
        if self.marks is None:
            return self.encode_rows(texts)
        parts = [text.split(marks.BETWEEN) for text in texts]
        flat = iter(self.encode_rows([part for row in parts for part in row]))
        return [self.marks.row([next(flat) for _ in row]) for row in parts]

    def encode_rows(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids (int32) of many short texts, without special tokens."""
        self._refuse_any(texts)
        return [self._ids(encoding) for encoding in self._encoded(texts)]

    def _encoded(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        return self._library.encode_batch(list(texts), add_special_tokens=False)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of these tokens. Incomplete UTF-8 sequences, which a model may write, become �."""
        return self._join([self._meaning[i] for i in np.asarray(ids, dtype=np.int64).tolist()])

    def pieces(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Each token for display: white space as visible symbols, unprintable characters escaped."""
        return [show(self._meaning[i]) for i in np.asarray(ids, dtype=np.int64).tolist()]

    def to_json(self) -> str:
        content = {"headway_tokenizer": 1, "kind": self.kind, "library": json.loads(self._library.to_str())}
        return json.dumps(content, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> "Tokenizer":
        try:
            content = json.loads(text)
            if content["headway_tokenizer"] != 1:
                raise ValueError("it was written by another version of Headway")
            if content["kind"] == "sentencepiece":
                from headway.data.sentencepiece import SentencePieceTokenizer

                return SentencePieceTokenizer.restored(content)
            if content["kind"] == "borrowed":
                from headway.data.borrowed import BorrowedTokenizer

                return BorrowedTokenizer.restored(content)
            from headway.data.tokenizer_kinds import OF_KIND

            library = tokenizers.Tokenizer.from_str(json.dumps(content["library"]))
            return OF_KIND[content["kind"]](library)
        except Exception as problem:  # the library has no more specific exception
            raise UserError(f"this is not a tokenizer that Headway wrote ({problem!r})") from problem

    def _encodings(self, text: str) -> Iterator[tuple[str, tokenizers.Encoding]]:
        # In portions: the library's objects take a hundred bytes per token.
        cut = list(chunks(text))
        for first in range(0, len(cut), _CHUNKS_AT_ONCE):
            some = cut[first : first + _CHUNKS_AT_ONCE]
            yield from zip(some, self._library.encode_batch(some, add_special_tokens=False), strict=True)

    def _measure(self, chunk: str, encoding: tokenizers.Encoding) -> Tokens:
        ids = self._ids(encoding)
        codes = codes_of(chunk)
        letter_bytes = letter_sizes(codes)
        letter_ends = np.cumsum(letter_bytes)
        white = white_in(codes)
        begins_word = ~white & np.concatenate([[True], white[:-1]])
        token_ends = self._token_ends(ids, encoding, chunk, letter_ends)
        starts = np.zeros(len(ids), dtype=np.bool_)
        begin = np.searchsorted(token_ends, (letter_ends - letter_bytes)[begins_word], side="right")
        starts[begin[begin < len(ids)]] = True  # beyond the last token is text that the vocabulary ignores
        return Tokens(ids, np.diff(token_ends, prepend=0).astype(np.int32), starts)

    def _ids(self, encoding: tokenizers.Encoding) -> np.ndarray:
        return np.array(encoding.ids, dtype=np.int32)

    def _token_ends(
        self, ids: np.ndarray, encoding: tokenizers.Encoding, chunk: str, letter_ends: np.ndarray
    ) -> np.ndarray:
        """The end of each token in bytes. Here tokens cover the whole text, so it follows from their lengths."""
        return np.cumsum(self._lengths[ids])

    def _refuse(self, text: str) -> None:
        """Raise a UserError if this text cannot be encoded."""
        if not text.isascii() and (half := _SURROGATE.search(text)):
            raise UserError(f"the text is not valid Unicode: half a surrogate pair {place(text, half.start())}")

    def _refuse_any(self, texts: Sequence[str]) -> None:
        for k, text in enumerate(texts):
            try:
                self._refuse(text)
            except UserError as problem:
                raise UserError(f"text {k + 1}: {problem}") from None

    def _join(self, meanings: list[bytes]) -> str:
        return b"".join(meanings).decode(errors="replace")

    @abstractmethod
    def _bytes_of(self, token: str) -> bytes:
        """The bytes of a token, from the library's name for it."""
