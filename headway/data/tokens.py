"""Tokens of a text, each with the bytes it covers and whether a word begins in it.

With these, perplexity per word and bits per byte can be computed for any tokenizer, so models with different
vocabularies can be compared. The tokens of a corpus are stored in a file and read from there (`KeptTokens`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headway.core.progress import progress
from headway.data.letters import byte_length

if TYPE_CHECKING:
    from headway.data.tokenizers import Tokenizer


@dataclass(frozen=True, eq=False)
class Tokens:
    """A tokenised text: three numpy arrays of equal length, ready for `torch.from_numpy`."""

    ids: np.ndarray
    """int32: the id of each token."""
    bytes: np.ndarray
    """int32: how many UTF-8 bytes of the text each token covers. White space outside tokens counts with the token after
    it, or at the very end with the one before, so the sum is the size of the text. (16 bits would not do: a line of
    base64 is one word, and may be longer.)"""
    starts: np.ndarray
    """bool: whether a word, as in `str.split`, begins in this token."""

    def __len__(self) -> int:
        return len(self.ids)


class KeptTokens(Tokens):
    """Tokens stored in a file, in the smallest dtypes. Byte counts and word starts are computed or unpacked on first
    use."""

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
        """Yield the arrays for the file piece by piece; pieces with the same name are concatenated. `what` labels the
        progress display."""
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
