"""Character, word, BPE and byte tokenizers.

Their common base is in `tokenizers.py`; how they are learnt, in `vocabularies.py`.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from headway.core.errors import UserError
from headway.data.letters import PIECE, codes_of, letter_sizes, looked_up, place, white_in
from headway.data.tokenizers import UNKNOWN, Tokenizer
from headway.data.tokens import Tokens


class CharTokenizer(Tokenizer):
    """Tokenises by a lookup table of characters. The library object is only kept for saving."""

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
        """The id of every character, or a UserError."""
        try:
            codes = codes_of(text)
        except UnicodeEncodeError:
            super()._refuse(text)
            raise
        found = looked_up(self._table, codes)
        if self.unknown is None and len(found) and int(found.min()) < 0:
            self._say_what_is_lacking(text, codes, found < 0)
        return found

    def numbers(self, text: str) -> Iterator[np.ndarray] | None:
        return self._all_numbers(text) if self.unknown is None else None

    def _all_numbers(self, text: str) -> Iterator[np.ndarray]:
        for begin in range(0, len(text), PIECE):
            try:
                yield self._numbers(text[begin : begin + PIECE])
            except UserError:
                self._refuse(text)
                raise

    def _part(self, piece: str) -> tuple[Tokens, int]:
        ids, codes = self._numbers(piece), codes_of(piece)
        white = white_in(codes)
        sizes = np.ones(len(ids), np.int32) if piece.isascii() else letter_sizes(codes).astype(np.int32)
        # Pieces begin after a word or at the beginning of the text.
        starts = ~white & np.concatenate([[True], white[:-1]])
        return Tokens(ids.astype(np.int32), sizes, starts), 0

    def encode_rows(self, texts: Sequence[str]) -> list[np.ndarray]:
        self._refuse_any(texts)
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
            f"the vocabulary, made of the characters of the train split, lacks {named}{more}; "
            f"the first is {text[first]!r} {place(text, first)}. Use data.tokenizer=bpe "
            "or data.tokenizer=byte, which can write any text, or data.tokenizer.unknown=true for an <unk> token"
        )


class WordTokenizer(Tokenizer):
    kind = "word"
    unknown = 0  # `Word.learn` puts it first

    def _bytes_of(self, token: str) -> bytes:
        return token.encode()

    def _token_ends(
        self, ids: np.ndarray, encoding: tokenizers.Encoding, chunk: str, letter_ends: np.ndarray
    ) -> np.ndarray:
        # From the offsets, since a token's own bytes lack the white space before it and the word that <unk> replaces.
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
            raise UserError(f"the vocabulary lacks bytes of {text[sign]!r}, {place(text, sign)}")

    def _token_ends(
        self, ids: np.ndarray, encoding: tokenizers.Encoding, chunk: str, letter_ends: np.ndarray
    ) -> np.ndarray:
        ends = super()._token_ends(ids, encoding, chunk, letter_ends)
        lower = self._library.normalizer
        if lower is None or chunk.isascii():
            return ends
        # A lower-case character may have more bytes than its capital in the text (U+0130), or fewer (U+1E9E).
        letters, which = np.unique(codes_of(chunk), return_inverse=True)
        lowered_ends = np.cumsum(np.array([len(lower.normalize_str(chr(c)).encode()) for c in letters])[which])
        return np.interp(ends, np.append(0, lowered_ends), np.append(0, letter_ends)).astype(np.int64)

    def _bytes_of(self, token: str) -> bytes:
        return bytes(BYTE_OF_SIGN[sign] for sign in token)


class ByteTokenizer(BpeTokenizer):
    """A token is a byte, and its id is the byte's value."""

    kind = "byte"
    takes_blank = False

    def _part(self, piece: str) -> tuple[Tokens, int]:
        self._refuse(piece)
        codes = codes_of(piece)
        white = white_in(codes)
        begins_word = ~white & np.concatenate([[True], white[:-1]])
        content = np.frombuffer(piece.encode(), np.uint8).astype(np.int32)
        if piece.isascii():
            return Tokens(content, np.ones(len(content), np.int32), begins_word), 0
        starts, sizes = np.zeros(len(content), np.bool_), letter_sizes(codes)
        starts[(np.cumsum(sizes) - sizes)[begins_word]] = True
        return Tokens(content, np.ones(len(content), np.int32), starts), 0

    def encode_rows(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text).ids for text in texts]

    def sizes_of(self, ids: np.ndarray) -> np.ndarray:
        return np.ones(len(ids), np.int32)


OF_KIND = {cls.kind: cls for cls in (CharTokenizer, WordTokenizer, BpeTokenizer, ByteTokenizer)}


@functools.cache
def byte_of_sign() -> dict[str, int]:
    """The library names tokens by one character per byte: the byte's own character if it is printable, else one from
    U+0100 on, assigned in the order of the bytes."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [ord(sign) for sign in signs if ord(sign) < 256]
    others = [byte for byte in range(256) if byte not in printable]
    return dict(zip(signs, printable + others, strict=True))


BYTE_OF_SIGN = byte_of_sign()
