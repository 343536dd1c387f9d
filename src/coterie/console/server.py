"""The console's HTTP: pages for everybody, everything else for sessions, and links for `coterie console`.

browsers        GET /, /jobs, ...       the page (the same for all addresses of the application)
                GET /static/...         its files
                POST /login, /logout    a code of a link becomes a cookie
                GET /session            who is logged in, and what the console may do
                GET /views/...          a job with its timeline, what it asks for, what goes on now, which routes answer, evidence
                GET /logs/jobs/...      lines of a job's logs
                POST /actions/...       stop, restart, approve jobs; grant tables; check routes
                ANY /kube/...           the API server, with the person's token
                GET /live               rows as they change (WebSocket)
                GET /exec               a terminal in a container (WebSocket), from the page /terminal
control socket  POST /codes             a login link; only the node's user can open the socket
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.console import (
    api_access,
    exec_terminal,
    job_actions,
    live,
    peer_owner,
    request_checks,
    static_files,
)
from coterie.console.activity import ActivitySampler
from coterie.console.exec_terminal import MAX_TERMINALS, OpenTerminal, TerminalConnection
from coterie.console.live import LiveConnection
from coterie.console.rows import bounded
from coterie.console.sessions import (
    LONGEST_SECONDS,
    MAX_CONNECTIONS,
    ConsoleSession,
    FailedLogins,
    Login,
    SessionTable,
    TooManySessions,
)
from coterie.console.settings import ConsoleSettings
from coterie.console.static_files import TERMINAL_PAGE, StaticFiles
from coterie.http.errors import HttpProblem
from coterie.http.messages import Request, Response
from coterie.http.upgraded_connection import UpgradedConnection
from coterie.http.websocket import WebSocket, accept_key, deflate_answer
from coterie.kube.client.client import Client
from coterie.kube.client.transport import Transport

if TYPE_CHECKING:
    from coterie.base import memory
    from coterie.console import (
        data_actions,
        evidence_views,
        job_composition,
        job_logs,
        job_requests,
        job_views,
        route_checks,
        route_health,
    )
else:
    # Most tabs only look at lists; the rest is loaded by its first use.
    memory = lazy_import("coterie.base.memory")
    data_actions = lazy_import("coterie.console.data_actions")
    evidence_views = lazy_import("coterie.console.evidence_views")
    job_composition = lazy_import("coterie.console.job_composition")
    job_logs = lazy_import("coterie.console.job_logs")
    job_requests = lazy_import("coterie.console.job_requests")
    job_views = lazy_import("coterie.console.job_views")
    route_checks = lazy_import("coterie.console.route_checks")
    route_health = lazy_import("coterie.console.route_health")

log = logger("console")
T = TypeVar("T")

_STATIC = "/static/"
_PAGES = "index.html"
_LONGEST_BODY = 4096
_GOODBYE_SECONDS = 1.0
"""In which a browser may read that its session has ended; then the connection is cut."""
_TERMINAL = "/terminal"
_API = ("/kube/", "/live", "/session", "/login", "/logout", "/exec", "/logs", "/actions/", "/views/")


class CodeRequest(msgspec.Struct, frozen=True):
    """Of `coterie console`: who shall be logged in."""

    account: str
    token: str
    uid: int | None = None

    def __repr__(self) -> str:
        return f"CodeRequest(account={self.account!r})"


class LoginRequest(msgspec.Struct, frozen=True):
    code: str

    def __repr__(self) -> str:
        return "LoginRequest()"


class RejectionReason(msgspec.Struct, frozen=True):
    reason: str = ""


class ConsoleServer:
    """`transport`: to the API server, without credentials of its own. `open_terminal`: None where there is no exec."""

    def __init__(
        self,
        settings: ConsoleSettings,
        transport: Transport,
        clock: Clock,
        owner: TaskOwner,
        files: StaticFiles | None = None,
        open_terminal: OpenTerminal | None = None,
    ) -> None:
        self.sessions = SessionTable(clock)
        self._failed_logins = FailedLogins(clock)
        self._settings = settings
        self._transport = transport
        self._clock = clock
        self._owner = owner
        self._files = files or StaticFiles()
        self._origin = request_checks.Origin(settings.scheme, settings.hosts)
        self._cookie = request_checks.cookie_name(settings.domain)
        self._open_terminal = open_terminal if settings.exec and not settings.read_only else None
        self._route_health: route_health.RouteHealth | None = None

    # The control socket.

    async def handle_control(self, request: Request) -> Response:
        if (request.method, request.path) != ("POST", "/codes"):
            raise HttpProblem(404, "NotFound", "there is only POST /codes")
        asked = _decoded(request.body, CodeRequest)
        code = self.sessions.new_code(Login(asked.account, SecretValue(asked.token), asked.uid))
        log.info("A login link was made", account=asked.account)
        return _json({"url": f"{self._settings.url}/#login={code}"})

    # Browsers.

    async def handle(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except HttpProblem as problem:
            return problem_response(problem)

    async def _answer(self, request: Request) -> Response:
        request_checks.check_host(request.headers, self._origin)
        path, page = request.path, not request.path.startswith(_API)
        websocket = request.headers.get("upgrade", "").lower() == "websocket"
        request_checks.check_origin(request.method, request.headers, self._origin, websocket=websocket, page=page)
        if page:
            return self._page(request)
        if path == "/login":
            return self._log_in(request)
        session = self._session(request)
        if path == "/live":
            return self._live(request, session)
        if path == "/exec":
            return self._exec(request, session)
        if path == "/session":
            if request.method not in ("GET", "HEAD"):
                raise HttpProblem(405, "MethodNotAllowed", "the session can be read only")
            return _json(self._about(session))
        request_checks.check_csrf(request.headers, session.csrf)
        if path == "/logout" and request.method == "POST":
            return self._log_out(request)
        if path.startswith(f"{api_access.PREFIX}/"):
            return await api_access.pass_on(request, self._personal(session), read_only=self._settings.read_only)
        words = tuple(path[1:].split("/"))
        if any(word in ("", ".", "..") or "%" in word for word in words):
            raise _no_address()
        if words[0] in ("views", "logs"):
            with api_access.api_problems():
                return await self._show(request, session, words)
        if words[0] == "actions":
            with api_access.api_problems():
                return await self._act(request, session, words)
        raise _no_address()

    async def _show(self, request: Request, session: ConsoleSession, words: tuple[str, ...]) -> Response:
        if request.method != "GET":
            raise HttpProblem(405, "MethodNotAllowed", "a view can be read only")
        client, now = self._client(session), self._clock.now()
        match words:
            case ("views", "jobs", name):
                return _json(
                    bounded(await job_views.job_view(client, name, now.timestamp(), recorded=_recorded(request)))
                )
            case ("views", "jobs", name, "request"):
                return _json(bounded(await job_requests.request_view(client, name, now), job_requests.LONGEST))
            case ("views", "activity"):
                return _json({"points": self._activity(session).points(_seconds(request))})
            case ("views", "routes"):
                return _json(await self._routes().view(client))
            case ("views", "evidence", *rest):
                home = DomainPaths(self._settings.kubeconfig.parent)
                view = await evidence_views.evidence_view(client, home, rest, request.params, now)
                return _json(view)
            case ("logs", "jobs", name):
                return _json(bounded(await job_logs.log_page(client, name, request.params, now), job_logs.LONGEST_LINE))
        raise _no_address()

    async def _act(self, request: Request, session: ConsoleSession, words: tuple[str, ...]) -> Response:
        if request.method != "POST":
            raise HttpProblem(405, "MethodNotAllowed", "an action is sent by POST")
        client, now = self._client(session), self._clock.now()
        match words:
            case ("actions", "routes", source, destination, "check"):
                # Looks only, so it is there in a console that only reads.
                home = DomainPaths(self._settings.kubeconfig.parent) if source == self._settings.domain else None
                return _json(await route_checks.check_route(client, source, destination, home, self._clock))
            case ("actions", "jobs", "check"):
                composed = _decoded(request.body, job_composition.ComposedJob, job_composition.LONGEST)
                return _json(await job_composition.composed(client, composed, create=False))
        if self._settings.read_only:
            raise HttpProblem(403, "Forbidden", api_access.READ_ONLY)
        match words:
            case ("actions", "jobs", "create"):
                composed = _decoded(request.body, job_composition.ComposedJob, job_composition.LONGEST)
                return _json(await job_composition.composed(client, composed, create=True))
            case ("actions", "jobs", "plan"):
                composed = _decoded(request.body, job_composition.ComposedJob, job_composition.LONGEST)
                return _json(await job_composition.planned(client, composed, self._clock))
            case ("actions", "jobs", name, action):
                reason = _decoded(request.body, RejectionReason).reason if request.body else ""
                return _json(await job_actions.act(client, name, action, reason))
            case ("actions", "data", owner, table, "grant"):
                asked = _decoded(request.body, data_actions.GrantRequest, job_composition.LONGEST)
                return _json(await data_actions.grant(client, owner, table, asked, now))
            case ("actions", "grants", owner, name, "revoke"):
                return _json(await data_actions.revoke(client, owner, name))
        raise _no_address()

    def _personal(self, session: ConsoleSession) -> api_access.PersonalTransport:
        def refused() -> None:
            self.sessions.end_session(session)

        return api_access.PersonalTransport(self._transport, session.login, refused)

    def _client(self, session: ConsoleSession) -> Client:
        return Client(self._personal(session), field_manager=api_access.FIELD_MANAGER)

    def _activity(self, session: ConsoleSession) -> ActivitySampler:
        if session.activity is None:
            session.activity = ActivitySampler(self._client(session), self._clock, self._owner)
        return session.activity

    def _routes(self) -> route_health.RouteHealth:
        if self._route_health is None:
            home = DomainPaths(self._settings.kubeconfig.parent)
            self._route_health = route_health.RouteHealth(self._settings.domain, home, self._clock, self._owner)
        return self._route_health

    def _page(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise HttpProblem(405, "MethodNotAllowed", "pages can be read only")
        name = _PAGES
        if request.path.startswith(_STATIC):
            name = request.path.removeprefix(_STATIC)
            if name not in self._files:
                raise HttpProblem(404, "NotFound", "there is no such file")
        elif request.path == _TERMINAL:
            name = TERMINAL_PAGE
        return self._files.answer(
            name,
            accepts=request.headers.get("accept-encoding", ""),
            known=request.headers.get("if-none-match", ""),
        )

    def _log_in(self, request: Request) -> Response:
        if request.method != "POST":
            raise HttpProblem(405, "MethodNotAllowed", "a code is sent by POST")
        asked = _decoded(request.body, LoginRequest)
        try:
            found = self.sessions.begin(asked.code)
        except TooManySessions:
            raise HttpProblem(429, "TooManyRequests", "too many people are logged in; try again later") from None
        if found is None:
            if self._failed_logins.count(request.peer.address):
                raise HttpProblem(
                    429, "TooManyRequests", "too many links that do not work; wait a minute", retry_after=60
                )
            raise HttpProblem(
                401, "Unauthorized", "the link was used already or is older than a minute; run `coterie console` again"
            )
        cookie, session = found
        peer, login = request.peer, session.login
        if login.uid is not None and peer_owner.owners(peer.address, peer.port, self._settings.port) != {login.uid}:
            self.sessions.end(cookie)
            log.warning("A link was used by another user of this machine", account=login.account)
            raise HttpProblem(403, "Forbidden", "the link is for the user who opened it; run `coterie console` again")
        log.info("Somebody logged in", account=session.login.account, address=request.peer.address)
        answer = _json(self._about(session))
        answer.headers.append(
            ("Set-Cookie", request_checks.set_cookie(self._cookie, cookie, seconds=int(LONGEST_SECONDS)))
        )
        return answer

    def _log_out(self, request: Request) -> Response:
        self.sessions.end(request_checks.cookie_of(request.headers, self._cookie))
        answer = _json({})
        answer.headers.append(("Set-Cookie", request_checks.set_cookie(self._cookie, "", seconds=0)))
        return answer

    def _session(self, request: Request) -> ConsoleSession:
        session = self.sessions.find(request_checks.cookie_of(request.headers, self._cookie))
        if session is None:
            raise HttpProblem(401, "Unauthorized", "nobody is logged in; `coterie console` prints a link")
        return session

    def _about(self, session: ConsoleSession) -> dict[str, object]:
        return {
            "account": session.login.account,
            "csrf": session.csrf,
            "domain": self._settings.domain,
            "mode": self._settings.mode,
            "readOnly": self._settings.read_only,
            "exec": self._open_terminal is not None,
        }

    def _live(self, request: Request, session: ConsoleSession) -> Response:
        async def serve(socket: WebSocket) -> None:
            def alive() -> bool:
                return self.sessions.is_alive(session)

            await LiveConnection(socket, self._client(session), self._clock, alive, self._owner).run()

        return self._websocket(request, session, "live", serve, live.say_goodbye)

    def _exec(self, request: Request, session: ConsoleSession) -> Response:
        open_terminal = self._open_terminal
        if open_terminal is None:
            why = api_access.READ_ONLY if self._settings.read_only else "terminals are switched off (console.exec)"
            raise HttpProblem(403, "Forbidden", why)
        if session.terminals >= MAX_TERMINALS:
            raise HttpProblem(429, "TooManyRequests", f"{MAX_TERMINALS} terminals are open already; close one")

        async def serve(socket: WebSocket) -> None:
            def alive() -> bool:
                return self.sessions.is_alive(session)

            if session.terminals >= MAX_TERMINALS:
                return  # many were asked for at once
            session.terminals += 1
            try:
                await TerminalConnection(
                    socket, session.login, session.csrf, open_terminal, self._clock, alive, self._owner
                ).run()
            finally:
                session.terminals -= 1

        return self._websocket(request, session, "exec", serve, exec_terminal.say_goodbye)

    def _websocket(
        self,
        request: Request,
        session: ConsoleSession,
        name: str,
        serve: Callable[[WebSocket], Awaitable[None]],
        say_goodbye: Callable[[WebSocket], None],
    ) -> Response:
        """Closed with its session, however its browser behaves."""
        key = request.headers.get("sec-websocket-key", "")
        upgrades = request.headers.get("upgrade", "").lower() == "websocket"
        if request.method != "GET" or not upgrades or not key:
            raise HttpProblem(426, "UpgradeRequired", f"/{name} is a WebSocket")
        if session.tabs >= MAX_CONNECTIONS:
            raise HttpProblem(429, "TooManyRequests", f"{MAX_CONNECTIONS} tabs are open already; close some")

        async def close_with_session(connection: UpgradedConnection, socket: WebSocket) -> None:
            await self.sessions.wait_until_ended(session)
            say_goodbye(socket)
            socket.close()
            connection.close()
            await self._clock.sleep(_GOODBYE_SECONDS)
            connection.abort()

        async def run(connection: UpgradedConnection) -> None:
            if session.tabs >= MAX_CONNECTIONS or not self.sessions.is_alive(session):
                return  # many were asked for at once, or it ended meanwhile
            socket = WebSocket(connection, deflate=bool(deflate))
            session.tabs += 1
            closing = self._owner.start(f"{name} end", close_with_session(connection, socket), vital=False)
            try:
                await serve(socket)
            finally:
                session.tabs -= 1
                session.used = self._clock.monotonic()
                if self.sessions.is_alive(session):
                    closing.cancel()
                connection.close()
                memory.trim()  # what its lists took goes back to the machine

        deflate = deflate_answer(request.headers.get("sec-websocket-extensions", ""))
        headers = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept_key(key))]
        if deflate:
            headers.append(("Sec-WebSocket-Extensions", deflate))
        return Response(101, headers=headers, upgrade=UpgradedConnection(self._owner, name, run))


def problem_response(problem: HttpProblem) -> Response:
    answer = _json({"reason": problem.reason, "message": problem.message}, problem.status)
    if problem.retry_after:
        answer.headers.append(("Retry-After", str(problem.retry_after)))
    return answer


def _json(value: object, status: int = 200) -> Response:
    headers = [*static_files.security_headers(), ("Cache-Control", "no-store")]
    return Response(status, msgspec.json.encode(value), "application/json", headers)


def _recorded(request: Request) -> bool:
    return (request.params.get("recorded") or ["true"])[-1] != "false"


def _no_address() -> HttpProblem:
    return HttpProblem(404, "NotFound", "there is no such address")


def _seconds(request: Request) -> float:
    try:
        return float((request.params.get("since") or ["0"])[-1])
    except ValueError:
        return 0.0


def _decoded(body: bytes, type_: type[T], longest: int = _LONGEST_BODY) -> T:
    if len(body) > longest:
        raise HttpProblem(413, "RequestEntityTooLarge", "the request is too long")
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise HttpProblem(400, "BadRequest", f"the request cannot be read: {problem}") from problem
