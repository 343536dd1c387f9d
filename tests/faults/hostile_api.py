"""A partner's API that breaks every rule: raw bytes for each request, as a script says. In the same process, so its own
bytes are made from one small buffer and never pile up."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

NAMESPACE = "alice"
PIECE = b"a" * 65536
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"

Script = Callable[["Answer"], Awaitable[None]]


class Answer:
    """One request that was read, and the way back."""

    def __init__(self, target: str, writer: asyncio.StreamWriter) -> None:
        self.target = target
        self._writer = writer

    @property
    def is_watch(self) -> bool:
        return "watch=true" in self.target

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def events(self, *events: dict[str, Any] | bytes, more: bool = True) -> None:
        """A watch that has these events; `more`: and stays open."""
        await self.send(STREAM)
        for event in events:
            await self.chunk((event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n")
        if more:
            await asyncio.sleep(3600)
        await self.send(b"0\r\n\r\n")

    async def whole(self, body: bytes, status: str = "200 OK", headers: str = "") -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)


class HostileApi:
    """`scripts`: by plural name of the resource; others get one good object named `good`."""

    def __init__(self, path: Path, scripts: dict[str, Script]) -> None:
        self.path = path
        self.scripts = scripts
        self.requests: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            target = head.split(b" ", 2)[1].decode()
            self.requests.append(target)
            plural = target.partition("?")[0].rsplit("/", 1)[-1]
            await self.scripts.get(plural, good)(Answer(target, writer))


@asynccontextmanager
async def serving(path: Path, **scripts: Script) -> AsyncIterator[HostileApi]:
    api = HostileApi(path, scripts)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(api.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_unix_server(accept, path)
    try:
        yield api
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
        await asyncio.sleep(0)


def thing(name: str = "good", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"u-{name}", "resourceVersion": "5"},
        **more,
    }


def added(obj: Any) -> dict[str, Any]:
    return {"type": "ADDED", "object": obj}


END = {
    "type": "BOOKMARK",
    "object": {"metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}},
}


async def good(answer: Answer) -> None:
    await answer.events(added(thing()), END)


def with_bad(bad: dict[str, Any] | bytes) -> Script:
    """Two good objects and a bad one between them."""

    async def script(answer: Answer) -> None:
        await answer.events(added(thing("first")), bad, added(thing("good")), END)

    return script


def raw_event(obj: bytes, kind: bytes = b"ADDED") -> bytes:
    return b'{"type":"' + kind + b'","object":' + obj + b"}"


def named(rest: bytes, name: bytes = b"bad") -> bytes:
    return b'{"metadata":{"name":"' + name + b'","namespace":"alice","resourceVersion":"6"},' + rest + b"}"


# Answers without end. Each ends when the client has had enough.


async def endless_line(answer: Answer) -> None:
    await answer.send(STREAM)
    await answer.chunk(b'{"type":"ADDED","object":{"metadata":{"name":"endless","namespace":"alice"},"data":{"x":"')
    while True:
        await answer.chunk(PIECE)


async def endless_body(answer: Answer) -> None:
    if answer.is_watch:
        await answer.whole(b'{"kind":"Status","code":400,"reason":"BadRequest"}', "400 Bad Request")
        return
    await answer.send(STREAM)
    await answer.chunk(b'{"items":[],"x":"')
    while True:
        await answer.chunk(PIECE)


async def endless_head(answer: Answer) -> None:
    await answer.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await answer.send(b"X-A: " + PIECE + b"\r\n")


async def endless_header(answer: Answer) -> None:
    await answer.send(b"HTTP/1.1 200 OK\r\nX-A: ")
    while True:
        await answer.send(PIECE)


async def endless_trailers(answer: Answer) -> None:
    await answer.send(STREAM + b"2\r\n{}\r\n0\r\n")
    number = 0
    while True:
        number += 1
        await answer.send(b"".join(b"X-%d-%d: a\r\n" % (number, i) for i in range(1000)))


async def endless_trailer(answer: Answer) -> None:
    await answer.send(STREAM + b"2\r\n{}\r\n0\r\nX-A: ")
    while True:
        await answer.send(PIECE)


async def endless_chunk_extension(answer: Answer) -> None:
    await answer.send(STREAM + b"2;x=")
    while True:
        await answer.send(PIECE)


async def endless_continue(answer: Answer) -> None:
    while True:
        await answer.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


async def endless_objects(answer: Answer) -> None:
    await answer.send(STREAM)
    number = 0
    while True:
        lines = []
        for _ in range(200):
            number += 1
            lines.append(json.dumps(added(thing(f"o-{number}", data={"x": "y" * 200}))).encode())
        await answer.chunk(b"\n".join(lines) + b"\n")


async def endless_objects_later(answer: Answer) -> None:
    """After a good start."""
    await answer.send(STREAM)
    await answer.chunk(json.dumps(added(thing())).encode() + b"\n" + json.dumps(END).encode() + b"\n")
    number = 0
    while True:
        number += 1
        await answer.chunk(json.dumps(added(thing(f"o-{number}", data={"x": "y" * 1000}))).encode() + b"\n")


async def endless_bookmarks(answer: Answer) -> None:
    await answer.send(STREAM)
    mark = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}).encode() + b"\n"
    while True:
        await answer.chunk(mark * 500)


async def endless_blank_lines(answer: Answer) -> None:
    await answer.send(STREAM)
    while True:
        await answer.chunk(b"\n" * 65536)


async def endless_pages(answer: Answer) -> None:
    if answer.is_watch:
        await answer.whole(b'{"kind":"Status","code":422,"reason":"Invalid"}', "422 Unprocessable Entity")
        return
    await answer.whole(b'{"metadata":{"resourceVersion":"1","continue":"more"},"items":[]}')


async def many_tiny_items(answer: Answer) -> None:
    if answer.is_watch:
        await answer.whole(b'{"kind":"Status","code":422,"reason":"Invalid"}', "422 Unprocessable Entity")
        return
    await answer.whole(b'{"metadata":{"resourceVersion":"1"},"items":[' + b"1," * 100_000 + b"1]}")


async def slow_line(answer: Answer) -> None:
    await answer.send(STREAM)
    while True:
        await answer.chunk(b"{")
        await asyncio.sleep(0.02)


# Answers that end, again and again.


def always(body: bytes, status: str = "200 OK", headers: str = "") -> Script:
    async def script(answer: Answer) -> None:
        await answer.whole(body, status, headers)

    return script


def always_event(event: dict[str, Any] | bytes) -> Script:
    async def script(answer: Answer) -> None:
        await answer.events(event, more=False)

    return script


GZIP_BOMB = gzip.compress(b" " * (64 << 20))


async def gzip_bomb(answer: Answer) -> None:
    await answer.whole(GZIP_BOMB, headers="Content-Encoding: gzip\r\n")


async def not_http(answer: Answer) -> None:
    await answer.send(b"\x16\x03\x01\x02\x00garbage\r\n\r\n")


async def silence(answer: Answer) -> None:
    await asyncio.sleep(3600)
