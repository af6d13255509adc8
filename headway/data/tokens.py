"""Tokens of a text: each with the bytes it stands for and whether a word begins there.

So perplexity can be given per word and in bits per byte whatever the tokenizer, and models with different vocabularies
can be compared. Those of a corpus lie in a file, and are found there again (`KeptTokens`).
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
