"""Ports of the machine that lead to pods: what is opened for whom, and how bytes get there."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
import uvloop

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.network import EndpointSlice, Service
from coterie.kube.api.types.pods import Pod
from coterie.kube.network.ports import listeners as listeners_module
from coterie.kube.network.ports.listeners import BackendChooser, PortListeners
from coterie.kube.network.ports.plan import (
    Destination,
    Listening,
    MachineView,
    PublishedPorts,
    engine_addresses,
    node_addresses,
    pod_ports,
    service_ports,
)
from coterie.kube.network.services.plan import Backend, NodeView

HERE = "127.0.0.1"
VIEW = MachineView(
    NodeView("here", frozenset({"elsewhere"})),
    ("0.0.0.0",),
    lambda address: address == "192.0.2.1",
    engine_addresses("100.96.0.0/12", 20),
)


def service(**spec: Any) -> Service:
    given = {"type": "NodePort", "clusterIP": "100.112.1.1", "ports": [port()], **spec}
    return msgspec.convert({"metadata": {"name": "web", "namespace": "default", "uid": "u"}, "spec": given}, Service)


def port(**more: Any) -> dict[str, Any]:
    return {"name": "web", "port": 80, "targetPort": 8000, "protocol": "TCP", "nodePort": 30001, **more}


def slice_of(*endpoints: tuple[str, str]) -> EndpointSlice:
    """(address, node)"""
    listed = [{"addresses": [address], "nodeName": node, "conditions": {"ready": True}} for address, node in endpoints]
    body = {
        "metadata": {"name": "s", "namespace": "default"},
        "addressType": "IPv4",
        "ports": [{"name": "web", "port": 8000, "protocol": "TCP"}],
        "endpoints": listed,
    }
    return msgspec.convert(body, EndpointSlice)


TWO = [slice_of(("100.96.0.5", "here"), ("100.96.16.5", "there"))]


def targets(found: dict[Listening, Destination]) -> dict[str, list[str]]:
    return {str(each): [backend.address for backend in to.backends] for each, to in found.items()}


def test_a_node_port_leads_to_all_endpoints_or_to_those_here() -> None:
    assert targets(service_ports(service(), TWO, VIEW)) == {"0.0.0.0:30001/TCP": ["100.96.0.5", "100.96.16.5"]}
    local = service(externalTrafficPolicy="Local")
    assert targets(service_ports(local, TWO, VIEW)) == {"0.0.0.0:30001/TCP": ["100.96.0.5"]}


def test_a_cluster_ip_service_opens_nothing() -> None:
    assert service_ports(service(type="ClusterIP"), TWO, VIEW) == {}
    assert service_ports(None, TWO, VIEW) == {}


def test_external_addresses_are_opened_where_the_machine_has_them() -> None:
    found = service_ports(service(type="ClusterIP", externalIPs=["192.0.2.1", "192.0.2.2"]), TWO, VIEW)
    assert list(targets(found)) == ["192.0.2.1:80/TCP"]


def test_engines_and_pods_of_other_networks_are_not_published() -> None:
    slices = [slice_of(("100.96.8.1", "here"), ("100.96.0.9", "elsewhere"))]
    assert targets(service_ports(service(), slices, VIEW)) == {"0.0.0.0:30001/TCP": []}


def pod(name: str = "web", address: str = "100.96.0.5", **more: Any) -> Pod:
    ports = more.pop("ports", [{"containerPort": 8000, "hostPort": 8080}])
    spec = {"nodeName": "here", "containers": [{"name": "main", "ports": ports}], **more}
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]} if address else {}
    return msgspec.convert({"metadata": {"name": name, "namespace": "x"}, "spec": spec, "status": status}, Pod)


def test_host_ports_of_pods() -> None:
    assert targets(pod_ports(pod(), VIEW)) == {"0.0.0.0:8080/TCP": ["100.96.0.5"]}
    chosen = [{"containerPort": 53, "hostPort": 5353, "hostIP": "127.0.0.1", "protocol": "UDP"}]
    assert targets(pod_ports(pod(ports=chosen), VIEW)) == {"127.0.0.1:5353/UDP": ["100.96.0.5"]}
    assert pod_ports(pod(hostNetwork=True), VIEW) == {}
    assert pod_ports(pod(nodeName="there"), VIEW) == {}
    assert pod_ports(pod(address="100.96.8.7"), VIEW) == {}, "an engine"


@pytest.mark.parametrize(
    ("address", "expected"), [("127.0.0.1", ("127.0.0.1",)), ("192.0.2.1", ("0.0.0.0",)), ("127.0.0.7", ("127.0.0.7",))]
)
def test_a_node_on_loopback_opens_nothing_to_the_network(address: str, expected: tuple[str, ...]) -> None:
    assert node_addresses(address) == expected


def test_who_asked_first_has_the_port() -> None:
    ports, one, two = PublishedPorts(), ObjectKey("x", "one"), ObjectKey("x", "two")
    first, second = pod_ports(pod("one"), VIEW), pod_ports(pod("two", "100.96.0.6"), VIEW)
    [listening] = first
    assert ports.update("Pod", one, first) == (first, [])
    changed, [conflict] = ports.update("Pod", two, second)
    assert changed == first and (conflict.owner, conflict.holder) == ("Pod x/two", "Pod x/one")
    assert ports.update("Pod", one, {}) == (second, [])
    assert ports.update("Pod", two, {}) == ({listening: None}, [])
    assert ports.update("Pod", two, {}) == ({}, [])


def test_affinity_lasts_for_its_time() -> None:
    now = [0.0]
    chooser = BackendChooser(lambda: now[0], random.Random(1))
    backends = tuple(Backend(f"100.96.0.{number}", 80) for number in range(2, 12))
    destination = Destination("Service x/y", backends, 60)
    first = chooser.choose("client", destination)[0]
    assert {chooser.choose("client", destination)[0] for _ in range(20)} == {first}
    rest = Destination("Service x/y", tuple(each for each in backends if each != first), 60)
    second = chooser.choose("client", rest)[0]
    assert second != first
    assert {chooser.choose("client", destination)[0] for _ in range(20)} == {second}
    seen = set()
    for _ in range(40):
        now[0] += 61
        seen.add(chooser.choose("client", destination)[0])
    assert len(seen) > 3


# --- sockets --------------------------------------------------------------------------------------------------------


class HereSockets:
    """The domain's namespace is this one."""

    def stream(self) -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    def udp(self, address: str, port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        made.bind((address, port))
        return made


Scenario = Callable[[PortListeners, pytest.MonkeyPatch], Coroutine[Any, Any, None]]


def on_both_loops(scenario: Scenario) -> Callable[[str, pytest.MonkeyPatch], None]:
    """Nodes run on uvloop, which differs from asyncio in what it reads and when."""

    async def play(monkeypatch: pytest.MonkeyPatch) -> None:
        ports = PortListeners(HereSockets(), HERE)
        try:
            await scenario(ports, monkeypatch)
        finally:
            await ports.close()
            while _servers:
                _servers.pop().close()

    @pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
    def test(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
            runner.run(asyncio.wait_for(play(monkeypatch), 40))

    return test


def free(protocol: str = "TCP") -> Listening:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM) as made:
        made.bind((HERE, 0))
        return Listening(HERE, made.getsockname()[1], protocol)


async def server(handle: Callable[..., Any]) -> Backend:
    made = await asyncio.start_server(handle, HERE, 0)
    _servers.append(made)
    return Backend(HERE, made.sockets[0].getsockname()[1])


_servers: list[asyncio.Server] = []


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All that comes, after it has come."""
    writer.write(await reader.read())
    await writer.drain()
    writer.close()


@on_both_loops
async def test_bytes_both_ways_with_the_end_of_one_direction(
    ports: PortListeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = free()
    await ports.set(listening, Destination("x", (await server(echo),)))
    body = random.Random(3).randbytes(3_000_000)
    reader, writer = await asyncio.open_connection(HERE, listening.port)
    writer.write(body)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 20) == body
    writer.close()
    await writer.wait_closed()
    for _ in range(100):
        if not ports.connections:
            break
        await asyncio.sleep(0.01)
    assert ports.connections == 0


@on_both_loops
async def test_an_endpoint_that_refuses_is_passed_over(ports: PortListeners, monkeypatch: pytest.MonkeyPatch) -> None:
    listening, dead = free(), free()
    await ports.set(listening, Destination("x", (Backend(HERE, dead.port), await server(echo))))
    for _ in range(6):
        reader, writer = await asyncio.open_connection(HERE, listening.port)
        writer.write(b"question")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 20) == b"question"
        writer.close()


@on_both_loops
async def test_without_endpoints_connections_are_reset(ports: PortListeners, monkeypatch: pytest.MonkeyPatch) -> None:
    listening = free()
    await ports.set(listening, Destination("x", ()))
    reader, writer = await asyncio.open_connection(HERE, listening.port)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 20)
    writer.close()


@on_both_loops
async def test_connections_are_bounded(ports: PortListeners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners_module, "CONNECTIONS_OF_A_PORT", 2)
    listening = free()
    await ports.set(listening, Destination("x", (await server(echo),)))
    kept = [await asyncio.open_connection(HERE, listening.port) for _ in range(2)]
    for _, writer in kept:
        writer.write(b"held")
    for _ in range(200):
        if ports.connections == 2:
            break
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection(HERE, listening.port)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 20)
    writer.close()
    for reader, writer in kept:
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 20) == b"held"
        writer.close()


@on_both_loops
async def test_idle_connections_end(ports: PortListeners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners_module, "IDLE_SECONDS", 0.2)
    listening = free()
    await ports.set(listening, Destination("x", (await server(echo),)))
    reader, writer = await asyncio.open_connection(HERE, listening.port)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 20)
    writer.close()


@on_both_loops
async def test_a_port_is_closed_and_its_connections_live_on(
    ports: PortListeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = free()
    await ports.set(listening, Destination("x", (await server(echo),)))
    reader, writer = await asyncio.open_connection(HERE, listening.port)
    writer.write(b"quest")
    for _ in range(200):
        if ports.connections:
            break
        await asyncio.sleep(0.01)
    await ports.set(listening, None)
    with pytest.raises(ConnectionRefusedError):
        for _ in range(50):
            _, other = await asyncio.open_connection(HERE, listening.port)
            other.close()
            await asyncio.sleep(0.02)
    writer.write(b"ion")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 20) == b"question"
    writer.close()


@on_both_loops
async def test_a_port_of_somebody_else_is_an_error(ports: PortListeners, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HERE, 0)) as taken:
        listening = Listening(HERE, taken.getsockname()[1], "TCP")
        with pytest.raises(OSError, match="in use"):
            await ports.set(listening, Destination("x", ()))
        assert listening not in ports


@on_both_loops
async def test_datagrams_and_their_answers(ports: PortListeners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners_module, "FLOWS_OF_A_PORT", 2)
    listening = free("UDP")
    sockets, clients = [HereSockets().udp(HERE, 0) for _ in range(2)], [HereSockets().udp(HERE, 0) for _ in range(3)]
    for each in (*sockets, *clients):
        each.settimeout(5)
    backends = [Backend(*each.getsockname()) for each in sockets]
    await ports.set(listening, Destination("x", (backends[0],)))

    def asked(client: socket.socket, through: socket.socket) -> bytes:
        client.sendto(b"question", (HERE, listening.port))
        data, peer = through.recvfrom(100)
        through.sendto(b"to " + data, peer)
        return client.recv(100)

    for client in clients[:2]:
        assert await asyncio.to_thread(asked, client, sockets[0]) == b"to question"
    sockets[0].settimeout(0.3)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(asked, clients[2], sockets[0])
    await ports.set(listening, Destination("x", (backends[1],)))
    assert await asyncio.to_thread(asked, clients[0], sockets[1]) == b"to question"
    for each in (*sockets, *clients):
        each.close()
