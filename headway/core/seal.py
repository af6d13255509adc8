"""The seal of a folder: the checksums of its files, kept in `seal.json`, which is written last.

    {"files": {"recipe.yaml": ["5feceb…"], "scores.json": ["6b86b2…"], …},
     "lines": {"metrics.jsonl": {"bytes": 51200, "sha256": "d4735e…"}},
     "sha256": "4e0740…"}

Files are written whole, so damage comes from elsewhere: a disk, a hand, a file of another run. It is told by the seal
when the file is read. A process that is killed must not leave what looks like damage, so before a file is replaced the
seal says both what it is and what it will be; afterwards, only what it is. Files that grow are sealed up to a length.
What was never sealed (by versions that did not) is read as it is.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.files import checksum, write_whole
from headway.core.reading import (
    DAMAGED,
    MOST,
    MOST_LINES,
    UnreadableError,
    as_text,
    check_own,
    parse_json,
    read_bytes,
)

FILE = "seal.json"
ABSENT = "absent"
MOST_LOOKS = 50
"""At a file that is being rewritten."""
PATIENCE = 60.0
"""Seconds until whoever rewrites a folder must be done."""
MADE_AGAIN = ("audit.json", "measures.json", "ensembles.json")
"""Files that may be removed: whoever needs one makes it."""
REMEDIES = {
    "recipe.yaml": "`headway train RECIPE --resume`, with the recipe that made the run, writes it anew",
    "tokenizer.json": "train --resume makes it again",
    "scores.json": "`headway score` measures them again",
    "audit.json": "remove it, and audit again",
    "metrics.jsonl": "weights and scores do not rest on it, and train --resume makes its lines again",
    "events.jsonl": "weights and scores do not rest on it: remove it, and the rest is read",
    "run.json": "its checkpoints bear checksums of their own and may be whole; train the run again under another name",
    "study.yaml": "its runs are whole for all that: a study of another name takes them over with --reuse",
    "measures.json": "remove it, and it is measured again",
    "ensembles.json": "remove it, and it is measured again",
    FILE: "remove it, and the folder is read as it is, unsealed",
}


class DamagedError(UnreadableError):
    """A file that is not what was written; the message says what can still be done."""

    def __init__(self, path: Path, why: str):
        remedy = REMEDIES.get(path.name)
        super().__init__(path, f"{why}; {DAMAGED}{f'; {remedy}' if remedy else ''}")


@dataclass(frozen=True)
class SealedLength:
    """Of a file that grows: so many bytes, and what they were."""

    length: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> "SealedLength":
        return cls(len(content), checksum(content))

    def as_json(self) -> dict[str, Any]:
        return {"bytes": self.length, "sha256": self.sha256}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "SealedLength":
        """What `as_json` gave; KeyError, TypeError or ValueError for anything else."""
        return cls(int(told["bytes"]), str(told["sha256"]))

    def fits(self, content: bytes) -> bool:
        return len(content) >= self.length and checksum(content[: self.length]) == self.sha256


@dataclass(frozen=True)
class Seal:
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The checksums that each may have: one; two while it is replaced."""
    lines: Mapping[str, SealedLength] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        write_whole(folder / FILE, self.text())

    def text(self) -> str:
        told = self._told()
        return json.dumps({**told, "sha256": _sum_of(told)}, indent=1) + "\n"

    def _told(self) -> dict[str, Any]:
        lines = {name: one.as_json() for name, one in sorted(self.lines.items())}
        return {"files": {name: list(sums) for name, sums in sorted(self.files.items())}, "lines": lines}


def read_seal(folder: Path) -> Seal | None:
    """None where the folder was never sealed."""
    path = folder / FILE
    try:
        told = parse_json(read_bytes(path), path)
    except FileNotFoundError:
        return None
    except UnreadableError as error:
        raise UserError(f"{error}; {REMEDIES[FILE]}") from None
    try:
        own = told.pop("sha256")
        files = {name: [str(one) for one in sums] for name, sums in told["files"].items()}
        lines = {name: SealedLength.from_json(one) for name, one in told["lines"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DamagedError(path, "it is no seal") from None
    if own != _sum_of(told):
        raise DamagedError(path, "its checksum differs")
    return Seal(files, lines)


def is_sealed(folder: Path) -> bool:
    return read_seal(folder) is not None


# --- reading ---------------------------------------------------------------------------------------------------------


def read_sealed(path: Path, folder: Path | None = None, most: int = MOST, needed: bool = True) -> bytes:
    """A file of a sealed folder (of its own, unless it is said which), if it is what was written; else a
    `DamagedError`. FileNotFoundError where there is none and none is missed: what can be made again is not `needed`."""
    home = folder or path.parent
    name = str(path.relative_to(home))

    def look() -> tuple[bytes | None, Seal | None]:
        content = _content(path, most)
        return content, read_seal(home)

    def fits(content: bytes | None, seal: Seal | None) -> bool:
        known = seal.files.get(name) if seal else None
        if known is None or (content is None and not needed):
            return True
        return (ABSENT if content is None else checksum(content)) in known

    content, good = _when_settled(look, fits)
    if content is None and good:
        raise FileNotFoundError(2, os.strerror(2), str(path))
    if content is None:
        raise DamagedError(path, "it is missing")
    if not good:
        raise DamagedError(path, "its checksum differs" if content else "it is empty")
    return content


def read_sealed_text(path: Path) -> str:
    with _own(path):
        return as_text(read_sealed(path), path)


def read_sealed_json(path: Path, needed: bool = True) -> Any:
    with _own(path):
        return parse_json(read_sealed(path, needed=needed), path)


@contextmanager
def _own(path: Path) -> Iterator[None]:
    """What is wrong with one of Headway's own files, sealed or not, came from elsewhere."""
    try:
        yield
    except DamagedError:
        raise
    except UnreadableError as error:
        if error.path != path:
            raise
        raise DamagedError(path, error.why) from None


def read_sealed_lines(path: Path, needed: bool = True) -> list[bytes]:
    """Of a file that grows: what was sealed of it is what was written. Where nothing rests on it, it may be gone."""

    def look() -> tuple[bytes | None, Seal | None]:
        content = _content(path, MOST_LINES)
        return content, read_seal(path.parent)

    def fits(content: bytes | None, seal: Seal | None) -> bool:
        known = seal.lines.get(path.name) if seal else None
        return known is None or known.fits(content or b"") or (content is None and not needed)

    content, good = _when_settled(look, fits)
    if not good:
        raise DamagedError(path, "it is missing" if content is None else "its checksum differs")
    return (content or b"").splitlines()


def read_several(folder: Path, names: Sequence[str]) -> tuple[dict[str, bytes | None], bool]:
    """Several files of a folder (None: it is not there), and whether the folder is sealed."""
    seal, found = read_seal(folder), {}
    for name in names:
        content = _content(folder / name, MOST)
        known = seal.files.get(name) if seal else None
        is_missed = content is not None or name not in MADE_AGAIN
        if known is not None and is_missed and (ABSENT if content is None else checksum(content)) not in known:
            try:
                content = read_sealed(folder / name)  # unless somebody was at it just now
            except FileNotFoundError:
                content = None
        found[name] = content
    return found, seal is not None


def damages(folder: Path) -> list[str]:
    """Everything in a sealed folder that is not what was written, in words."""
    seal, found = read_seal(folder), []
    for name in [*(seal.files if seal else ()), *(seal.lines if seal else ())]:
        try:
            if seal and name in seal.lines:
                read_sealed_lines(folder / name)
            else:
                read_sealed(folder / name, folder)
        except FileNotFoundError:
            pass  # it was about to be there
        except UserError as error:
            found.append(str(error))
    return found


def _content(path: Path, most: int) -> bytes | None:
    try:
        return read_bytes(path, most)
    except FileNotFoundError:
        return None


def _when_settled(
    look: Callable[[], tuple[bytes | None, Seal | None]], fits: Callable[[bytes | None, Seal | None], bool]
) -> tuple[bytes | None, bool]:
    """The content, and whether it is good. Somebody may be rewriting the folder between two of our looks: what does not
    fit is damage only if it stays the same."""
    now = look()
    for _ in range(MOST_LOOKS):
        if fits(*now):
            return now[0], True
        time.sleep(0.01)
        seen, now = now, look()
        if now == seen:
            break
    return now[0], fits(*now)


# --- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def rewriting(folder: Path, new: bool = False) -> Iterator[dict[str, str | bytes | None]]:
    """Put into the mapping what files are to hold (None: to be gone). They are written at the end, one process after
    the other, so what is read inside is what is replaced. `new`: a folder without a seal gets one."""
    wanted: dict[str, str | bytes | None] = {}
    with _alone(folder):
        seal = read_seal(folder)
        yield wanted
        if not wanted and (seal is not None or not new):
            return
        contents = {name: one.encode() if isinstance(one, str) else one for name, one in wanted.items()}
        if seal is None and not new:
            _write(folder, contents)
            return
        sums = {name: ABSENT if one is None else checksum(one) for name, one in contents.items()}
        known = dict((seal or Seal()).files)
        both = {name: list(dict.fromkeys([*known.get(name, [ABSENT]), sums[name]])) for name in sums}
        lines = (seal or Seal()).lines
        if seal is not None:
            Seal({**known, **both}, lines).write(folder)
        _write(folder, contents)
        there = {name: [one] for name, one in sums.items() if one != ABSENT}
        Seal({**{name: one for name, one in known.items() if name not in sums}, **there}, lines).write(folder)


def seal_new(folder: Path) -> None:
    """Of a folder that nobody else sees yet (`write_folder_whole`), with all that lies in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    seal = Seal({str(path.relative_to(folder)): [checksum(path.read_bytes())] for path in files})
    (folder / FILE).write_bytes(seal.text().encode())


def seal_lines(folder: Path, *names: str) -> None:
    """Files that have grown, as long as they are now."""
    with _alone(folder):
        if (seal := read_seal(folder)) is None:
            return
        contents = {name: _content(folder / name, MOST_LINES) for name in names}
        grown = {name: SealedLength.of(content) for name, content in contents.items() if content is not None}
        Seal(seal.files, {**seal.lines, **grown}).write(folder)


def unseal_lines(folder: Path, name: str) -> None:
    """Before what was sealed of it is cut short."""
    with _alone(folder):
        if (seal := read_seal(folder)) is not None and name in seal.lines:
            replace(seal, lines={other: one for other, one in seal.lines.items() if other != name}).write(folder)


def _write(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    for name, content in contents.items():
        check_own((folder / name).parent)
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write_whole(folder / name, content)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, for the moment that it takes; the system drops the lock when the process dies."""
    check_own(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UserError(f"{folder} is being rewritten by another process, for a minute by now") from None
                time.sleep(0.005)
            except OSError:  # a file system that locks no folders: there, nobody is kept out
                break
        yield
    finally:
        os.close(descriptor)


def _sum_of(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
