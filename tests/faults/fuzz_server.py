"""A whole API server in this process, asked through the bytes of a connection, with the promises every answer must keep.

    with FuzzServer() as server:
        server.ask("POST", "/api/v1/namespaces/default/pods", body=b"{")

`ask` plays a request to an `HttpConnection` and checks the answer: a success, or a refusal that is a proper `Status`
and that changed nothing. A failure inside the server is logged by the connection; `Complaints` turns it into a test
failure with the trace that led to it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from coterie.base import pki
from coterie.http.connection import HttpConnection
from coterie.http.messages import UserInfo
from coterie.http.server import HttpLimits, HttpServer
from coterie.kube.api.status_response import status_response
from coterie.kube.api.wire import protobuf
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.extensions.apiserver import KUSCIA

T = TypeVar("T")
ADMIN = UserInfo("fuzz", ("system:masters", "system:authenticated"))
LONG = os.environ.get("COTERIE_FUZZ") == "long"
"""COTERIE_FUZZ=long runs many more examples than a test run has time for."""
_REFUSALS = {"Timeout": 504}
"""Refusals above 4xx that are not the server's fault: a resourceVersion that does not exist yet."""
_NOBODY = 503
"""From a proxy with nobody behind it."""
_LISTENED_TO = ("coterie.apiserver", "asyncio")
_MAX_HEADERS = 32 * 1024
"""Clients refuse answers with more; Go's and Python's limits are higher."""


def examples(count: int) -> int:
    """How many examples to try: few in a test run, many on request."""
    return count * 30 if LONG else count


class BrokenPromise(AssertionError):
    """An answer that no client should ever get."""


class Complaints(logging.Handler):
    """What the server logs as an error, kept for the test that caused it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self.found.append(text)

    def take(self) -> str:
        text, self.found = "\n".join(self.found), []
        return text


class FakeTransport(asyncio.Transport):
    """The socket's side of a connection: keeps what is written, and plays a client that takes nothing when `stuck`."""

    def __init__(self, *, stuck: bool = False, encrypted: bool = True) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self.reading = True
        self._stuck = stuck
        self._encrypted = encrypted
        self.protocol: HttpConnection | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        facts: dict[str, Any] = {"peername": ("192.0.2.1", 4000)}
        if self._encrypted:
            facts |= {"ssl_object": object(), "peercert": {"subject": (), "notAfter": "Jan  1 00:00:00 2100 GMT"}}
        return facts.get(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed:
            return
        self.written += data
        if self._stuck and self.protocol is not None:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.written) if self._stuck else 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.protocol is not None:
                asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool = False
    """The server closed the connection, perhaps without an answer (status 0)."""

    def json(self) -> Any:
        return protobuf.decode(self.body) if self.body.startswith(b"k8s\0") else json.loads(self.body)


class FuzzServer:
    def __init__(self, limits: HttpLimits | None = None) -> None:
        self._limits = limits
        self.complaints = Complaints()
        self._connection: HttpConnection | None = None

    def open(self) -> FuzzServer:
        self._runner = asyncio.Runner()
        self.run(self._start())
        for name in _LISTENED_TO:
            logging.getLogger(name).addHandler(self.complaints)
        return self

    async def _start(self) -> None:
        self.store = MemoryStore()
        await self.store.open()
        self.api = ApiServer(self.store, Settings(extensions=[KUSCIA], signer=TokenSigner(pki.new_key())))
        await self.api.start()
        self.http = HttpServer(
            self.api.handle, limits=self._limits, user_of=lambda _: ADMIN, problem_response=status_response
        )

    def close(self) -> None:
        self.run(self._stop())
        self._runner.close()
        for name in _LISTENED_TO:
            logging.getLogger(name).removeHandler(self.complaints)
        left = self.complaints.take()
        if left:
            raise BrokenPromise(f"the server logged an error\n{left}")

    def __enter__(self) -> FuzzServer:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _stop(self) -> None:
        await self.http.stop(0.1)
        await self.api.stop()
        await self.store.close()

    def run(self, work: Awaitable[T]) -> T:
        async def waited() -> T:
            return await work

        return self._runner.run(waited())

    # -- asking -------------------------------------------------------------------------------------------------

    def connect(self, **facts: bool) -> tuple[HttpConnection, FakeTransport]:
        """A fresh connection; only inside `run`."""
        connection, transport = self.http.connection(), FakeTransport(**facts)
        transport.protocol = connection
        connection.connection_made(transport)
        return connection, transport

    async def play(self, chunks: Iterable[bytes], *, patience: float = 5.0, bodyless: bool = False) -> Answer:
        """Bytes to a connection of their own; what came back after the server had time to answer."""
        connection, transport = self.connect()
        for chunk in chunks:
            if transport.closed:
                break
            connection.data_received(chunk)
            await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        while not transport.closed and not complete(transport.written, bodyless):
            if asyncio.get_running_loop().time() - began > patience:
                break
            # Most answers come within a few turns; some documents are made in a thread.
            await asyncio.sleep(0)
        answer = parse(bytes(transport.written), transport.closed)
        transport.close()
        await asyncio.sleep(0)
        return answer

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        headers: Iterable[tuple[str, str]] = (),
    ) -> Answer:
        """One request, whose answer must keep the promises."""
        before = self.store.revision
        data = request_bytes(method, path, body, content_type, headers)
        answer = self.run(self.play((data,), bodyless=method == "HEAD"))
        self.check(answer, f"{method} {path} {content_type} {body[:2000]!r}", method)
        if answer.status >= 400 and self.store.revision != before:
            raise BrokenPromise(f"a refused request changed the state: {method} {path} {body[:2000]!r}")
        return answer

    def check(self, answer: Answer, about: str, method: str = "") -> None:
        complaint = self.complaints.take()
        if complaint:
            raise BrokenPromise(f"the server failed inside\n{about}\n{complaint}")
        if not answer.status:
            if not answer.closed:
                raise BrokenPromise(f"no answer, and the connection stays open\n{about}")
            return
        if 100 <= answer.status < 400:
            return
        nobody = answer.status == _NOBODY and "/proxy" in about
        if method == "HEAD":
            if answer.body or not (400 <= answer.status < 500 or answer.status in _REFUSALS.values() or nobody):
                raise BrokenPromise(f"{answer.status} to HEAD with {len(answer.body)} bytes\n{about}")
            return
        try:
            status = answer.json()
        except ValueError as problem:
            raise BrokenPromise(f"{answer.status} without a Status: {answer.body[:500]!r}\n{about}") from problem
        allowed = 400 <= answer.status < 500 or _REFUSALS.get(status.get("reason")) == answer.status or nobody
        proper = (
            isinstance(status, dict)
            and status.get("kind") == "Status"
            and status.get("code") == answer.status
            and status.get("status") == "Failure"
            and status.get("reason")
            and isinstance(status.get("message"), str)
            and status["message"]
        )
        if not allowed or not proper:
            raise BrokenPromise(f"{answer.status} {answer.body[:1000]!r}\n{about}")

    def alive(self) -> None:
        """The server still answers, and holds nothing of what it refused."""
        answer = self.ask("GET", "/api/v1/namespaces/default")
        assert answer.status == 200, answer
        assert self.http.body_bytes == 0
        assert self.run(self._open_connections()) == 0

    async def _open_connections(self) -> int:
        for _ in range(5):
            await asyncio.sleep(0)
        return self.http.connections


def request_bytes(
    method: str, path: str, body: bytes = b"", content_type: str = "", headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: fuzz"]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(body)}")
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + body


def complete(data: bytes | bytearray, bodyless: bool = False) -> bool:
    """Whether the bytes hold one whole answer (or the head of a stream, which has no end)."""
    head, separator, rest = bytes(data).partition(b"\r\n\r\n")
    if not separator:
        return False
    if head.startswith(b"HTTP/1.1 100"):
        return complete(rest, bodyless)
    if bodyless:
        return True
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return len(rest) >= int(value)
    return True


def parse(data: bytes, closed: bool) -> Answer:
    """The first answer in the bytes."""
    return next(answers(data, closed), Answer(0, {}, b"", closed))


def answers(data: bytes, closed: bool = False) -> Iterator[Answer]:
    """All answers in the bytes; one without a length takes the rest."""
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            data = rest
            continue
        if len(head) > _MAX_HEADERS:
            raise BrokenPromise(f"an answer with {len(head)} bytes of headers")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", len(rest)))
        yield Answer(int(first.split(" ")[1]), headers, rest[:length], closed)
        data = rest[length:]
