"""The platform stands without the product: API server, controllers, scheduler and agent, and no Kuscia anywhere."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path

import pytest

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.gpujobs.registry import CONTROLLERS as GPU_JOB_CONTROLLERS
from coterie.http.messages import Request, UserInfo
from coterie.kube.agent import agent
from coterie.kube.agent.runtimes.fake import HOST_IMAGE, FakeMachine, FakeRuntime
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.api.types.apps import DEPLOYMENTS
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.control import registry
from coterie.kube.control.manager import Manager
from coterie.kube.controllers.nodeipam import plan as nodeipam
from coterie.kube.controllers.registry import CONTROLLERS
from coterie.kube.store import MemoryStore
from coterie.kuscia.controllers.registry import CONTROLLERS as KUSCIA_CONTROLLERS

ADMIN = UserInfo("admin", ("system:masters", "system:authenticated"))
PROVIDED = {
    "root_ca": lambda: "ca",
    "pod_hook": lambda: None,
    "node_lifecycle": lambda: None,
    "node_ipam": lambda: nodeipam.Settings(ranges=(nodeipam.ClusterRange.of("100.96.0.0/12", 20),)),
    "autoscaler_period": lambda: 15.0,
    "scale_hook": lambda: None,
    "scheduler_plugins": lambda: (),
    "scheduler_metrics": lambda: None,
}
DEPLOYMENT = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": HOST_IMAGE, "command": ["sh", "-c", "sleep 1000"]}]},
        },
    },
}


async def test_a_deployment_runs_on_the_platform_alone(tmp_path: Path) -> None:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(signer=TokenSigner(pki.new_key())))
    await server.start()
    client = Client(InProcessTransport(server.handle, ADMIN))
    informers = Informers(client)
    machine = FakeMachine(SYSTEM_CLOCK)
    node = agent.make(
        client, informers, FakeRuntime(machine), AgentSettings("node-1", DomainPaths(tmp_path / "alone").prepare())
    )
    parts = registry.build(CONTROLLERS, client, informers, PROVIDED, SYSTEM_CLOCK)
    manager = Manager([[informers], parts, *node.groups], name="platform")
    running = asyncio.create_task(manager.run())
    try:
        async with asyncio.timeout(30):
            await manager.ready.wait()
            await client.create(DEPLOYMENTS.as_dynamic, DEPLOYMENT)
            while True:
                pods = (await client.list(PODS, "default")).items
                if [pod.status.phase for pod in pods] == ["Running", "Running"]:
                    break
                await asyncio.sleep(0.02)
        nodes = await client.list(NODES.as_dynamic)
        said = json.dumps([nodes.items, await discovery(server)])
        assert "kuscia" not in said.lower()
    finally:
        manager.stop()
        await running
        await machine.close()
        await client.close()
        await server.stop()
        await store.close()


async def discovery(server: ApiServer) -> list[str]:
    """Everything the server says of itself: groups, resources, OpenAPI, roles, namespaces."""
    paths = ("/api", "/apis", "/openapi/v2", "/openapi/v3", "/api/v1/namespaces", "/version", "/metrics")
    roles = (
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    )
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    found = []
    for path in (*paths, *roles, definitions):
        answer = await server.call(Request("GET", path, headers={"accept": "application/json"}, user=ADMIN))
        assert answer.status == 200, path
        found.append(bytes(answer.body).decode())
    return found


@pytest.mark.parametrize("spec", [*CONTROLLERS, *KUSCIA_CONTROLLERS, *GPU_JOB_CONTROLLERS], ids=lambda spec: spec.name)
def test_each_declared_controller_can_be_made(spec: registry.ControllerSpec) -> None:
    module = __import__(spec.module, fromlist=["make"])
    takes = inspect.signature(module.make).parameters
    assert set(spec.needs) <= set(takes)
    assert "clock" in takes and list(takes)[:2] == ["client", "informers"]
    assert not spec.events or "events" in takes


def test_names_of_controllers_are_unique() -> None:
    names = [spec.name for spec in (*CONTROLLERS, *KUSCIA_CONTROLLERS, *GPU_JOB_CONTROLLERS)]
    assert len(names) == len(set(names))
