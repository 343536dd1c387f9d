"""Ingresses and Dns objects at a real Envoy: hosts, paths, certificates, and what is never reached by them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fake_api import FakeApi
from gateway_kit import HOSTS, Domain, call, echo, free_port, make_inputs, route, running, streaming_echo
from ingress_kit import backend, dns, endpoints, ingress, key_pair, rule, secret, service

from coterie.base.tasks import TaskOwner
from coterie.kube.api.types.ingress import INGRESSES
from coterie.kube.client.informers import Informers
from coterie.kube.network.ingress.plan import IngressObjects, ingress_table
from coterie.kuscia.gateway.addresses import IngressListeners, PodNetwork, Protocol, SocketAddress
from coterie.kuscia.gateway.ingress_status import IngressStatuses, point_of, points
from coterie.kuscia.gateway.model import SnapshotInputs, Tuning
from coterie.kuscia.gateway.pod_upstreams import is_ordinary_pod
from coterie.kuscia.gateway.snapshot import snapshot

HOST = HOSTS["alice"]


@contextlib.asynccontextmanager
async def named(name: str) -> AsyncIterator[int]:
    """A backend that says who it is and what it got; answers its port."""

    async def handle(request: web.Request) -> web.Response:
        headers = {key.lower(): value for key, value in request.headers.items()}
        return web.json_response({"name": name, "path": request.raw_path, "headers": headers})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def table_of(ports: dict[str, int], *objects: Any, secrets: Any = None) -> dict[str, Any]:
    services = {name: service(name) for name in (*ports, "empty")}
    behind = {name: endpoints(name, HOST, port=port) for name, port in ports.items()}
    ingresses = [each for each in objects if hasattr(each.spec, "rules")]
    dnses = [each for each in objects if not hasattr(each.spec, "rules")]
    table, problems = ingress_table(
        IngressObjects(ingresses, dnses, services, behind, secrets or {}), lambda address: address == HOST
    )
    assert problems == []
    return {"ingress": table}


@dataclass
class Served:
    alice: Domain
    http: aiohttp.ClientSession
    ports: dict[str, int]

    async def ask(self, host: str, path: str, **more: Any) -> str:
        """The backend's name, or the status."""
        assert self.alice.inputs.ingress_listeners is not None
        url = f"http://{self.alice.inputs.ingress_listeners.http}{path}"
        status, body, _ = await call(self.http, url, host, **more)
        return str(body["name"]) if status == 200 else str(status)

    async def change(self, *objects: Any, **more: Any) -> None:
        await self.alice.change(**table_of(self.ports, *objects, **more))


def listeners() -> IngressListeners:
    return IngressListeners(SocketAddress(HOST, free_port(HOST)), SocketAddress(HOST, free_port(HOST)))


@contextlib.asynccontextmanager
async def served(root: Path, *objects: Any, secrets: Any = None, **more: Any) -> AsyncIterator[Served]:
    async with contextlib.AsyncExitStack() as stack:
        ports = {name: await stack.enter_async_context(named(name)) for name in ("one", "two", "three")}
        inputs = make_inputs(
            "alice",
            root,
            Protocol.NOTLS,
            **{**table_of(ports, *objects, secrets=secrets), "ingress_listeners": listeners(), **more},
        )
        (alice,) = await stack.enter_async_context(running(inputs, root=root))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Served(alice, http, ports)


# Kubernetes' own examples (Ingress, "Path types"): kind, paths, request, whether it matches.
EXAMPLES = [
    ("Prefix", "/", "/any/path", True),
    ("Exact", "/foo", "/foo", True),
    ("Exact", "/foo", "/bar", False),
    ("Exact", "/foo", "/foo/", False),
    ("Exact", "/foo/", "/foo", False),
    ("Prefix", "/foo", "/foo", True),
    ("Prefix", "/foo", "/foo/", True),
    ("Prefix", "/foo/", "/foo", True),
    ("Prefix", "/foo/", "/foo/", True),
    ("Prefix", "/aaa/bb", "/aaa/bbb", False),
    ("Prefix", "/aaa/bbb", "/aaa/bbb", True),
    ("Prefix", "/aaa/bbb/", "/aaa/bbb", True),
    ("Prefix", "/aaa/bbb", "/aaa/bbb/", True),
    ("Prefix", "/aaa/bbb", "/aaa/bbb/ccc", True),
    ("Prefix", "/aaa/bbb", "/aaa/bbbxyz", False),
    ("Prefix", "/foo", "/foo?a=b", True),
    ("Exact", "/foo", "/foo?a=b", True),
]


async def test_paths_match_as_in_kubernetes_documentation(tmp_path: Path) -> None:
    hosts = [rule(f"h{index}.example", (kind, path, "one:80")) for index, (kind, path, _, _) in enumerate(EXAMPLES)]
    several = [
        rule("m1.example", ("Prefix", "/", "one:80"), ("Prefix", "/aaa", "two:80")),
        rule("m2.example", ("Prefix", "/", "one:80"), ("Prefix", "/aaa", "two:80"), ("Prefix", "/aaa/bbb", "three:80")),
        rule("m3.example", ("Exact", "/foo", "one:80"), ("Prefix", "/foo", "two:80")),
        rule("m4.example", ("Exact", "/foo", "one:80"), ("Prefix", "/foo/", "two:80")),
    ]
    async with served(tmp_path, ingress("a", *hosts, *several)) as at:
        for index, (kind, path, request, matches) in enumerate(EXAMPLES):
            found = await at.ask(f"h{index}.example", request)
            assert found == ("one" if matches else "404"), (kind, path, request)
        asked = [
            ("m1", "/aaa/ccc"),
            ("m2", "/aaa/bbb"),
            ("m2", "/ccc"),
            ("m3", "/foo"),
            ("m4", "/foo"),
            ("m4", "/foo/"),
        ]
        answers = [await at.ask(f"{host}.example", path) for host, path in asked]
        assert answers == ["two", "three", "one", "one", "one", "two"]


async def test_hosts_exact_wildcard_and_default(tmp_path: Path) -> None:
    objects = [
        ingress("a", rule("foo.example", ("Prefix", "/", "one:80")), rule("*.example", ("Prefix", "/x", "two:80"))),
        ingress("b", defaultBackend=backend("three:80"), age=1),
    ]
    async with served(tmp_path, *objects) as at:
        asked = {
            ("foo.example", "/"): "one",
            ("FOO.example:8080", "/"): "one",
            ("bar.example", "/x"): "two",
            ("BAR.example", "/x"): "two",
            # One label only, as Kubernetes has it.
            ("baz.bar.example", "/x"): "three",
            ("example", "/x"): "three",
            ("bar.example", "/y"): "three",
            ("other.org", "/"): "three",
        }
        assert {each: await at.ask(*each) for each in asked} == asked
        await at.change(objects[0])
        assert [await at.ask("other.org", "/"), await at.ask("bar.example", "/y")] == ["404", "404"]
        await at.change(ingress("c", rule("x.example", ("Prefix", "/", "empty:80"))))
        assert [await at.ask("x.example", "/"), await at.ask("foo.example", "/")] == ["503", "404"]


async def test_a_backend_sees_host_and_client_and_no_header_that_only_gateways_may_set(tmp_path: Path) -> None:
    forged = {
        "kuscia-source": "bob",
        "Kuscia-Origin-Source": "bob",
        "kuscia-token": "x",
        "kuscia-host": "y",
        "x-mine": "1",
    }
    async with served(tmp_path, ingress("a", rule("x.example", ("Prefix", "/", "one:80")))) as at:
        where = at.alice.inputs.ingress_listeners
        assert where is not None
        _, body, reply = await call(at.http, f"http://{where.http}/p?q=1", "x.example", headers=forged)
        seen = body["headers"]
        assert (body["path"], seen["host"], seen["x-mine"]) == ("/p?q=1", "x.example", "1")
        assert seen["x-forwarded-for"] and seen["x-forwarded-proto"] == "http"
        assert not [name for name in seen if name.startswith("kuscia-")]
        assert not [name for name in reply if name.startswith("kuscia-")]


async def test_partners_and_own_services_are_not_reached_by_their_names(tmp_path: Path) -> None:
    async with echo(HOST) as plain:
        bob = make_inputs("bob", tmp_path, Protocol.NOTLS)
        bob = replace(bob, external=plain)
        routes = (route("alice", "bob", bob, "alice"),)
        async with served(tmp_path, ingress("a", rule("x.example", ("Prefix", "/", "one:80"))), routes=routes) as at:
            names = ["web.bob.svc", "x.alice.svc", "kuscia-handshake.alice.svc", "apiserver.master.svc", "transport"]
            assert [await at.ask(name, "/handshake") for name in names] == ["404"] * len(names)
            status, _, _ = await call(at.http, f"{at.alice.inside}/", "web.bob.svc")
            assert status == 200, "pods reach the partner"


async def test_c73_a_dns_object_leads_pods_and_clients_by_path(tmp_path: Path) -> None:
    tea = dns(
        "tea",
        "tea.example",
        green={"serviceName": "one", "servicePort": 80},
        black={"serviceUID": "uid-two", "servicePort": 80},
    )
    async with served(tmp_path, tea, ingress("a", rule("x.example", ("Prefix", "/", "three:80")))) as at:
        where = at.alice.inputs.ingress_listeners
        assert where is not None
        for base in (f"http://{where.http}", at.alice.inside):
            found = [await call(at.http, f"{base}/{path}", "tea.example") for path in ("green?a=1", "black", "red", "")]
            assert [status for status, _, _ in found] == [200, 200, 404, 404]
            assert [(body["name"], body["path"]) for _, body, _ in found[:2]] == [("one", "/?a=1"), ("two", "/")]
        # Ingresses are for clients outside; pods have the names of Services.
        assert (await call(at.http, f"{at.alice.inside}/", "x.example"))[0] == 404


async def test_c74_requests_by_name_reach_all_replicas(tmp_path: Path) -> None:
    one = ingress("a", rule("x.example", ("Prefix", "/", "all:80")))
    async with served(tmp_path, ingress("b", rule("y.example", ("Prefix", "/", "one:80")))) as at:
        table, _ = ingress_table(IngressObjects([one], (), {"all": service("all")}, {}), lambda _: True)
        host = table.hosts[0]
        upstream = replace(host.rules[0].upstream, endpoints=tuple((HOST, port) for port in sorted(at.ports.values())))
        hosts = (replace(host, rules=(replace(host.rules[0], upstream=upstream),)),)
        await at.alice.change(ingress=replace(table, hosts=hosts))
        found = [await at.ask("x.example", "/") for _ in range(100)]
        assert {name: found.count(name) for name in at.ports} == pytest.approx(dict.fromkeys(at.ports, 33), abs=10)


def certificate_of(where: SocketAddress | None, name: str) -> str:
    assert where is not None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((where.host, where.port), 10) as raw,
        context.wrap_socket(raw, server_hostname=name) as link,
    ):
        shown = link.getpeercert(binary_form=True)
        assert shown is not None
        return ssl.DER_cert_to_PEM_cert(shown)


async def test_certificates_by_server_name_and_their_rotation_on_open_connections(tmp_path: Path) -> None:
    rules = rule("a.example", ("Prefix", "/", "one:80")), rule("*.b.example", ("Prefix", "/", "two:80"))
    hosts = [{"hosts": ["a.example"], "secretName": "s.1"}, {"hosts": ["*.b.example"], "secretName": "s.2"}]
    one = ingress("a", *rules, tls=hosts)
    secrets = {"s.1": secret("s.1", "one"), "s.2": secret("s.2", "two")}
    async with served(tmp_path, one, secrets=secrets) as at:
        where = at.alice.inputs.ingress_listeners
        assert where is not None

        async def shown(name: str) -> str:
            found = await asyncio.to_thread(certificate_of, where.https, name)
            return next(each for each in ("one", "two", "three") if key_pair(each)[0].decode().strip() == found.strip())

        assert [await shown("a.example"), await shown("x.b.example")] == ["one", "two"]
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await shown("other.example")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(
            HOST, where.https.port if where.https else 0, ssl=context, server_hostname="a.example"
        )

        async def again() -> bool:
            """Whether the connection that was opened first still serves."""
            writer.write(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split()[1]))
            return b" 200 " in head

        assert await again()
        before = at.alice.envoy.pid
        await at.change(one, secrets={**secrets, "s.1": secret("s.1", "three")})
        assert await shown("a.example") == "three"
        assert await again(), "an open connection lives on"
        # Another Ingress brings a default certificate; connections of other names stay.
        more = ingress("b", rule("c.example", ("Prefix", "/", "three:80")), tls=[{"secretName": "s.2"}], age=1)
        await at.change(one, more, secrets={**secrets, "s.1": secret("s.1", "three")})
        assert await shown("other.example") == "two"
        assert await again(), "of another chain too"
        writer.close()
        assert at.alice.envoy.pid == before


async def test_grpc_backends(tmp_path: Path) -> None:
    async with streaming_echo(HOST) as stream, served(tmp_path) as at:
        one = ingress("a", rule("x.example", ("Prefix", "/", "talk:api")))
        behind = {"talk": endpoints("talk", HOST, port=stream.port - 1)}
        table, _ = ingress_table(IngressObjects([one], (), {"talk": service("talk")}, behind), lambda _: True)
        await at.alice.change(ingress=table)
        where = at.alice.inputs.ingress_listeners
        assert where is not None
        async with at.http.post(f"http://{where.http}/", data=b"abc", headers={"Host": "x.example"}) as reply:
            assert (reply.status, await reply.read()) == (200, b"abc")


async def test_clients_that_say_nothing_or_never_end_their_headers_are_let_go(tmp_path: Path) -> None:
    rules = ingress("a", rule("x.example", ("Prefix", "/", "one:80")), tls=[{"secretName": "s"}])
    quick = Tuning(headers_seconds=0.3)
    async with served(tmp_path, rules, secrets={"s": secret("s")}, tuning=quick) as at:
        where = at.alice.inputs.ingress_listeners
        assert where is not None and where.http is not None and where.https is not None
        for port, said in ((where.http, b""), (where.http, b"GET / HTTP/1.1\r\nHost: x"), (where.https, b"")):
            reader, writer = await asyncio.open_connection(port.host, port.port)
            writer.write(said)
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()


def test_nothing_listens_unless_a_port_is_named(tmp_path: Path) -> None:
    made: SnapshotInputs = make_inputs("alice", tmp_path, Protocol.MTLS)
    resources = snapshot(made)
    assert [each["name"] for each in resources.listeners] == ["external", "internal", "node"]
    assert "rds-ingress.json" not in resources.files
    only = snapshot(replace(made, ingress_listeners=IngressListeners(https=SocketAddress(HOST, 8443))))
    assert [each["name"] for each in only.listeners] == ["external", "ingress-https", "internal", "node"]


@pytest.mark.parametrize(
    ("address", "ordinary"),
    [
        ("100.96.0.5", True),
        ("100.96.127.254", True),
        ("100.96.128.7", False),
        ("100.97.0.5", True),
        ("100.97.128.7", False),
        ("100.97.0.1", False),
        ("100.112.0.5", False),
        ("100.96.0.1", False),
        ("100.96.0.0", False),
        ("127.0.0.1", False),
        ("192.0.2.1", False),
        ("web.bob.svc", False),
    ],
)
def test_only_ordinary_pods_are_backends(address: str, ordinary: bool) -> None:
    pods = PodNetwork("100.96.0.0/16", "100.96.128.0/17", SocketAddress("100.96.0.1", 80), cluster="100.96.0.0/12")
    assert is_ordinary_pod(pods, address) == ordinary


def test_status_lists_where_an_ingress_is_served() -> None:
    own = point_of(IngressListeners(SocketAddress("0.0.0.0", 8080), SocketAddress("0.0.0.0", 8443)), "10.0.0.1")
    assert (own.ip, [each.port for each in own.ports or ()]) == ("10.0.0.1", [8080, 8443])
    other = replace_ip(own, "10.0.0.2")
    assert points((), own, served=True, alone=True) == (own,)
    assert points((other,), own, served=True, alone=True) == (own,)
    assert points((other,), own, served=True, alone=False) == (other, own)
    assert points((own, other), own, served=True, alone=False) == (own, other)
    assert points((own, other), own, served=False, alone=True) == (other,)


async def test_a_status_is_written_when_envoy_serves_the_ingress() -> None:
    api = FakeApi()
    for name, namespace in (("shop", "alice"), ("shop", "bob"), ("other", "alice")):
        api.seed("ingresses", name, namespace, spec={})
    client = api.client()
    informers = Informers(client)
    point = point_of(IngressListeners(SocketAddress("10.0.0.1", 8080)), "")
    statuses = IngressStatuses(client, informers, "alice", point)

    async def listed(name: str, namespace: str = "alice") -> list[str]:
        found = await client.get(INGRESSES, name, namespace)
        return [each.ip for each in found.status.load_balancer.ingress or ()]

    async with TaskOwner("test") as owner, asyncio.timeout(30):
        owner.start("informers", informers.run())
        owner.start("statuses", statuses.controller.run())
        statuses.served(frozenset({"shop"}))
        while await listed("shop") != ["10.0.0.1"]:
            await asyncio.sleep(0.01)
        assert await listed("shop", "bob") == await listed("other") == []
        wrong = {"status": {"loadBalancer": {"ingress": [{"ip": "6.6.6.6"}]}}}
        await client.patch(INGRESSES, "shop", "alice", wrong, subresource="status")
        while await listed("shop") != ["10.0.0.1"]:
            await asyncio.sleep(0.01)
        statuses.served(frozenset())
        while await listed("shop"):
            await asyncio.sleep(0.01)


def replace_ip(point: Any, ip: str) -> Any:
    return type(point)(ip=ip, ports=point.ports)
