"""A client's HTTP request sent over a connection that is open already, and the answer sent back to the client.

Streams (watches, events) and upgrades (WebSocket, SPDY) pass through. Credentials of the client stay here: who asks was decided
by this server, and the other side must not be able to act in its name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import httptools

from coterie.http.messages import Request, Response
from coterie.http.server import Tasks
from coterie.kube.apiserver.agent_connection import CHUNK, Body
from coterie.kube.apiserver.relay import BodyRelay, ConnectionRelay, RelayedConnection

_WHOLE: Final = 256 << 10
"""Answers of this announced size are read before they are passed on."""
_MAX_PAGE: Final = 1 << 20
"""Larger pages are passed on with their links as they are: all links of a page are rewritten in one turn of the loop."""
_MAX_TAG: Final = 8 << 10
"""Longer tags are passed on as they are."""
_HOP_BY_HOP: Final = frozenset(
    (
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade",
    )
)  # fmt: skip
_KEPT_HERE: Final = frozenset(("authorization", "content-length", "expect", "host", "x-forwarded-for"))
_NOT_PASSED_BACK: Final = _HOP_BY_HOP | {"content-length", "content-type", "date"}
_WITHOUT_BODY: Final = frozenset((204, 304))
_TAG: Final = re.compile(
    rb"(?:a|area|audio|base|body|embed|form|frame|iframe|img|input|link|object|q|script|source|track|video)\b",
    re.IGNORECASE,
)
_LINK: Final = re.compile(
    rb"""(\s(?:action|background|cite|data|href|longdesc|poster|src|usemap)\s{0,8}=\s{0,8})(?:"([^"]*)"|'([^']*)')""",
    re.IGNORECASE,
)


class ForwardingFailed(Exception):
    """The other side did not answer, or not with HTTP."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    target: str
    """Path and query, as they are sent."""
    host: str
    headers: Sequence[tuple[str, str]] = ()
    """In addition to those of the client."""
    head_seconds: float | None = None
    """How long the other side may take until its answer begins; None: as long as the client waits."""
    rewrite: Callable[[str], str] | None = None
    """For pages of servers that do not know under which path they are seen: their links and redirects, rewritten."""
    refuse_redirects: bool = False
    """For servers that clients take for this one: they would follow with their credentials."""


class OpenConnection:
    """A connection that `outgoing.py` made, for a relay."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def close(self) -> None:
        self.writer.close()


def encoded_path(path: str) -> str:
    return quote(path, safe="/:@!$&'()*+,;=~-._")


def is_upgrade(request: Request) -> bool:
    return bool(request.headers.get("upgrade"))


async def forward(connection: RelayedConnection, request: Request, how: Forwarding, tasks: Tasks) -> Response:
    """Takes the connection over: it is closed when the answer is complete, or when there is none. Raises ForwardingFailed."""
    passed = False
    try:
        response = await _forward(connection, request, how, tasks)
        passed = response.stream is not None or response.upgrade is not None
        return response
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as problem:
        raise ForwardingFailed(_words(problem)) from problem
    except (httptools.HttpParserError, httptools.HttpParserUpgrade) as problem:
        raise ForwardingFailed("the answer is not HTTP") from problem
    finally:
        if not passed:
            connection.close()


def _words(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return "context deadline exceeded"
    if isinstance(problem, asyncio.IncompleteReadError):
        return "EOF"
    return str(problem) or type(problem).__name__


async def _forward(connection: RelayedConnection, request: Request, how: Forwarding, tasks: Tasks) -> Response:
    connection.writer.write(_request_head(request, how) + request.body)
    async with asyncio.timeout(how.head_seconds):
        await connection.writer.drain()
        status, headers = await _answer_head(connection.reader)
    first = {name.lower(): value for name, value in reversed(headers)}
    if status == 101:
        if not is_upgrade(request):
            # The client would send its next requests, with its credentials, to the other side.
            raise ValueError("the server switches protocols without being asked to")
        return Response(101, headers=headers, upgrade=ConnectionRelay(connection, tasks))
    if how.refuse_redirects and 300 <= status < 400 and "location" in first:
        raise ValueError("the backend attempted to redirect this request, which is not permitted")
    content_type = first.get("content-type", "")
    passed = [_passed_back(name, value, how.rewrite) for name, value in headers if name.lower() not in _NOT_PASSED_BACK]
    if request.method == "HEAD" or status in _WITHOUT_BODY:
        return Response(status, b"", content_type, passed, verbatim=True)
    body = Body(status, {name: first[name] for name in ("content-length", "transfer-encoding") if name in first})
    length = first.get("content-length", "")
    is_page = (
        how.rewrite is not None and content_type.lower().startswith("text/html") and "content-encoding" not in first
    )
    limit = _MAX_PAGE if is_page else _WHOLE
    if length.isdigit() and len(length) < 20 and int(length) <= limit:
        text = await _read(connection.reader, body)
        if is_page and how.rewrite is not None:
            text = rewritten_page(text, how.rewrite)
        return Response(status, text, content_type, passed, verbatim=True)
    return Response(status, b"", content_type, passed, stream=BodyRelay(connection, body, tasks), verbatim=True)


def _request_head(request: Request, how: Forwarding) -> bytes:
    named = {name.strip().lower() for name in request.headers.get("connection", "").split(",")}
    left_out = _HOP_BY_HOP | _KEPT_HERE | named | ({"accept-encoding"} if how.rewrite is not None else set())
    lines = [f"{request.method} {how.target} HTTP/1.1", f"Host: {how.host}"]
    for name, value in request.headers.items():
        # Servers that make variables of headers take an underscore for a hyphen.
        if name not in left_out and not name.replace("_", "-").startswith(("impersonate-", "x-remote-")):
            lines.append(f"{name}: {value}")
    if request.peer.address:
        before = request.headers.get("x-forwarded-for")
        lines.append(
            f"X-Forwarded-For: {before}, {request.peer.address}"
            if before
            else f"X-Forwarded-For: {request.peer.address}"
        )
    lines += [f"{name}: {value}" for name, value in how.headers]
    if is_upgrade(request):
        lines += ["Connection: Upgrade", f"Upgrade: {request.headers['upgrade']}"]
    else:
        lines.append("Connection: close")
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(request.body)}")
    if any(mark in line for line in lines for mark in "\r\n\0") or " " in how.target:
        raise ValueError("the path and the headers of a request may hold no line ends, and the path no spaces")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8")


async def _answer_head(reader: asyncio.StreamReader) -> tuple[int, list[tuple[str, str]]]:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdigit() or not 100 <= int(code) < 600:
            raise ValueError("the answer is not HTTP")
        if int(code) >= 200 or int(code) == 101:
            return int(code), [_header(line) for line in lines]


def _header(line: str) -> tuple[str, str]:
    name, separator, value = line.partition(":")
    if not separator or not name or name != name.strip() or any(mark in line for mark in "\r\n\0"):
        raise ValueError("the answer has a malformed header")
    return name, value.strip()


def _passed_back(name: str, value: str, rewrite: Callable[[str], str] | None) -> tuple[str, str]:
    if rewrite is not None and name.lower() == "location":
        value = rewrite(value)
    return "-".join(part.capitalize() for part in name.split("-")), value


async def _read(reader: asyncio.StreamReader, body: Body) -> bytes:
    parts = []
    while not body.complete:
        data = await reader.read(CHUNK)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        parts.append(body.feed(data))
    return b"".join(parts)


def rewritten_page(page: bytes, rewrite: Callable[[str], str]) -> bytes:
    """The links of an HTML page, each through `rewrite`. Takes time in proportion to the page, whatever is in it."""

    def one(found: re.Match[bytes]) -> bytes:
        text, mark = (found[2], b'"') if found[2] is not None else (found[3], b"'")
        return found[1] + mark + rewrite(text.decode("latin-1")).encode("latin-1", "replace") + mark

    parts = []
    done = 0
    while (start := page.find(b"<", done)) >= 0 and (end := page.find(b">", start)) >= 0:
        tag = page[start:end]
        is_linking = len(tag) <= _MAX_TAG and _TAG.match(tag, 1)
        parts += [page[done:start], _LINK.sub(one, tag) if is_linking else tag]
        done = end
    return b"".join((*parts, page[done:]))


def headers_of_user(
    name: str, uid: str, groups: Sequence[str], extra: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """Who asks, for a server that trusts our client certificate."""
    made = [("X-Remote-User", name), *([("X-Remote-Uid", uid)] if uid else [])]
    made += [("X-Remote-Group", group) for group in groups]
    made += [
        (f"X-Remote-Extra-{quote(key.lower(), safe='')}", value) for key, values in extra.items() for value in values
    ]
    return made
