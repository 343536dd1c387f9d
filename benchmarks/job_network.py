"""Two partners that `coterie up` brings up, and jobs between them, followed by watches as a user's program would."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from benchmarks.node import cpu_of, memory_of
from coterie.base.backoff import Policy
from coterie.base.paths import DomainPaths
from coterie.cli import background
from coterie.kube.api.meta import Object
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_JOBS, KusciaJob
from coterie.kuscia.gateway.paths import GatewayPaths

PARTIES = ("alice", "bob")
TRIVIAL = "bench-trivial"
ENDED = ("Succeeded", "Failed", "Cancelled", "ApprovalReject")
_REPOSITORY = Path(__file__).parent.parent
_PATIENCE = 300.0
_RETRY = Policy(first=0.1, limit=1.0)
"""Nodes are killed on purpose, and are soon back."""
_IMAGE: Object = {
    "metadata": {"name": TRIVIAL},
    "spec": {
        "image": {"name": "coterie/host", "tag": "latest"},
        "deployTemplates": [
            {
                "name": "any",
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [
                        {
                            "name": "main",
                            "workingDir": "/tmp",
                            "command": ["true"],
                            "ports": [{"name": "talk", "protocol": "HTTP", "scope": "Cluster"}],
                        }
                    ],
                },
            }
        ],
    },
}


def job(name: str, tasks: Sequence[Object] = (), *, image: str = TRIVIAL, initiator: str = "alice", **spec: object) -> Object:  # fmt: skip
    """By default of one task of both parties."""
    listed = list(tasks) or [task("only", image=image)]
    return {
        "metadata": {"name": name, "namespace": CROSS_DOMAIN},
        "spec": {"initiator": initiator, "tasks": listed, **spec},
    }


def task(alias: str, after: Sequence[str] = (), *, image: str = TRIVIAL) -> Object:
    made: Object = {
        "alias": alias,
        "appImage": image,
        "taskInputConfig": "{}",
        "parties": [{"domainID": each} for each in PARTIES],
    }
    return {**made, "dependencies": list(after)} if after else made


class Side:
    """One partner: its API, its processes, and how far each job is there."""

    def __init__(self, root: Path, domain: str) -> None:
        self.domain = domain
        self.paths = DomainPaths.of(root, domain)
        self.client = Client(HttpTransport(kubeconfig.read(self.paths.kubeconfig).resolve()))
        self._jobs = Informer(self.client, KUSCIA_JOBS, namespace=CROSS_DOMAIN, retry=_RETRY)
        self._following: asyncio.Task[None] | None = None
        self.ended: dict[str, float] = {}
        """When each job was first seen in a phase that is an end."""
        self._news = asyncio.Event()

    async def begin(self) -> None:
        self._jobs.add_handler(self._note)
        self._following = asyncio.get_running_loop().create_task(self._jobs.run(), name=f"follow {self.domain}")
        await self._jobs.ready.wait()

    async def end(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self.client.close()

    def _note(self, change: ObjectChange[KusciaJob]) -> None:
        name, phase = change.object.metadata.name, change.object.status.phase
        if change.type == "deleted":
            self.ended.pop(name, None)
        elif phase in ENDED:
            self.ended.setdefault(name, time.monotonic())
        self._news.set()

    def phase(self, name: str) -> str:
        found = self._jobs.cache.get(name, CROSS_DOMAIN)
        return str(found.status.phase) if found is not None else ""

    @property
    def names(self) -> set[str]:
        return {key.name for key in self._jobs.cache.keys()}  # noqa: SIM118 - a cache iterates over objects

    async def until(self, names: set[str], *, gone: bool = False) -> None:
        """All of these ended here, or all are gone."""
        async with asyncio.timeout(_PATIENCE):
            while names & self.names if gone else not names <= self.ended.keys():
                self._news.clear()
                await self._news.wait()

    async def submit(self, *jobs: Object) -> None:
        await asyncio.gather(*(self.client.create(KUSCIA_JOBS.as_dynamic, each) for each in jobs))

    async def remove(self, *names: str) -> None:
        await asyncio.gather(*(self.client.delete(KUSCIA_JOBS, each, CROSS_DOMAIN) for each in names))

    @property
    def pid(self) -> int:
        return background.running(self.paths)

    @property
    def envoy(self) -> int:
        return int((GatewayPaths.of(self.paths).run / "envoy.pid").read_text())

    def memory(self) -> float:
        """PSS of the node's process in MiB."""
        return memory_of(self.pid)[1]

    def cpu(self) -> float:
        return cpu_of(self.pid)


class JobNetwork:
    def __init__(self, root: Path, bytecode: Path | None = None, module: str = "coterie") -> None:
        """`module`: which brings the nodes up."""
        self.root = root
        self._module = module
        self._environment = dict(os.environ)
        known = os.pathsep.join(filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH", ""))))
        self._environment["PYTHONPATH"] = known
        if bytecode is not None:
            self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
            self._environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
        self.sides: dict[str, Side] = {}

    def _coterie(self, *words: str) -> None:
        command = [sys.executable, "-m", self._module, *words, "--root", str(self.root)]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"coterie {words[0]}: {done.stdout}{done.stderr}")

    async def up(self) -> None:
        await self.start()
        await self.connect()

    async def start(self) -> None:
        words = ("up", "--topology", "p2p", "--domains", ",".join(PARTIES), "--wait", "120")
        await asyncio.to_thread(self._coterie, *words)

    async def connect(self) -> None:
        for domain in PARTIES:
            self.sides[domain] = side = Side(self.root, domain)
            await side.client.create(APP_IMAGES.as_dynamic, _IMAGE)
            await side.begin()

    async def disconnect(self) -> None:
        for side in self.sides.values():
            await side.end()
        self.sides.clear()

    async def down(self) -> None:
        await self.disconnect()
        await asyncio.to_thread(self._coterie, "down", "--purge", "--grace", "1")

    @property
    def alice(self) -> Side:
        return self.sides["alice"]

    async def run(self, *jobs: Object) -> tuple[float, list[str]]:
        """Seconds until the first side saw the end of all, once both have; and the phases of those that went wrong."""
        names = {each["metadata"]["name"] for each in jobs}
        began = time.monotonic()
        await self.alice.submit(*jobs)
        for side in self.sides.values():
            await side.until(names)
        seconds = max(self.alice.ended[name] for name in names) - began
        wrong = [
            f"{name} is {side.phase(name)} at {side.domain}"
            for side in self.sides.values()
            for name in sorted(names)
            if side.phase(name) != "Succeeded"
        ]
        return seconds, wrong

    async def remove(self, *jobs: Object) -> None:
        names = {each["metadata"]["name"] for each in jobs}
        await self.alice.remove(*names)
        for side in self.sides.values():
            await side.until(names, gone=True)


@contextlib.asynccontextmanager
async def job_network(root: Path, bytecode: Path | None = None, module: str = "coterie") -> AsyncIterator[JobNetwork]:
    net = JobNetwork(root, bytecode, module)
    try:
        await net.up()
        yield net
    finally:
        await net.down()
