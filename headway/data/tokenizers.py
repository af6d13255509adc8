"""Tokenizers: text to numbers and back.

The work is done by the `tokenizers` library. What Headway adds is in `Tokens` (`tokens.py`): what of the text each
token stands for. At the level of characters, words, byte pairs or bytes: `tokenizer_kinds.py`. Where a vocabulary comes
from: `vocabularies.py`.
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
    """What was learnt from a text: a vocabulary, and how to cut text into its tokens."""

    kind: ClassVar[str]
    size: int
    """How many tokens the vocabulary has."""
    line_end: int | None
    """The token that is one line end and nothing else, if the vocabulary has it."""
    unknown: int | None = None
    """The token that stands for all that the vocabulary lacks, if there is one."""
    marks: Marks | None = None
    """The tokens that are no text, if the vocabulary has them: then texts become rows with them."""
    takes_blank: bool = False
    """Whether the blank before a word is a part of its token."""

    def __init__(self, library: tokenizers.Tokenizer):
        self._library = library
        vocabulary, more = library.get_vocab(), library.get_added_tokens_decoder()
        added = {token.content for token in more.values()}  # <|endoftext|>, as it stands
        self.marks = marks.found_in({token.content: k for k, token in more.items() if token.special})
        if self.marks is not None:
            library.encode_special_tokens = True  # as the letters they are written with
        # A token's meaning as bytes rather than letters, because a byte pair may be half a letter.
        self._meaning = [
            token.encode() if token in added else self._bytes_of(token)
            for token in sorted(vocabulary, key=vocabulary.__getitem__)
        ]
        self._lengths = np.array([len(meaning) for meaning in self._meaning], dtype=np.int64)
        self.size = len(vocabulary)
        self.line_end = next((i for i, meaning in enumerate(self._meaning) if meaning == LINE_END.encode()), None)

    def encode(self, text: str) -> Tokens:
        """The whole text as tokens."""
        parts = [Tokens(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.bool_)), *self.parts(text)]
        return Tokens(*(np.concatenate([getattr(part, what) for part in parts]) for what in ("ids", "bytes", "starts")))

    def parts(self, text: str) -> Iterator[Tokens]:
        """The same, some tokens after the others, so that those of a corpus can be put away as they come."""
        # What no token stands for is counted with the token after it; behind the last, with that one. So one waits.
        waiting: Tokens | None = None
        left = 0
        for piece in chunks(text, PIECE):
            try:
                found, behind = self._part(piece)
            except UserError:
                self._refuse(text)  # which says where in the whole text it is
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
        """The tokens of a piece that begins where a word has ended, and how many of its last bytes none stands for."""
        self._refuse(piece)
        if _STRANGE_WHITE.search(piece):  # which vocabularies made elsewhere may take for signs
            found = self._by_library(piece)
            return found, len(piece.encode()) - int(found.bytes.sum())
        found, left = self._memo.cut(piece)
        return Tokens(*found), left

    @functools.cached_property
    def _memo(self) -> UnitMemo:
        return UnitMemo(self._units)

    def _units(self, units: Sequence[str]) -> list[CutText]:
        """Each by itself. Many are cut together, for the library is slow to begin."""
        found: list[CutText] = []
        first = 0
        while first < len(units):
            last, letters = first, 0
            # What does not begin with white space would go on with the unit before it.
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
        behind = np.searchsorted(ends, unit_ends, side="right")  # the tokens up to the end of each
        if len(units) > 1 and not np.array_equal(np.concatenate(([0], ends))[behind], unit_ends):
            return [one for unit in units for one in self._together([unit])]  # something is not seen: whose is it?
        begins = np.concatenate(([0], behind[:-1]))
        return [
            CutText(tokens.ids[a:b], tokens.bytes[a:b], tokens.starts[a:b]) for a, b in zip(begins, behind, strict=True)
        ]

    def _whole(self, text: str) -> Iterator[Tokens]:
        """Without cutting anything a second time: for vocabularies that may look further than a word."""
        self._refuse(text)
        found = self._by_library(text) if text else None
        if found is not None and len(found):
            found.bytes[-1] += len(text.encode()) - found.bytes.sum()
            yield found

    def _by_library(self, text: str) -> Tokens:
        parts = [self._measure(chunk, encoding) for chunk, encoding in self._encodings(text)]
        return Tokens(*(np.concatenate([getattr(part, what) for part in parts]) for what in ("ids", "bytes", "starts")))

    def numbers(self, text: str) -> Iterator[np.ndarray] | None:
        """The numbers alone of all tokens, some after the others, where the rest follows from them."""
        return None

    def sizes_of(self, ids: np.ndarray) -> np.ndarray | None:
        """The bytes of these tokens, where nothing but the tokens says that."""
        return None

    def starts_of(self, ids: np.ndarray) -> np.ndarray | None:
        """Whether a word begins in each of these tokens of a whole text, where nothing but the tokens says that."""
        return None

    @property
    def id_type(self) -> type:
        """The smallest that has room for all numbers, of those that every device can count with."""
        return np.uint8 if self.size <= 1 << 8 else np.int16 if self.size <= 1 << 15 else np.int32

    def with_marks(self) -> "Tokenizer":
        """The same vocabulary with the tokens that are no text, behind all others."""
        if self.marks is not None:
            return self
        library = tokenizers.Tokenizer.from_str(self._library.to_str())
        known = library.get_vocab()
        names = next((names for names in marks.NAMES if not any(name in known for name in names)), None)
        if names is None:
            raise UserError("the text has [CLS] or the like, and <s> or the like, as words: no name is left for a mark")
        library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        return type(self)(library)

    def lacks(self, text: str) -> bool:
        """Whether something in it cannot be written at all."""
        return False

    @property
    def mask_name(self) -> str:
        """What hides a token, in a text that somebody types."""
        return "" if self.marks is None else self._meaning[self.marks.mask].decode()

    @property
    def words(self) -> np.ndarray:
        """The tokens that are of text (int64)."""
        return np.setdiff1d(np.arange(self.size), [] if self.marks is None else self.marks.all)

    def encode_with_masks(self, text: str) -> Tokens:
        """A text somebody typed, in which [MASK] is what is hidden, and not letters. Where tokens begin with the blank
        before them the mask does, too."""
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
        """A text somebody typed, or a pair with BETWEEN between its two, as a model reads it: with marks around it, if
        the vocabulary has them."""
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
        """Many texts, or pairs, as models read them (int32): with marks, if the vocabulary has them."""
        if self.marks is None:
            return self.encode_rows(texts)
        parts = [text.split(marks.BETWEEN) for text in texts]
        flat = iter(self.encode_rows([part for row in parts for part in row]))
        return [self.marks.row([next(flat) for _ in row]) for row in parts]

    def encode_rows(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids (int32) of many short texts, each by itself."""
        self._refuse_any(texts)
        return [self._ids(encoding) for encoding in self._encoded(texts)]

    def _encoded(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        return self._library.encode_batch(list(texts), add_special_tokens=False)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of these tokens. Bytes that are no whole letter, which a model may well write, become �."""
        return self._join([self._meaning[i] for i in np.asarray(ids, dtype=np.int64).tolist()])

    def pieces(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Each token as shown to a person: white space has a sign, and what cannot be printed is escaped."""
        return [show(self._meaning[i]) for i in np.asarray(ids, dtype=np.int64).tolist()]

    def to_json(self) -> str:
        content = {"headway_tokenizer": 1, "kind": self.kind, "library": json.loads(self._library.to_str())}
        return json.dumps(content, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> "Tokenizer":
        try:
            content = json.loads(text)
            if content["headway_tokenizer"] != 1:
                raise ValueError("its format is that of another version of Headway")
            if content["kind"] == "sentencepiece":
                from headway.data.sentencepiece import SentencePieceTokenizer

                return SentencePieceTokenizer.restored(content)
            if content["kind"] == "borrowed":
                from headway.data.borrowed import BorrowedTokenizer

                return BorrowedTokenizer.restored(content)
            from headway.data.tokenizer_kinds import OF_KIND

            library = tokenizers.Tokenizer.from_str(json.dumps(content["library"]))
            return OF_KIND[content["kind"]](library)
        except Exception as problem:  # the library raises nothing more particular
            raise UserError(f"this is not a tokenizer that Headway wrote ({problem!r})") from problem

    def _encodings(self, text: str) -> Iterator[tuple[str, tokenizers.Encoding]]:
        # Not all at once: the library's objects take a hundred bytes for each token.
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
        starts[begin[begin < len(ids)]] = True  # beyond the last token stands what the vocabulary does not see at all
        return Tokens(ids, np.diff(token_ends, prepend=0).astype(np.int32), starts)

    def _ids(self, encoding: tokenizers.Encoding) -> np.ndarray:
        return np.array(encoding.ids, dtype=np.int32)

    def _token_ends(
        self, ids: np.ndarray, encoding: tokenizers.Encoding, chunk: str, letter_ends: np.ndarray
    ) -> np.ndarray:
        """Where each token ends, in bytes. Tokens that are all of the text end where their bytes do."""
        return np.cumsum(self._lengths[ids])

    def _refuse(self, text: str) -> None:
        """Raises a UserError if this text cannot be encoded."""
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
        """What a token means, from the library's name for it."""
