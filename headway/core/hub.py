"""Fetches files of a Hugging Face repository. A file fetched once is later read from the hub library's own cache.

The cache is used first, so a second use needs no network, and data do not change during a study because a repository
did. Another revision, or `hf cache rm`, fetches new files. Every failure is reported as a sentence.
"""

import errno
import glob
import json
import os
import re
import resource
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from headway.core.errors import UserError
from headway.core.gpu_start import wait_for_gpu

_ONE_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_TIMEOUT = 15.0  # seconds until a hub that does not answer counts as unreachable

LONGEST_LIST, LONGEST_PAUSE = 60.0, 300.0
"""Time limits in seconds: for the list of files, and between two pieces of a file, which arrive ten megabytes at a
time."""
_MAX_MEMORY, _MAX_UNKNOWN_SIZE = 2 << 30, 64 << 30
_ONE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

# As in the hub's own addresses. Of the revisions that contain a slash, only these two kinds are common.
_REVISION = r"(?:@(?P<revision>refs/(?:convert|pr)/[^/@]+|[^/@]+))?"
_ADDRESSES = {
    "dataset": re.compile(rf"(?P<name>{_ONE_PART}/{_ONE_PART}){_REVISION}(?:/(?P<within>[^@]+))?"),
    "model": re.compile(rf"(?P<name>(?:{_ONE_PART}/)?{_ONE_PART}){_REVISION}(?P<within>)"),  # some have no owner: gpt2
}


@dataclass(frozen=True)
class Address:
    """`owner/name`, `owner/name@revision`, `owner/name/folder`, `owner/name@revision/folder/*.csv`."""

    kind: Literal["dataset", "model"]
    name: str
    revision: str | None = None
    within: str = ""
    """A folder, file or pattern inside the repository; empty means everything."""

    @classmethod
    def parse(cls, text: str, kind: Literal["dataset", "model"]) -> "Address":
        found = _ADDRESSES[kind].fullmatch(text)
        if found is None or ".." in text:
            raise UserError(
                f"'{text}' is not the name of a {kind} repository; expected owner/name, or owner/name@revision"
                + (", optionally followed by a folder, file or pattern" if kind == "dataset" else "")
            )
        return cls(kind, found["name"], found["revision"], (found["within"] or "").strip("/"))

    def __str__(self) -> str:
        return self.name + (f"@{self.revision}" if self.revision else "")


def fetch(address: Address, choose: Callable[[Sequence[str]], list[str]]) -> tuple[Path, list[str]]:
    """Fetch the files that `choose` picks from a repository's list. Returns their folder and their names in it.

    `choose` sees the list before anything is downloaded, and may reject it with a `UserError`.
    """
    hub = _library()
    where = {"repo_id": address.name, "repo_type": address.kind, "revision": address.revision}
    with _readable_errors(address):
        try:
            names, cached = [file.path for file in hub.get_cached_repo_tree(**where)], True
        except hub.errors.CachedRepoTreeNotFoundError:
            # Not `list_repo_files`, which retries for half a minute before reporting that there is no network.
            names, cached = in_child_process(address, lambda: _listed(hub, where), LONGEST_LIST), False
    for name in names:
        if name.startswith("/") or "\\" in name or ".." in name.split("/") or not name.isprintable():
            raise UserError(f"{address.kind} '{address.name}' has a file with an unsafe name: {name!r}")
    chosen = choose(names)
    where["allow_patterns"] = [glob.escape(name) for name in chosen]
    with _readable_errors(address):
        if cached:
            try:
                return Path(hub.snapshot_download(**where, local_files_only=True)), chosen
            except hub.errors.LocalEntryNotFoundError:
                pass  # the cache has other files of this repository, but not these
        return Path(in_child_process(address, lambda: _downloaded(hub, where), LONGEST_PAUSE)), chosen


def _listed(hub: Any, where: dict[str, Any]) -> list[str]:
    about = hub.HfApi().repo_info(**where, timeout=_TIMEOUT)
    return [file.rfilename for file in about.siblings or []]


def _downloaded(hub: Any, where: dict[str, Any]) -> str:
    """Download in a child process. The library builds file names from the commit and ETag that the hub sends, so these
    are checked first."""
    from huggingface_hub import file_download  # pyright: ignore[reportMissingImports]

    ask, tell = file_download.get_hf_file_metadata, hub.HfApi.repo_info

    def asked(*args: Any, **settings: Any) -> Any:
        found = ask(*args, **settings)
        _check_name(found.etag, "ETag")
        _check_name(found.commit_hash, "commit")
        room = _MAX_UNKNOWN_SIZE if found.size is None else found.size + (1 << 20)
        largest = max(room, resource.getrlimit(resource.RLIMIT_FSIZE)[0])
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return found

    def told(*args: Any, **settings: Any) -> Any:
        found = tell(*args, **settings)
        _check_name(found.sha, "commit")
        return found

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 26, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    file_download.get_hf_file_metadata, hub.HfApi.repo_info = asked, told
    if threading.active_count() > 1:  # other threads may have been writing to the terminal when we were forked
        hub.utils.disable_progress_bars()
    return str(hub.snapshot_download(**where))


def _check_name(told: str | None, what: str) -> None:
    if told is not None and not _ONE_NAME.fullmatch(told):
        raise UserError(f"the hub sends an invalid {what} for a file: {told[:80]!r}; do not trust this hub")


def in_child_process(address: Address, work: Callable[[], Any], patience: float) -> Any:
    """Run `work` in a child process, which can be ended if it hangs or fills the memory.

    It is given up if it writes nothing for `patience` seconds, or uses far more memory than any list of files needs."""
    wait_for_gpu()
    here, there = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads: the child uses nothing that they hold
        child = os.fork()
    if not child:
        os.close(here)
        _run_in_child(there, address, work)
    os.close(there)
    try:
        answer = json.loads(_read_answer(here, child, address, patience) or "null")
    finally:
        os.close(here)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if answer is None:
        raise UserError(f"the download of {address.kind} '{address.name}' was killed by something else")
    if "disk" in answer:
        raise OSError(*answer["disk"])
    if "wrong" in answer:
        raise UserError(answer["wrong"])
    return answer["found"]


def _run_in_child(there: int, address: Address, work: Callable[[], Any]) -> NoReturn:
    """Run `work` in the child process and send its answer. Never returns."""
    answer: dict[str, Any] = {}
    try:
        with _readable_errors(address):
            answer = {"found": work()}
    except UserError as error:
        answer = {"wrong": str(error)}
    except OSError as error:
        answer = {"disk": [error.errno, error.strerror, error.filename and str(error.filename)]}
    except BaseException as error:
        answer = {"wrong": f"{address.kind} '{address.name}' cannot be fetched: {type(error).__name__}: {error}"}
    finally:
        with suppress(BaseException), os.fdopen(there, "w") as out:
            json.dump(answer, out)
        os._exit(0)


def _read_answer(here: int, child: int, address: Address, patience: float) -> str:
    heard, done, since, first = b"", -1, time.monotonic(), _used_by(child)[1]
    while True:
        if select.select([here], [], [], 0.2)[0]:
            if not (more := os.read(here, 1 << 16)):
                return heard.decode()
            heard += more
            continue
        written, memory = _used_by(child)
        if memory - first > _MAX_MEMORY:
            raise UserError(f"the hub's answer about {address.kind} '{address.name}' does not end")
        if written != done:
            done, since = written, time.monotonic()
        elif time.monotonic() - since > patience:
            raise UserError(
                f"the hub is too slow: nothing of {address.kind} '{address.name}' has arrived for {patience:.0f} "
                "seconds; what was fetched so far is kept"
            )


def _used_by(child: int) -> tuple[int, int]:
    """The bytes a process has written, and its memory in bytes; 0 if the system does not report them."""
    try:
        told = dict(line.split(": ") for line in Path(f"/proc/{child}/io").read_text().splitlines())
        pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
        return int(told["wchar"]), pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, KeyError, IndexError):
        return 0, 0


def _library() -> Any:
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
        import huggingface_hub.constants  # pyright: ignore[reportMissingImports]
        import huggingface_hub.errors  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError("reading from the hub needs the package huggingface_hub: pip install 'headway[hub]'") from None
    if not hasattr(huggingface_hub, "get_cached_repo_tree"):
        raise UserError(
            f"huggingface_hub {huggingface_hub.__version__} is too old: pip install --upgrade 'headway[hub]'"
        )
    return huggingface_hub


@contextmanager
def _readable_errors(address: Address) -> Iterator[None]:
    """Turn the hub library's errors into sentences that say what to do."""
    constants, errors = _library().constants, _library().errors
    no_answer = getattr(errors, "HTTPError", OSError)  # from httpx, or its successor, as the library imports it
    hub, what = constants.ENDPOINT, f"{address.kind} '{address.name}'"
    page = f"{hub}/{'datasets/' if address.kind == 'dataset' else ''}{address.name}"
    log_in = "log in with `hf auth login` or set HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError:  # a subclass of RepositoryNotFoundError, so it comes first
        raise UserError(f"{what} is gated: accept its terms at {page}, then {log_in}") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"there is no {what} at {hub}, or it is private; for a private one {log_in}") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{what} has no revision '{address.revision}'; its branches and tags are at {page}") from None
    except errors.HfHubHTTPError as problem:
        status = problem.response.status_code
        advice = log_in if status in (401, 403) else "try again later"
        raise UserError(f"{hub} answered {status} {problem.response.reason_phrase} for {what}; {advice}") from None
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as problem:
        raise UserError(f"{hub} sent an invalid answer about {what} ({_first_line(problem)[:200]})") from None
    except (no_answer, OSError) as problem:
        if getattr(problem, "errno", None) == errno.EFBIG:
            raise UserError(f"{hub} sends more data for {what} than it announced") from None
        if _about_the_disk(problem):
            raise
        if constants.is_offline_mode():
            why = "HF_HUB_OFFLINE is set, so the hub is not asked"
        else:
            why = f"{hub} cannot be reached ({_first_line(problem)})"
        raise UserError(
            f"{what} is not (completely) in the hub's cache, and {why}; fetch it once with a network, then it is cached"
        ) from None


def _about_the_disk(problem: Exception) -> bool:
    """Whether an error is about a full or write-protected disk, which the command line reports itself."""
    full_or_forbidden = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
    return isinstance(problem, OSError) and (problem.errno in full_or_forbidden or problem.filename is not None)


def _first_line(problem: BaseException) -> str:
    cause = problem.__cause__ or problem
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]
