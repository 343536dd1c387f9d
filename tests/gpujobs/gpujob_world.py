"""An API server in memory with the controller of GpuJobs, in real time: what it talks to (Slurm, ssh) has no other."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.tasks import TaskOwner
from coterie.gpujobs import controller, storage
from coterie.gpujobs.controller import GpuJobSettings
from coterie.gpujobs.files import JobFile, digest, split, write_archive
from coterie.gpujobs.types import GPU_JOBS, SLURM_CLUSTERS, GpuJob, GpuJobStatus
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import NAMESPACES, SECRETS
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.client.watch import Changed
from coterie.kube.control.events import EventRecorder
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.extensions.apiserver import KUSCIA

ADMIN = UserInfo("system:admin", ("system:masters",))
NAMESPACE = "alice"
JOB = GPU_JOBS.as_dynamic
CLUSTER = SLURM_CLUSTERS.as_dynamic


class GpuJobWorld:
    def __init__(self, server: ApiServer, client: Client, directory: Path, ssh_program: Sequence[str]) -> None:
        self.client = client
        self.client_for: Callable[[UserInfo], Client] = lambda user: Client(InProcessTransport(server.handle, user))
        self.settings = GpuJobSettings(directory, ssh_program=ssh_program, domain=NAMESPACE)
        self.reconciler: controller.GpuJobReconciler | None = None
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """The controller, as after a start of the control plane."""
        ready = asyncio.Event()
        self._work = asyncio.ensure_future(self._run(ready))
        done, _ = await asyncio.wait((self._work, asyncio.ensure_future(ready.wait())), return_when="FIRST_COMPLETED")
        if self._work in done:
            self._work.result()

    async def _run(self, ready: asyncio.Event) -> None:
        informers = Informers(self.client)
        events = EventRecorder(self.client, "gpujob-controller", clock=SYSTEM_CLOCK)
        made = controller.make(self.client, informers, settings=self.settings, events=events)
        self.reconciler = made._reconciler
        async with TaskOwner("world") as owner:
            owner.start("informers", informers.run())
            owner.start("events", events.run())
            owner.start("controller", made.run())
            await made.ready.wait()
            ready.set()
            await owner.wait()

    async def stop(self) -> None:
        """At once, as when the process is killed, except that its children end."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
            self._work = None

    async def add_cluster(self, name: str, spec: Object, private_key: str, namespace: str = NAMESPACE) -> None:
        secret = {
            "metadata": {"name": f"{name}-ssh", "namespace": namespace},
            "type": "kubernetes.io/ssh-auth",
            "data": {"ssh-privatekey": base64.b64encode(private_key.encode()).decode()},
        }
        await self.client.create(SECRETS.as_dynamic, secret)
        await self.client.create(CLUSTER, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})

    async def submit(self, name: str, files: dict[str, str] | None = None, **spec: Any) -> GpuJob:
        """With an upload, as `coterie gpujob run` does it."""
        body: Object = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
        data = write_archive({path: JobFile(text.encode()) for path, text in (files or {}).items()})
        if files:
            spec["files"] = [{"upload": {"parts": len(split(data)), "sha256": digest(data)}}]
        await self.client.create(JOB, body)
        job = await self.job(name)
        if files:
            await storage.store(self.client, job, "in", data)
        return job

    async def job(self, name: str) -> GpuJob:
        return await self.client.get(GPU_JOBS, name, NAMESPACE)

    async def phase(self, name: str) -> str:
        return (await self.job(name)).status.phase

    async def until_phase(self, name: str, *phases: str, seconds: float = 20.0) -> GpuJob:
        async def reached() -> bool:
            return await self.phase(name) in phases

        try:
            await until(reached, seconds)
        except TimeoutError:
            raise AssertionError(f"{name}: {(await self.job(name)).status}") from None
        return await self.job(name)

    async def finished(self, name: str, seconds: float = 20.0) -> GpuJob:
        return await self.until_phase(name, "Succeeded", "Failed", seconds=seconds)

    async def gone(self, name: str) -> bool:
        try:
            await self.job(name)
        except NotFound:
            return True
        return False


def crash_after_submission(world: GpuJobWorld, name: str) -> list[str]:
    """From now on the status write with the id of this job's Slurm job is lost, and so is all that this controller does later.

    The list gets the ids that were not written."""
    assert world.reconciler is not None
    write, lost = world.reconciler._write, []

    async def crash(job: GpuJob, status: GpuJobStatus) -> GpuJob:
        if job.metadata.name == name and status.slurm_job_id:
            if not lost:
                lost.append(status.slurm_job_id)
            await asyncio.sleep(3600)
        return await write(job, status)

    world.reconciler._write = crash  # type: ignore[method-assign]
    return lost


async def record_phases(world: GpuJobWorld, seen: dict[str, list[str]]) -> None:
    """Until it is cancelled: the phases of each job, in the order in which a watch shows them."""
    async with await world.client.watch(GPU_JOBS, NAMESPACE) as watch:
        async for event in watch:
            if isinstance(event, Changed) and (phase := event.object.status.phase):
                phases = seen.setdefault(event.object.metadata.name, [])
                if phases[-1:] != [phase]:
                    phases.append(phase)


async def until(question: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not await question():
            await asyncio.sleep(0.1)


@asynccontextmanager
async def gpujob_world(directory: Path, ssh_program: Sequence[str] = ("ssh",)) -> AsyncIterator[GpuJobWorld]:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    transport = InProcessTransport(server.handle, ADMIN)
    world = GpuJobWorld(server, Client(transport), directory, ssh_program)
    try:
        await world.client.create(NAMESPACES.as_dynamic, {"metadata": {"name": NAMESPACE}})
        yield world
    finally:
        await world.stop()
        await transport.close()
        await server.stop()
        await store.close()
