"""Serves a folder to the browser: opens a socket, and prints an address with a token.

The token and the port are stored for each folder, in the user's own state folder and readable by nobody else, so that
open pages reconnect by themselves when the server is started again.
"""

import asyncio
import hashlib
import json
import os
import resource
import secrets
import socket
import sys
import threading
import webbrowser
from collections import OrderedDict
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headway.core.errors import UserError
from headway.workbench.app import create_app
from headway.workbench.bench import Bench
from headway.workbench.guard import Guard

PORT = 8765
CONNECTIONS = 400
"""Connections at the same time. Beyond that, the oldest of those without a complete request are closed."""
FIRST_REQUEST = 10.0
"""Seconds in which a connection must send a request."""


def serve(folder: Path, host: str, port: int | None, read_only: bool, browser: bool, new_token: bool) -> None:
    """Serve until Ctrl-C."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    bench = Bench(folder, read_only)
    state = _State(bench.folder)
    token = secrets.token_urlsafe(24) if new_token else state.token
    listening = _listen(host, port, state.port)
    port = int(listening.getsockname()[1])
    state.keep(token, port)
    names = {host, socket.gethostname(), "localhost", "127.0.0.1", "[::1]"} if not is_loopback(host) else _LOOPBACK
    app = create_app(bench, token, {f"{name}:{port}".lower() for name in names | _addresses(host)})
    address = f"http://{_shown(host)}:{port}/?token={token}"
    if not is_loopback(host):
        print(
            f"warning: {host} can be reached from other machines: anybody with this address can read everything below "
            f"{folder}"
            + ("" if read_only else ", and start and stop trainings")
            + "; the connection is not encrypted. An ssh tunnel to 127.0.0.1 is safer.",
            file=sys.stderr,
        )
    print(f"{bench.folder} is open at\n\n  {address}\n\nCtrl-C closes it; trainings continue.", flush=True)
    if browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    _allow_files()
    server_of(app).run(sockets=[listening])


class WorkbenchServer(uvicorn.Server):
    """Closes the event streams of pages before shutting down; otherwise it would wait for them."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        guard: Any = self.config.loaded_app
        while not isinstance(guard, Guard):
            guard = guard.app
        guard.app.state.bench.hub.close()
        await super().shutdown(sockets)


def server_of(app: Guard) -> WorkbenchServer:
    return WorkbenchServer(
        uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            log_level="warning",
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
        )
    )


class PatientProtocol(H11Protocol):
    """Limits the number of connections, and the time that idle ones are kept."""

    waiting: ClassVar["OrderedDict[PatientProtocol, None]"] = OrderedDict()
    """Connections without a request so far, oldest first."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            oldest = next(iter(self.waiting), self)
            oldest.waiting.pop(oldest, None)
            oldest.transport.abort()
        if not transport.is_closing():
            self.waiting[self] = None
            self._patience = asyncio.get_running_loop().call_later(FIRST_REQUEST, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._asked()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:
            self._asked()

    def _asked(self) -> None:
        if self.waiting.pop(self, "no") != "no":
            self._patience.cancel()

    def _give_up(self) -> None:
        if self.waiting.pop(self, "no") != "no":
            self.transport.abort()


class _State:
    """What is stored about a folder's workbench between two servers."""

    def __init__(self, folder: Path):
        home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        self.path = home / "headway" / "workbench" / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}.json"
        try:
            kept = json.loads(self.path.read_text("utf-8"))
            self.token, self.port = str(kept["token"]), int(kept["port"])
        except (OSError, ValueError, KeyError, TypeError):
            self.token, self.port = secrets.token_urlsafe(24), PORT

    def keep(self, token: str, port: int) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump({"token": token, "port": port}, file)
        except OSError as error:
            print(
                f"warning: the address cannot be stored ({error.strerror}); next time it will change", file=sys.stderr
            )


_LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _addresses(host: str) -> set[str]:
    """The addresses of a machine that listens on all of them."""
    if host not in ("0.0.0.0", "::"):
        return {_shown(host)}
    try:
        found = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        found = set()
    return {f"[{one}]" if ":" in str(one) else str(one) for one in found}


def _listen(host: str, port: int | None, remembered: int) -> socket.socket:
    """Listen on the given port only; without one, on that of last time, or on any free one."""
    why = ""
    for tried in [port] if port is not None else [remembered, 0]:
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, tried))
            made.listen(128)
            return made
        except (OSError, OverflowError) as error:
            made.close()
            why = getattr(error, "strerror", None) or str(error)
    raise UserError(f"cannot listen at {host} port {port if port is not None else remembered}: {why}")


def _allow_files() -> None:
    """Allow as many open files as possible, since each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
