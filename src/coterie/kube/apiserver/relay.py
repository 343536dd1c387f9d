"""Copies bytes between a client of the API server and a connection that the server opened for it."""

from __future__ import annotations

import asyncio
from typing import Protocol

import httptools

from coterie.base.log import logger
from coterie.http.messages import Sink, TunnelSink
from coterie.http.server import Tasks
from coterie.kube.apiserver import agent_connection

log = logger("apiserver.relay")

_HIGH_WATER = 1024 * 1024


class RelayedConnection(Protocol):
    """The side that the server opened."""

    @property
    def reader(self) -> asyncio.StreamReader: ...

    @property
    def writer(self) -> asyncio.StreamWriter: ...

    def close(self) -> None: ...


class ConnectionRelay:
    """Copies bytes between a client's tunnel and a connection, each side at the pace of the other."""

    def __init__(self, connection: RelayedConnection, tasks: Tasks) -> None:
        self._connection = connection
        self._tasks = tasks
        self._sink: TunnelSink | None = None
        self._copying: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    def opened(self, sink: TunnelSink) -> None:
        self._sink = sink
        self._copying = self._tasks.create_task(self._to_client(sink), name="tunnel to client")

    def received(self, data: bytes) -> None:
        writer = self._connection.writer
        writer.write(data)
        if self._draining is None and self._sink is not None and writer.transport.get_write_buffer_size() > _HIGH_WATER:
            self._sink.pause()
            self._draining = self._tasks.create_task(self._drain(self._sink), name="tunnel to server")

    def closed(self) -> None:
        self._sink = None
        for task in (self._copying, self._draining):
            if task is not None:
                task.cancel()
        self._connection.close()

    async def _drain(self, sink: TunnelSink) -> None:
        try:
            await self._connection.writer.drain()
        except OSError:
            sink.close()
        self._draining = None
        sink.resume()

    async def _to_client(self, sink: TunnelSink) -> None:
        try:
            while data := await self._connection.reader.read(agent_connection.CHUNK):
                sink.write(data)
                await sink.drain()
        except OSError as problem:
            log.debug("Tunnel aborted", problem=str(problem))
        finally:
            self._copying = None
            sink.close()


class BodyRelay:
    """Copies the body of an answer (a log, a watch, a page) into our answer as it comes."""

    def __init__(self, connection: RelayedConnection, body: agent_connection.Body, tasks: Tasks) -> None:
        self._connection = connection
        self._body = body
        self._tasks = tasks
        self._copying: asyncio.Task[None] | None = None

    def opened(self, sink: Sink) -> None:
        self._copying = self._tasks.create_task(self._copy(sink), name="body relay")

    def closed(self) -> None:
        if self._copying is not None:
            self._copying.cancel()
        self._connection.close()

    async def _copy(self, sink: Sink) -> None:
        whole = False
        try:
            while not self._body.complete and (data := await self._connection.reader.read(agent_connection.CHUNK)):
                sink.write(self._body.feed(data))
                await sink.drain()
            whole = self._body.complete or self._body.open_ended
        except (OSError, httptools.HttpParserError) as problem:
            log.debug("Response aborted", problem=str(problem))
        self._copying = None
        if whole:
            sink.close()
        else:
            sink.abort()
