"""port-forward: each connection of the client is a pair of streams, `error` and `data`, under one request id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from coterie.http.spdy import SpdySession, SpdyStream
from coterie.http.upgraded_connection import UpgradedConnection
from coterie.kube.agent.runtimes.protocol import RuntimeFailure

Dial = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
_CHUNK = 64 * 1024


async def serve(session: SpdySession, dial: Dial) -> None:
    """Serve connections until the client leaves."""
    errors: dict[str, SpdyStream] = {}
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(session.run())
        while (stream := await session.opened.get()) is not None:
            request = stream.headers.get("requestid", "")
            if stream.headers.get("streamtype") == "error":
                errors[request] = stream
                # The client says nothing on it.
            elif (error := errors.pop(request, None)) is not None:
                tasks.create_task(_connection(stream, error, dial), name=f"port-forward {stream.headers.get('port')}")
        await reading


async def _connection(data: SpdyStream, error: SpdyStream, dial: Dial) -> None:
    port = data.headers.get("port", "")
    try:
        reader, writer = await dial(_number(port))
    except (OSError, RuntimeFailure, ValueError) as problem:
        error.write(f"cannot reach port {port} of the pod: {problem}".encode())
        error.close()
        data.close()
        _forget(data, error)
        return
    try:
        sending = asyncio.ensure_future(_to_pod(data, writer))
        try:
            await _to_client(reader, data)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    except OSError as problem:
        error.write(f"the connection to port {port} broke: {problem}".encode())
    finally:
        writer.close()
        data.close()
        error.close()
        _forget(data, error)


async def copy_both(pipe: UpgradedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until both sides have said all, or one of them is gone."""

    async def to_pod() -> None:
        while received := await pipe.read():
            writer.write(received)
            await writer.drain()
        writer.close()

    sending = asyncio.ensure_future(to_pod())
    try:
        while received := await reader.read(_CHUNK):
            pipe.write(received)
            await pipe.drain()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def _to_pod(data: SpdyStream, writer: asyncio.StreamWriter) -> None:
    while received := await data.read():
        writer.write(received)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _to_client(reader: asyncio.StreamReader, data: SpdyStream) -> None:
    while received := await reader.read(_CHUNK):
        data.write(received)
        await data.drain()


def _forget(data: SpdyStream, error: SpdyStream) -> None:
    data.forget()
    error.forget()


def _number(port: str) -> int:
    number = int(port)
    if not 0 < number < 65536:
        raise ValueError(f"{port} is not a port")
    return number
