"""Sample engines as processes against each other, with a gateway that is a plain loopback proxy."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import coterie

SOURCE = str(Path(coterie.__file__).parents[1])
COMMAND = (sys.executable, "-S", "-P", "-m", "coterie.engines.sample")


class FakeGateway:
    """Leads each name to a port of this machine, as the gateways of all domains together would."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.refusals = 0
        """How many calls are answered by 503 before the first is let through."""
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            url = head.split(b" ", 2)[1].decode()
            host, _, path = url.removeprefix("http://").partition("/")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            if host == "reporter.master.svc":
                self.reports.append((path, json.loads(await reader.readexactly(length))))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            elif self.refusals > 0 or host not in self.ports:
                self.refusals -= 1
                writer.write(b"HTTP/1.1 503 Nobody\r\nContent-Length: 0\r\n\r\n")
            else:
                await self._carry(host, head, reader, writer)
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    async def _carry(self, host: str, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", self.ports[host])
        to.write(head)
        ways = [asyncio.ensure_future(_pump(reader, to)), asyncio.ensure_future(_pump(there, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(ways[1:], timeout=30)
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        to.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    except OSError:
        return


class Scene:
    def __init__(self, folder: Path, parties: list[str], gateway: FakeGateway, ports: list[int]) -> None:
        self.folder = folder
        self.parties = parties
        self.gateway = gateway
        self.ports = ports
        self._processes: list[Process] = []

    def configuration(self, party: str, wishes: object, **changes: Any) -> Path:
        cluster = {
            "parties": [
                {"name": each, "role": "", "services": [{"portName": "talk", "endpoints": [f"t-0-talk.{each}.svc"]}]}
                for each in self.parties
            ],
            "selfPartyIdx": self.parties.index(party),
            "selfEndpointIdx": 0,
        }
        port = self.ports[self.parties.index(party)]
        allocated = {"ports": [{"name": "talk", "port": port, "scope": "Cluster", "protocol": "HTTP"}]}
        whole = {
            "task_id": "t",
            "task_input_config": wishes if isinstance(wishes, str) else json.dumps(wishes),
            "task_cluster_def": json.dumps(cluster),
            "allocated_ports": json.dumps(allocated),
            "task_progress_url": "http://reporter.master.svc/report/progress?task_id=t",
            **changes,
        }
        path = self.folder / f"{party}.conf"
        path.write_text(json.dumps(whole))
        return path

    async def start(self, party: str, wishes: object = "", **changes: Any) -> Process:
        path = self.configuration(party, wishes, **changes)
        env = {**os.environ, "PYTHONPATH": SOURCE, "http_proxy": f"http://127.0.0.1:{self.gateway.port}"}
        process = await asyncio.create_subprocess_exec(*COMMAND, str(path), stdout=PIPE, stderr=PIPE, env=env)
        self._processes.append(process)
        return process

    async def dial(self, party: str, seconds: float = 30.0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to an engine, once it listens."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", self.ports[self.parties.index(party)])
            except OSError:
                assert time.monotonic() < deadline, f"the engine of {party} never listened"
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def ended(process: Process, seconds: float = 60.0) -> tuple[int, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), seconds)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def scene(folder: Path, *parties: str) -> AsyncIterator[Scene]:
    gateway = FakeGateway()
    server = await asyncio.start_server(gateway.handle, "127.0.0.1", 0)
    gateway.port = server.sockets[0].getsockname()[1]
    ports = free_ports(len(parties))
    gateway.ports = {f"t-0-talk.{party}.svc": port for party, port in zip(parties, ports, strict=True)}
    made = Scene(folder, list(parties), gateway, ports)
    try:
        yield made
    finally:
        await made.close()
        server.close()
        await server.wait_closed()


def free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to whoever dials: nobody takes them in between by accident."""
    found: list[int] = []
    chosen = random.Random(f"{os.getpid()}/{time.monotonic_ns()}")
    while len(found) < count:
        port = chosen.randrange(20000, 32000)
        with socket.socket() as trial:
            try:
                trial.bind(("0.0.0.0", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
