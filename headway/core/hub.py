"""Files of a Hugging Face repository, by name. What was fetched once is read from the hub's own cache ever after.

The cache is asked first, so a second use needs no network and a study does not change under one's hands because a
repository did; another revision, or `hf cache rm`, gets other files. Every way in which this can fail is a sentence.
"""

import errno
import glob
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headway.core.errors import UserError

_ONE_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_PATIENCE = 15.0  # seconds until a hub that does not answer counts as out of reach

# As the hub's own addresses are written. Of the revisions with a slash in them, only these two kinds are common.
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
    """A folder, a file or a pattern inside the repository; empty: all of it."""

    @classmethod
    def parse(cls, text: str, kind: Literal["dataset", "model"]) -> "Address":
        found = _ADDRESSES[kind].fullmatch(text)
        if found is None or ".." in text:
            raise UserError(
                f"'{text}' is not the name of a {kind} repository; expected owner/name, or owner/name@revision"
                + (", and after it a folder, a file or a pattern if need be" if kind == "dataset" else "")
            )
        return cls(kind, found["name"], found["revision"], (found["within"] or "").strip("/"))

    def __str__(self) -> str:
        return self.name + (f"@{self.revision}" if self.revision else "")


def fetch(address: Address, choose: Callable[[Sequence[str]], list[str]]) -> tuple[Path, list[str]]:
    """A folder with the files that `choose` picks from the repository's list, and their names in it.

    `choose` sees the list before anything is downloaded, and may refuse it with a `UserError`.
    """
    hub = _library()
    where = {"repo_id": address.name, "repo_type": address.kind, "revision": address.revision}
    with _in_words(address):
        try:
            names, cached = [file.path for file in hub.get_cached_repo_tree(**where)], True
        except hub.errors.CachedRepoTreeNotFoundError:
            # Not `list_repo_files`, which tries for half a minute before it says that there is no network.
            about = hub.HfApi().repo_info(**where, timeout=_PATIENCE)
            names, cached = [file.rfilename for file in about.siblings or []], False
    chosen = choose(names)
    where["allow_patterns"] = [glob.escape(name) for name in chosen]
    with _in_words(address):
        if cached:
            try:
                return Path(hub.snapshot_download(**where, local_files_only=True)), chosen
            except hub.errors.LocalEntryNotFoundError:
                pass  # other files of this repository are there, but not these
        return Path(hub.snapshot_download(**where)), chosen


def _library() -> Any:
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
        import huggingface_hub.constants  # pyright: ignore[reportMissingImports]
        import huggingface_hub.errors  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            "reading from the hub needs the package huggingface_hub, which is not installed: pip install 'headway[hub]'"
        ) from None
    if not hasattr(huggingface_hub, "get_cached_repo_tree"):
        raise UserError(
            f"huggingface_hub {huggingface_hub.__version__} is too old: pip install --upgrade 'headway[hub]'"
        )
    return huggingface_hub


@contextmanager
def _in_words(address: Address) -> Iterator[None]:
    """The hub library's errors, each as one sentence that says what to do."""
    constants, errors = _library().constants, _library().errors
    no_answer = getattr(errors, "HTTPError", OSError)  # of httpx, or what has become of it, as the library imports it
    hub, what = constants.ENDPOINT, f"{address.kind} '{address.name}'"
    page = f"{hub}/{'datasets/' if address.kind == 'dataset' else ''}{address.name}"
    log_in = "log in with `hf auth login` or set HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError:  # a kind of RepositoryNotFoundError, so it comes first
        raise UserError(f"{what} is gated: accept its terms at {page}, then {log_in}") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"there is no {what} at {hub}, or it is private; for a private one {log_in}") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{what} has no revision '{address.revision}'; its branches and tags are at {page}") from None
    except errors.HfHubHTTPError as problem:
        status = problem.response.status_code
        advice = log_in if status in (401, 403) else "try again later"
        raise UserError(f"{hub} answered {status} {problem.response.reason_phrase} for {what}; {advice}") from None
    except (no_answer, OSError) as problem:
        if _about_the_disk(problem):
            raise
        if constants.is_offline_mode():
            why = "the hub may not be asked because HF_HUB_OFFLINE is set"
        else:
            why = f"{hub} cannot be reached ({_first_line(problem)})"
        raise UserError(
            f"{what} is not, or not whole, in the hub's cache, and {why}; fetched once with a network, it is kept"
        ) from None


def _about_the_disk(problem: Exception) -> bool:
    """A full or write-protected disk is reported by the command line as what it is."""
    full_or_forbidden = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
    return isinstance(problem, OSError) and (problem.errno in full_or_forbidden or problem.filename is not None)


def _first_line(problem: BaseException) -> str:
    cause = problem.__cause__ or problem
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]
