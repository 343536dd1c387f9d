"""The console under attack: by partners whose texts it shows, by pages of other origins, by clients that keep no rule."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from test_console_server import COOKIE, Browser, RecordingTransport, settings
from test_console_sessions import a_token

from coterie.base.clock import VirtualClock
from coterie.base.tasks import TaskOwner
from coterie.console import rows
from coterie.console.__main__ import web_server
from coterie.console.exec_terminal import TerminalRequest
from coterie.console.live import LiveRequest, fault_of
from coterie.console.process import ConsoleProcess
from coterie.console.server import CodeRequest, ConsoleServer, LoginRequest
from coterie.console.sessions import MAX_CONNECTIONS, MAX_FAILURES, Login
from coterie.console.settings import ConsoleSettings
from coterie.http.messages import Request
from coterie.http.server import HttpServer
from coterie.http.websocket import WebSocket
from coterie.kube.client.transport import TransportRequest, TransportResponse
from coterie.kube.control.child_api_listener import private_socket

LARGE = "<script>alert(1)</script>\x1b[31m\x9b0m\u202e" + "x" * 10_000_000
MOST_ROW_BYTES = 512 << 10
TOKEN_SECONDS = 4


# What partners write.


class Planted(dict[str, Any]):
    """An object that has every field, each of a shape that nobody expects."""

    def __init__(self, chance: random.Random, depth: int = 4) -> None:
        super().__init__(metadata={"name": "n", "namespace": "alice", "labels": {}, "annotations": {}})
        self._chance = chance
        self._depth = depth

    def get(self, key: str, default: Any = None) -> Any:
        if key == "metadata":
            return self["metadata"]
        inner = Planted(self._chance, self._depth - 1) if self._depth else None
        return self._chance.choice(
            (
                LARGE,
                inner,
                [inner] * 600,
                [LARGE] * 600,
                None,
                10**400,
                -1.5,
                True,
                {LARGE[:9]: "1e309"},
                [[[]]],
                "1e999999",
            )
        )

    def items(self) -> Any:
        return {"cpu": "1e400", "memory": LARGE, "gpu": 10**30, LARGE[:500]: 1}.items()

    def values(self) -> Any:
        return [LARGE, None, "Succeeded"]


@pytest.mark.parametrize("resource", [*rows._ROWS, "unknown"])
def test_a_row_is_small_text_whatever_a_partner_wrote(resource: str) -> None:
    for seed in range(40):
        row = rows.row_of(resource, Planted(random.Random(seed)))
        encoded = json.dumps(row, ensure_ascii=False)
        assert len(encoded) < MOST_ROW_BYTES, (resource, seed)
        assert not any(each in encoded for each in ("\\u001b", "\x9b", "\u202e")), (resource, seed)


def test_views_are_bounded_everywhere() -> None:
    deep: Any = LARGE
    for _ in range(100):
        deep = {"a": deep, LARGE: [LARGE] * 6000}
    with pytest.raises(AssertionError):  # as it came it is far too large to send
        assert len(str({"a": [LARGE] * 2})) < MOST_ROW_BYTES
    shown = rows.bounded({"deep": {"a": [LARGE] * 2}, "long": [1] * 100_000})
    assert len(json.dumps(shown)) < MOST_ROW_BYTES
    assert rows.bounded(deep, longest=10, most=2)["a"] is not None


# A real listener.


class Line:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self) -> bytes:
        return await self.reader.read(65536)

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def drain(self) -> None:
        await self.writer.drain()

    async def until_closed(self) -> bytes:
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), 40)
        return b""


class Attacked:
    """A console that listens, with one person logged in."""

    def __init__(
        self, console: ConsoleServer, web: HttpServer, at: ConsoleSettings, transport: Any, clock: VirtualClock
    ) -> None:
        self.console = console
        self.web = web
        self.at = at
        self.transport = transport
        self.clock = clock
        token = a_token(exp=clock.now().timestamp() + TOKEN_SECONDS)
        self.lines: list[Line] = []
        found = console.sessions.begin(console.sessions.new_code(Login("ops/anna", token)))
        assert found is not None
        self.cookie, self.session = found

    @property
    def origin(self) -> str:
        return self.at.url

    async def line(self) -> Line:
        made = Line(*await asyncio.open_connection("127.0.0.1", self.at.port))
        self.lines.append(made)
        return made

    def hang_up(self) -> None:
        for line in self.lines:
            line.writer.transport.abort()

    async def answer(self, data: bytes) -> bytes:
        line = await self.line()
        line.write(data)
        found = await asyncio.wait_for(line.read(), 40)
        line.writer.close()
        return found

    async def websocket(self, path: str, **headers: str) -> tuple[bytes, WebSocket, Line]:
        line = await self.line()
        sent = {
            "Host": self.at.hosts[0], "Origin": self.origin, "Upgrade": "websocket", "Connection": "Upgrade",
            "Sec-WebSocket-Key": "k", "Sec-WebSocket-Version": "13", "Cookie": f"{COOKIE}={self.cookie}", **headers,
        }  # fmt: skip
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        line.write("\r\n".join(lines).encode())
        head = await asyncio.wait_for(line.reader.readuntil(b"\r\n\r\n"), 40)
        return head.split(b"\r\n")[0], WebSocket(line, client=True), line


class EndlessLists(RecordingTransport):
    """An API server with as many changes as anybody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0
        self.produced = 0

    async def send(self, call: TransportRequest) -> TransportResponse:
        self.calls.append(call)
        if not call.stream:
            return self.reply
        if self.reply.status != 200:
            return self.reply
        self.open += 1
        return TransportResponse(200, {}, lines=_Lines(self))


class _Lines:
    def __init__(self, owner: EndlessLists) -> None:
        self._owner = owner
        self._first = True
        self._closed = False

    async def read(self) -> list[bytes]:
        await asyncio.sleep(0)
        if self._first:
            self._first = False
            end = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
            return [json.dumps({"type": "BOOKMARK", "object": {"metadata": end}}).encode()]
        self._owner.produced += 200
        first = self._owner.produced
        return [_change(number) for number in range(first, first + 200)]

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._owner.open -= 1


def _change(number: int) -> bytes:
    meta = {"name": f"pod-{number}", "namespace": "alice", "resourceVersion": str(number)}
    return json.dumps({"type": "ADDED", "object": {"metadata": meta, "status": {"message": "m" * 400}}}).encode()


@asynccontextmanager
async def attacked(**changes: Any) -> AsyncIterator[Attacked]:
    bound = socket.create_server(("127.0.0.1", 0))
    at = ConsoleSettings("alice", "autonomy", "127.0.0.1", bound.getsockname()[1], Path("/nowhere"), **changes)
    transport, clock = EndlessLists(), VirtualClock()
    async with TaskOwner("console") as owner:
        console = ConsoleServer(at, transport, clock, owner, open_terminal=_never)
        web = web_server(console)
        await web.serve(bound)
        try:
            made = Attacked(console, web, at, transport, clock)
            yield made
            while made.session.tabs and not made.session.over.is_set():
                made.hang_up()
                await asyncio.sleep(0.01)
            made.console.sessions.end(made.cookie)
            await clock.advance(5)
            assert owner.names == [], "a tab that closed leaves nothing behind"
            assert transport.open == 0
        finally:
            made.hang_up()
            await web.stop(0.1)


@asynccontextmanager
async def _never(login: Login, asked: TerminalRequest) -> AsyncIterator[Any]:
    class Silent:
        async def read(self) -> None:
            await asyncio.Event().wait()

        async def write(self, data: bytes) -> None: ...

        async def resize(self, columns: int, rows: int) -> None: ...

        def exit_code(self) -> int:
            return 0

    yield Silent()


SUBSCRIBE = b'{"subscribe":1,"resource":"pods"}'
TERMINAL = {"namespace": "alice", "pod": "p", "container": "c", "command": ["sh"]}


def _head(at: ConsoleSettings, *lines: str, method: str = "GET", path: str = "/") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {at.hosts[0]}", *lines, "", "")).encode()


async def test_requests_that_two_servers_would_read_differently_are_refused() -> None:
    async with attacked() as one:
        origin = f"Origin: {one.origin}"
        post = {"method": "POST", "path": "/login"}
        shapes = [
            _head(one.at, origin, "Content-Length: 2", "Transfer-Encoding: chunked", **post) + b"0\r\n\r\n",
            _head(one.at, origin, "Content-Length: 2", "Content-Length: 3", **post) + b"{}x",
            _head(one.at, origin, "Transfer-Encoding: chunked, identity", **post) + b"0\r\n\r\n",
            _head(one.at, origin, "Transfer-Encoding: chunked", **post) + b"zz\r\n{}\r\n0\r\n\r\n",
            _head(one.at, "X: a", " folded: b"),
            _head(one.at, "Bad Name: x"),
            b"GET / HTTP/1.1\nHost: x\n\n\x00",
            b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ]
        for shape in shapes:
            found = await one.answer(shape)
            assert found.startswith(b"HTTP/1.1 4") and b" 200 " not in found, (shape, found[:80])
        # The address in the request line is not a way around Host.
        other = await one.answer(b"GET http://127.0.0.1/session HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert other.startswith(b"HTTP/1.1 421")
        assert (await one.answer(_head(one.at))).startswith(b"HTTP/1.1 200"), "and the console still serves"


async def test_noise_does_not_end_the_process() -> None:
    chance = random.Random(18)
    async with attacked() as one:
        for _ in range(60):
            line = await one.line()
            line.write(chance.choice((b"", _head(one.at)[:-2], b"POST /login HTTP/1.1\r\n")) + chance.randbytes(300))
            line.writer.close()
        for message in (b"[" * 3_000_000, b'{"subscribe":1e400}', b'{"subscribe":"\\ud800"}', b"\xff", b""):
            _, ws, line = await one.websocket("/live")
            ws.send_text(message)
            assert b"problem" in await line.until_closed(), message[:20]
        for frame in (
            b"\xff\xff" * 50,
            b"\x81\x05hello",
            b"\x81\xff" + b"\x7f" * 8,
            b"\x09\x80abcd",
            chance.randbytes(500),
        ):
            _, _, line = await one.websocket("/live")
            line.write(frame)
            line.writer.write_eof()
            await line.until_closed()
        for body in (b"[" * 4000, b'{"code":"\\ud800"}', b'{"code":{}}', b"\xff\xfe", b'{"x":' * 800):
            found = await one.answer(
                _head(one.at, f"Origin: {one.origin}", f"Content-Length: {len(body)}", method="POST", path="/login")
                + body
            )
            assert found.split(b" ")[1] in (b"400", b"401"), (body[:20], found[:60])
        assert (await one.answer(_head(one.at))).startswith(b"HTTP/1.1 200")
        while one.session.tabs or one.transport.open:
            await asyncio.sleep(0.01)


async def test_a_page_of_another_port_opens_no_connection() -> None:
    async with attacked() as one:
        for path in ("/live", "/exec"):
            for origin in (
                "http://127.0.0.1:1",
                "http://localhost:1",
                "null",
                f"{one.origin}.evil.example",
                f"{one.origin}/",
                "",
            ):
                status, _, line = await one.websocket(path, Origin=origin)
                assert b" 403 " in status, (path, origin)
                line.writer.close()
            status, _, _ = await one.websocket(path, Host="evil.example")
            assert b" 421 " in status


async def test_a_logout_closes_tabs_and_terminals_at_once() -> None:
    async with attacked() as one:
        _, live, tab = await one.websocket("/live")
        live.send_text(SUBSCRIBE)
        _, terminal, shell = await one.websocket("/exec")
        terminal.send_text(json.dumps({**TERMINAL, "csrf": one.session.csrf}).encode())
        while one.transport.open < 1 or one.session.terminals < 1:
            await asyncio.sleep(0.01)
        one.console.sessions.end(one.cookie)
        assert b'"ended":true' in await tab.until_closed()
        assert b"session has ended" in await shell.until_closed()
        while one.session.tabs:
            await asyncio.sleep(0.01)
        assert one.transport.open == 0, "and nothing is followed with that token any more"


async def test_a_browser_that_ignores_the_end_is_cut_off() -> None:
    async with attacked() as one:
        _, live, tab = await one.websocket("/live")
        tab.writer.transport.pause_reading()
        live.send_text(SUBSCRIBE)
        while one.transport.produced < 2000:
            await asyncio.sleep(0)
        await one.clock.advance(TOKEN_SECONDS)
        while one.session.tabs:
            await one.clock.advance(2)
        assert one.transport.open == 0 and one.web.connections == 0


async def test_a_browser_that_never_reads_costs_a_bounded_amount() -> None:
    async with attacked() as one:
        _, live, tab = await one.websocket("/live")
        tab.writer.transport.pause_reading()
        live.send_text(SUBSCRIBE)
        while one.transport.produced < 40_000:
            await one.clock.advance(0.2)
            await asyncio.sleep(0)
        (connection,) = one.web._connections
        assert connection.transport.get_write_buffer_size() < 1 << 20


async def test_when_the_api_server_refuses_the_token_the_session_is_over() -> None:
    async with attacked() as one:
        _, live, tab = await one.websocket("/live")
        one.transport.reply = TransportResponse(401, {}, b'{"kind":"Status","code":401,"reason":"Unauthorized"}')
        live.send_text(SUBSCRIBE)
        assert b'"ended":true' in await tab.until_closed()
        assert not one.console.sessions.is_alive(one.session)


async def test_tabs_and_terminals_are_counted_also_when_they_come_at_once() -> None:
    async with attacked() as one:
        opened = await asyncio.gather(*(one.websocket("/live") for _ in range(MAX_CONNECTIONS + 8)))
        await asyncio.sleep(0.05)
        assert one.session.tabs <= MAX_CONNECTIONS
        status, _, _ = await one.websocket("/live")
        assert b" 429 " in status
        for _, _, line in opened:
            line.writer.close()
        while one.session.tabs:
            await asyncio.sleep(0.01)
        terminals = await asyncio.gather(*(one.websocket("/exec") for _ in range(20)))
        await asyncio.sleep(0.05)
        assert one.session.terminals <= 8
        for _, _, line in terminals:
            line.writer.close()


async def test_no_header_makes_a_client_known() -> None:
    async with attacked() as one:
        line = await one.line()
        line.write(_head(one.at, "Authorization: Bearer x", "Token: y"))
        assert (await line.read()).startswith(b"HTTP/1.1 200")
        assert sum(one.web._unknown.values()) == 1, "it may wait seconds, not minutes, and counts for its address"
        line.writer.close()


@pytest.mark.parametrize(
    "change",
    [
        {"resource": "pods/x/log"},
        {"resource": "pods/x/proxy/run"},
        {"resource": ".."},
        {"resource": ""},
        {"group": "../../metrics"},
        {"version": "v1/../../../metrics"},
        {"namespace": "a/../../nodes"},
        {"namespace": "a%2f.."},
        {"labels": "x" * 2000},
        {"fields": "x" * 2000},
    ],
)
def test_a_subscription_is_a_list_and_no_other_address(change: dict[str, str]) -> None:
    good = {"subscribe": 1, "resource": "pods", "namespace": "alice"}
    assert fault_of(LiveRequest(**good)) == ""
    assert fault_of(LiveRequest(**{**good, **change})) != ""


# The passthrough.


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    transport = RecordingTransport()
    async with TaskOwner("console") as owner:
        made = Browser(ConsoleServer(settings(), transport, VirtualClock(), owner), transport)
        await made.log_in()
        yield made


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nodes/n/proxy/run/alice/p/c",
        "/api/v1/nodes/n/proxy",
        "/api/v1/namespaces/a/pods/p/proxy/admin",
        "/api/v1/namespaces/a/pods/http:p:80/proxy/",
        "/api/v1/namespaces/a/services/s/proxy/x",
        "/api/v1/namespaces/a/pods/p/exec",
        "/api/v1/namespaces/a/pods/p/attach",
        "/api/v1/namespaces/a/pods/p/portforward",
        "/api/v1/namespaces/a/serviceaccounts/s/token",
    ],
)
async def test_nothing_is_passed_into_pods_and_no_credential_is_made(browser: Browser, method: str, path: str) -> None:
    assert (await browser(method, f"/kube{path}")).status == 403
    assert browser.transport.calls == []


async def test_only_the_persons_token_and_two_headers_reach_the_api_server(browser: Browser) -> None:
    planted = {
        "impersonate_user": "system:admin", "impersonate_group": "system:masters", "x_remote_user": "root",
        "x_remote_group": "system:masters", "x_forwarded_for": "10.0.0.1", "x_forwarded_host": "x", "forwarded": "for=x",
        "authorization": "Bearer other", "connection": "x-y", "x_http_method_override": "DELETE", "te": "trailers",
    }  # fmt: skip
    await browser("GET", "/kube/api/v1/nodes", **planted, accept="a/b", content_type="c/d")
    (call,) = browser.transport.calls
    assert dict(call.headers) == {"accept": "a/b", "content-type": "c/d", "Authorization": "Bearer annas-token"}
    assert "annas-token" not in repr(call)


async def test_an_answer_of_the_api_has_the_headers_of_a_page(browser: Browser) -> None:
    answer = dict((await browser("GET", "/kube/api/v1/nodes")).headers)
    assert answer["X-Content-Type-Options"] == "nosniff" and "default-src 'none'" in answer["Content-Security-Policy"]
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/views/jobs/", "/views/jobs/..", "/actions/jobs/./stop", "/logs/jobs/%2e%2e", "/views//x"]
)
async def test_odd_names_are_no_addresses(browser: Browser, path: str) -> None:
    method = "POST" if path.startswith("/actions") else "GET"
    assert (await browser(method, path)).status == 404
    assert browser.transport.calls == []


async def test_odd_numbers_are_refused(browser: Browser) -> None:
    assert (await browser("GET", "/logs/jobs/j", query=f"limit={'9' * 5000}")).status == 400
    assert (await browser("GET", "/views/activity", query="since=nan")).status == 200


# Links and sessions.


async def test_of_many_who_use_a_link_at_once_one_wins(browser: Browser) -> None:
    body = json.dumps({"code": (await browser.link()).partition("#login=")[2]}).encode()
    answers = await asyncio.gather(*(browser("POST", "/login", body) for _ in range(20)))
    assert sorted(each.status for each in answers) == [200] + [401] * 19


async def test_guessing_is_slowed_and_a_right_link_still_works(browser: Browser) -> None:
    found = [(await browser("POST", "/login", b'{"code":"guess"}')).status for _ in range(MAX_FAILURES + 5)]
    assert found == [401] * MAX_FAILURES + [429] * 5
    await browser.log_in()


async def test_links_of_other_sites_lead_to_pages_and_to_nothing_else(browser: Browser) -> None:
    visit = {"origin": None, "sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert (await browser("GET", "/jobs/x", **visit)).status == 200
    assert (await browser("GET", "/session", **visit)).status == 403
    assert (await browser("GET", "/jobs/x", **visit | {"sec_fetch_dest": "iframe"})).status == 403
    assert (await browser("GET", "/static/app.js", **visit | {"sec_fetch_mode": "no-cors"})).status == 403


async def test_secrets_are_in_no_log_and_no_repr(browser: Browser, caplog: pytest.LogCaptureFixture) -> None:
    code = (await browser.link()).partition("#login=")[2]
    with caplog.at_level(logging.DEBUG):
        await browser("POST", "/login", json.dumps({"code": code}).encode())
        await browser("POST", "/login", json.dumps({"code": [code]}).encode())
        await browser("GET", "/kube/api/v1/nodes")
    session = browser.server.sessions.find(browser.cookie)
    shown = caplog.text + repr(session) + repr(CodeRequest("a", "annas-token")) + repr(LoginRequest(code))
    shown += repr(TerminalRequest("csrf-value", "n", "p"))
    for secret in (code, "annas-token", browser.cookie, browser.csrf, "csrf-value"):
        assert secret not in shown


@pytest.mark.parametrize("changes", [{"read_only": True}, {"exec": False}])
async def test_switches_hold_against_every_way_in(changes: dict[str, bool]) -> None:
    async with attacked(**changes) as one:
        status, _, _ = await one.websocket("/exec")
        assert b" 403 " in status
        head = ("Origin: " + one.origin, f"Cookie: {COOKIE}={one.cookie}", f"X-Coterie-CSRF: {one.session.csrf}")
        for path in ("/kube/api/v1/namespaces/a/pods/p/exec?command=id", "/kube/api/v1/nodes/n/proxy/run/a/p/c?cmd=id"):
            found = await one.answer(_head(one.at, *head, "Content-Length: 0", method="POST", path=path))
            assert found.startswith(b"HTTP/1.1 403")
        if "read_only" in changes:
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                for path in (
                    "/kube/apis/authorization.k8s.io/v1/selfsubjectx",
                    "/kube/api/v1/pods",
                    "/actions/jobs/j/stop",
                ):
                    found = await one.answer(_head(one.at, *head, "Content-Length: 0", method=method, path=path))
                    assert found.split(b" ")[1] in (b"403", b"405"), (method, path, found[:40])
        assert [call for call in one.transport.calls if call.mutating] == []


# Other users of the machine.


def test_only_our_own_user_can_ask_for_links(tmp_path: Path) -> None:
    path = tmp_path / "console.sock"
    with contextlib.closing(private_socket(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        if os.geteuid() != 0:
            return
        tmp_path.chmod(0o777)
        child = os.fork()
        if child == 0:  # somebody else
            os.setgid(65534)
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as one:
                try:
                    one.connect(str(path))
                except PermissionError:
                    os._exit(0)
                except OSError:
                    os._exit(2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def test_the_child_has_none_of_the_nodes_rights() -> None:
    allowed = ConsoleProcess.__init__.__globals__["_nothing"]
    for method, path in (("GET", "/api/v1/nodes"), ("POST", "/api/v1/namespaces"), ("GET", "/version")):
        assert allowed(method, path, "") is False


async def test_links_are_not_made_by_browsers() -> None:
    async with attacked() as one:
        found = await one.answer(
            _head(one.at, f"Origin: {one.origin}", "Content-Length: 2", method="POST", path="/codes") + b"{}"
        )
        assert found.startswith(b"HTTP/1.1 405")
        assert one.console.handle is not one.console.handle_control
        assert (await one.console.handle(Request("POST", "/codes"))).status == 421
