"""Access control: a request needs the token, a host name of this machine, and this page as its origin.

Every request passes here first. The token is given once in the address; the answer sets a cookie that no script can
read, and that browsers do not send from other sites' pages. Programs send the token as `Authorization: Bearer …`.

- A wrong Host is refused: it may be a name that somebody else resolves to this machine (DNS rebinding).
- A wrong Origin is refused, and a change authorized by cookie must have an Origin.
- A request body may have at most 1 MiB and take 10 seconds.
- A question (`/api/ask/`) is cancelled when its client disconnects.
- Pages may load nothing from elsewhere and run no scripts but ours (Content-Security-Policy).
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from headway.workbench import door

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LARGEST_BODY = 1 << 20
BODY_SECONDS = 10.0
QUESTIONS = "/api/ask/"
"""Requests with a body that change nothing."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer that does not set its own."""


class Guard:
    """Access control in front of an ASGI application."""

    def __init__(self, app: Any, token: str, cookie: str, hosts: set[str], read_only: bool = False):
        self.app, self.token, self.cookie, self.hosts, self.read_only = app, token, cookie, hosts, read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # web sockets are not used
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        send = _with_headers(send)
        if refused := self._refused(scope, headers):
            await self._refuse(send, scope, headers, *refused)
        elif landing := self._landing(scope):
            await _answer(send, 303, "", [("location", landing), ("set-cookie", self._made_cookie())])
        elif not self._is_known(headers):
            await self._refuse(send, scope, headers, 401, door.NO_TOKEN)
        elif refused := self._refused_change(scope, headers):
            await _answer(send, *refused)
        else:
            await self._pass_on(scope, headers, receive, send)

    def _refused(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or headers["host"].lower() not in self.hosts:
            return 421, door.WRONG_HOST
        if "origin" in headers and headers["origin"] != f"{scope.get('scheme', 'http')}://{headers['host']}":
            return 403, "requests from other pages are refused"
        return None

    def _refused_change(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if scope["method"] in ("GET", "HEAD"):
            return None
        if "origin" not in headers and "authorization" not in headers:
            return 403, "a change needs an Origin header, as browsers send it, or an Authorization header"
        if self.read_only and not scope["path"].startswith(QUESTIONS):
            return 403, "this workbench was opened with --read-only: nothing can be started or changed"
        return None

    async def _refuse(self, send: Send, scope: Scope, headers: dict[str, str], status: int, words: str) -> None:
        """Refuse a request: with a page for a person in a browser, with JSON for a program."""
        is_person = scope["method"] == "GET" and "text/html" in headers.get("accept", "")
        page = door.door(words, tried=b"token=" in scope["query_string"]) if is_person else None
        if page is None:
            await _answer(send, status, words)
        else:
            kinds = [("content-type", "text/html; charset=utf-8"), ("content-security-policy", door.POLICY)]
            await _send(send, status, page, kinds)

    def _landing(self, scope: Scope) -> str | None:
        """The redirect for an address with the right token: the same address without it."""
        given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        told = [value for name, value in given if name == "token"]
        # People may paste the whole address into the field for the token (`door.py`).
        if scope["method"] != "GET" or not told or not self._is_token(told[0].rpartition("token=")[2].strip()):
            return None
        rest = urlencode([(name, value) for name, value in given if name != "token"])
        path = "/" + (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0].lstrip("/\\")
        return f"{path}?{rest}" if rest else path

    def _is_known(self, headers: dict[str, str]) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._is_token(token.strip())
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return kept is not None and self._is_token(kept.value)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.token.encode())

    def _made_cookie(self) -> str:
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"

    async def _pass_on(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        """Read the body completely, if there is one, and pass the request on."""
        if scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        body, length = b"", headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LARGEST_BODY:
            await _answer(send, 413, f"the body is larger than {LARGEST_BODY >> 20} MiB")
            return
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while (message := await receive())["type"] == "http.request":
                    body += message.get("body", b"")
                    if len(body) > LARGEST_BODY:
                        await _answer(send, 413, f"the body is larger than {LARGEST_BODY >> 20} MiB")
                        return
                    if not message.get("more_body"):
                        break
                else:
                    return  # the client disconnected
        except TimeoutError:
            await _answer(send, 408, f"the body did not end within {BODY_SECONDS:.0f} seconds")
            return
        await self._until_disconnect(scope, body, receive, send)

    async def _until_disconnect(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Wait for the answer. A question is cancelled if its client disconnects; a change is made in any case."""
        gone = asyncio.ensure_future(receive())  # after the body, only a disconnect can follow
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def whole() -> Message:
            return next(messages, None) or await asyncio.shield(gone)

        answer = asyncio.ensure_future(self.app(scope, whole, send))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and scope["path"].startswith(QUESTIONS):
                answer.cancel()
                await asyncio.wait({answer})
            else:
                await answer
        finally:
            answer.cancel()
            gone.cancel()


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower() for name, _ in message.get("headers", [])}
            more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in own]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await send(message)

    return sent


async def _answer(send: Send, status: int, words: str, headers: list[tuple[str, str]] | None = None) -> None:
    body = json.dumps({"error": words}).encode() if words else b""
    await _send(send, status, body, [("content-type", "application/json"), *(headers or [])])


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
    whole = [*headers, ("content-length", str(len(body))), ("connection", "close")]
    made = [(name.encode(), value.encode("latin-1")) for name, value in whole]
    await send({"type": "http.response.start", "status": status, "headers": made})
    await send({"type": "http.response.body", "body": body})
