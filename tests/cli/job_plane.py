"""A control plane with the real job controller in a thread of its own; tasks are played by a few lines.

What a task does stands in its input: `ok`, `fail`, `hang` (it runs until it is stopped), `wait` (it stays Pending).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, rfc3339
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.http.messages import UserInfo
from coterie.http.server import HttpServer
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.store import MemoryStore
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_TASKS
from coterie.kuscia.controllers.jobplan import controller as jobplan
from coterie.kuscia.controllers.kusciajob import controller as kusciajob
from coterie.kuscia.extensions.apiserver import KUSCIA

TOKEN = "a-token-for-jobs"
TASKS = KUSCIA_TASKS.as_dynamic
NAMESPACES = Kind.dynamic(builtin("namespaces"))
_PAUSE = 0.01


def engine() -> Object:
    container = {"name": "main", "command": ["run"], "workingDir": "/work"}
    return {
        "metadata": {"name": "sample"},
        "spec": {
            "image": {"name": "coterie/host", "tag": "latest"},
            "deployTemplates": [{"name": "t", "replicas": 1, "spec": {"containers": [container]}}],
        },
    }


class JobPlane:
    """alice and bob are ours; carol is a partner whom nobody plays."""

    def __init__(self) -> None:
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> JobPlane:
        self._thread.start()
        assert self._started.wait(30)
        assert self.port, "the control plane did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the control plane does not stop"

    def _run(self) -> None:
        try:
            # A runner ends what is left, generators and threads too, before it closes the loop: the garbage collector may
            # come by in another thread at any moment.
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        finally:
            self._started.set()  # also when it failed: nobody should wait for it

    async def _serve(self) -> None:
        user = UserInfo("tester", ("system:masters",))
        store = MemoryStore()
        await store.open()
        server = ApiServer(store, Settings(extensions=[KUSCIA], static_tokens=[(SecretValue(TOKEN), user)]))
        await server.start()
        http = HttpServer(server.handle)
        client = Client(InProcessTransport(server.handle, user))
        for name in (CROSS_DOMAIN, "alice", "bob", "carol"):
            with contextlib.suppress(ApiError):
                await client.create(NAMESPACES, {"metadata": {"name": name}})
        for name in ("alice", "bob", "carol"):
            spec = {"role": "partner"} if name == "carol" else {}
            await client.create(DOMAINS.as_dynamic, {"metadata": {"name": name}, "spec": spec})
        await client.create(APP_IMAGES.as_dynamic, engine())
        informers = Informers(client)
        jobs = kusciajob.make(client, informers, requires_approval=True)
        plans = jobplan.make(client, informers, requires_approval=True)
        async with TaskOwner("plane") as owner:
            owner.start("informers", informers.run())
            owner.start("jobs", jobs.run())
            owner.start("plans", plans.run())
            owner.start("tasks", _play(client))
            await jobs.ready.wait()
            _, self.port = await http.listen("127.0.0.1", 0)
            self._started.set()
            await self._stop.wait()
        await http.stop()
        await server.stop()
        await store.close()


async def _play(client: Client) -> None:
    while True:
        for task in (await client.list(TASKS, CROSS_DOMAIN)).items:
            # Somebody else was faster: the next pass sees it.
            with contextlib.suppress(ApiError):
                await _step(client, task)
        await asyncio.sleep(_PAUSE)


async def _step(client: Client, task: Object) -> None:
    meta, status = task["metadata"], task.get("status") or {}
    if meta.get("deletionTimestamp"):
        await client.patch(TASKS, meta["name"], CROSS_DOMAIN, {"metadata": {"finalizers": None}})
        return
    phase, script = status.get("phase"), task["spec"]["taskInputConfig"]
    wanted = {None: "Pending", "": "Pending", "Pending": "Running"}.get(phase)
    if phase == "Pending" and script == "wait":
        return
    if phase == "Running" and script in ("ok", "fail", "{}"):
        wanted = "Failed" if script == "fail" else "Succeeded"
    if wanted is not None:
        exactly = {"resourceVersion": meta["resourceVersion"]}
        await client.patch_status(
            TASKS, meta["name"], CROSS_DOMAIN, {"metadata": exactly, "status": _status(task, wanted)}
        )


def _status(task: Object, phase: str) -> Object:
    now = rfc3339(SYSTEM_CLOCK.now())
    name = task["metadata"]["name"]
    parties = [
        {"domainID": party["domainID"], "role": party.get("role", ""), "phase": phase}
        for party in task["spec"]["parties"]
    ]
    done: Any = {"Succeeded": "True", "Failed": "False"}.get(phase)
    conditions = [{"type": "ResourceCreated", "status": "True", "lastTransitionTime": now}]
    if phase != "Pending":
        conditions.append({"type": "Running", "status": "True", "lastTransitionTime": now})
    if done:
        conditions.append({"type": "Success", "status": done, "lastTransitionTime": now})
    pods = {
        f"{party['domainID']}/{name}-0": {
            "podName": f"{name}-0",
            "podPhase": phase,
            "namespace": party["domainID"],
            "nodeName": f"{party['domainID']}-node",
            "createTime": now,
            "scheduleTime": now,
            "startTime": now,
            **({"terminationLog": "cannot add apples to pears"} if phase == "Failed" else {}),
        }
        for party in parties
        if party["domainID"] != "carol"
    }
    message = "party alice: pod x-0: container main exited with 3\nx-0 printed at the end:\nno pears" * (
        phase == "Failed"
    )
    return {
        "phase": phase,
        "startTime": now,
        "progress": 1.0 if phase == "Succeeded" else 0.25,
        "partyTaskStatus": parties,
        "podStatuses": pods,
        "conditions": conditions,
        "message": message,
    }


def a_task(alias: str, *after: str, script: str = "ok", parties: tuple[str, ...] = ("alice", "bob")) -> Object:
    named = [{"domainID": party} for party in parties]
    task: Object = {"alias": alias, "appImage": "sample", "taskInputConfig": script, "parties": named}
    return {**task, "dependencies": list(after)} if after else task


def a_job(name: str, *tasks: Object, initiator: str = "alice", **spec: Any) -> Object:
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaJob",
        "metadata": {"name": name, "namespace": CROSS_DOMAIN},
        "spec": {"initiator": initiator, "tasks": list(tasks), "maxParallelism": 2, **spec},
    }


def plane() -> Iterator[JobPlane]:
    with JobPlane() as running:
        yield running
