"""Terminals: who may open one, and that bytes pass both ways until somebody ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from test_console_server import Browser, RecordingTransport, settings

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.console.exec_terminal import RemoteCommand, TerminalConnection, TerminalRequest
from coterie.console.job_logs import plain
from coterie.console.server import ConsoleServer
from coterie.console.sessions import Login
from coterie.kube.api.errors import Forbidden

ASKED = {"csrf": "c", "namespace": "alice", "pod": "p-0", "container": "engine", "command": ["sh"]}


class PageSocket:
    """Stands for the WebSocket to the page."""

    def __init__(self, *messages: bytes) -> None:
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        for message in messages:
            self.messages.put_nowait(message)
        self.sent: list[bytes] = []
        self.closed = False

    async def receive(self) -> bytes | None:
        return await self.messages.get()

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    async def drain(self) -> None: ...

    def close(self, code: int = 1000) -> None:
        self.closed = True


class Echo:
    """A command that prints what it is given, and ends at `exit`."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sizes: list[tuple[int, int]] = []

    async def read(self) -> tuple[int, bytes] | None:
        data = await self.pieces.get()
        return None if data is None else (1, data)

    async def write(self, data: bytes) -> None:
        self.pieces.put_nowait(None if data == b"exit" else data)

    async def resize(self, columns: int, rows: int) -> None:
        self.sizes.append((columns, rows))

    def exit_code(self) -> int:
        return 7


async def served(
    *messages: bytes, refusal: Exception | None = None, alive: bool = True
) -> tuple[PageSocket, Echo, list[Any]]:
    socket, echo, opened = PageSocket(*messages), Echo(), list[Any]()

    @asynccontextmanager
    async def open_terminal(login: Login, asked: TerminalRequest) -> AsyncIterator[RemoteCommand]:
        opened.append((login.account, asked.pod))
        if refusal is not None:
            raise refusal
        yield echo

    async with TaskOwner("test") as owner:
        login = Login("anna", SecretValue("t"))
        connection = TerminalConnection(socket, login, "c", open_terminal, SYSTEM_CLOCK, lambda: alive, owner)  # type: ignore[arg-type]
        await asyncio.wait_for(connection.run(), 40)
    return socket, echo, opened


async def test_bytes_pass_both_ways_and_the_exit_code_comes_back() -> None:
    size = b"\x04" + json.dumps({"columns": 80, "rows": 24}).encode()
    odd = b"\x04" + json.dumps({"columns": -1, "rows": 24}).encode()
    socket, echo, opened = await served(json.dumps(ASKED).encode(), size, odd, b"\x00ls\r", b"\x09?", b"\x00exit")
    assert opened == [("anna", "p-0")] and echo.sizes == [(80, 24)]
    assert socket.sent == [b"\x01ls\r", b'\x03{"code":7}'] and socket.closed


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"csrf": "guessed"}, id="another session"),
        pytest.param({"pod": "../nodes"}, id="no name"),
        pytest.param({"command": []}, id="no command"),
        pytest.param({"command": ["x" * 5000]}, id="a long command"),
        pytest.param({"more": 1}, id="unknown fields"),
    ],
)
async def test_a_first_message_that_is_wrong_opens_nothing(change: dict[str, Any]) -> None:
    socket, _, opened = await served(json.dumps(ASKED | change).encode())
    assert opened == [] and socket.sent[0][:1] == b"\x03" and b"problem" in socket.sent[0] and socket.closed


async def test_a_refusal_of_the_server_is_shown() -> None:
    socket, _, _ = await served(json.dumps(ASKED).encode(), refusal=Forbidden("may not create pods/exec"))
    assert b"may not create pods/exec" in socket.sent[0]


async def test_a_session_that_ended_closes_the_terminal() -> None:
    socket, _, _ = await served(json.dumps(ASKED).encode(), alive=False)
    assert b"session has ended" in socket.sent[-1] and socket.closed


async def test_no_terminal_where_they_are_switched_off() -> None:
    async def never(login: Login, asked: TerminalRequest) -> None: ...

    for changes in ({"exec": False}, {"read_only": True}):
        async with TaskOwner("console") as owner:
            transport = RecordingTransport()
            server = ConsoleServer(settings(**changes), transport, SYSTEM_CLOCK, owner, open_terminal=never)  # type: ignore[arg-type]
            browser = Browser(server, transport)
            await browser.log_in()
            answer = await browser("GET", "/exec", upgrade="websocket", sec_websocket_key="k")
            assert answer.status == 403
            assert json.loads((await browser("GET", "/session")).body)["exec"] is False


async def test_only_the_terminals_page_may_style_itself() -> None:
    async with TaskOwner("console") as owner:
        transport = RecordingTransport()
        browser = Browser(ConsoleServer(settings(), transport, SYSTEM_CLOCK, owner), transport)
        answer = await browser("GET", "/terminal", origin=None)
        policy = dict(answer.headers)["Content-Security-Policy"]
        assert answer.status == 200 and "style-src 'self' 'unsafe-inline'" in policy and "script-src 'self';" in policy


def test_lines_are_text_without_escape_sequences() -> None:
    assert plain("\x1b[31mred\x1b[0m\x1b]0;title\x07 \x1b[2Jok\x00") == "red ok\\x00"
    assert plain("<script>alert(1)</script>") == "<script>alert(1)</script>"
    assert len(plain("x" * 10_000_000)) == 8192
