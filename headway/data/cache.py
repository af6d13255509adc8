"""Work worth keeping between runs: a folder of files that may be deleted at any time. What is kept are tokens.

An entry is a name and some bytes. The file begins with the SHA-256 of those bytes, so one that was cut short or damaged
is noticed and counts as absent, whatever it holds; and it is written under another name and renamed into place, so that
two processes which build the same entry cannot spoil each other's. A cache that does not work costs time, never a run.

Tokenised texts are kept under a name made of what they were made from (the texts themselves, the tokenizer's spec, the
versions that matter), so an edited file is another entry and nothing ever has to be invalidated.
"""

import functools
import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import tokenizers

from headway.core import files
from headway.core.errors import UserError
from headway.core.reading import read_bytes
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import TokenizerSpec

Arrays = Mapping[str, np.ndarray]
FORMAT = 1
"""Of what is kept; raise it when the same spec gives other tokens than before."""
_LOG = logging.getLogger("headway")
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    return files.cache_folder()


def fetch(name: str) -> bytes | None:
    """The bytes stored under this name, or None if there are none or they are not what was written."""
    try:
        stored = read_bytes(folder() / name, None)
    except (OSError, RuntimeError, UserError):  # RuntimeError: this user has no home folder
        return None
    digest, content = stored[:_DIGEST], stored[_DIGEST:]
    return content if hashlib.sha256(content).digest() == digest else None


def store(name: str, content: bytes) -> None:
    """Keeps these bytes, or says once why they cannot be kept."""
    try:
        where = folder()
        where.mkdir(parents=True, exist_ok=True)
        files.write_whole(where / name, hashlib.sha256(content).digest() + content)
    except (OSError, RuntimeError) as problem:
        _say_once(
            f"the prepared text cannot be kept for the next run ({problem}); set HEADWAY_CACHE to a folder that can"
        )


@functools.cache
def _say_once(sentence: str) -> None:
    _LOG.warning(sentence)


# --- tokens ----------------------------------------------------------------------------------------------------------


def fingerprint(spec: TokenizerSpec) -> Any:
    """A hash that has begun with what tokens depend on beside the texts, which its user adds."""
    return hashlib.sha256(f"{FORMAT}\n{tokenizers.__version__}\n{spec.identity()}\n".encode())


def tokenised(
    entry: str, names: Collection[str], make: Callable[[], tuple[Tokenizer, Arrays]]
) -> tuple[Tokenizer, Arrays]:
    """A tokenizer and the arrays of these names, as they were kept; or made now, and kept."""
    content = fetch(entry)
    if content and (found := _unpacked(content, names)):
        return found
    tokenizer, arrays = make()
    written = np.frombuffer(tokenizer.to_json().encode(), dtype=np.uint8)
    store(entry, safetensors.numpy.save({"tokenizer": written, **arrays}))
    return tokenizer, arrays


def _unpacked(content: bytes, names: Collection[str]) -> tuple[Tokenizer, Arrays] | None:
    """None if this is not what is written here, although its checksum is right: some other version wrote it."""
    try:
        arrays = safetensors.numpy.load(content)
        tokenizer = Tokenizer.from_json(arrays["tokenizer"].tobytes().decode())
        # Copied because views of the file cannot be written to, and torch warns of such arrays.
        return tokenizer, {name: arrays[name].copy() for name in names}
    except (safetensors.SafetensorError, KeyError, UserError, UnicodeDecodeError):
        return None
