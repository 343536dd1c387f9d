"""A whole node with its gateway: killed, it leaves an Envoy that goes on; started again, it takes that Envoy over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from gateway_kit import HOSTS, call, echo, free_port
from mesh_kit import ENDPOINTS, SERVICE, until

from coterie.base.paths import DomainPaths
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.transport import TransportError
from coterie.kuscia.gateway.paths import GatewayPaths

HOST = HOSTS["bob"]
START = 60.0


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = DomainPaths.of(root, "bob")
        ports = {"external": {"host": HOST, "port": free_port(HOST)}}
        document = {
            "mode": "master",
            "domainID": "bob",
            "apiServer": {"host": HOST, "port": free_port(HOST)},
            "dns": {"enabled": False},
            # On a fixed port of an address that networks of other tests use too.
            "kusciaAPI": {"enabled": False},
            "gateway": ports,
        }
        (root / "coterie.yaml").write_text(yaml.safe_dump(document))
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with (self.root / "node.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "coterie", "start", "-c", str(self.root / "coterie.yaml"),
                "--root", str(self.root), stdout=log, stderr=log,
            )  # fmt: skip

    async def end(self, number: int) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        await self.process.wait()

    def as_node(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.UnixConnector(GatewayPaths.of(self.paths).node_socket.host))

    @property
    def pid_file(self) -> Path:
        return GatewayPaths.of(self.paths).run / "envoy.pid"

    @property
    def envoy(self) -> int:
        return int(self.pid_file.read_text())


@asynccontextmanager
async def a_node(root: Path) -> AsyncIterator[Node]:
    node = Node(root)
    try:
        yield node
    finally:
        if node.process is not None:
            await node.end(signal.SIGTERM)
        if node.pid_file.exists():
            os.kill(node.envoy, signal.SIGKILL)


async def serve(client: Client, name: str, port: int) -> None:
    ports = [{"name": "http", "port": port}]
    meta = {"name": name, "namespace": "bob"}
    with contextlib.suppress(AlreadyExists):
        await client.create(SERVICE, {"metadata": meta, "spec": {"clusterIP": "None", "ports": ports}})
    subsets = [{"addresses": [{"ip": HOST}], "ports": ports}]
    with contextlib.suppress(AlreadyExists):
        await client.create(ENDPOINTS, {"metadata": meta, "subsets": subsets})


@pytest.mark.timeout(180)
async def test_traffic_goes_on_when_the_node_is_killed_and_started_again(tmp_path: Path) -> None:
    async with echo(HOST) as where, a_node(tmp_path) as node, node.as_node() as http:

        async def status(host: str) -> int:
            return (await call(http, "http://gateway/", host))[0]

        async def reaches(host: str) -> Any:
            return await status(host) == 200

        def connected() -> Client:
            return Client(HttpTransport(kubeconfig.read(node.paths.kubeconfig).resolve()))

        await node.start()
        await until(lambda: reachable(node), START)
        client = connected()
        await until(lambda: created(client, "echo", where.port), START)
        await until(lambda: reaches("echo.bob.svc"), START)
        before = node.envoy

        await node.end(signal.SIGKILL)
        await client.close()
        assert await status("echo.bob.svc") == 200

        failed: list[int] = []
        await node.start()
        client = connected()

        async def back() -> bool:
            """The node does its work again; meanwhile no call fails."""
            if (got := await status("echo.bob.svc")) != 200:
                failed.append(got)
            return await created(client, "later", where.port)

        await until(back, START)
        await until(lambda: reaches("later.bob.svc"), START)
        await client.close()
        assert failed == []
        assert node.envoy == before


async def reachable(node: Node) -> bool:
    return node.paths.kubeconfig.exists()


async def created(client: Client, name: str, port: int) -> bool:
    """False while the API is not there, or the domain has no namespace yet."""
    try:
        await serve(client, name, port)
    except (TransportError, NotFound):
        return False
    return True
