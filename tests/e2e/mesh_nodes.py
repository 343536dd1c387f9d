"""Whole nodes with real gateways, each a `coterie start` process on a loopback address of its own, and their partners.

    async with network(root) as net:
        alice, bob = await net.start(net.autonomy("alice"), net.autonomy("bob"))
        await befriend(alice, bob)
        await ready(alice, "alice-bob")

A node that is killed leaves its Envoy behind by design, and `Network` ends what is left. Ports are free ones, so that two
runs on one machine do not meet.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import aiohttp
import psutil
import yaml
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from gateway_kit import echo, free_port, streaming_echo
from inside_kit import InsidePort

from coterie.base import pki
from coterie.base.paths import DomainPaths
from coterie.kube.api.errors import AlreadyExists, ApiError
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, DOMAINS, GATEWAYS
from coterie.kuscia.gateway.addresses import SocketAddress
from coterie.kuscia.gateway.paths import GatewayPaths

DOMAIN = DOMAINS.as_dynamic
CDR = CLUSTER_DOMAIN_ROUTES.as_dynamic
DR = DOMAIN_ROUTES.as_dynamic
GATEWAY = GATEWAYS.as_dynamic
SERVICE = Kind.dynamic(builtin("services"))
ENDPOINTS = Kind.dynamic(builtin("endpoints"))
EVENT = Kind.dynamic(builtin("events"))
PATIENCE = 150.0
"""Seconds: nothing here takes a tenth of it on an idle machine."""
_LIBC = ctypes.CDLL(None)
_LAUNCHER = Path(__file__).parent / "skewed_node.py"


@cache
def key_of(name: str) -> str:
    """PEM. One key per name for the whole run: making them takes longer than using them."""
    return pki.key_pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)).decode()


async def until(what: str, question: Callable[[], Awaitable[Any]], seconds: float = PATIENCE) -> Any:
    """The first answer that is true; an error of the API or the network counts as no."""
    last: Any = None
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            last = await question()
            if last:
                return last
        except (ApiError, TransportError, aiohttp.ClientError, OSError) as error:
            last = error
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}; last: {last!r}")
        await asyncio.sleep(0.05)


def identity_of(paths: DomainPaths) -> tuple[Path, ...]:
    """The five files that make a domain's identity."""
    return (paths.domain_key, paths.domain_certificate, paths.ca_key, paths.ca_certificate, paths.certs / "token")


class Node:
    """One domain's node: its files, its process, its Envoy, and the way to its API."""

    def __init__(self, root: Path, name: str, mode: str, host: str, *, instance: str = "", **more: Any) -> None:
        self.name, self.mode, self.host = name, mode, host
        self.instance = instance or f"{name}-1"
        self.root = root / self.instance
        self.root.mkdir(parents=True)
        self.paths = DomainPaths.of(self.root, name)
        self.log = self.root / "node.log"
        self.key = key_of(name)
        self.skew = 0.0
        """Seconds by which the node's clock is wrong."""
        self.internal = SocketAddress(host, free_port(host))
        self.external = SocketAddress(host, free_port(host))
        self.agent_port = free_port(host)
        self.dns_port = free_port(host)
        self.settings = self._settings(more)
        self.process: asyncio.subprocess.Process | None = None
        self._client: Client | None = None
        self._inside: InsidePort | None = None

    def _settings(self, more: Any) -> dict[str, Any]:
        doors = {each: _door(getattr(self, each)) for each in ("internal", "external")}
        if self.mode == "master":
            del doors["internal"]  # it has no pods
        doors |= {"name": self.instance, **more.pop("gateway", {})}
        made: dict[str, Any] = {
            "mode": self.mode,
            "domainID": self.name,
            "gateway": doors,
            "dns": {"host": self.host, "port": self.dns_port},
        }
        if self.mode != "lite":
            made["apiServer"] = {"host": self.host, "port": free_port(self.host)}
        if self.mode != "master":
            made["agent"] = {"nodeName": self.instance, "address": self.host, "port": self.agent_port}
        return made | more

    # ---- life ----

    async def start(self) -> None:
        config = self.root / "coterie.yaml"
        config.touch(mode=0o600)
        key = base64.b64encode(self.key.encode()).decode()
        config.write_text(yaml.safe_dump({**self.settings, "domainKeyData": key}))
        program = [str(_LAUNCHER), str(self.skew)] if self.skew else ["-m", "coterie"]
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, *program, "start", "-c", str(config), "--root", str(self.root),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.root,
            )  # fmt: skip

    async def end(self, number: int = signal.SIGTERM) -> None:
        """The node's own process; after SIGKILL its Envoy goes on."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)
        if self.process is not None:
            await self.process.wait()
            self.process = None
        await self.forget()

    async def forget(self) -> None:
        """Close the client: the next one reads the kubeconfig anew."""
        if self._client is not None:
            await self._client.transport.close()
            self._client = None

    async def destroy(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.end(), 20)
        if self.process is not None:
            await self.end(signal.SIGKILL)
        if self._inside is not None:
            self._inside.close()
        for left in self._left():
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()

    def _left(self) -> list[psutil.Process]:
        """Processes of this node: their command lines name its root."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(str(self.root) + os.sep in word for word in process.cmdline()):
                    found.append(process)
        return found

    def as_node(self) -> aiohttp.ClientSession:
        """For calls that the node itself makes to its gateway, to any URL."""
        return aiohttp.ClientSession(connector=aiohttp.UnixConnector(GatewayPaths.of(self.paths).node_socket.host))

    @property
    def pid_file(self) -> Path:
        return GatewayPaths.of(self.paths).run / "envoy.pid"

    @property
    def envoy(self) -> int:
        return int(self.pid_file.read_text())

    # ---- what it says ----

    def output_tail(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def access_log(self, side: str = "external") -> str:
        path = GatewayPaths.of(self.paths).logs / f"{side}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def complaints(self) -> list[str]:
        """Errors in the log, except of an Envoy for which a busy machine had no room at first."""
        lines = [
            line
            for line in self.output_tail().splitlines()
            if " gateway.envoy: Envoy exited repeatedly; giving up" not in line
        ]
        return [line for line in lines if " error " in line[:40] or line.startswith("Traceback")]

    # ---- its API ----

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = Client(HttpTransport(kubeconfig.read(self.paths.kubeconfig).resolve()))
        return self._client

    async def up(self) -> None:
        """The API answers and knows the domain's namespace."""

        async def answers() -> bool:
            self._alive()
            if not self.paths.kubeconfig.exists():
                return False
            return bool(await self.client.list(GATEWAY, self.name))

        await until(f"{self.name} is up", answers)

    def _alive(self) -> None:
        if self.process is None or self.process.returncode is not None:
            raise AssertionError(f"{self.name} has ended:\n{self.output_tail()[-4000:]}")

    @property
    def inside(self) -> str:
        """Where a call is one of the domain's own pods."""
        if self._inside is None:
            self._inside = InsidePort.open(self.paths.run, self.internal.host, self.internal.port)
        return f"http://{self.internal}"

    @property
    def outside(self) -> str:
        return f"https://{self.external}"

    @property
    def certificate(self) -> str:
        """As objects hold it."""
        return base64.b64encode(self.paths.domain_certificate.read_bytes()).decode()

    @property
    def fingerprint(self) -> str:
        return pki.fingerprint(pki.load_certificate(self.paths.domain_certificate.read_bytes()))


def _door(where: SocketAddress) -> dict[str, Any]:
    return {"host": where.host, "port": where.port}


# ---- networks ----


class Network:
    def __init__(self, root: Path, third: int) -> None:
        self.root = root
        self.nodes: list[Node] = []
        self._third = third

    def _node(self, name: str, mode: str, **more: Any) -> Node:
        node = Node(self.root, name, mode, f"127.0.{self._third}.{len(self.nodes) + 1}", **more)
        self.nodes.append(node)
        return node

    def autonomy(self, name: str, **more: Any) -> Node:
        return self._node(name, "autonomy", **more)

    def master(self, name: str, **more: Any) -> Node:
        return self._node(name, "master", **more)

    def lite(self, name: str, master: Node, token: str = "", **more: Any) -> Node:
        known = {"masterEndpoint": master.outside, **({"liteDeployToken": token} if token else {})}
        return self._node(name, "lite", **known, **more)

    async def start(self, *nodes: Node) -> tuple[Node, ...]:
        """All at once; answers when the control planes among them are up."""
        await until("this user may have enough inotify instances", lambda: _room(len(nodes)))
        await asyncio.gather(*(each.start() for each in nodes))
        await asyncio.gather(*(each.up() for each in nodes if each.mode != "lite"))
        return nodes


async def _room(envoys: int) -> bool:
    """Each Envoy takes eleven of a user's inotify instances, which are 128 on many machines: other tests have theirs."""
    taken: list[int] = []
    try:
        while len(taken) < 12 * envoys and (made := _LIBC.inotify_init()) >= 0:
            taken.append(made)
        return len(taken) == 12 * envoys
    finally:
        for each in taken:
            os.close(each)


@contextlib.asynccontextmanager
async def network(root: Path, third: int = 7) -> AsyncIterator[Network]:
    """`third`: of the addresses 127.0.<third>.x."""
    made = Network(root, third)
    try:
        yield made
    finally:
        await asyncio.gather(*(each.destroy() for each in made.nodes))


# ---- objects ----


def a_route(source: str, destination: str, there: Node | None, **more: Any) -> Object:
    """`there`: whose public port it leads to; None with `transit`."""
    spec: Object = {
        "source": source,
        "destination": destination,
        "interConnProtocol": "kuscia",
        "authenticationType": "Token",
        "tokenConfig": {"tokenGenMethod": "RSA-GEN", "rollingUpdatePeriod": 0},
    }
    if there is not None:
        port = {"name": "http", "protocol": "HTTP", "port": there.external.port, "isTLS": True}
        spec["endpoint"] = {"host": there.external.host, "ports": [port]}
    return {"metadata": {"name": f"{source}-{destination}"}, "spec": {**spec, **more}}


def a_partner(name: str, certificate: str, **more: Any) -> Object:
    known = {"cert": certificate, "role": "partner", "interConnProtocols": ["kuscia"], **more}
    return {"metadata": {"name": name}, "spec": known}


async def put(node: Node, kind: Kind[Object], thing: Object, namespace: str = "") -> None:
    with contextlib.suppress(AlreadyExists):
        await node.client.create(kind, thing, namespace)


async def befriend(one: Node, other: Node, **more: Any) -> None:
    """Two control planes: each knows the other as a partner, with routes both ways."""
    for here, there in ((one, other), (other, one)):
        await put(here, DOMAIN, a_partner(there.name, there.certificate))
        # What lets others in first: a handshake about a route that is not known yet is refused.
        await put(here, CDR, a_route(there.name, here.name, here, **more))
    for here, there in ((one, other), (other, one)):
        await put(here, CDR, a_route(here.name, there.name, there, **more))


async def ready(plane: Node, *routes: str, seconds: float = PATIENCE) -> None:
    for route in routes:
        found: Object = {}

        async def is_ready(route: str = route) -> bool:
            nonlocal found
            found = await plane.client.get(CDR, route)
            conditions = (found.get("status") or {}).get("conditions") or []
            return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

        try:
            await until(f"{route} is ready at {plane.name}", is_ready, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{found.get('status')}\n{plane.output_tail()[-3000:]}") from error


async def tokens(plane: Node, route: str, namespace: str = "") -> list[Object]:
    found = await plane.client.get(DR, route, namespace or plane.name)
    return list(((found.get("status") or {}).get("tokenStatus") or {}).get("tokens") or ())


async def serve(plane: Node, domain: str, name: str, where: SocketAddress, **annotations: str | None) -> None:
    """A service of `domain` with one address; annotations by Kuscia's short names: protocol, access_domain. Every partner may
    call it unless told otherwise; `access_domain=None`: without an access list."""
    given = {"access_domain": "*", **annotations}
    notes = {f"kuscia.secretflow/{key.replace('_', '-')}": value for key, value in given.items() if value is not None}
    meta = {"name": name, "namespace": domain}
    port = {"name": "http", "port": where.port}

    async def created() -> bool:
        """The namespace may not be there yet."""
        with contextlib.suppress(AlreadyExists):
            spec = {"clusterIP": "None", "ports": [port]}
            await plane.client.create(SERVICE, {"metadata": {**meta, "annotations": notes}, "spec": spec})
        with contextlib.suppress(AlreadyExists):
            subset = {"addresses": [{"ip": where.host}], "ports": [port]}
            await plane.client.create(ENDPOINTS, {"metadata": meta, "subsets": [subset]})
        return True

    await until(f"service {name} of {domain} exists", created)


async def told(plane: Node, reason: str) -> Object:
    async def found() -> Object | None:
        events = (await plane.client.list(EVENT)).items
        return next((each for each in events if each["reason"] == reason), None)

    return await until(f"event {reason} at {plane.name}", found)


async def deploy_token(master: Node, name: str) -> str:
    """Makes the Domain; the token is bound to the certificate that the master shows."""
    center = {"authenticationType": "Token", "tokenGenMethod": "RSA-GEN"}
    await put(master, DOMAIN, {"metadata": {"name": name}, "spec": {"authCenter": center}})

    async def unused() -> str:
        found = (await master.client.get(DOMAIN, name)).get("status") or {}
        listed = found.get("deployTokenStatuses") or ()
        return next((each["token"] for each in listed if each["state"] == "unused"), "")

    return str(await until(f"a deploy token for {name}", unused))


# ---- calls ----


async def answered(
    http: aiohttp.ClientSession, node: Node, host: str, status: int = 200, seconds: float = PATIENCE
) -> Any:
    """Wait until a call from inside a domain is answered so; the body."""

    async def asked() -> Any:
        async with http.get(f"{node.inside}/x", headers={"Host": host}) as reply:
            text = await reply.text()
            if reply.status == status:
                return text or True
            raise ConnectionError(f"{reply.status} {text[:300]} {reply.headers.get('Kuscia-Error-Message')}")

    return await until(f"{host} from {node.name} answers {status}", asked, seconds)


@contextlib.asynccontextmanager
async def sink(host: str) -> AsyncIterator[SocketAddress]:
    """Takes bodies of any size: says how long they were, and their checksum."""

    async def handle(request: web.Request) -> web.StreamResponse:
        size = checksum = 0
        async for piece in request.content.iter_any():
            size, checksum = size + len(piece), crc32(piece, checksum)
        return web.json_response({"size": size, "checksum": checksum})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    try:
        yield SocketAddress(host, runner.addresses[0][1])
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def services(plane: Node, domain: str, host: str) -> AsyncIterator[None]:
    """`echo`, `stream` (gRPC) and `sink` of a domain, opened to everybody who has a route."""
    async with echo(host) as plain, streaming_echo(host) as stream, sink(host) as bulk:
        await serve(plane, domain, "echo", plain)
        await serve(plane, domain, "stream", stream, protocol="GRPC")
        await serve(plane, domain, "sink", bulk)
        yield
