"""Two real nodes, `coterie start` each, that are partners of each other: the whole of Coterie stands behind the path.

alice calls, bob serves `echo` and whatever is added. All with the defaults: mutual TLS, tokens, access logs. Unless they are
`fenced`, their gateways listen on the machine's network, where client and service are; otherwise these are in pods.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.node import Pinned, free_port, memory_of
from benchmarks.objects import Object, sleeper
from coterie.base.paths import DomainPaths
from coterie.kube.agent.runtimes.runp import pod_networks, wire
from coterie.kube.agent.runtimes.runp.halt import halt
from coterie.kube.api.errors import ApiError
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.pods import PODS
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, DOMAINS
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.paths import GatewayPaths

DOMAIN = DOMAINS.as_dynamic
CLUSTER_ROUTE = CLUSTER_DOMAIN_ROUTES.as_dynamic
ROUTE = DOMAIN_ROUTES.as_dynamic
SERVICE = Kind.dynamic(builtin("services"))
ENDPOINTS = Kind.dynamic(builtin("endpoints"))
_PATIENCE = 120.0
_AT_ONCE = 16


@dataclass(slots=True)
class PodPlace:
    address: str = ""
    pid: int = 0


class GatewayNode:
    """An autonomous domain on a loopback address of its own, in a directory of its own."""

    def __init__(self, root: Path, domain: str, host: str, bytecode: Path, *, fenced: bool = False) -> None:
        self.domain = domain
        self.paths = DomainPaths.of(root, domain)
        self.internal, self.external, handshake, api, dns = (SocketAddress(host, free_port(host)) for _ in range(5))
        self._fenced = fenced
        self._name = f"bench-{domain}"
        self._runtime = self.paths.var / "run" / "runp"
        root.mkdir(parents=True, exist_ok=True)
        config = root / "coterie.yaml"
        document = {
            "mode": "autonomy",
            "domainID": domain,
            "logLevel": "WARN",
            "apiServer": {"host": host, "port": api.port},
            "agent": {"nodeName": self._name, "address": host, "port": 0},
            "dns": {"port": dns.port},
            "gateway": {
                "internal": {"host": host, "port": self.internal.port},
                "external": {"host": host, "port": self.external.port},
                "handshake": {"host": host, "port": handshake.port},
            },
        }
        config.write_text(yaml.safe_dump(document))
        command = [
            "-m",
            "coterie" if fenced else "benchmarks.unfenced_node",
            "start",
            "-c",
            str(config),
            "--root",
            str(root),
        ]
        self._process = Pinned(command, None, root / "node.log", bytecode)
        self.client: Client

    async def begin(self) -> None:
        """When the node answers, its gateway stands and its own Domain is there."""
        deadline = time.monotonic() + _PATIENCE
        first = self.external if self._fenced else self.internal
        await asyncio.to_thread(self._process.wait_for, first.port, first.host)
        self.client = Client(HttpTransport(kubeconfig.read(self.paths.kubeconfig).resolve()))

        async def known() -> bool:
            found = await self.client.get(DOMAIN, self.domain)
            await self.client.get(Kind.dynamic(builtin("namespaces")), self.domain)
            return bool(found["spec"].get("cert"))

        await until(known, deadline - time.monotonic())

    async def end(self) -> None:
        with contextlib.suppress(AttributeError):
            await self.client.close()
        await asyncio.to_thread(self._process.stop)
        await halt(self._runtime, self._name, 0.0, forget=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def envoy(self) -> int:
        return int((GatewayPaths.of(self.paths).run / "envoy.pid").read_text())

    def memory(self) -> dict[str, float]:
        """PSS in MiB by part."""
        rest = {*_descendants(self.pid), *self._supervisor()} - {self.envoy}
        return {
            "node": memory_of(self.pid)[1],
            "Envoy": memory_of(self.envoy)[1],
            "helpers": sum(memory_of(each)[1] for each in rest),
        }

    def _supervisor(self) -> list[int]:
        """The parent of the pods; none on a node without pods."""
        name, handle = wire.address(str(self._runtime))
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(name)
                return [wire.peer(connection)[0]]
        except OSError:
            return []
        finally:
            os.close(handle)

    async def certificate(self) -> str:
        return base64.b64encode(self.paths.domain_certificate.read_bytes()).decode()

    async def serve(self, names: Iterable[str], where: SocketAddress) -> None:
        """Services with one address each."""
        waiting = iter(list(names))

        async def work() -> None:
            for name in waiting:
                await self.serve_one(name, where)

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))

    async def serve_one(self, name: str, where: SocketAddress) -> None:
        meta = {"name": name, "namespace": self.domain}
        ports = [{"name": "http", "port": where.port}]
        opened = {**meta, "annotations": {"kuscia.secretflow/access-domain": "*"}}
        await self.client.create(SERVICE, {"metadata": opened, "spec": {"clusterIP": "None", "ports": ports}})
        subset = {"addresses": [{"ip": where.host}], "ports": ports}
        await self.client.create(ENDPOINTS, {"metadata": meta, "subsets": [subset]})

    @property
    def pod_gateway(self) -> str:
        """The address at which pods reach their gateway."""
        facts = pod_networks.read_facts(str(self._runtime))
        assert facts is not None
        return str(facts["gateway"])

    def enter(self, pod: PodPlace) -> tuple[str, ...]:
        """What to put before a command so that it has the network of a pod. That belongs to the domain's users."""
        facts = pod_networks.read_facts(str(self._runtime))
        assert facts is not None
        users = () if facts["root"] else (f"--user=/proc/{facts['holder']}/ns/user", "--preserve-credentials")
        return ("nsenter", *users, f"--net=/proc/{pod.pid}/ns/net", "--")

    async def pod(self, name: str) -> PodPlace:
        """An ordinary pod that sleeps; client or service are put into its network."""
        pod = sleeper(name)
        pod["metadata"]["namespace"] = self.domain
        await self.client.create(PODS.as_dynamic, pod)
        place = PodPlace()

        async def runs() -> bool:
            found = await self.client.get(PODS.as_dynamic, name, self.domain)
            place.address = found.get("status", {}).get("podIP", "")
            return bool(found.get("status", {}).get("phase") == "Running")

        await until(runs)
        found = await self.client.get(PODS.as_dynamic, name, self.domain)
        record = self._runtime / "state" / found["metadata"]["uid"] / "c.0.json"
        place.pid = json.loads(record.read_text())["pid"]
        return place

    async def lead(self, partner: str, where: SocketAddress) -> None:
        """A route of our own to somebody who asks for nothing, in plain text: no handshake stands between it and calls."""
        port = {"name": "http", "protocol": "HTTP", "port": where.port, "isTLS": False}
        there = {"host": where.host, "ports": [port]}
        made = route(self.domain, partner, where, authenticationType="None", endpoint=there)
        made["metadata"]["namespace"] = self.domain
        await self.client.create(ROUTE, made)


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found


async def until(question: Callable[[], Awaitable[bool]], seconds: float = _PATIENCE) -> None:
    """Until the answer is yes; an error of the API or the network counts as no."""
    async with asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(ApiError, TransportError, OSError):
                if await question():
                    return
            await asyncio.sleep(0.05)


def route(source: str, destination: str, where: SocketAddress, **more: object) -> Object:
    port = {"name": "http", "protocol": "HTTP", "port": where.port, "isTLS": True}
    spec = {
        "source": source,
        "destination": destination,
        "interConnProtocol": "kuscia",
        "authenticationType": "Token",
        "endpoint": {"host": where.host, "ports": [port]},
        "tokenConfig": {"tokenGenMethod": "RSA-GEN", "rollingUpdatePeriod": 0},
        **more,
    }
    return {"metadata": {"name": f"{source}-{destination}"}, "spec": spec}


async def _introduce(here: GatewayNode, there: GatewayNode) -> None:
    known = {"cert": await there.certificate(), "role": "partner", "interConnProtocols": ["kuscia"]}
    await here.client.create(DOMAIN, {"metadata": {"name": there.domain}, "spec": known})
    await here.client.create(CLUSTER_ROUTE, route(here.domain, there.domain, there.external))
    await here.client.create(CLUSTER_ROUTE, route(there.domain, here.domain, here.external))


async def _ready(node: GatewayNode, name: str) -> None:
    async def is_ready() -> bool:
        found = (await node.client.get(CLUSTER_ROUTE, name)).get("status", {}).get("conditions") or []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in found)

    await until(is_ready)


@contextlib.asynccontextmanager
async def partners(
    folder: Path, bytecode: Path, *, fenced: bool = False, net: int = 21
) -> AsyncIterator[tuple[GatewayNode, GatewayNode]]:
    """`net`: which 127.0.NET they are on."""
    async with contextlib.AsyncExitStack() as stack:
        alice, bob = (
            GatewayNode(folder / name, name, host, bytecode, fenced=fenced)
            for name, host in (("alice", f"127.0.{net}.1"), ("bob", f"127.0.{net}.2"))
        )
        stack.push_async_callback(alice.end)
        stack.push_async_callback(bob.end)
        await asyncio.gather(alice.begin(), bob.begin())
        await _introduce(alice, bob)
        await _introduce(bob, alice)
        await _ready(alice, "alice-bob")
        await _ready(bob, "bob-alice")
        yield alice, bob
