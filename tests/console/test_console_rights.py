"""Who may do what at each address of the console: decided by the API server, with the token of the person, and by nothing else."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from console_world import JOBS, a_job, control_plane, waiting_job
from test_console_server import COOKIE, HOST

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.cli import console_link
from coterie.console import server
from coterie.console.server import ConsoleServer
from coterie.console.sessions import Login
from coterie.console.settings import ConsoleSettings
from coterie.http.messages import Request, UserInfo
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.transport import TransportRequest, TransportResponse
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.routes import probe

GRANTS = DOMAIN_DATA_GRANTS.as_dynamic
RBAC = "rbac.authorization.k8s.io"
ROLES = ("admin", "view", "bound", "nobody", "out", "reading")
"""`bound`: may give away tables of alice and look into that namespace. `out`: not logged in. `reading`: the administrator at a
console with `console.readOnly`."""


class Address(NamedTuple):
    method: str
    path: str
    pattern: str
    """As the server has it; `*` for what is variable."""
    codes: tuple[int, ...]
    """By role."""
    body: Any = None


COMPOSED = {"engine": "psi", "parties": [{"domain": "alice"}, {"domain": "bob"}], "name": "composed"}
EVERYBODY = (200,) * 6
SESSIONS = (200, 200, 200, 200, 401, 200)
LOOKS = (200, 200, 403, 403, 401, 200)
ADDRESSES = (
    Address("GET", "/", "page", EVERYBODY),
    Address("GET", "/static/app.js", "page", EVERYBODY),
    Address("GET", "/terminal", "page", EVERYBODY),
    Address("POST", "/jobs", "page", (405,) * 6),
    Address("GET", "/session", "/session", SESSIONS),
    Address("POST", "/session", "/session", (405, 405, 405, 405, 401, 405)),
    Address("POST", "/login", "/login", (401,) * 6, {"code": "guess"}),
    Address("GET", "/live", "/live", (101, 101, 101, 101, 401, 101)),
    Address("GET", "/exec", "/exec", (101, 101, 101, 101, 401, 403)),
    Address("GET", "/kube/api/v1/nodes", "/kube/", LOOKS),
    Address("GET", "/kube/api/v1/namespaces/alice/pods", "/kube/", (200, 200, 200, 403, 401, 200)),
    Address("GET", "/kube/api/v1/namespaces/alice/secrets", "/kube/", (200, 403, 403, 403, 401, 200)),
    Address("POST", "/kube/api/v1/namespaces", "/kube/", (201, 403, 403, 403, 401, 403), {"metadata": {"name": "made"}}),
    Address("DELETE", "/kube/api/v1/namespaces/made", "/kube/", (200, 403, 403, 403, 401, 403)),
    Address("POST", "/kube/api/v1/namespaces/alice/pods/p/exec", "/kube/", (403, 403, 403, 403, 401, 403)),
    Address("POST", "/kube/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "/kube/", (201, 201, 201, 201, 401, 201), {"spec": {"namespace": "alice"}}),
    Address("GET", "/views/jobs/mine", "views/jobs/*", LOOKS),
    Address("GET", "/views/jobs/theirs/request", "views/jobs/*/request", LOOKS),
    Address("GET", "/views/activity", "views/activity", SESSIONS),
    Address("GET", "/views/routes", "views/routes", LOOKS),
    Address("GET", "/views/evidence", "views/evidence/*", LOOKS),
    Address("GET", "/views/evidence/state", "views/evidence/*", LOOKS),
    Address("GET", "/views/evidence/verify", "views/evidence/*", LOOKS),
    Address("GET", "/logs/jobs/mine", "logs/jobs/*", LOOKS),
    Address("POST", "/actions/routes/alice/bob/check", "actions/routes/*/*/check", LOOKS),
    Address("POST", "/actions/jobs/check", "actions/jobs/check", SESSIONS, COMPOSED),
    Address("POST", "/actions/jobs/create", "actions/jobs/create", (200, 200, 200, 200, 401, 403), COMPOSED),
    Address("POST", "/actions/jobs/plan", "actions/jobs/plan", (200, 200, 200, 200, 401, 403), {**COMPOSED, "name": "Not A Name"}),
    Address("POST", "/actions/jobs/theirs/approve", "actions/jobs/*/*", (200, 403, 403, 403, 401, 403)),
    Address("POST", "/actions/jobs/mine/stop", "actions/jobs/*/*", (200, 403, 403, 403, 401, 403)),
    Address("POST", "/actions/data/alice/customers/grant", "actions/data/*/*/grant", (200, 403, 200, 403, 401, 403), {"partner": "bob"}),
    Address("POST", "/actions/grants/alice/customers-bob/revoke", "actions/grants/*/*/revoke", (200, 403, 200, 403, 401, 403)),
    Address("POST", "/logout", "/logout", SESSIONS),
)  # fmt: skip


def patterns() -> set[str]:
    """All addresses that the server knows: those it compares paths with, and the cases of its handlers."""
    found = set(server._API) - {"/views/", "/actions/", "/logs"}
    for node in ast.walk(ast.parse(inspect.getsource(server))):
        if isinstance(node, ast.match_case) and isinstance(node.pattern, ast.MatchSequence):
            found.add("/".join(_word(each) for each in node.pattern.patterns))
    return found


def _word(pattern: ast.pattern) -> str:
    if isinstance(pattern, ast.MatchValue) and isinstance(pattern.value, ast.Constant):
        return str(pattern.value.value)
    return "*"


class TokensOnly:
    """To the API server, which knows people by their tokens alone. What comes without one is written down."""

    def __init__(self, client: Client) -> None:
        assert isinstance(client.transport, InProcessTransport)
        self._inner = InProcessTransport(client.transport._handler, None)  # type: ignore[arg-type]
        self.without: list[str] = []
        self.tokens: set[str] = set()

    async def send(self, call: TransportRequest) -> TransportResponse:
        token = call.headers.get("Authorization", "")
        self.tokens.add(token)
        if not token:
            self.without.append(call.path)
        return await self._inner.send(call)

    async def close(self) -> None:
        await self._inner.close()


async def give_rights(client: Client) -> None:
    roles, bindings = Kind.dynamic(builtin("clusterroles", RBAC)), Kind.dynamic(builtin("clusterrolebindings", RBAC))
    await client.create(roles, console_link._view_role())
    await client.create(bindings, _binding("view", "ClusterRole", "coterie-console-view"))
    rules = [
        {"apiGroups": ["kuscia.secretflow"], "resources": ["domaindatas", "domaindatagrants"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    ]
    await client.create(Kind.dynamic(builtin("roles", RBAC)), {"metadata": {"name": "tables"}, "rules": rules}, "alice")
    await client.create(Kind.dynamic(builtin("rolebindings", RBAC)), _binding("bound", "Role", "tables"), "alice")


def _binding(user: str, kind: str, role: str) -> dict[str, Any]:
    return {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
    }


class Person:
    def __init__(self, console: ConsoleServer, client: Client, transport: TokensOnly, role: str) -> None:
        self.console = console
        self.client = client
        self.transport = transport
        self.headers = {"host": HOST, "origin": f"http://{HOST}"}
        if role != "out":
            self.log_in("admin" if role == "reading" else role)

    def log_in(self, name: str) -> None:
        code = self.console.sessions.new_code(Login(name, SecretValue(f"token-of-{name}")))
        begun = self.console.sessions.begin(code)
        assert begun is not None
        self.headers |= {"cookie": f"{COOKIE}={begun[0]}", "x-coterie-csrf": begun[1].csrf}

    async def __call__(self, one: Address) -> tuple[int, Any]:
        upgrade = {"upgrade": "websocket", "sec-websocket-key": "k"} if one.path in ("/live", "/exec") else {}
        body = json.dumps(one.body).encode() if one.body is not None else b""
        given = {**self.headers, **upgrade, "content-type": "application/json"}
        answer = await self.console.handle(Request(one.method, one.path, "", given, body))
        if answer.upgrade is not None:
            answer.upgrade.closed()
        plain = answer.content_type == "application/json" and answer.body
        return answer.status, json.loads(answer.body) if plain else None


@asynccontextmanager
async def person(role: str) -> AsyncIterator[Person]:
    users = {"admin": UserInfo("admin", ("system:masters",))}
    tokens = [
        (SecretValue(f"token-of-{name}"), users.get(name, UserInfo(name, ("system:authenticated",))))
        for name in ("admin", "view", "bound", "nobody")
    ]
    at = ConsoleSettings("alice", "autonomy", "127.0.1.1", 8088, Path("/nowhere/kubeconfig"))
    async with control_plane(tokens) as client, TaskOwner("console") as owner:
        await give_rights(client)
        await client.create(JOBS, a_job("mine", "alice"))
        await client.patch_status(JOBS, "mine", CROSS_DOMAIN, {"status": {"phase": "Running"}})
        await waiting_job(client, "theirs")
        transport = TokensOnly(client)
        chosen = replace(at, read_only=role == "reading")
        console = ConsoleServer(chosen, transport, SYSTEM_CLOCK, owner, open_terminal=lambda *_: pytest.fail())
        yield Person(console, client, transport, role)


def test_every_address_has_a_row() -> None:
    assert {each.pattern for each in ADDRESSES} - {"page"} == patterns(), "say in ADDRESSES who may use it"


@pytest.mark.parametrize("role", ROLES)
async def test_what_each_role_may_do(role: str) -> None:
    at = ROLES.index(role)
    async with person(role) as one:
        found, wanted = {}, {}
        for each in ADDRESSES:
            if each.pattern == "actions/grants/*/*/revoke" and role in ("view", "nobody", "reading", "out"):
                # There is none of theirs; that they may not revoke one that is there is what counts.
                spec = {"author": "alice", "domainDataID": "customers", "grantDomain": "bob"}
                await one.client.create(GRANTS, {"metadata": {"name": "customers-bob"}, "spec": spec}, "alice")
            status, answer = await one(each)
            found[each.method, each.path], wanted[each.method, each.path] = status, each.codes[at]
            if each.pattern == "actions/jobs/create" and status == 200:
                assert answer["created"] is (role == "admin") and bool(answer["problems"]) is (role != "admin")
        assert found == wanted
        assert one.transport.without == [], "the console has no rights of its own"
        name = {"reading": "admin"}.get(role, role)
        assert one.transport.tokens <= {f"Bearer token-of-{name}"}


async def test_a_token_that_the_api_server_does_not_know_is_worth_nothing() -> None:
    async with person("out") as one:
        for each in ADDRESSES:
            if (
                each.codes[0] in (200, 201)
                and each.codes[4] == 401
                and each.pattern.startswith(("/kube", "views/jobs"))
            ):
                one.log_in("forged")
                assert (await one(each))[0] == 401
                assert (await one(ADDRESSES[4]))[0] == 401, "and the session is over"


async def test_another_link_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with control_plane() as client:
        for role in ("admin", "view"):
            await console_link.role_account(client, role)
        monkeypatch.setattr(client, "create", lambda *_: pytest.fail("each write is an event of the evidence log"))
        for role in ("admin", "view"):
            assert await console_link.role_account(client, role) == ("coterie-console", f"console-{role}")


@pytest.mark.parametrize(("role", "lent"), [("admin", True), ("view", False)])
async def test_the_nodes_gateway_is_lent_to_those_who_may_change_the_route(
    role: str, lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes: list[Any] = []
    gather = probe.gather

    async def seen(client: Client, asked: Any, clock: Any) -> Any:
        homes.append(asked.home)
        return await gather(client, replace(asked, home=None), clock)

    monkeypatch.setattr(probe, "gather", seen)
    async with person(role) as one:
        status, _ = await one(Address("POST", "/actions/routes/alice/bob/check", "", ()))
        assert status == 200 and [each is not None for each in homes] == [lent]
