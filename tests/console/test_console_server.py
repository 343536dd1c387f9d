"""The console's addresses, asked as browsers and as attackers ask."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coterie.base.clock import VirtualClock
from coterie.base.tasks import TaskOwner
from coterie.console.server import ConsoleServer
from coterie.console.settings import ConsoleSettings
from coterie.http.errors import HttpProblem
from coterie.http.messages import Request, Response
from coterie.kube.client.transport import NotSent, TransportRequest, TransportResponse

HOST = "127.0.1.1:8088"
ORIGIN = f"http://{HOST}"
COOKIE = "__Host-coterie-alice"


class RecordingTransport:
    def __init__(self) -> None:
        self.calls: list[TransportRequest] = []
        self.reply = TransportResponse(200, {"content-type": "application/json"}, b'{"kind":"NodeList"}')
        self.down = False

    async def send(self, call: TransportRequest) -> TransportResponse:
        if self.down:
            raise NotSent("connection refused")
        self.calls.append(call)
        return self.reply

    async def close(self) -> None: ...


class Browser:
    """Sends what a browser would send from the console's own page; `headers` replaces some of it."""

    def __init__(self, server: ConsoleServer, transport: RecordingTransport) -> None:
        self.server = server
        self.transport = transport
        self.cookie = ""
        self.csrf = ""

    async def __call__(
        self, method: str, path: str, body: bytes = b"", query: str = "", **headers: str | None
    ) -> Response:
        sent: dict[str, str | None] = {"host": HOST, "origin": ORIGIN}
        if self.cookie:
            sent |= {"cookie": f"other=1; {COOKIE}={self.cookie}", "x-coterie-csrf": self.csrf}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.server.handle(
            Request(method, path, query, {name: value for name, value in sent.items() if value is not None}, body)
        )

    async def link(self) -> str:
        answer = await self.server.handle_control(
            Request("POST", "/codes", body=json.dumps({"account": "ops/anna", "token": "annas-token"}).encode())
        )
        url: str = json.loads(answer.body)["url"]
        return url

    async def log_in(self) -> None:
        code = (await self.link()).partition("#login=")[2]
        answer = await self("POST", "/login", json.dumps({"code": code}).encode())
        assert answer.status == 200, answer.body
        cookie = dict(answer.headers)["Set-Cookie"]
        assert {"HttpOnly", "Secure", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        self.cookie = cookie.partition("=")[2].partition(";")[0]
        self.csrf = json.loads(answer.body)["csrf"]


def settings(**changes: bool) -> ConsoleSettings:
    return ConsoleSettings("alice", "autonomy", "127.0.1.1", 8088, Path("/nowhere"), **changes)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    transport = RecordingTransport()
    async with TaskOwner("console") as owner:
        yield Browser(ConsoleServer(settings(), transport, VirtualClock(), owner), transport)


async def test_the_page_has_a_strict_policy_and_one_address_for_all_views(browser: Browser) -> None:
    for path in ("/", "/jobs", "/jobs/some-job", "/network"):
        answer = await browser("GET", path, origin=None)
        assert answer.status == 200 and b"/static/app.js" in answer.body
        headers = dict(answer.headers)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"] and headers["X-Content-Type-Options"] == "nosniff"
    script = await browser("GET", "/static/app.js", origin=None, accept_encoding="gzip")
    assert dict(script.headers)["Content-Encoding"] == "gzip" and script.content_type.startswith("text/javascript")
    again = await browser("GET", "/static/app.js", origin=None, if_none_match=dict(script.headers)["ETag"])
    assert again.status == 304 and not again.body


@pytest.mark.parametrize("name", ["../server.py", "..%2fserver.py", "/etc/passwd", "sources.sha256", ""])
async def test_only_files_of_the_page_are_served(browser: Browser, name: str) -> None:
    assert (await browser("GET", f"/static/{name}", origin=None)).status == 404


async def test_calls_carry_the_persons_token_and_no_header_of_the_browser(browser: Browser) -> None:
    await browser.log_in()
    answer = await browser(
        "GET",
        "/kube/api/v1/nodes",
        query="limit=5",
        authorization="Bearer other",
        impersonate_user="root",
        accept="application/json",
    )
    assert (answer.status, answer.body) == (200, b'{"kind":"NodeList"}')
    (call,) = browser.transport.calls
    assert (call.method, call.path, call.query) == ("GET", "/api/v1/nodes", "limit=5")
    assert call.headers == {"accept": "application/json", "Authorization": "Bearer annas-token"}


async def test_a_link_works_once(browser: Browser) -> None:
    code = (await browser.link()).partition("#login=")[2].encode()
    body = b'{"code":"%s"}' % code
    assert (await browser("POST", "/login", body)).status == 200
    assert (await browser("POST", "/login", body)).status == 401
    assert (await browser("GET", "/login", body)).status == 405
    assert (await browser("POST", "/login", b"{}")).status == 400
    assert (await browser("POST", "/login", b"x" * 5000)).status == 413


@pytest.mark.parametrize(
    "path",
    [
        "/session",
        "/kube/api/v1/nodes",
        "/live",
        "/logout",
        "/exec",
        "/logs/jobs/j",
        "/views/jobs/j/request",
        "/views/activity",
        "/actions/jobs/create",
        "/actions/routes/a/b/check",
    ],
)
async def test_nobody_gets_anything_without_a_session(browser: Browser, path: str) -> None:
    assert (await browser("GET", path)).status == 401
    browser.cookie, browser.csrf = "invented", "invented"
    assert (await browser("GET", path, upgrade="websocket")).status == 401
    assert browser.transport.calls == []


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        pytest.param("POST", "/login", {"origin": "http://127.0.1.1:20000"}, id="a pod on another port"),
        pytest.param("POST", "/login", {"origin": None}, id="no origin"),
        pytest.param("POST", "/kube/api/v1/namespaces", {"origin": "http://evil.example"}, id="another site"),
        pytest.param("POST", "/kube/api/v1/namespaces", {"origin": "null"}, id="a sandboxed frame"),
        pytest.param("DELETE", "/kube/api/v1/nodes/x", {"x_coterie_csrf": None}, id="no header"),
        pytest.param("DELETE", "/kube/api/v1/nodes/x", {"x_coterie_csrf": "guessed"}, id="wrong header"),
        pytest.param("GET", "/kube/api/v1/nodes", {"x_coterie_csrf": None}, id="reading needs the header too"),
        pytest.param("GET", "/session", {"origin": None, "sec_fetch_site": "cross-site"}, id="embedded elsewhere"),
        pytest.param(
            "GET", "/live", {"origin": "http://127.0.1.1:20000", "upgrade": "websocket"}, id="WebSocket of a pod"
        ),
        pytest.param("GET", "/live", {"origin": None, "upgrade": "websocket"}, id="WebSocket without origin"),
        pytest.param(
            "GET", "/exec", {"origin": "http://127.0.1.1:20000", "upgrade": "websocket"}, id="a terminal for a pod"
        ),
        pytest.param("POST", "/actions/jobs/create", {"origin": "http://evil.example"}, id="a job of another site"),
        pytest.param("POST", "/actions/grants/alice/g/revoke", {"x_coterie_csrf": None}, id="an action without header"),
        pytest.param("GET", "/logs/jobs/j", {"x_coterie_csrf": "guessed"}, id="logs with a guessed header"),
        pytest.param("GET", "/views/activity", {"sec_fetch_site": "cross-site", "origin": None}, id="a view elsewhere"),
    ],
)
async def test_requests_of_other_pages_do_nothing(
    browser: Browser, method: str, path: str, headers: dict[str, str | None]
) -> None:
    await browser.log_in()
    assert (await browser(method, path, **headers)).status == 403
    assert browser.transport.calls == []


@pytest.mark.parametrize("host", ["evil.example:8088", "127.0.1.1", "127.0.1.1:8089", ""])
async def test_other_names_are_not_answered(browser: Browser, host: str) -> None:
    assert (await browser("GET", "/", host=host)).status == 421


@pytest.mark.parametrize(
    "path", ["/kube/metrics", "/kube/", "/kube/healthz", "/kube/api/v1/../../metrics", "/kube//api/v1", "/kube/apix"]
)
async def test_only_the_api_is_passed_on(browser: Browser, path: str) -> None:
    await browser.log_in()
    assert (await browser("GET", path)).status == 404
    assert browser.transport.calls == []


async def test_endless_answers_and_odd_methods_are_refused(browser: Browser) -> None:
    await browser.log_in()
    assert (await browser("GET", "/kube/api/v1/pods", query="watch=1")).status == 400
    assert (await browser("GET", "/kube/api/v1/namespaces/a/pods/b/log", query="follow=true")).status == 400
    assert (await browser("CONNECT", "/kube/api/v1/pods")).status == 405


async def test_an_answer_is_never_a_page(browser: Browser) -> None:
    await browser.log_in()
    browser.transport.reply = TransportResponse(200, {"content-type": "text/html"}, b"<script>alert(1)</script>")
    answer = await browser("GET", "/kube/api/v1/namespaces/a/pods/b/log")
    assert answer.content_type == "text/plain"


async def test_a_console_that_only_reads(browser: Browser) -> None:
    async with TaskOwner("console") as owner:
        reading = Browser(
            ConsoleServer(settings(read_only=True), browser.transport, VirtualClock(), owner), browser.transport
        )
        await reading.log_in()
        assert (await reading("GET", "/kube/api/v1/pods")).status == 200
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert (await reading(method, "/kube/api/v1/namespaces/a/pods")).status == 403
        for path in ("jobs/create", "jobs/j/stop", "data/alice/t/grant", "grants/alice/g/revoke"):
            assert (await reading("POST", f"/actions/{path}", b"{}")).status == 403
        review = "/kube/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        assert (await reading("POST", review)).status == 200
        assert json.loads((await reading("GET", "/session")).body)["exec"] is False


async def test_the_api_server_may_be_away(browser: Browser) -> None:
    await browser.log_in()
    browser.transport.down = True
    answer = await browser("GET", "/kube/api/v1/pods")
    assert answer.status == 502 and b"does not answer" in answer.body


async def test_logging_out_ends_the_session(browser: Browser) -> None:
    await browser.log_in()
    assert (await browser("POST", "/logout", x_coterie_csrf=None)).status == 403
    assert (await browser("POST", "/logout")).status == 200
    assert (await browser("GET", "/session")).status == 401


async def test_links_are_made_only_at_the_control_socket(browser: Browser) -> None:
    assert (await browser("POST", "/codes", b'{"account":"a","token":"t"}')).status == 405
    with pytest.raises(HttpProblem):
        await browser.server.handle_control(Request("GET", "/codes"))
