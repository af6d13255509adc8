"""A local hub: the part of the Hugging Face hub's protocol that is needed to read a repository.

    GET  /api/{datasets|models}/{id}[/revision/{revision}]     which commit that is
    GET  /api/{datasets|models}/{id}/tree/{commit}             the list of files
    HEAD /[datasets/]{id}/resolve/{commit}/{file}              size, ETag and commit of a file
    GET  /[datasets/]{id}/resolve/{commit}/{file}              the file itself

It answers a missing, a private, a gated and a broken repository as the hub does: by status and `X-Error-Code`.
"""

import hashlib
import json
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_API = re.compile(r"/api/(?P<kind>dataset|model)s/(?P<id>[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<revision>[^/]+))?")
_FILE = re.compile(r"/(?P<kind>datasets/)?(?P<id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


@dataclass
class Repository:
    files: dict[str, bytes]
    gated: bool = False
    status: int | None = None
    """Answer every request with this status."""
    breaks_off: bool = False
    """Close the connection in the middle of a file."""
    etag: str | None = None
    """The ETag of every file, instead of its own."""
    told: bytes | None = None
    """The answer to every question about the repository."""
    endless: bool = False
    """Send files that never end."""
    seconds: float = 0.0
    """Seconds it waits before it answers such a question."""
    branches: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        content = b"".join(name.encode() + data for name, data in sorted(self.files.items()))
        self.commit = hashlib.sha1(content).hexdigest()
        self.branches = {"main": self.commit, **self.branches}

    def knows(self, revision: str) -> bool:
        return revision == self.commit or revision in self.branches


class HubServer:
    """`with HubServer() as hub: hub.add("dataset", "me/poems", {"train.txt": b"…"})`; `hub.asked` lists the
    requests."""

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def add(self, kind: str, name: str, files: dict[str, bytes], **settings) -> Repository:
        self.repositories[kind, name] = Repository(files, **settings)
        return self.repositories[kind, name]

    def __enter__(self) -> "HubServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.asked.append(f"{self.command} {self.path}")
                path = urlsplit(self.path).path
                if match := _API.fullmatch(path):
                    self.answer_about(match["kind"], match["id"], match["what"], match["revision"])
                elif match := _FILE.fullmatch(path):
                    self.answer_file("dataset" if match["kind"] else "model", match)
                else:
                    self.refuse(404, "NotFound")

            do_HEAD = do_GET  # noqa: N815

            def repository(self, kind: str, name: str, revision: str | None) -> Repository | None:
                """The repository, if it may be read; otherwise the error is sent."""
                found = hub.repositories.get((kind, unquote(name)))
                if found is None:
                    self.refuse(401, "RepoNotFound")  # so that names of private repositories are not revealed
                elif found.status is not None:
                    self.refuse(found.status, None)
                elif revision is not None and not found.knows(unquote(revision)):
                    self.refuse(404, "RevisionNotFound")
                else:
                    return found
                return None

            def answer_about(self, kind: str, name: str, what: str | None, revision: str | None) -> None:
                repository = self.repository(kind, name, revision)
                if repository is None:
                    return
                time.sleep(repository.seconds)
                if repository.told is not None:
                    self.send(200, repository.told, "application/json", {})
                elif what == "tree":
                    self.send_json(
                        [
                            {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                            for path, data in repository.files.items()
                        ]
                    )
                else:
                    siblings = [{"rfilename": path} for path in repository.files]
                    self.send_json({"id": unquote(name), "sha": repository.commit, "siblings": siblings})

            def answer_file(self, kind: str, match: re.Match[str]) -> None:
                repository = self.repository(kind, match["id"], match["revision"])
                if repository is None:
                    return
                if repository.gated:  # anybody may list its files, but not read them
                    self.refuse(403, "GatedRepo")
                    return
                data = repository.files.get(unquote(match["file"]))
                if data is None:
                    self.refuse(404, "EntryNotFound")
                    return
                etag = repository.etag or hashlib.sha1(data).hexdigest()
                headers = {"ETag": f'"{etag}"', "X-Repo-Commit": repository.commit}
                if repository.endless and self.command == "GET":
                    self.send_without_end(headers)
                    return
                self.send(200, data, "application/octet-stream", headers, half=repository.breaks_off)

            def send_without_end(self, headers: dict[str, str]) -> None:
                self.send_response(200)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.end_headers()
                with suppress(OSError):
                    while True:
                        self.wfile.write(bytes(1 << 20))

            def send_json(self, value: object) -> None:
                self.send(200, json.dumps(value).encode(), "application/json", {})

            def refuse(self, status: int, code: str | None) -> None:
                self.send(status, b"{}", "application/json", {"X-Error-Code": code} if code else {})

            def send(self, status: int, body: bytes, kind: str, headers: dict[str, str], half: bool = False) -> None:
                self.send_response(status)
                for key, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[: len(body) // 2] if half else body)

            def log_message(self, format: str, *args: object) -> None: ...

        return Handler
