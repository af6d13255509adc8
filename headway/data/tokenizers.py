"""Tokenizers: text to numbers and back, at the level of characters, bytes, words or byte pairs.

The work is done by the `tokenizers` library. What Headway adds is in `Tokens`: for each token the bytes of text it
stands for and whether a word begins there, so perplexity can be given per word and in bits per byte whatever the
tokenizer, and models with different vocabularies can be compared. Where a vocabulary comes from: `vocabularies.py`.
"""

import functools
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np
import tokenizers
from tokenizers import AddedToken, pre_tokenizers

from headway.core.errors import UserError
from headway.core.telling import progress
from headway.data import marks
from headway.data.marks import Marks
from headway.data.memo import CutText, UnitMemo

UNKNOWN = "<unk>"
LINE_END = "\n"

# White space as `str.split` has it. The library's own \s lacks U+001C–1F, and words would be counted in two ways.
BLANK = "\t\x0b-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
WHITE = "\n" + BLANK
_BEYOND_WHITE = 0x3001
_IS_WHITE = np.array([chr(code).isspace() for code in range(_BEYOND_WHITE + 1)])

# Text is cut for the library where every tokenizer cuts it anyway: between a word and the white space after it.
_CHUNK = 1 << 14
# (But not before U+001C–1F, which vocabularies made elsewhere may take for signs.)
_WORD_ENDS = re.compile(r"(?<=\S)(?=[^\S\x1c-\x1f])")
_CHUNKS_AT_ONCE = 256
_PIECE = 1 << 20
_STRANGE_WHITE = re.compile("[\x1c-\x1f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SIGNS = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})


@dataclass(frozen=True, eq=False)
class Tokens:
    """A text as a tokenizer sees it: three numpy arrays of equal length, which `torch.from_numpy` takes as they are."""

    ids: np.ndarray
    """int32: the place of each token in the vocabulary."""
    bytes: np.ndarray
    """int32: the UTF-8 bytes of the text each token covers. White space that is no token is counted with the token
    after it, or at the very end with the one before, so these add up to the size of the text. (Not 16 bits: a line of
    base64 is one word, and may be longer than that.)"""
    starts: np.ndarray
    """bool: a word, in the sense of `str.split`, begins in this token."""

    def __len__(self) -> int:
        return len(self.ids)


class KeptTokens(Tokens):
    """Tokens as they lie in a file, in the smallest types there are; what follows from the tokens, or is asked for of
    few texts only, is found when somebody asks."""

    def __init__(self, tokenizer: "Tokenizer", arrays: Mapping[str, np.ndarray]):
        object.__setattr__(self, "ids", arrays["ids"])
        object.__setattr__(self, "_of", (tokenizer, arrays))

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in ("bytes", "starts"):
            raise AttributeError(name)
        tokenizer, arrays = self._of
        found = (tokenizer.sizes_of if name == "bytes" else tokenizer.starts_of)(self.ids)
        if found is None and name == "bytes":
            found = arrays["sizes"].astype(np.int32)
            found[arrays["long"][0::2]] = arrays["long"][1::2]
        elif found is None:
            found = np.unpackbits(arrays["starts"], count=len(self.ids)).view(np.bool_)
        object.__setattr__(self, name, found)
        return found

    names = ("ids", "sizes", "long", "starts")

    @staticmethod
    def stored(tokenizer: "Tokenizer", text: str, what: str = "tokens") -> Iterator[tuple[str, np.ndarray]]:
        """What goes into the file, some of it after the other; pieces of one name belong together. `what` is done is
        told on the way."""
        done, read, size, bits = 0, 0, 0, np.zeros(0, np.bool_)
        for name, dtype in zip(KeptTokens.names, (tokenizer.id_type, np.uint8, np.int64, np.uint8), strict=True):
            yield name, np.zeros(0, dtype)
        for ids in tokenizer.numbers(text) or ():
            yield "ids", ids.astype(tokenizer.id_type)
            progress(what, done := done + len(ids), len(text))
        if done:
            return
        size = byte_length(text)
        for part in tokenizer.parts(text):
            yield "ids", part.ids.astype(tokenizer.id_type)
            if tokenizer.sizes_of(part.ids[:1]) is None:
                yield "sizes", np.minimum(part.bytes, 255).astype(np.uint8)
                if len(large := np.flatnonzero(part.bytes > 255)):  # a line of base64 is one word
                    yield "long", np.stack([large + done, part.bytes[large]], 1).ravel().astype(np.int64)
            if tokenizer.starts_of(part.ids[:1]) is None:
                bits = np.concatenate([bits, part.starts])
                whole = len(bits) // 8 * 8
                yield "starts", np.packbits(bits[:whole])
                bits = bits[whole:]
            done += len(part)
            read += int(part.bytes.sum())
            progress(what, read, size)
        yield "starts", np.packbits(bits)


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
        for piece in chunks(text, _PIECE):
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
            while last < len(units) and letters < _CHUNK and (last == first or units[last][0].isspace()):
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
        for k, text in enumerate(texts):
            try:
                self._refuse(text)
            except UserError as problem:
                raise UserError(f"text {k + 1}: {problem}") from None
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
            library = tokenizers.Tokenizer.from_str(json.dumps(content["library"]))
            return _OF_KIND[content["kind"]](library)
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
        codes = _codes(chunk)
        letter_bytes = _letter_bytes(codes)
        letter_ends = np.cumsum(letter_bytes)
        white = _IS_WHITE[_at_most(codes, _BEYOND_WHITE)]
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
            raise UserError(f"the text is not valid Unicode: half a surrogate pair {_place(text, half.start())}")

    def _join(self, meanings: list[bytes]) -> str:
        return b"".join(meanings).decode(errors="replace")

    @abstractmethod
    def _bytes_of(self, token: str) -> bytes:
        """What a token means, from the library's name for it."""


class CharTokenizer(Tokenizer):
    """Letter by letter, by a table of all letters; the library is kept to be written down, and never asked."""

    kind = "char"

    def __init__(self, library: tokenizers.Tokenizer):
        super().__init__(library)
        known = {token: k for token, k in library.get_vocab().items() if len(token) == 1}
        self.unknown = library.token_to_id(UNKNOWN) if getattr(library.model, "unk_token", None) == UNKNOWN else None
        lacking = -1 if self.unknown is None else self.unknown
        smallest = np.int8 if self.size <= 1 << 7 else np.int16 if self.size <= 1 << 15 else np.int32
        self._table = np.full(max(map(ord, known), default=0) + 2, lacking, dtype=smallest)
        for letter, k in known.items():
            self._table[ord(letter)] = k
        meanings = [meaning.decode() for meaning in self._meaning]
        self._white = np.array([len(letter) == 1 and letter.isspace() for letter in meanings])

    def _bytes_of(self, token: str) -> bytes:
        return token.encode()

    def _numbers(self, text: str) -> np.ndarray:
        """Of every letter; or a UserError."""
        try:
            codes = _codes(text)
        except UnicodeEncodeError:
            super()._refuse(text)
            raise
        found = self._table[_at_most(codes, len(self._table) - 1)]
        if self.unknown is None and len(found) and int(found.min()) < 0:
            self._say_what_is_lacking(text, codes, found < 0)
        return found

    def numbers(self, text: str) -> Iterator[np.ndarray] | None:
        return self._all_numbers(text) if self.unknown is None else None

    def _all_numbers(self, text: str) -> Iterator[np.ndarray]:
        for begin in range(0, len(text), _PIECE):
            try:
                yield self._numbers(text[begin : begin + _PIECE])
            except UserError:
                self._refuse(text)
                raise

    def _part(self, piece: str) -> tuple[Tokens, int]:
        ids, codes = self._numbers(piece), _codes(piece)
        white = _IS_WHITE[_at_most(codes, _BEYOND_WHITE)]
        sizes = np.ones(len(ids), np.int32) if piece.isascii() else _letter_bytes(codes).astype(np.int32)
        # Pieces begin where a word has ended, or where the text begins.
        starts = ~white & np.concatenate([[True], white[:-1]])
        return Tokens(ids.astype(np.int32), sizes, starts), 0

    def encode_rows(self, texts: Sequence[str]) -> list[np.ndarray]:
        for k, text in enumerate(texts):
            try:
                self._refuse(text)
            except UserError as problem:
                raise UserError(f"text {k + 1}: {problem}") from None
        return [self._numbers(text).astype(np.int32) for text in texts]

    def sizes_of(self, ids: np.ndarray) -> np.ndarray | None:
        return None if self.unknown is not None else self._lengths[ids].astype(np.int32)

    def starts_of(self, ids: np.ndarray) -> np.ndarray | None:
        white = self._white[ids]
        return None if self.unknown is not None else ~white & np.concatenate([[True], white[:-1]])

    def _refuse(self, text: str) -> None:
        self._numbers(text)

    def _say_what_is_lacking(self, text: str, codes: np.ndarray, lacking: np.ndarray) -> NoReturn:
        strange, first = [chr(code) for code in np.unique(codes[lacking])], int(np.argmax(lacking))
        named = ", ".join(f"{letter!r} (U+{ord(letter):04X})" for letter in strange[:5])
        more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
        raise UserError(
            f"the vocabulary, which is the characters of the train split, lacks {named}{more}; "
            f"the first is {text[first]!r} {_place(text, first)}. Tokens that can write any text: data.tokenizer=bpe "
            "or data.tokenizer=byte; or one token for all strange characters: data.tokenizer.unknown=true"
        )


class WordTokenizer(Tokenizer):
    kind = "word"
    unknown = 0  # `Word.learn` puts it first

    def _bytes_of(self, token: str) -> bytes:
        return token.encode()

    def _token_ends(
        self, ids: np.ndarray, encoding: tokenizers.Encoding, chunk: str, letter_ends: np.ndarray
    ) -> np.ndarray:
        # A token's own bytes say nothing of the white space before it, nor of the word that <unk> stands for.
        return letter_ends[[end - 1 for _, end in encoding.offsets]] if len(ids) else np.zeros(0, np.int64)

    def _join(self, meanings: list[bytes]) -> str:
        return re.sub(r" ?\n ?", "\n", " ".join(meaning.decode() for meaning in meanings))


class BpeTokenizer(Tokenizer):
    kind = "bpe"
    takes_blank = True

    def __init__(self, library: tokenizers.Tokenizer):
        super().__init__(library)
        single = {meaning for meaning in self._meaning if len(meaning) == 1}
        self._lacking = bytes(byte for byte in range(256) if bytes([byte]) not in single)

    def lacks(self, text: str) -> bool:
        content = text.encode()
        return any(byte in content for byte in self._lacking)

    def _refuse(self, text: str) -> None:
        super()._refuse(text)
        if self._lacking and self.lacks(text):
            sign = next(k for k, letter in enumerate(text) if self.lacks(letter))
            raise UserError(f"the vocabulary has no bytes to write {text[sign]!r} with, {_place(text, sign)}")

    def _token_ends(
        self, ids: np.ndarray, encoding: tokenizers.Encoding, chunk: str, letter_ends: np.ndarray
    ) -> np.ndarray:
        ends = super()._token_ends(ids, encoding, chunk, letter_ends)
        lower = self._library.normalizer
        if lower is None or chunk.isascii():
            return ends
        # A small letter may have more bytes than the capital that stood in the text (U+0130), or fewer (U+1E9E).
        letters, which = np.unique(_codes(chunk), return_inverse=True)
        lowered_ends = np.cumsum(np.array([len(lower.normalize_str(chr(c)).encode()) for c in letters])[which])
        return np.interp(ends, np.append(0, lowered_ends), np.append(0, letter_ends)).astype(np.int64)

    def _bytes_of(self, token: str) -> bytes:
        return bytes(BYTE_OF_SIGN[sign] for sign in token)


class ByteTokenizer(BpeTokenizer):
    """A token is a byte, and its number is the byte's."""

    kind = "byte"
    takes_blank = False

    def _part(self, piece: str) -> tuple[Tokens, int]:
        self._refuse(piece)
        codes = _codes(piece)
        white = _IS_WHITE[_at_most(codes, _BEYOND_WHITE)]
        begins_word = ~white & np.concatenate([[True], white[:-1]])
        content = np.frombuffer(piece.encode(), np.uint8).astype(np.int32)
        if piece.isascii():
            return Tokens(content, np.ones(len(content), np.int32), begins_word), 0
        starts, sizes = np.zeros(len(content), np.bool_), _letter_bytes(codes)
        starts[(np.cumsum(sizes) - sizes)[begins_word]] = True
        return Tokens(content, np.ones(len(content), np.int32), starts), 0

    def encode_rows(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text).ids for text in texts]

    def sizes_of(self, ids: np.ndarray) -> np.ndarray:
        return np.ones(len(ids), np.int32)


_OF_KIND = {cls.kind: cls for cls in (CharTokenizer, WordTokenizer, BpeTokenizer, ByteTokenizer)}


@functools.cache
def byte_of_sign() -> dict[str, int]:
    """The library names tokens by one sign per byte: the byte's own letter if that can be printed, else one of the
    letters from U+0100 on, given out in the order of the bytes."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [ord(sign) for sign in signs if ord(sign) < 256]
    others = [byte for byte in range(256) if byte not in printable]
    return dict(zip(signs, printable + others, strict=True))


BYTE_OF_SIGN = byte_of_sign()


def chunks(text: str, letters: int = _CHUNK) -> Iterator[str]:
    """Pieces of about so many letters, cut where a word ends."""
    begin = 0
    while begin < len(text):
        word_end = _WORD_ENDS.search(text, begin + letters)
        end = word_end.start() if word_end else len(text)
        yield text[begin:end]
        begin = end


def _codes(text: str) -> np.ndarray:
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def byte_length(text: str) -> int:
    """In UTF-8, without a copy of all of it."""
    return len(text) if text.isascii() else sum(len(text[k : k + _PIECE].encode()) for k in range(0, len(text), _PIECE))


def letters_of(text: str) -> set[str]:
    """Every letter that it has."""
    there = np.zeros(0x110000, np.bool_)
    for begin in range(0, len(text), _PIECE):
        there[_codes(text[begin : begin + _PIECE])] = True
    return {chr(code) for code in np.flatnonzero(there)}


def _at_most(codes: np.ndarray, highest: int) -> np.ndarray:
    return codes if codes.dtype == np.uint8 and highest >= 255 else np.minimum(codes.astype(np.uint32), highest)


def _letter_bytes(codes: np.ndarray) -> np.ndarray:
    """How many each letter has in UTF-8."""
    return 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)


def _place(text: str, index: int) -> str:
    return f"in line {text.count(LINE_END, 0, index) + 1}, column {index - text.rfind(LINE_END, 0, index)}"


def show(meaning: bytes) -> str:
    letters = meaning.decode(errors="backslashreplace").translate(_SIGNS)
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in letters)
