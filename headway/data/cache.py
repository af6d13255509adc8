"""The cache: a folder of files that may be deleted at any time (`headway cache --clear`). This module keeps tokenised
texts in it.

An entry is a name and some bytes. The file begins with the SHA-256 of the bytes, so a truncated or damaged file is
noticed and counts as absent. It is written under another name and renamed, so that two processes building the same
entry do not interfere. A cache that does not work costs time but never fails a run.

The name of an entry is a hash of what it was made from (the texts, the tokenizer's spec, the versions that matter), so
an edited file gets a new entry and nothing ever has to be invalidated. Tokens are written as they are computed and
memory-mapped for reading, so a corpus takes no more memory than its text.
"""

import hashlib
import itertools
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import tokenizers

from headway.core import files
from headway.core.errors import UserError
from headway.core.progress import say_once
from headway.core.reading import opened, read_bytes
from headway.data.tokenizers import Tokenizer
from headway.data.vocabularies import TokenizerSpec

Arrays = Mapping[str, np.ndarray]
FORMAT = 1
"""The cache format; increase it when the same spec gives other tokens than before."""
MIN_MAPPED = 1 << 24
"""Arrays of at least so many bytes are memory-mapped. Smaller ones are copied, which is safe if the file is truncated
later."""
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    return files.cache_folder()


def fetch(name: str) -> bytes | None:
    """The bytes stored under this name, or None if they are missing or damaged."""
    try:
        stored = read_bytes(folder() / name, None)
    except (OSError, RuntimeError, UserError):  # RuntimeError: the user has no home folder
        return None
    digest, content = stored[:_DIGEST], stored[_DIGEST:]
    return content if hashlib.sha256(content).digest() == digest else None


def store(name: str, content: bytes) -> None:
    """Store these bytes, or say once why that failed."""
    try:
        where = folder()
        where.mkdir(parents=True, exist_ok=True)
        files.write_whole(where / name, hashlib.sha256(content).digest() + content)
    except (OSError, RuntimeError) as problem:
        _say(problem)


def _say(problem: Exception) -> None:
    say_once(f"the tokenised text cannot be cached ({problem}): set HEADWAY_CACHE to a writable folder")


class Entry(NamedTuple):
    path: Path
    size: int
    """Bytes."""
    used: float
    """Last read or written, in seconds since 1970."""

    @property
    def is_current(self) -> bool:
        """Whether this version of Headway uses it."""
        return not self.path.name.startswith("corpus-")

    @property
    def kind(self) -> str:
        """What the entry holds, for people."""
        home, name = self.path.parent, self.path.name.lstrip(".")
        if home != folder():
            model = re.sub("-[0-9a-f]{8,}-.+", "", name)
            return {"trained": f"model {model}", "runs": "index of runs"}.get(home.name, home.name)
        known = next((said for start, said in _KINDS.items() if name.startswith(start)), "")
        return known or re.sub("-[0-9a-f]{16,}.*", "", name)


_HOMES = {"trained": r".+-[0-9a-f]{8,}-.+", "runs": r"[0-9a-f]{16,}\.json", "workbench": r"[0-9a-f]{16,}\.json"}
_KINDS = {
    "text-": "tokenised text",
    "pairs-": "tokenised sentence pairs",
    "labelled-": "tokenised labelled texts",
    "pictures-": "pictures with tokenised captions",
    "evidence-": "results of data audits",
    "kernel-": "comparisons of kernels",
    "compiled": "compiled models",
    "corpus-": "outdated",
}
_OURS = re.compile(r"\.?[a-z]+(-[a-z]+)*-[0-9a-f]{16,}(\..*)?|compiled")
"""The names of entries; the cache folder may hold other files too."""


def entries() -> list[Entry]:
    """All entries, largest first. The folder of a model that other runs start from is one entry."""
    found = []
    for home, named in [(folder(), _OURS), *((folder() / home, re.compile(named)) for home, named in _HOMES.items())]:
        for path in home.iterdir() if home.is_dir() else ():
            if not named.fullmatch(path.name):
                continue
            inner = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
            with suppress(OSError):
                stats = [one.stat() for one in inner]
                used = max((max(stat.st_atime, stat.st_mtime) for stat in stats), default=0.0)
                found.append(Entry(path, sum(stat.st_size for stat in stats), used))
    return sorted(found, key=lambda entry: (-entry.size, entry.path.name))


def clear(some: Iterable[Entry]) -> int:
    """Delete entries; returns the number of bytes freed."""
    freed = 0
    for entry in some:
        try:
            shutil.rmtree(entry.path) if entry.path.is_dir() and not entry.path.is_symlink() else entry.path.unlink()
        except OSError as problem:
            raise UserError(f"'{entry.path}' cannot be removed: {problem.strerror}") from None
        freed += entry.size
    return freed


# --- tokens ----------------------------------------------------------------------------------------------------------


def fingerprint(spec: TokenizerSpec) -> Any:
    """A hash of everything tokens depend on apart from the texts, which the caller adds."""
    return hashlib.sha256(f"{FORMAT}\n{tokenizers.__version__}\n{spec.identity()}\n".encode())


Pieces = Iterable[tuple[str, np.ndarray]]
"""Arrays by name, piece by piece; pieces with the same name are concatenated."""
MakePieces = Callable[[], Pieces]


def tokenised(
    entry: str, names: Collection[str], make: Callable[[], tuple[Tokenizer, MakePieces]]
) -> tuple[Tokenizer, Arrays]:
    """A tokenizer and the arrays with these names, from the cache or else made now and cached."""
    if found := _found(entry, names):
        return found
    tokenizer, pieces = make()
    written = np.frombuffer(tokenizer.to_json().encode(), dtype=np.uint8)
    try:
        _keep(entry, itertools.chain([("tokenizer", written)], pieces()))
    except (OSError, RuntimeError) as problem:
        _say(problem)
    else:
        if found := _found(entry, names):
            return found
    # The cache does not work: keep everything in memory.
    arrays: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for name, piece in pieces():
        arrays[name].append(piece)
    return tokenizer, {name: np.concatenate(some) for name, some in arrays.items()}


def _keep(entry: str, pieces: Pieces) -> None:
    """Write the checksum, then safetensors. Each array grows in a file of its own; then all are joined."""
    where = folder()
    where.mkdir(parents=True, exist_ok=True)
    partial = where / f".{entry}.{os.getpid()}.partial"
    parts: dict[str, tuple[IO[bytes], np.ndarray]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix=f".{entry}.", dir=where) as home:
            try:
                for name, piece in pieces:
                    if name not in parts:
                        parts[name] = (Path(home) / str(len(parts))).open("wb+"), piece[:0]
                    parts[name][0].write(np.ascontiguousarray(piece).data if len(piece) else b"")
                with files.naming(where / entry), partial.open("wb") as whole:
                    _join(parts, whole)
                    whole.flush()
                    os.fsync(whole.fileno())
                partial.replace(where / entry)
            finally:
                for file, _ in parts.values():
                    file.close()
    finally:
        partial.unlink(missing_ok=True)


def _join(parts: Mapping[str, tuple[IO[bytes], np.ndarray]], whole: IO[bytes]) -> None:
    header: dict[str, Any] = {}
    in_order = sorted(parts, key=lambda name: -parts[name][1].dtype.itemsize)  # for alignment
    at = 0
    for name in in_order:
        file, like = parts[name]
        size = file.tell()
        shape = [size // max(1, like.dtype.itemsize * math.prod(like.shape[1:])), *like.shape[1:]]
        header[name] = {"dtype": _NAME_OF[like.dtype], "shape": shape, "data_offsets": [at, at + size]}
        at += size
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    digest = hashlib.sha256()
    whole.write(bytes(_DIGEST))
    for block in (len(written).to_bytes(8, "little"), written, *(b for n in in_order for b in _blocks(parts[n][0]))):
        digest.update(block)
        whole.write(block)
    whole.seek(0)
    whole.write(digest.digest())


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while block := file.read(1 << 22):
        yield block


_NAME_OF = {
    np.dtype(kind): name
    for kind, name in (
        (np.bool_, "BOOL"), (np.uint8, "U8"), (np.int16, "I16"), (np.int32, "I32"), (np.int64, "I64"),
        (np.float32, "F32"), (np.float64, "F64"),
    )
}  # fmt: skip


def _found(entry: str, names: Collection[str]) -> tuple[Tokenizer, Arrays] | None:
    """Read an entry; None if it is missing, damaged or from another version."""
    try:
        path = folder() / entry
        with opened(path) as file:
            said, digest = file.read(_DIGEST), hashlib.sha256()
            while block := file.read(1 << 22):
                digest.update(block)
            if digest.digest() != said:
                return None
            file.seek(_DIGEST)
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        kinds = {name: kind for kind, name in _NAME_OF.items()}
        arrays = {}
        for name in ("tokenizer", *names):
            about, begin = header[name], _DIGEST + 8 + size
            shape, (first, _) = tuple(about["shape"]), about["data_offsets"]
            arrays[name] = _array(path, kinds[about["dtype"]], begin + first, shape)
        return Tokenizer.from_json(arrays.pop("tokenizer").tobytes().decode()), arrays
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, UserError, OverflowError, MemoryError):
        return None


def _array(path: Path, kind: np.dtype[Any], begin: int, shape: tuple[int, ...]) -> np.ndarray:
    """Read an array; large ones are memory-mapped. Copy-on-write, because torch wants writable arrays and the file must
    not change."""
    count = math.prod(shape)
    if count * kind.itemsize < MIN_MAPPED:
        return np.fromfile(path, kind, count, offset=begin).reshape(shape)
    return np.memmap(path, kind, "c", begin, shape).view(np.ndarray)
