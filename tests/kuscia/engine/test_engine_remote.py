"""Engines on other machines of the domain: how its gateway learns of them, and what their node waits for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import UserInfo
from coterie.kube.api.meta import Object, ObjectKey, ObjectMeta
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.nodes import Node, NodeSpec
from coterie.kube.api.types.pods import PODS, Pod, PodSpec, PodStatus
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import Domain, DomainSpec
from coterie.kuscia.controllers.domain import objects as domain_objects
from coterie.kuscia.engine import remote_engines
from coterie.kuscia.engine.remote_engines import RemoteEngines, RemoteGateway, engine_address
from coterie.kuscia.engine.remote_groups import AppliedRemotePods
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.gateway.callers import PodCallers

ALICE = UserInfo("system:serviceaccount:alice:alice", ("system:serviceaccounts", "system:authenticated"))
ADMIN = UserInfo("system:admin", ("system:masters", "system:authenticated"))
POD, NODE, NAMESPACE = PODS.as_dynamic, Kind.dynamic(builtin("nodes")), Kind.dynamic(builtin("namespaces"))
CONFIG_MAP = Kind.dynamic(builtin("configmaps"))
ADDRESS = "100.96.24.7"
PEERS = {"p.alice.svc", "p.bob.svc"}
REPORTS = {f"reporter.{name}.svc/report/progress?task_id=t" for name in ("master", "alice")}


class Scene:
    """The gateway of node-1 and an agent of node-2 over one API."""

    def __init__(
        self, admin: Client, client: Client, informers: Informers, network: AppliedRemotePods | None, *, own: bool
    ) -> None:
        self.client = admin
        self.callers = PodCallers(self._changed)
        self.gateway = RemoteGateway(client, informers, "node-2", "alice" if own else "")
        self.engines = RemoteEngines(
            client, informers, self.callers, "alice", "node-1", SYSTEM_CLOCK, own_only=own, network=network
        )
        self.envoy_works = True

    def _changed(self) -> None:
        """Envoy takes everything at once."""
        if self.envoy_works:
            self.callers.accepted(self.callers.snapshot())

    @property
    def known(self) -> dict[str, set[str]]:
        return {each.address: set(each.hosts) for each in self.callers.snapshot()}

    async def pod(self, name: str, node: str = "node-2", **marks: str) -> Object:
        annotations = {labels.KUSCIA_TASK_ID: "t", labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM: "values", **marks}
        body: Object = {
            "metadata": {"name": name, "annotations": {key: value for key, value in annotations.items() if value}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i:1"}]},
        }
        return await self.client.create(POD, body, "alice")

    async def address(self, pod: Object, address: str, **status: Any) -> None:
        patch = {"status": {"podIP": address, "podIPs": [{"ip": address}], **status}}
        await self.client.patch(POD, pod["metadata"]["name"], "alice", patch, subresource="status")


@asynccontextmanager
async def scene(network: AppliedRemotePods | None = None, *, own: bool = False) -> AsyncIterator[Scene]:
    """`own`: as the account of a lite's domain, which sees nothing else."""
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    client = Client(InProcessTransport(server.handle, ADMIN))
    await client.create(NAMESPACE, {"metadata": {"name": "alice"}})
    for number, domain in ((1, "alice"), (2, "alice"), (3, "bob")):
        meta = {"name": f"node-{number}", "labels": {labels.KUSCIA_NODE_NAMESPACE: domain}}
        await client.create(NODE, {"metadata": meta, "spec": {"podCIDR": f"100.96.{16 * (number - 1)}.0/20"}})
    define = {"parties": [{"services": [{"endpoints": [f"{each}:80"]}]} for each in PEERS]}
    values = {"metadata": {"name": "values"}, "data": {"TASK_CLUSTER_DEFINE": json.dumps(define)}}
    await client.create(CONFIG_MAP, values, "alice")
    used = client
    if own:
        await _let_alice_in(client)
        used = Client(InProcessTransport(server.handle, ALICE))
    informers = Informers(used)
    made = Scene(client, used, informers, network, own=own)
    tasks = [asyncio.create_task(each.run()) for each in (informers, made.engines.controller)]
    try:
        await made.engines.controller.ready.wait()
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        await server.stop()
        await store.close()


async def _let_alice_in(client: Client) -> None:
    """What the domain controller gives the account of a lite's domain."""
    domain = Domain(metadata=ObjectMeta(name="alice", uid="u"), spec=DomainSpec())
    for each in domain_objects.accounts(domain, "master"):
        await client.create(each.kind, each.object, each.namespace)


async def until(question: Callable[[], Any], seconds: float = 10.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not question():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


async def settled(questions: Iterable[Awaitable[Any]] = ()) -> None:
    """Everything that was going to happen has happened."""
    for question in questions:
        await question
    for _ in range(50):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("own", [False, True], ids=["control-plane", "lite"])
async def test_an_engine_starts_when_the_gateway_knows_it(own: bool) -> None:
    async with scene(own=own) as made:
        pod = await made.pod("t-0")
        await made.gateway.register(pod, ADDRESS)
        assert made.known[ADDRESS] == PEERS | REPORTS
        found = await made.client.get(POD, "t-0", "alice")
        assert found["status"]["podIP"] == ADDRESS
        await made.gateway.register(found, ADDRESS)  # after a restart of the agent


async def test_an_engine_waits_for_envoy() -> None:
    async with scene() as made:
        made.envoy_works = False
        waiting = asyncio.create_task(made.gateway.register(await made.pod("t-0"), ADDRESS))
        await until(lambda: ADDRESS in made.known)
        await settled()
        assert not waiting.done()
        made.callers.accepted(made.callers.snapshot())
        await asyncio.wait_for(waiting, 10)


async def test_an_engine_that_nobody_registers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engines, "_REGISTER_SECONDS", 0.05)
    async with scene() as made:
        made.envoy_works = False
        with pytest.raises(TimeoutError, match="the gateway at the control plane's node did not register the pod"):
            await made.gateway.register(await made.pod("t-0"), ADDRESS)


@pytest.mark.parametrize("end", ["deleted", "ended"])
async def test_an_engine_that_is_gone_is_forgotten(end: str) -> None:
    async with scene() as made:
        pod = await made.pod("t-0")
        await made.gateway.register(pod, ADDRESS)
        if end == "deleted":
            await made.client.delete(POD, "t-0", "alice", grace=0)
        else:
            await made.address(pod, ADDRESS, phase="Succeeded")
        await until(lambda: ADDRESS not in made.known)


async def test_an_address_belongs_to_the_pod_that_got_it_last() -> None:
    """The earlier one's end comes late."""
    async with scene() as made:
        await made.gateway.register(await made.pod("t-0"), ADDRESS)
        await made.gateway.register(await made.pod("u-0", **{labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM: ""}), ADDRESS)
        assert made.known[ADDRESS] == REPORTS
        await made.client.delete(POD, "t-0", "alice", grace=0)
        await settled()
        assert made.known[ADDRESS] == REPORTS


@pytest.mark.parametrize(
    ("node", "address", "marks"),
    [
        ("node-2", "100.96.8.7", {}),
        ("node-2", "100.96.16.7", {}),
        ("node-2", "10.0.0.1", {}),
        ("node-4", ADDRESS, {}),
        ("node-1", "100.96.8.7", {}),
        ("node-2", ADDRESS, {labels.KUSCIA_TASK_ID: ""}),
    ],
    ids=["of-another-node", "not-of-engines", "of-no-node", "node-unknown", "own-node", "no-task"],
)
async def test_what_is_no_engine_of_its_node_is_not_registered(
    node: str, address: str, marks: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with scene() as made:
        before = made.known
        await made.address(await made.pod("t-0", node, **marks), address)
        await settled()
        assert made.known == before
        assert not (await made.client.get(POD, "t-0", "alice"))["status"].get("conditions")
    assert ("cannot use the gateway" in caplog.text) == (node != "node-1" and not marks)


async def test_ordinary_pods_of_the_domains_nodes_are_known_by_their_range() -> None:
    async with scene() as made:
        await until(lambda: made.known == {"100.96.16.0/21": {"*"}})
        await made.client.delete(NODE, "node-2")
        await until(lambda: not made.known)


def test_pods_on_the_machines_network_have_no_address_of_their_own() -> None:
    node = Node(metadata=ObjectMeta(name="n"), spec=NodeSpec(pod_cidr="100.96.16.0/20"))
    pod = Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(host_network=True), status=PodStatus(pod_ip=ADDRESS))
    assert engine_address(pod, node) == ""


async def test_an_engine_waits_for_the_rules_of_the_gateways_node() -> None:
    """Until then it counts as a partner's there, and ConfManager would refuse it."""
    network = AppliedRemotePods()
    async with scene(network) as made:
        pod = await made.pod("t-0")
        registering = asyncio.create_task(made.gateway.register(pod, ADDRESS))
        await until(lambda: ADDRESS in made.known)
        network.set({ObjectKey("alice", "t-0"): "100.96.24.8"})
        await settled()
        assert not registering.done()
        network.set({ObjectKey("alice", "t-0"): ADDRESS})
        await registering
