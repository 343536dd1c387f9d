"""pods/proxy, services/proxy, nodes/proxy: a real agent endpoint, with a server on the loopback in the place of a pod."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from http_backend import Asked, Backend, answer
from server_kit import PODS, Api, Watch, pod, serving

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.http.messages import Request, UserInfo
from coterie.http.server import HttpServer
from coterie.kube.agent.server.endpoint import API_SERVER, AgentEndpoint
from coterie.kube.apiserver.forwarding import rewritten_page
from coterie.kube.apiserver.http_proxy import split_name
from coterie.kube.apiserver.server import Settings

SERVICES = "/api/v1/namespaces/default/services"
ADMIN_TOKEN = "t" * 32


class PodOnLoopback:
    """The part of a runtime that the endpoint needs to connect to pods."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def pods(self) -> list[Any]:
        return [SimpleNamespace(namespace="default", name="p", uid="u")]

    async def dial(self, uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if port != 8080:
            raise ConnectionRefusedError(111, "Connection refused")
        return await asyncio.open_connection("127.0.0.1", self._backend.port)


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with Backend() as backend:
        yield backend


@pytest.fixture
async def api(backend: Backend) -> AsyncIterator[Api]:
    async with with_agent(backend) as api:
        yield api


@asynccontextmanager
async def with_agent(
    backend: Backend, server_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None
) -> AsyncIterator[Api]:
    tokens = [(SecretValue(ADMIN_TOKEN), UserInfo("admin", ("system:masters",)))]
    settings = Settings(static_tokens=tokens, agent_tls=lambda: client_tls)
    async with TaskOwner("agent") as owner, serving(settings) as api:
        runtime = cast("Any", PodOnLoopback(backend))
        endpoint = AgentEndpoint(runtime, cast("Any", None), "n", owner, SYSTEM_CLOCK)

        def handle(request: Request) -> Any:
            request.peer.certificate_user = UserInfo(API_SERVER)
            return endpoint.handle(request)

        agent = HttpServer(handle)
        _, port = await agent.listen("127.0.0.1", 0, server_tls)
        await api.post("/api/v1/nodes", {"metadata": {"name": "n"}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        await api.patch("/api/v1/nodes/n/status", {"status": status})
        made = pod("p", labels={"app": "web"})
        made["spec"]["containers"][0]["ports"] = [{"containerPort": 8080}]
        await api.post(PODS, made)
        await api.post(f"{PODS}/p/binding", {"target": {"name": "n"}})
        try:
            yield api
        finally:
            await agent.stop()


async def service(api: Api, *ports: dict[str, Any]) -> None:
    await api.post(SERVICES, {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": list(ports)}})
    slice_ports = [{"name": each.get("name", ""), "port": each["targetPort"], "protocol": "TCP"} for each in ports]
    await api.post(
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        {
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": slice_ports,
            "endpoints": [{"addresses": ["100.96.0.9"], "targetRef": {"kind": "Pod", "name": "p"}}],
        },
    )


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("web", ("", "web", "")),
        ("web:80", ("", "web", "80")),
        ("https:web:", ("https", "web", "")),
        ("http:web:name", ("http", "web", "name")),
        ("ftp:web:1", None),
        (":80", None),
        ("a:b:c:d", None),
    ],
)
def test_names(text: str, parts: tuple[str, str, str] | None):
    assert split_name(text) == parts


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_a_request_to_a_pod(api: Api, backend: Backend, method: str):
    backend.respond = lambda asked: answer(418, b"tea", X_Kind="pot")
    headers = {"authorization": "Bearer secret", "x-remote-user": "root", "impersonate-user": "", "x-own": "1"}
    found = await api.call(method, f"{PODS}/p/proxy/a b/../c/?q=%2F", b"body", headers=headers)
    assert (found.status, found.body, found.content_type) == (418, b"tea", "text/plain")
    assert ("X-Kind", "pot") in found.headers
    (asked,) = backend.asked
    assert (asked.method, asked.target, asked.body) == (method, "/c/?q=%2F", b"body")
    assert asked.header("x-own") == "1" and asked.header("host").endswith(":8080")
    assert not any(asked.header(name) for name in ("authorization", "x-remote-user", "impersonate-user"))
    assert asked.header("x-forwarded-uri") == "/api/v1/namespaces/default/pods/p/proxy/a%20b/../c/"


async def test_head_has_no_body(api: Api, backend: Backend):
    found = await api.call("HEAD", f"{PODS}/p:8080/proxy/")
    assert (found.status, found.body) == (200, b"")


async def test_an_empty_path_leads_to_the_root(api: Api, backend: Backend):
    found = await api.call("GET", f"{PODS}/p/proxy?a=1")
    assert found.status == 301 and dict(found.headers)["Location"] == f"{PODS}/p/proxy/?a=1"
    await api.call("POST", f"{PODS}/p/proxy")
    assert [each.target for each in backend.asked] == ["/"]


@pytest.mark.parametrize(
    ("location", "seen"),
    [
        ("/next/?a=1", f"https://api:6443{PODS}/p/proxy/next/?a=1"),
        (f"{PODS}/p/proxy/x", f"https://api:6443{PODS}/p/proxy/x"),
        ("next", "next"),
        ("https://other.example/x", "https://other.example/x"),
    ],
)
async def test_redirects_are_passed_on_through_the_proxy(api: Api, backend: Backend, location: str, seen: str):
    backend.respond = lambda asked: answer(302, Location=location)
    found = await api.call("GET", f"{PODS}/p/proxy/", headers={"host": "api:6443"})
    assert found.status == 302 and dict(found.headers)["Location"] == seen
    assert len(backend.asked) == 1


async def test_links_of_pages(api: Api, backend: Backend):
    page = b'<a class="x" href="/a">1</a><img src=\'b.png\'><script src="https://cdn.example/c.js"></script>'
    backend.respond = lambda asked: answer(200, page, "text/html; charset=utf-8")
    found = await api.call("GET", f"{PODS}/p/proxy/", headers={"accept-encoding": "gzip"})
    assert found.body == page.replace(b'"/a"', f'"{PODS}/p/proxy/a"'.encode())
    assert backend.asked[0].header("accept-encoding") == ""


async def test_json_is_passed_on_as_it_is(api: Api, backend: Backend):
    backend.respond = lambda asked: answer(200, b'{"a":1}', "application/json")
    status = b'{"kind":"Status","apiVersion":"v1"}'
    for body in (b'{"a":1}', status):
        backend.respond = lambda asked, body=body: answer(200, body, "application/json")
        for headers in ({"user-agent": "curl/8"}, {"accept": "application/vnd.kubernetes.protobuf"}):
            assert (await api.call("GET", f"{PODS}/p/proxy/", headers=headers)).body == body


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (b"", "EOF"),
        (b"SSH-2.0-x\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", "malformed header"),
        (b"HTTP/1.1 200 OK\r\nA: b\nSet-Cookie: x\r\n\r\n", "malformed header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "EOF"),
    ],
)
async def test_a_broken_answer(api: Api, backend: Backend, broken: bytes, words: str):
    backend.respond = lambda asked: broken
    refused = await api.refused(503, "GET", f"{PODS}/p/proxy/")
    assert refused.message.startswith("error trying to reach service: ") and words in refused.message


async def test_what_cannot_be_reached(api: Api):
    refused = await api.refused(503, "GET", f"{PODS}/p:81/proxy/")
    assert "connection refused" in refused.message
    await api.refused(404, "GET", f"{PODS}/none/proxy/")
    await api.refused(400, "GET", f"{PODS}/ftp:p:1/proxy/")
    await api.refused(400, "GET", f"{PODS}/p:x/proxy/")


async def test_services(api: Api, backend: Backend):
    await service(api, {"name": "http", "port": 80, "targetPort": 8080}, {"name": "other", "port": 81, "targetPort": 9})
    for name in ("web:80", "web:http", "http:web:80"):
        assert (await api.call("GET", f"{SERVICES}/{name}/proxy/x")).body == b"hello"
    assert "connection refused" in (await api.refused(503, "GET", f"{SERVICES}/web:81/proxy/")).message
    refused = await api.refused(503, "GET", f"{SERVICES}/web:7/proxy/")
    assert refused.message == 'no service port 7 found for service "web"'
    refused = await api.refused(503, "GET", f"{SERVICES}/web/proxy/")
    assert refused.message == 'no endpoints available for service "web"'


async def test_a_service_does_not_lead_to_the_machine(api: Api, backend: Backend):
    await api.post(SERVICES, {"metadata": {"name": "own"}, "spec": {"ports": [{"port": 80}]}})
    subsets = [{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": backend.port}]}]
    await api.post("/api/v1/namespaces/default/endpoints", {"metadata": {"name": "own"}, "subsets": subsets})
    refused = await api.refused(503, "GET", f"{SERVICES}/own/proxy/")
    assert "addresses of the machine itself" in refused.message and not backend.asked


async def test_https_inside_the_connection_to_the_agent(tmp_path: Path):
    """The pod's certificate is its own business; the agent's is verified."""
    now = datetime.now(UTC)
    authority, key = pki.self_signed_ca("agents", pki.new_key(), now=now), pki.new_key()
    issued = pki.issue_server(authority, "n", key.public_key(), names=("127.0.0.1",), now=now)
    (tmp_path / "pair.pem").write_bytes(pki.certificate_pem(issued) + pki.key_pem(key))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "pair.pem")
    client = ssl.create_default_context(cadata=pki.certificate_pem(authority.certificate).decode())
    big = b"x" * 3_000_000
    async with Backend(lambda asked: answer(body=big), tls) as backend, with_agent(backend, tls, client) as api:
        response = await api.raw("GET", f"{PODS}/https:p:8080/proxy/a")
        assert response.status == 200 and response.stream is not None
        watch = Watch(response.stream)
        async with asyncio.timeout(20):
            while not watch.ended:
                await asyncio.sleep(0.01)
        assert (watch.ended, b"".join(watch.chunks)) == ("closed", big)
        # Plain HTTP to a port that speaks TLS is no answer.
        await api.refused(503, "GET", f"{PODS}/p:8080/proxy/a")


async def test_nodes(api: Api):
    found = await api.call("GET", "/api/v1/nodes/n/proxy/healthz")
    assert (found.status, found.body) == (200, b"ok")
    await api.refused(400, "GET", "/api/v1/nodes/n:22/proxy/")
    await api.refused(404, "GET", "/api/v1/nodes/m/proxy/")


async def test_rights(api: Api, backend: Backend):
    user = UserInfo("u", ("system:authenticated",))
    rule = {"apiGroups": [""], "resources": ["services/proxy"], "resourceNames": ["web:80"], "verbs": ["get"]}
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    await api.post(f"{rbac}/roles", {"metadata": {"name": "r"}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "u"}
    await api.post(f"{rbac}/rolebindings", {"metadata": {"name": "r"}, "roleRef": role, "subjects": [subject]})
    await service(api, {"name": "http", "port": 80, "targetPort": 8080})
    assert (await api.call("GET", f"{SERVICES}/web:80/proxy/", user=user)).status == 200
    await api.refused(403, "POST", f"{SERVICES}/web:80/proxy/", user=user)
    await api.refused(403, "GET", f"{SERVICES}/web:http/proxy/", user=user)
    await api.refused(403, "GET", f"{PODS}/p/proxy/", user=user)
    assert len(backend.asked) == 1


async def connected(api: Api, head: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, HttpServer]:
    server = HttpServer(api.server.handle)
    _, port = await server.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write((head + f"Authorization: Bearer {ADMIN_TOKEN}\r\n\r\n").encode())
    return reader, writer, server


async def test_streams_and_upgrades_pass(api: Api, backend: Backend):
    def respond(asked: Asked) -> bytes:
        if asked.header("upgrade"):
            return b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nready"
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"

    backend.respond = respond
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n"
    reader, writer, server = await connected(api, f"GET {PODS}/p/proxy/ws HTTP/1.1\r\nHost: x\r\n{upgrade}")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101") and await reader.readexactly(5) == b"ready"
    writer.write(b"abc")
    assert await reader.readexactly(3) == b"ABC"
    assert backend.asked[0].header("sec-websocket-key") == "k"
    writer.close()
    await server.stop()
    reader, writer, server = await connected(api, f"GET {PODS}/p/proxy/s HTTP/1.1\r\nHost: x\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    text = await reader.readuntil(b"0\r\n\r\n")
    assert b"one" in text and b"two" in text
    writer.close()
    await server.stop()


async def test_a_pod_cannot_take_over_the_connection_of_a_client(api: Api, backend: Backend):
    """A 101 that nobody asked for would make the client's next requests, tokens and all, the pod's."""
    backend.respond = lambda asked: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
    reader, writer, server = await connected(api, f"GET {PODS}/p/proxy/ HTTP/1.1\r\nHost: x\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    writer.close()
    await server.stop()


@pytest.mark.parametrize(
    "piece", [b"<a ", b"<a href='", b'<a href=" ', b"<a\t\t\t\t\t\t", b"< a <a href  ", b"<img data "]
)
@pytest.mark.parametrize("end", [b"", b">"])
def test_no_page_takes_the_server_long(piece: bytes, end: bytes):
    """Each of them took hours: the time grew with the square of the page. The test would not end."""
    page = piece * (1_000_000 // len(piece)) + end
    assert rewritten_page(page, lambda link: link) == page


def test_all_links_of_a_tag_are_rewritten():
    page = b"<p href='/x'>a<video poster='/p' src = \"/v\" alt='/a'>b<br src=\"/n\"><a href=\"it's\">c</a"
    changed = rewritten_page(page, lambda link: f"<{link}>")
    assert (
        changed == b"<p href='/x'>a<video poster='</p>' src = \"</v>\" alt='/a'>b<br src=\"/n\"><a href=\"<it's>\">c</a"
    )


async def test_an_external_name_is_not_dialled(api: Api, backend: Backend, monkeypatch: pytest.MonkeyPatch):
    """Who may write Services could read from every machine that the API server reaches."""
    asked: list[str] = []

    async def resolved(host: str, port: int) -> list[tuple[str, int]]:
        asked.append(host)
        return []

    monkeypatch.setattr("coterie.kube.apiserver.outgoing._resolved", resolved)
    spec = {"type": "ExternalName", "externalName": "metadata.internal", "ports": [{"port": 80}]}
    await api.post(SERVICES, {"metadata": {"name": "away"}, "spec": spec})
    for name in ("away", "away:80", "https:away:80"):
        assert "no endpoints available" in (await api.refused(503, "GET", f"{SERVICES}/{name}/proxy/x")).message
    assert not asked


async def test_credentials_of_the_caller_stay_at_the_server(api: Api, backend: Backend):
    headers = {
        "authorization": "Bearer t",
        "proxy-authorization": "Basic x",
        "impersonate-user": "system:serviceaccount:default:default",
        "x-remote-user": "root",
        "x-remote-group": "system:masters",
        "connection": "x-forwarded-for, host",
        "cookie": "of=the pod",
    }
    await api.call("GET", f"{PODS}/p/proxy/x", headers=headers)
    names = {name.lower() for name, _ in backend.asked[0].headers}
    assert not names & {"authorization", "proxy-authorization", "impersonate-user", "x-remote-user", "x-remote-group"}
    assert "cookie" in names and backend.asked[0].header("host")
