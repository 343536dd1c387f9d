"""A terminal in a container: the page's WebSocket on one side, `exec` of the API server with the person's token on the other.

page ──{"csrf", "namespace", "pod", "container", "command"}──>   first message: opens it
     ──0 + input──>  ──4 + {"columns", "rows"}──>                then: bytes and sizes
     <──1 + output── <──3 + {"code"} or {"problem"}──            until the end
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.console.sessions import Login
from coterie.http.websocket import WebSocket
from coterie.kube.api.errors import ApiError
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.client.credentials import StaticCredentials
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.transport import TransportError

if TYPE_CHECKING:
    from coterie.kube.client import streams
else:
    streams = lazy_import("coterie.kube.client.streams")

log = logger("console.exec")

MAX_TERMINALS: Final = 8
"""Of one session."""
_ALIVE_SECONDS: Final = 5.0
_LONGEST_COMMAND: Final = 4096
_MOST_WORDS: Final = 64


class TerminalRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    csrf: str
    """Not for logs."""
    namespace: str
    pod: str
    container: str = ""
    command: list[str] = msgspec.field(default_factory=lambda: ["sh"])

    def __repr__(self) -> str:
        return f"TerminalRequest({self.namespace}/{self.pod}/{self.container})"


class TerminalSize(msgspec.Struct, frozen=True):
    columns: int
    rows: int


class RemoteCommand(Protocol):
    async def read(self) -> tuple[int, bytes] | None: ...
    async def write(self, data: bytes) -> None: ...
    async def resize(self, columns: int, rows: int) -> None: ...
    def exit_code(self) -> int: ...


OpenTerminal = Callable[[Login, TerminalRequest], AbstractAsyncContextManager[RemoteCommand]]


def opener(connection: ClusterConnection) -> OpenTerminal:
    @asynccontextmanager
    async def open_terminal(login: Login, asked: TerminalRequest) -> AsyncIterator[RemoteCommand]:
        shown = StaticCredentials(f"Bearer {login.token.reveal()}")
        where = (connection, asked.pod, asked.namespace, asked.command)
        async with streams.exec_stream(
            *where, container=asked.container, stdin=True, tty=True, credentials=shown
        ) as remote:
            yield remote

    return open_terminal


class TerminalConnection:
    """Serves one terminal until the command, the page or the session ends."""

    def __init__(
        self,
        socket: WebSocket,
        login: Login,
        csrf: str,
        open_terminal: OpenTerminal,
        clock: Clock,
        alive: Callable[[], bool],
        owner: TaskOwner,
    ) -> None:
        self._socket = socket
        self._login = login
        self._csrf = csrf
        self._open = open_terminal
        self._clock = clock
        self._alive = alive
        self._owner = owner

    async def run(self) -> None:
        try:
            asked = await self._request()
            if isinstance(asked, str):
                self._end({"problem": asked})
                return
            about = {"namespace": asked.namespace, "pod": asked.pod, "container": asked.container}
            log.info("A terminal was opened", account=self._login.account, **about)
            try:
                async with self._open(self._login, asked) as remote:
                    self._end(await self._serve(remote))
            except ApiError as problem:
                self._end({"problem": problem.message})
            except TransportError as problem:
                self._end({"problem": str(problem)})
            log.info("A terminal was closed", account=self._login.account, **about)
        finally:
            self._socket.close()

    async def _request(self) -> TerminalRequest | str:
        """The first message; a sentence: it cannot be done."""
        message = await self._socket.receive()
        try:
            asked = msgspec.json.decode(message or b"", type=TerminalRequest)
        except (msgspec.MsgspecError, RecursionError) as problem:
            return f"the message cannot be read: {problem}"
        if not hmac.compare_digest(asked.csrf.encode(), self._csrf.encode()):
            return "the message is not of this session; load the page again"
        for name in (asked.namespace, asked.pod, asked.container or "container"):
            if faults := dns_subdomain_faults(name):
                return f"{name[:64]!r} is no name: {faults[0]}"
        if not 0 < len(asked.command) <= _MOST_WORDS or sum(map(len, asked.command)) > _LONGEST_COMMAND:
            return "the command is empty or too long"
        return asked

    async def _serve(self, remote: RemoteCommand) -> dict[str, object]:
        sides = [
            self._owner.start("terminal input", self._input(remote), vital=False),
            self._owner.start("terminal session", self._watch_session(), vital=False),
        ]
        output = self._owner.start("terminal output", self._output(remote), vital=False)
        try:
            await asyncio.wait([*sides, output], return_when=asyncio.FIRST_COMPLETED)
            if output.done() and not output.cancelled():
                ended: dict[str, object] = output.result()
                return ended
            return {"problem": "the session has ended"} if not self._alive() else {"code": 0}
        finally:
            for task in (*sides, output):
                task.cancel()

    async def _output(self, remote: RemoteCommand) -> dict[str, object]:
        try:
            while (piece := await remote.read()) is not None:
                self._socket.send(bytes((streams.STDOUT,)) + piece[1])
                await self._socket.drain()
            return {"code": remote.exit_code()}
        except ApiError as problem:
            return {"problem": problem.message}
        except TransportError as problem:
            return {"problem": str(problem)}
        except ConnectionError:
            return {"problem": "the page went away"}

    async def _input(self, remote: RemoteCommand) -> None:
        """Ends when the page goes, or breaks the protocol."""
        with contextlib.suppress(ConnectionError, TransportError):
            while (message := await self._socket.receive()) is not None:
                if not message:
                    continue
                if message[0] == streams.STDIN:
                    await remote.write(message[1:])
                elif message[0] == streams.RESIZE and (size := _size(message[1:])) is not None:
                    await remote.resize(size.columns, size.rows)

    async def _watch_session(self) -> None:
        while self._alive():
            await self._clock.sleep(_ALIVE_SECONDS)

    def _end(self, about: dict[str, object]) -> None:
        self._socket.send(bytes((streams.ERROR,)) + msgspec.json.encode(about))


def say_goodbye(socket: WebSocket) -> None:
    socket.send(bytes((streams.ERROR,)) + msgspec.json.encode({"problem": "the session has ended"}))


def _size(data: bytes) -> TerminalSize | None:
    try:
        found = msgspec.json.decode(data, type=TerminalSize)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return found if 0 < found.columns < 1000 and 0 < found.rows < 1000 else None
