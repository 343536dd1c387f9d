"""A whole small cluster for tests: the API server in memory, controllers, and a kubelet made of a few lines.

Time is virtual. `world.until(question)` lets the kubelet work and time pass until the question is answered with yes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import orjson

from coterie.base.clock import VirtualClock, rfc3339, rfc3339_micro
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import Transport, TransportError, TransportRequest, TransportResponse
from coterie.kube.control.events import EventRecorder
from coterie.kube.store.memory import MemoryStore

ADMIN = UserInfo("system:admin", ("system:masters",))
POD = Kind.dynamic(builtin("pods"))
NODE = Kind.dynamic(builtin("nodes"))
LEASE = Kind.dynamic(builtin("leases", "coordination.k8s.io"))
RS = Kind.dynamic(builtin("replicasets", "apps"))
DEPLOYMENT = Kind.dynamic(builtin("deployments", "apps"))
RC = Kind.dynamic(builtin("replicationcontrollers"))
DS = Kind.dynamic(builtin("daemonsets", "apps"))
STS = Kind.dynamic(builtin("statefulsets", "apps"))
REVISION = Kind.dynamic(builtin("controllerrevisions", "apps"))
PV = Kind.dynamic(builtin("persistentvolumes"))
PVC = Kind.dynamic(builtin("persistentvolumeclaims"))
STORAGE_CLASS = Kind.dynamic(builtin("storageclasses", "storage.k8s.io"))
JOB = Kind.dynamic(builtin("jobs", "batch"))
CRON = Kind.dynamic(builtin("cronjobs", "batch"))
SERVICE = Kind.dynamic(builtin("services"))
ENDPOINTS = Kind.dynamic(builtin("endpoints"))
SLICE = Kind.dynamic(builtin("endpointslices", "discovery.k8s.io"))
EVENT = Kind.dynamic(builtin("events"))
QUOTA = Kind.dynamic(builtin("resourcequotas"))

Make = Callable[..., Any]
STEP = 0.2


class Faulty:
    """A transport for controllers that now and then loses a request, or worse, the answer to one that was carried out."""

    def __init__(self, inner: Transport, random: Random, clock: VirtualClock | None = None) -> None:
        self._inner = inner
        self._clock = clock
        self._random = random
        self.share = 0.0
        """Part of the writes that go wrong."""
        self.refuse: Callable[[TransportRequest], ApiError | None] = lambda call: None
        """What the server answers instead of carrying a request out."""
        self.answer: Callable[[TransportRequest], Object | None] = lambda call: None
        """What is answered in place of the server."""
        self.delay: Callable[[TransportRequest], float] = lambda call: 0.0
        """Seconds for which a request is on its way."""

    async def send(self, call: TransportRequest) -> TransportResponse:
        refusal = self.refuse(call)
        if refusal is not None:
            return TransportResponse(refusal.code, body=orjson.dumps(refusal.status()))
        if (given := self.answer(call)) is not None:
            return TransportResponse(200, body=orjson.dumps(given))
        if self._clock is not None and (seconds := self.delay(call)):
            await self._clock.sleep(seconds)
        luck = self._random.random()
        if call.mutating and luck < self.share / 2:
            raise TransportError("the request was lost")
        reply = await self._inner.send(call)
        if call.mutating and luck < self.share:
            raise TransportError("the answer was lost")
        return reply

    async def close(self) -> None:
        await self._inner.close()


class World:
    def __init__(
        self, client: Client, clock: VirtualClock, faults: Faulty, makes: Sequence[tuple[str, Make] | Make]
    ) -> None:
        self.client = client
        self.clock = clock
        self.faults = faults
        self._makes = makes
        self.client_for: Callable[[UserInfo], Client] = lambda user: client
        """A client of another user."""
        self._tasks: list[asyncio.Task[None]] = []
        self.nodes: list[str] = ["node-a", "node-b"]
        self.down: set[str] = set()
        """Nodes whose kubelet does nothing."""
        self.outcome: Callable[[Object], str] = lambda pod: "Running"
        """What becomes of a pod: Running, Succeeded, Failed, NotReady or Pending."""
        self.started: list[str] = []
        self._turn = 0
        self._addresses: dict[str, str] = {}

    # The kubelet (and, in one line, the scheduler).

    async def kubelet(self) -> None:
        for pod in (await self.client.list(POD)).items:
            meta, spec = pod["metadata"], pod["spec"]
            try:
                if not spec.get("nodeName"):
                    await self._bind(meta, spec)
                elif spec["nodeName"] not in self.down:
                    await self._run(pod)
            except ApiError:
                continue  # somebody else was faster; the next pass sees it

    async def _bind(self, meta: Object, spec: Object) -> None:
        meant = named_node(spec)
        ready = [name for name in self.nodes if name not in self.down and meant in ("", name)]
        if not ready or meta.get("deletionTimestamp"):
            return
        self._turn += 1
        target = {"apiVersion": "v1", "kind": "Node", "name": ready[self._turn % len(ready)]}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
        await self.client.create(POD, body, meta["namespace"], name=meta["name"], subresource="binding")

    async def _run(self, pod: Object) -> None:
        meta, status = pod["metadata"], pod.get("status") or {}
        if meta.get("deletionTimestamp"):
            if not meta.get("finalizers"):
                await self.client.delete(POD, meta["name"], meta["namespace"], grace=0, uid=meta["uid"])
            elif status.get("phase") not in ("Succeeded", "Failed"):
                await self._report(pod, "Failed", 137)
            return
        wanted = self.outcome(pod)
        if status.get("phase") in ("Succeeded", "Failed"):
            return
        if wanted in ("Succeeded", "Failed"):
            await self._report(pod, wanted, 0 if wanted == "Succeeded" else 1)
        elif wanted != "Pending":
            await self._report(pod, "Running", None, ready=wanted == "Running")

    async def _report(self, pod: Object, phase: str, code: int | None, ready: bool = False) -> None:
        meta = pod["metadata"]
        now = rfc3339(self.clock.now())
        word = "True" if ready else "False"
        known = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
        since = known["Ready"]["lastTransitionTime"] if known.get("Ready", {}).get("status") == word else now
        if meta["uid"] not in self._addresses:
            self._addresses[meta["uid"]] = f"10.0.{len(self._addresses) // 250}.{len(self._addresses) % 250 + 1}"
            self.started.append(meta["name"])
        address = self._addresses[meta["uid"]]
        state: Object = {"running": {"startedAt": now}}
        if code is not None:
            state = {"terminated": {"exitCode": code, "finishedAt": now, "reason": "Error" if code else "Completed"}}
        container = {
            "name": pod["spec"]["containers"][0]["name"],
            "ready": ready,
            "restartCount": 0,
            "image": "i",
            "imageID": "",
            "state": state,
        }
        if (pod.get("status") or {}).get("phase") == phase and known.get("Ready", {}).get("status") == word:
            return
        status = {
            "phase": phase,
            "startTime": (pod.get("status") or {}).get("startTime") or now,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": word, "lastTransitionTime": since}],
            "containerStatuses": [container],
        }
        await self.client.patch_status(POD, meta["name"], meta["namespace"], {"status": status})

    # Time and questions.

    async def settle(self, seconds: float = 1.0, step: float = STEP) -> None:
        for _ in range(max(1, round(seconds / step))):
            await self.kubelet()
            await self.clock.advance(step)

    async def until(self, question: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
        for _ in range(round(seconds / STEP)):
            if await question():
                return
            await self.settle(STEP)
        raise AssertionError(f"not true within {seconds} s: {await self.picture()}")

    async def picture(self) -> list[Any]:
        pods = [
            (p["metadata"]["name"], p["spec"].get("nodeName"), (p.get("status") or {}).get("phase"))
            for p in await self.pods()
        ]
        sets = [(r["metadata"]["name"], r["spec"]["replicas"], r.get("status")) for r in await self.list(RS)]
        return [pods, sets, [d.get("status") for d in await self.list(DEPLOYMENT)], await self.events()]

    # Reading.

    async def list(self, kind: Kind[Object], namespace: str = "default") -> list[Object]:
        return (await self.client.list(kind, namespace)).items

    async def get(self, kind: Kind[Object], name: str, namespace: str = "default") -> Object:
        return await self.client.get(kind, name, namespace)

    async def exists(self, kind: Kind[Object], name: str, namespace: str = "default") -> bool:
        try:
            await self.client.get(kind, name, namespace)
        except NotFound:
            return False
        return True

    async def status(self, kind: Kind[Object], name: str) -> Object:
        return (await self.get(kind, name)).get("status") or {}

    async def pods(self, *, alive: bool = False) -> list[Object]:
        return [
            pod
            for pod in await self.list(POD)
            if not alive
            or (
                not pod["metadata"].get("deletionTimestamp")
                and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
            )
        ]

    async def events(self) -> list[tuple[str, str]]:
        return [(e["reason"], e["message"]) for e in await self.list(EVENT)]

    async def beat(self, *names: str, seconds: float = 0.0) -> None:
        """Nodes renew their leases, now and every ten seconds."""
        left = seconds
        while True:
            for name in names:
                renewed = {"spec": {"renewTime": rfc3339_micro(self.clock.now())}}
                await self.client.patch(LEASE, name, "kube-node-lease", renewed)
            if left <= 0:
                return
            await self.settle(min(10.0, left))
            left -= 10.0

    # The controllers.

    async def start(self) -> None:
        """New controllers with new caches."""
        client = Client(self.faults, clock=self.clock)
        informers = Informers(client)
        runnables = list(_assemble(client, informers, self.clock, self._makes))
        self._tasks = [asyncio.create_task(r.run()) for r in (informers, *runnables)]
        for _ in range(200):
            await self.clock.advance(0.01)
            if all(r.ready.is_set() for r in runnables):
                return
        raise AssertionError([r.name for r in runnables if not r.ready.is_set()])

    async def stop(self) -> None:
        """The controllers die where they stand."""
        for task in self._tasks:
            assert not task.done(), task
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []


@asynccontextmanager
async def world(*makes: tuple[str, Make] | Make, seed: int = 1) -> AsyncIterator[World]:
    """Makes are `make` functions, alone or with the component's name when they take events."""
    clock = VirtualClock()
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(toleration_seconds=30), clock)
    await server.start()
    transport = InProcessTransport(server.handle, ADMIN)
    made = World(Client(transport, clock=clock), clock, Faulty(transport, Random(seed)), makes)
    made.client_for = lambda user: Client(InProcessTransport(server.handle, user), clock=clock)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()
        await transport.close()
        await server.stop()
        await store.close()


def _assemble(
    client: Client, informers: Informers, clock: VirtualClock, makes: Iterable[tuple[str, Make] | Make]
) -> Iterable[Any]:
    for entry in makes:
        if isinstance(entry, tuple):
            component, make = entry
            recorder = EventRecorder(client, component, clock=clock)
            yield recorder
            yield make(client, informers, events=recorder, clock=clock)
        else:
            made = entry(client, informers, clock=clock)
            yield from made if isinstance(made, list) else [made]


def named_node(spec: Object) -> str:
    """The node that a pod's affinity names by the field metadata.name."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {"nodeSelectorTerms": ()}
    names = [f["values"][0] for term in required["nodeSelectorTerms"] for f in term.get("matchFields") or ()]
    return names[0] if names else ""


def template(labels: dict[str, str] | None = None, image: str = "i:1", **spec: Any) -> Object:
    return {
        "metadata": {"labels": labels or {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": image}], **spec},
    }


def workload(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """A replica set or a deployment."""
    labels = labels or {"app": "web"}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template(labels), **spec},
    }
