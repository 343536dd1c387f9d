"""The agent's end of the connection to the supervisor: finds it or starts it, asks, hears, and comes back when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coterie
from coterie.base.log import logger
from coterie.kube.agent.runtimes.protocol import RuntimeFailure
from coterie.kube.agent.runtimes.runp import wire
from coterie.kube.agent.runtimes.runp.network_access import run_supervisor

_log = logger("agent.runp")
_CONNECT_TRIES = 5


class ConnectionLost(Exception):
    """The supervisor went away before it answered."""


@dataclass(slots=True)
class SupervisorReply:
    result: Any
    handles: list[int] = field(default_factory=list)


class SupervisorRefused(RuntimeFailure):
    """The supervisor said no. `code` is the exit code of a program that could not be executed, else 0."""

    def __init__(self, reason: str, message: str, code: int = 0) -> None:
        super().__init__(reason, message)
        self.code = code


def group_of(node: str, directory: Path) -> str:
    """The name of the node's control group: readable, and different for two nodes of one name on one machine."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in node)
    return f"coterie/{safe}-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:8]}"


class SupervisorClient:
    """One connection. `on_event` hears events; `on_lost` that the connection broke (not when `close` was called)."""

    def __init__(
        self,
        directory: Path,
        group: str,
        without: Sequence[str],
        on_event: Callable[[dict[str, Any]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._without = tuple(without)
        self._namespaces: tuple[int, ...] = ()
        """Of the pod network: while we have them it cannot vanish, and the next supervisor enters it by them."""
        self._group = group
        self._on_event = on_event
        self._on_lost = on_lost
        self._socket: socket.socket | None = None
        self._inbox = wire.Inbox()
        self._outbox = bytearray()
        self._waiting: dict[int, asyncio.Future[SupervisorReply]] = {}
        self._number = 0
        self._greeting = False

    @property
    def connected(self) -> bool:
        return self._socket is not None

    async def connect(self) -> dict[str, Any]:
        """Reach the supervisor, starting it when there is none. Answers its greeting: powers, pods and runs."""
        problem: Exception | None = None
        replaced = False
        for _ in range(_CONNECT_TRIES):
            self._greeting = True
            try:
                await self._dial()
                answer = await self.ask("hello", version=wire.VERSION)
                self._greeting = False
                hello: dict[str, Any] = answer.result
                self._keep(answer.handles)
                # Once only: where the files on disk are newer than this very agent, no new one would please it.
                if replaced or await self._fits(hello):
                    return hello
                replaced = True
            except (OSError, ConnectionLost) as error:
                problem = error
                self._drop()
            finally:
                self._greeting = False
            await self._start()
        raise RuntimeFailure("RuntimeNotReady", f"the process that keeps containers cannot be reached: {problem}")

    def _keep(self, handles: list[int]) -> None:
        _close_all(list(self._namespaces))
        self._namespaces = tuple(handles)

    async def _fits(self, hello: dict[str, Any]) -> bool:
        """An older supervisor is used as long as it has containers; then a new one takes its place."""
        if hello["program"] == coterie.__version__ and hello["version"] == wire.VERSION:
            return True
        if not hello["running"] and (await self.ask("quit")).result:
            _log.info("Replaced an idle pod supervisor of an older version", was=hello["program"])
            self._drop()
            return False
        if hello["version"] < wire.OLDEST:
            raise RuntimeFailure(
                "RuntimeNotReady",
                f"the pod supervisor of version {hello['program']} still has containers and is too old to be talked to; "
                "stop its pods with that version first",
            )
        return True

    async def _dial(self) -> None:
        name, handle = wire.address(str(self._directory))
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await asyncio.get_running_loop().sock_connect(connection, name)
            if wire.peer(connection)[1] not in (0, os.getuid()):
                raise ConnectionRefusedError("the pod supervisor's socket belongs to another user")
        except BaseException:
            connection.close()
            raise
        finally:
            os.close(handle)
        self._socket = connection
        self._inbox = wire.Inbox()
        self._outbox.clear()
        asyncio.get_running_loop().add_reader(connection.fileno(), self._readable)

    async def _start(self) -> None:
        # A plain child in a thread works on every loop; started as uvloop's own subprocess, the supervisor never came up.
        done = await asyncio.to_thread(run_supervisor, self._directory, self._group, self._without, self._namespaces)
        if done.returncode:
            _log.warning("The pod supervisor did not start", said=done.stderr.decode(errors="replace").strip())
            await asyncio.sleep(0.1)

    async def ask(self, op: str, **fields: Any) -> SupervisorReply:
        if self._socket is None:
            raise ConnectionLost
        self._number += 1
        number = self._number
        future: asyncio.Future[SupervisorReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._outbox += wire.encode({"id": number, "op": op, **fields})
        self._writable()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                _close_all(future.result().handles)
            raise
        finally:
            self._waiting.pop(number, None)

    @property
    def last_number(self) -> int:
        """The number of the newest request; an exec is known by it."""
        return self._number

    def _writable(self) -> None:
        connection = self._socket
        if connection is None:
            return
        loop = asyncio.get_running_loop()
        try:
            while self._outbox:
                del self._outbox[: connection.send(self._outbox)]
        except BlockingIOError:
            loop.add_writer(connection.fileno(), self._writable)
            return
        except OSError:
            self._lost()
            return
        loop.remove_writer(connection.fileno())

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            data, handles = wire.receive(self._socket)
            messages = self._inbox.feed(data, handles) if data else []
        except BlockingIOError:
            return
        except (OSError, ValueError, wire.WireError):
            data, messages = b"", []
        for message, given in messages:
            self._handle(message, given)
        if not data:
            self._lost()

    def _handle(self, message: dict[str, Any], handles: list[int]) -> None:
        if "event" in message:
            self._on_event(message)
            return
        future = self._waiting.get(message["id"])
        if future is None or future.done():
            _close_all(handles)
        elif "error" in message:
            reason, text = message["error"]
            future.set_exception(SupervisorRefused(reason, text, message.get("code", 0)))
        else:
            future.set_result(SupervisorReply(message["ok"], handles))

    def _lost(self) -> None:
        """Who is just connecting hears of it there, and tries again."""
        self._drop()
        if not self._greeting:
            self._on_lost()

    def _drop(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(connection.fileno())
            loop.remove_writer(connection.fileno())
            connection.close()
        self._inbox.close()
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(ConnectionLost())

    def close(self) -> None:
        self._drop()

    def release(self) -> None:
        """Let go of the pod network too."""
        self._keep([])


def _close_all(handles: list[int]) -> None:
    for handle in handles:
        with contextlib.suppress(OSError):
            os.close(handle)
