"""An API server in memory with the controllers of functions, a bus in memory, and actors that are HTTP servers in this process."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from memory_bus_kit import MemoryBus

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.base.tasks import TaskOwner
from coterie.functions.actor_pods import SPARE_LABEL
from coterie.functions.server import FunctionsServer
from coterie.functions.settings import FunctionsSettings
from coterie.functions.spare_plan import SparePolicy
from coterie.http.messages import Request, Response, UserInfo
from coterie.http.server import HttpServer
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import NAMESPACES
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.functions.types import ACTION_LABEL, ACTIONS, Action
from coterie.kuscia.extensions.apiserver import KUSCIA

ADMIN = UserInfo("system:admin", ("system:masters",))
NAMESPACE = "alice"
NO_SPARES = SparePolicy(0)
SCRIPT = "def action(req):\n    return 1\n"


async def until(look: Callable[[], Awaitable[Any]], seconds: float = 20.0) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := await look()):
            await asyncio.sleep(0.01)
        return found


class FakeSpare:
    """A spare actor with an address of its own on the loopback; after the claim it answers as the others do."""

    def __init__(self, digest: str, agent: FakeAgent) -> None:
        self._digest = digest
        self._agent = agent
        self.server = HttpServer(self.handle)
        self.claims: list[Object] = []
        self.content = b""

    async def handle(self, request: Request) -> Response:
        if self.claims:
            shown = request.headers.get("authorization", "").removeprefix("Bearer ")
            if request.path == "/healthz" or shown == self.claims[0]["COTERIE_ACTOR_TOKEN"]:
                return await self._agent.handle(request)
            return Response(401, b"the token is missing or wrong")
        if request.path == "/healthz":
            return Response(200, b"spare\n")
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.path != "/claim" or hashlib.blake2b(shown.encode(), digest_size=32).hexdigest() != self._digest:
            return Response(401, b"the token is missing or wrong")
        line, _, self.content = bytes(request.body).partition(b"\n")
        self.claims.append(orjson.loads(line)["environment"])
        return Response(422, self._agent.bad_code.encode()) if self._agent.bad_code else Response(200, b"claimed\n")


class FakeAgent:
    """Gives each pod of an actor an address on the loopback and answers there as an actor does."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self.port = 0
        self.spares: dict[str, FakeSpare] = {}
        """By the names of their pods, also of those that are gone."""
        self._servers: list[HttpServer] = []
        self.codes: list[str] = []
        """Versions that were put into actors."""
        self.bad_code = ""
        """What PUT /code is refused with."""
        self.exit: tuple[int, str] | None = None
        """How every new actor ends."""
        self.calls: list[str] = []
        self.owner = TaskOwner("fake agent")
        informers.get(PODS, NAMESPACE).add_handler(self._changed)

    async def handle(self, request: Request) -> Response:
        if request.path == "/healthz":
            return Response(200, b"ok\n")
        if request.path == "/code":
            if self.bad_code:
                return Response(422, self.bad_code.encode())
            self.codes.append(request.query)
            return Response(200, b"{}")
        head = orjson.loads(request.body.partition(b"\n")[0])
        self.calls.append(head["action"])
        answer = orjson.dumps({"response": {"status": 200, "contentType": "text/plain", "headers": {}}})
        return Response(200, answer + b"\n" + head["action"].encode())

    def _changed(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        if not {ACTION_LABEL, SPARE_LABEL} & (pod.metadata.labels or {}).keys() or change.type == "deleted":
            return
        if pod.metadata.deleting:
            self.owner.start("end", self._end(pod), vital=False)
        elif not pod.status.pod_ip and not pod.ended:
            self.owner.start("start", self._start(pod), vital=False)

    async def end(self, name: str, code: int, message: str) -> None:
        ended = {"exitCode": code, "message": message}
        status = {"phase": "Failed", "containerStatuses": [_container({"terminated": ended})]}
        await self._client.patch_status(PODS.as_dynamic, name, NAMESPACE, {"status": status})

    async def _address(self, pod: Pod) -> str:
        if SPARE_LABEL not in (pod.metadata.labels or {}):
            return "127.0.0.1"
        whole = await self._client.get(PODS.as_dynamic, pod.metadata.name, NAMESPACE)
        variables = {each["name"]: each["value"] for each in whole["spec"]["containers"][0]["env"]}
        spare = self.spares[pod.metadata.name] = FakeSpare(variables["COTERIE_ACTOR_SPARE"], self)
        self._servers.append(spare.server)
        address = f"127.0.0.{len(self._servers) + 1}"
        await spare.server.listen(address, self.port)
        return address

    async def close(self) -> None:
        for each in self._servers:
            await each.stop(0.0)

    async def _start(self, pod: Pod) -> None:
        status: Object = {"phase": "Running", "podIP": await self._address(pod)}
        if self.exit is not None:
            ended = {"exitCode": self.exit[0], "message": self.exit[1]}
            status = {"phase": "Failed", "containerStatuses": [_container({"terminated": ended})]}
        await self._client.patch_status(PODS.as_dynamic, pod.metadata.name, NAMESPACE, {"status": status})

    async def _end(self, pod: Pod) -> None:
        try:
            await self._client.delete(PODS, pod.metadata.name, NAMESPACE, grace=0)
        except NotFound:
            return


def _container(state: Object) -> Object:
    return {"name": "actor", "state": state, "ready": False, "restartCount": 0, "image": "", "imageID": ""}


class FunctionsWorld:
    def __init__(self, client: Client, bus: MemoryBus, server: FunctionsServer, agent: FakeAgent) -> None:
        self.client = client
        self.bus = bus
        self.server = server
        self.agent = agent

    async def apply(self, object_name: str, kind: Any = ACTIONS, **spec: Any) -> None:
        body: Object = {
            "apiVersion": kind.resource.api_version,
            "kind": kind.resource.kind,
            "metadata": {"name": object_name, "namespace": NAMESPACE},
            "spec": spec,
        }
        await self.client.apply(kind.as_dynamic, body, force=True)

    async def action(self, name: str) -> Action:
        return await self.client.get(ACTIONS, name, NAMESPACE)

    async def version(self, name: str) -> str:
        """Of its code, once its objects are there."""

        async def look() -> str:
            return (await self.action(name)).status.version

        return str(await until(look))

    async def pods(self, name: str) -> list[Pod]:
        found = await self.client.list(PODS, NAMESPACE, labels=f"{ACTION_LABEL}={name}")
        return [each for each in found.items if not each.metadata.deleting]

    async def spares(self) -> list[Pod]:
        found = await self.client.list(PODS, NAMESPACE, labels=SPARE_LABEL)
        return [each for each in found.items if not each.metadata.deleting]

    async def ready_spares(self, count: int) -> list[Pod]:
        """Once there are so many of them, and they can be claimed."""

        async def look() -> list[Pod] | None:
            found = await self.spares()
            return found if len(found) == count == self.server.spares.ready_count() else None

        pods: list[Pod] = await until(look)
        return pods

    async def until_ready(self, name: str, count: int) -> None:
        async def look() -> bool:
            return (await self.action(name)).status.ready_replicas == count

        await until(look)


@asynccontextmanager
async def functions_world(
    directory: Path, monkeypatch: Any, spares: SparePolicy = NO_SPARES, before: Sequence[Object] = ()
) -> AsyncIterator[FunctionsWorld]:
    """`before`: pods that are there from the beginning."""
    store = MemoryStore()
    await store.open()
    api = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await api.start()
    client = Client(InProcessTransport(api.handle, ADMIN))
    await client.create(NAMESPACES.as_dynamic, {"metadata": {"name": NAMESPACE}})
    for each in before:
        await client.create(PODS.as_dynamic, each, NAMESPACE)
    informers = Informers(client)
    agent = FakeAgent(client, informers)
    actor = HttpServer(agent.handle)
    _, port = await actor.listen("127.0.0.1", 0)
    agent.port = port
    for module in ("actor_monitor", "controller"):
        monkeypatch.setattr(f"coterie.functions.{module}.ACTOR_PORT", port)
    bus = MemoryBus(lambda: int(SYSTEM_CLOCK.now().timestamp() * 1000))
    directory.joinpath("var/storage/functions").mkdir(parents=True)
    settings = FunctionsSettings(NAMESPACE, DomainPaths(directory), spares=spares)
    server = FunctionsServer(settings, client, bus, SYSTEM_CLOCK)
    async with TaskOwner("world") as owner, agent.owner:
        owner.start("informers", informers.run())
        running = owner.start("functions", server.run())
        async with asyncio.timeout(20):
            await server.ready.wait()
        yield FunctionsWorld(client, bus, server, agent)
        server.stop()
        await asyncio.wait((running,), timeout=20)
    await actor.stop(0.0)
    await agent.close()
    await api.stop()
    await store.close()
