"""Work worth keeping between runs: a folder of files that may be deleted at any time.

An entry is a name and some bytes. The file begins with the SHA-256 of those bytes, so one that was cut short or damaged
is noticed and counts as absent, whatever it holds; and it is written under another name and renamed into place, so that
two processes which build the same entry cannot spoil each other's. A cache that does not work costs time, never a run.
"""

import functools
import hashlib
import logging
import os
from pathlib import Path

from headway.core import files

_LOG = logging.getLogger("headway")
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """`$HEADWAY_CACHE`, or `headway` in the place where this user's caches are."""
    if named := os.environ.get("HEADWAY_CACHE"):
        return Path(named).expanduser()
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches).expanduser() / "headway"
    return Path.home() / ".cache" / "headway"


def fetch(name: str) -> bytes | None:
    """The bytes stored under this name, or None if there are none or they are not what was written."""
    try:
        stored = (folder() / name).read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: this user has no home folder
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
