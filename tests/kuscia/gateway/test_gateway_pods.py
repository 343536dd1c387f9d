"""Pods at the gateway, with a real Envoy outside their network: who may call what, and what is reached in there."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from gateway_kit import Domain, client_tls, echo, make_inputs, pem, running, token, until_status
from netns_kit import Namespace, namespace, needs_root

from coterie.kuscia.gateway import orphaned_envoy
from coterie.kuscia.gateway.addresses import PodNetwork, Protocol, SocketAddress
from coterie.kuscia.gateway.model import DomainService, PodCaller, Route, ServiceProtocol
from coterie.kuscia.gateway.pod_access import callers_in, pod_rules
from coterie.kuscia.gateway.snapshot import snapshot

GATEWAY, ORDINARY, ENGINE, UNKNOWN = "100.96.0.1", "100.96.0.5", "100.96.128.7", "100.96.128.8"
OUTSIDE = "10.1.2.3"


def pod_network(**more: Any) -> PodNetwork:
    return PodNetwork("100.96.0.0/16", "100.96.128.0/17", SocketAddress(GATEWAY, 80), **more)


@dataclass
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]


def ask(connection: socket.socket, host: str, path: str = "/", **headers: str) -> Answer:
    made = http.client.HTTPConnection("unused")
    made.sock = connection
    with contextlib.closing(made):
        made.putrequest("GET", path, skip_host=True)
        for name, value in {"Host": host, **{k.replace("_", "-"): v for k, v in headers.items()}}.items():
            made.putheader(name, value)
        made.endheaders()
        reply = made.getresponse()
        text = reply.read().decode()
        with contextlib.suppress(json.JSONDecodeError):
            return Answer(reply.status, json.loads(text), {k.lower(): v for k, v in reply.getheaders()})
        return Answer(reply.status, text, {k.lower(): v for k, v in reply.getheaders()})


def by_pipe(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(10)
    made.connect(path)
    return made


@dataclass
class Fenced:
    domain: Domain
    pods: Namespace

    async def call(self, source: str, host: str, path: str = "/", **headers: str) -> Answer:
        def call() -> Answer:
            return ask(self.pods.connected(source, SocketAddress(GATEWAY, 80)), host, path, **headers)

        return await asyncio.to_thread(call)

    async def node(self, host: str, path: str = "/", **headers: str) -> Answer:
        return await asyncio.to_thread(lambda: ask(by_pipe(self.domain.inputs.node_socket.host), host, path, **headers))

    async def logged(self, words: str) -> str:
        """The line of the log that has these words; Envoy writes once a second."""
        for _ in range(200):
            for line in self.domain.log("internal").splitlines():
                if words in line:
                    return line
            await asyncio.sleep(0.05)
        raise AssertionError(self.domain.log("internal"))


@contextlib.asynccontextmanager
async def fenced(root: Path, *services: DomainService, **more: Any) -> AsyncIterator[Fenced]:
    """Alice's Envoy outside, her pods inside; an own service `psi` and control-plane services on Unix sockets."""
    async with contextlib.AsyncExitStack() as stack:
        pods = stack.enter_context(namespace(root, (GATEWAY, ORDINARY, ENGINE, UNKNOWN, OUTSIDE)))
        psi = await stack.enter_async_context(pods.echo(ENGINE))
        inner = await stack.enter_async_context(echo("127.0.1.1"))
        listed = (
            DomainService("psi", (psi,)),
            DomainService("tls-psi", (psi,), ServiceProtocol.HTTPS),
            DomainService("machine", (inner,)),
            DomainService("apiserver", (inner,), access=frozenset()),
            DomainService("kusciaapi", (inner,), access=frozenset()),
            *services,
        )
        given: dict[str, Any] = {
            "pods": pod_network(namespace=str(pods.path)),
            "callers": (PodCaller(ENGINE, frozenset({"psi.alice.svc"})),),
            "internal": None,
            "aliases": ("master",),
            **more,
        }
        inputs = make_inputs("alice", root, Protocol.MTLS, services=listed, **given)
        (domain,) = await stack.enter_async_context(running(inputs, root=root))
        yield Fenced(domain, pods)


@needs_root
async def test_what_an_engine_may_call(tmp_path: Path) -> None:
    async with fenced(tmp_path) as alice:
        allowed = await alice.call(ENGINE, "psi.alice.svc:80", "/x")
        # Reached inside the pods' network: the machine has no such address.
        assert (allowed.status, allowed.body["path"]) == (200, "/x")
        assert allowed.body["headers"]["kuscia-source"] == "alice"
        refused = await alice.call(ENGINE, "machine.alice.svc")
        assert (refused.status, refused.body) == (403, f'Pod {ENGINE} may not call "machine.alice.svc".\n')
        assert refused.headers["kuscia-error-message"] == (
            f'<alice/0/internal $cause$ pod {ENGINE} may not call "machine.alice.svc".>'
        )
        line = await alice.logged(" machine.alice.svc ")
        assert line.startswith(f"{ENGINE} - [") and " 403 " in line
        assert "rbac_access_denied_matched_policy[not-allowed-for-this-pod]" in line


@needs_root
async def test_a_host_may_be_open_for_one_path_only(tmp_path: Path) -> None:
    hosts = frozenset({"machine.alice.svc/report?task_id=a", "psi.alice.svc"})
    async with fenced(tmp_path, callers=(PodCaller(ENGINE, hosts),)) as alice:
        allowed = await alice.call(ENGINE, "machine.alice.svc", "/report?task_id=a")
        assert (allowed.status, allowed.body["path"]) == (200, "/report?task_id=a")
        for path in (
            "/report",
            "/report?task_id=b",
            "/report?task_id=b&task_id=a",
            "/report?task_id=a&task_id=b",
            "/x/../report",
        ):
            assert (await alice.call(ENGINE, "machine.alice.svc", path)).status == 403, path
        assert (await alice.call(ENGINE, "psi.alice.svc", "/anything")).status == 200


def test_what_pods_may_call_is_found_again_in_the_rules(tmp_path: Path) -> None:
    callers = (
        PodCaller(ENGINE, frozenset({"machine.alice.svc/report?task_id=a", "psi.alice.svc"})),
        PodCaller(UNKNOWN, frozenset()),
    )
    inputs = make_inputs("alice", tmp_path, Protocol.MTLS, pods=pod_network(), callers=callers, internal=None)
    assert callers_in(pod_rules(inputs)) == callers


@needs_root
async def test_an_engine_cannot_claim_another_address(tmp_path: Path) -> None:
    async with fenced(tmp_path) as alice:
        forged = {"X_Forwarded_For": ORDINARY, "X_Real_IP": ORDINARY, "Forwarded": f"for={ORDINARY}"}
        forged["X_Envoy_Original_Path"] = "/innocent"  # the log would name it
        for headers in (forged, {**forged, "Kuscia_Source": "bob", "Kuscia_Host": "psi.alice.svc"}):
            assert (await alice.call(ENGINE, "machine.alice.svc", "/forged", **headers)).status == 403
        assert (await alice.logged("/forged")).startswith(f"{ENGINE} - ")
        assert ORDINARY not in alice.domain.log("internal")


@needs_root
async def test_other_addresses(tmp_path: Path) -> None:
    async with fenced(tmp_path) as alice:
        for host in ("psi.alice.svc", "psi", "machine.alice.svc"):
            assert (await alice.call(ORDINARY, host)).status == 200, host
            assert (await alice.call(GATEWAY, host)).status == 200, host
            assert (await alice.call(UNKNOWN, host)).status == 403, host
            assert (await alice.call(OUTSIDE, host)).status == 403, host
        assert (await alice.call(ORDINARY, "nothing.alice.svc")).status == 404
        assert "[unknown-pod]" in await alice.logged(f"{UNKNOWN} - ")


@needs_root
@pytest.mark.parametrize("host", ["apiserver", "kusciaapi", "kuscia-handshake"])
async def test_the_control_plane_is_for_the_node_only(host: str, tmp_path: Path) -> None:
    spellings = (
        f"{host}.alice.svc",
        f"{host}.master.svc",
        f"{host}.Master.svc",
        host.title(),
        f"{host.upper()}.bob.svc:80",
    )
    callers = (PodCaller(ENGINE, frozenset({*spellings, f"{host}.alice.svc"})),)
    async with fenced(tmp_path, callers=callers) as alice:
        for source in (ENGINE, ORDINARY, GATEWAY):
            for spelling in spellings:
                assert (await alice.call(source, spelling, "/handshake")).status == 403, spelling
        # Nobody listens for the handshake here.
        expected = 503 if host == "kuscia-handshake" else 200
        assert (await alice.node(f"{host}.alice.svc", "/handshake")).status == expected


@needs_root
async def test_engines_come_and_go_without_a_new_listener(tmp_path: Path) -> None:
    async with fenced(tmp_path, callers=()) as alice:
        listeners = (alice.domain.inputs.directory / "lds.json").read_bytes()
        waiting = alice.pods.connected(ENGINE, SocketAddress(GATEWAY, 80))
        assert (await alice.call(ENGINE, "psi.alice.svc")).status == 403
        await alice.domain.change(callers=(PodCaller(ENGINE, frozenset({"psi.alice.svc"})),))
        assert (await alice.call(ENGINE, "psi.alice.svc")).status == 200
        assert (await asyncio.to_thread(ask, waiting, "psi.alice.svc")).status == 200
        await alice.domain.change(callers=(PodCaller(ENGINE),))
        assert (await alice.call(ENGINE, "psi.alice.svc")).status == 403
        assert (alice.domain.inputs.directory / "lds.json").read_bytes() == listeners


@needs_root
async def test_several_endpoints_inside(tmp_path: Path) -> None:
    async with namespaced_pair(tmp_path) as (alice, endpoints):
        await alice.domain.change(services=(DomainService("both", endpoints),))
        assert {(await alice.node("both.alice.svc")).status for _ in range(10)} == {200}


@contextlib.asynccontextmanager
async def namespaced_pair(root: Path) -> AsyncIterator[tuple[Fenced, tuple[SocketAddress, ...]]]:
    async with fenced(root) as alice, alice.pods.echo(ORDINARY) as one, alice.pods.echo(UNKNOWN) as other:
        yield alice, (one, other)


def mode_of(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def leave_a_socket(path: str) -> None:
    """As a process that was killed does."""
    Path(path).unlink(missing_ok=True)
    left = socket.socket(socket.AF_UNIX)
    left.bind(path)
    left.close()


async def test_the_nodes_socket_is_private_and_taken_over_from_a_killed_envoy(tmp_path: Path) -> None:
    inputs = make_inputs("alice", tmp_path, Protocol.MTLS, internal=None)
    path = inputs.node_socket.host
    Path(path).parent.mkdir(parents=True)
    leave_a_socket(path)
    async with echo("127.0.1.1") as there, running(inputs, root=tmp_path) as (domain,):
        assert [each["name"] for each in snapshot(inputs).listeners] == ["external", "node"]
        await domain.change(services=(DomainService("echo", (there,)),))
        assert mode_of(path) == 0o600
        assert (await asyncio.to_thread(lambda: ask(by_pipe(path), "echo.alice.svc"))).status == 200


# ---- Envoy inside the pods' network ----

INSIDE = ("unshare", "--net", "--user", "--map-root-user") if os.geteuid() else ("unshare", "--net")


async def test_an_envoy_inside_reaches_the_nodes_sockets_and_is_known_again(tmp_path: Path) -> None:
    inputs = make_inputs("alice", tmp_path, Protocol.MTLS, internal=None, external=None)
    async with running(inputs, root=tmp_path, command_prefix=INSIDE) as (domain,):
        pid = domain.envoy.pid
        assert pid is not None
        here, there = (os.readlink(f"/proc/{each}/ns/net") for each in ("self", pid))
        assert here != there
        assert orphaned_envoy.running(domain.settings.pid_file, domain.settings.bootstrap) == pid
        async with unix_echo(inputs.handshake.host):
            call = await asyncio.to_thread(
                lambda: ask(by_pipe(inputs.node_socket.host), "kuscia-handshake.alice.svc", "/handshake")
            )
        assert (call.status, call.body) == (200, "here\n")


@contextlib.asynccontextmanager
async def unix_echo(path: str) -> AsyncIterator[None]:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text="here\n")

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    try:
        yield
    finally:
        await runner.cleanup()


class _Names(asyncio.DatagramProtocol):
    """A DNS server that gives one address for every name."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        end = data.index(b"\0", 12) + 5
        known = data[end - 4 : end - 2] == b"\0\x01"  # asks for an IPv4 address
        head = data[:2] + b"\x81\x80\0\x01" + (b"\0\x01" if known else b"\0\0") + bytes(4)
        record = b"\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04" + socket.inet_aton(self._address)
        self._transport.sendto(head + data[12:end] + (record if known else b""), addr)


async def test_names_are_asked_at_the_given_server(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Names("127.0.1.1"), ("127.0.1.1", 0))
    resolver = SocketAddress(*transport.get_extra_info("sockname"))
    try:
        async with echo("127.0.1.1") as there:
            pods = PodNetwork("100.96.0.0/16", "100.96.128.0/17", SocketAddress("127.0.1.1", 10081), resolver=resolver)
            named = DomainService("named", (SocketAddress("far.example", there.port),))
            inputs = make_inputs("alice", tmp_path, Protocol.MTLS, services=(named,), pods=pods, internal=None)
            async with running(inputs, root=tmp_path):
                pipe = inputs.node_socket.host

                async def call() -> tuple[int, Any, dict[str, str]]:
                    answer = await asyncio.to_thread(lambda: ask(by_pipe(pipe), "named.alice.svc"))
                    return answer.status, answer.body, dict(answer.headers)

                await until_status(200, call)
    finally:
        transport.close()


# ---- partners through a relay ----

BEHIND = ("203.0.113.9", "198.51.100.7")


def proxied(path: str, address: str | None, certificate: str) -> socket.socket:
    """As the relay connects: a PROXY header (version 2) and then the partner's own bytes."""
    made = by_pipe(path)
    if address is not None:
        addresses = socket.inet_aton(address) + socket.inet_aton("192.0.2.1") + (40000).to_bytes(2) + (1080).to_bytes(2)
        made.sendall(b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + len(addresses).to_bytes(2) + addresses)
    return client_tls(certificate).wrap_socket(made)


@contextlib.asynccontextmanager
async def behind_a_relay(root: Path) -> AsyncIterator[tuple[Domain, str]]:
    path = str(root / "public.sock")
    bob = Route(
        "bob",
        "alice",
        tokens=(token("bob", "alice"),),
        certificates=(pem("bob"),),
        source_addresses=(f"{BEHIND[0]}/24",),
    )
    async with echo("127.0.1.1") as there:
        pods = PodNetwork("100.96.0.0/16", "100.96.128.0/17", SocketAddress("127.0.1.1", 10080), public_socket=path)
        inputs = make_inputs(
            "alice",
            root,
            Protocol.MTLS,
            services=(DomainService("echo", (there,)),),
            routes=(bob,),
            pods=pods,
            internal=None,
        )
        async with running(inputs, root=root) as (domain,):
            yield domain, path


async def test_partners_addresses_are_those_that_the_relay_tells(tmp_path: Path) -> None:
    async with behind_a_relay(tmp_path) as (alice, path):
        sent = {"kuscia_source": "bob", "kuscia_token": token("bob", "alice").reveal()}

        def call(address: str) -> Answer:
            return ask(proxied(path, address, "bob"), "echo.alice.svc", X_Forwarded_For=BEHIND[0], **sent)

        good, wrong = [await asyncio.to_thread(call, address) for address in BEHIND]
        assert (good.status, wrong.status) == (200, 403)
        seen = dict(good.body["headers"])
        assert seen["x-forwarded-for"].endswith(BEHIND[0]) and seen["kuscia-source"] == "bob"
        for _ in range(200):
            lines = alice.log("external").splitlines()
            if len(lines) >= 2:
                break
            await asyncio.sleep(0.05)
        assert [line.split(" ")[0] for line in lines] == list(BEHIND), lines


async def test_without_a_proxy_header_there_is_no_connection(tmp_path: Path) -> None:
    async with behind_a_relay(tmp_path) as (_, path):
        with pytest.raises(OSError):
            await asyncio.to_thread(proxied, path, None, "bob")
        assert mode_of(path) == 0o600
