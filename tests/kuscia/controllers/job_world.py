"""A control plane that runs jobs, for tests: job, task and group controllers with the real scheduler; pods are run by a
few lines in place of an agent. Time is virtual.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from domain_world import DOMAIN, DOMAIN_PLANE, Mesh, a_domain
from workload_world import ADMIN, Faulty, Make, World

from coterie.base.clock import VirtualClock
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.controllers.gc.controller import GarbageCollector
from coterie.kube.scheduler import scheduler
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, TASK_RESOURCE_GROUPS
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES
from coterie.kuscia.control.port_pool import PortPool
from coterie.kuscia.controllers.kusciajob import controller as kusciajob
from coterie.kuscia.controllers.kusciatask import controller as kusciatask
from coterie.kuscia.controllers.taskresourcegroup import controller as taskresourcegroup
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.gangs.plugin import GangPlugin

JOB, TASK, IMAGE = KUSCIA_JOBS.as_dynamic, KUSCIA_TASKS.as_dynamic, APP_IMAGES.as_dynamic
GROUP, RESERVATION = TASK_RESOURCE_GROUPS.as_dynamic, TASK_RESOURCES.as_dynamic
POD, NODE, SERVICE = (Kind.dynamic(builtin(plural)) for plural in ("pods", "nodes", "services"))
CONFIG_MAP = Kind.dynamic(builtin("configmaps"))


def _tasks(client: Client, informers: Any, **more: Any) -> Any:
    return kusciatask.make(client, informers, ports=PortPool(random=Random(7)), **more)


JOB_PLANE: tuple[tuple[str, Make] | Make, ...] = (
    *DOMAIN_PLANE,
    ("kusciajob-controller", kusciajob.make),
    ("kusciatask-controller", _tasks),
    taskresourcegroup.make,
    lambda client, informers, clock: scheduler.make(client, informers, clock=clock, plugins=[GangPlugin()]),
    lambda client, informers, clock: GarbageCollector(client, clock=clock),
)


def an_image(name: str = "engine", **template: Any) -> Object:
    ports = [
        {"name": "talk", "protocol": "HTTP", "scope": "Cluster"},
        {"name": "inner", "protocol": "GRPC", "scope": "Domain"},
        {"name": "own", "scope": "Local"},
    ]
    container = {
        "name": "main",
        "workingDir": "/work",
        "command": ["run"],
        "ports": ports,
        "configVolumeMounts": [{"mountPath": "/work/kuscia/task-config.conf", "subPath": "task-config.conf"}],
    }
    deploy = {"name": "t", "spec": {"containers": [container]}, **template}
    return {
        "metadata": {"name": name},
        "spec": {
            "image": {"name": "coterie/host", "tag": "latest"},
            "configTemplates": {"task-config.conf": '{"task": "{{.TASK_ID}}"}'},
            "deployTemplates": [deploy],
        },
    }


def a_task(alias: str, *after: str, parties: tuple[str, ...] = ("alice", "bob"), **more: Any) -> Object:
    named = [{"domainID": party} for party in parties]
    task = {"alias": alias, "appImage": "engine", "taskInputConfig": '{"n": 1}', "parties": named, **more}
    return {**task, "dependencies": list(after)} if after else task


def a_job(*tasks: Object, name: str = "j", initiator: str = "alice", **spec: Any) -> Object:
    body = {"initiator": initiator, "tasks": list(tasks), "maxParallelism": 2, **spec}
    return {"metadata": {"name": name, "namespace": CROSS_DOMAIN}, "spec": body}


class JobWorld(Mesh):
    """`outcome(pod)` says what becomes of a pod once it is bound."""

    async def kubelet(self) -> None:
        await Mesh.kubelet(self)
        await World.kubelet(self)

    async def _bind(self, meta: Object, spec: Object) -> None:
        """The scheduler's work."""

    async def add_domain(self, name: str, *, nodes: int = 1, cpu: str = "4", **spec: Any) -> None:
        await self.client.create(DOMAIN, a_domain(name, **spec))
        for number in range(nodes):
            await self.add_node(name, f"{name}-{number}", cpu)

    async def add_node(self, domain: str, name: str, cpu: str = "4") -> None:
        body = {
            "metadata": {"name": name, "labels": {labels.KUSCIA_NODE_NAMESPACE: domain}},
            "spec": {"taints": [{"key": labels.KUSCIA_AGENT_TAINT, "value": "v1", "effect": "NoSchedule"}]},
        }
        await self.client.create(NODE, body)
        room = {"cpu": cpu, "memory": "8Gi", "pods": "110", labels.KUSCIA_BANDWIDTH: "100"}
        ready = [{"type": "Ready", "status": "True"}]
        status = {"status": {"capacity": room, "allocatable": room, "conditions": ready}}
        await self.client.patch_status(NODE, name, "", status)

    async def job(self, name: str = "j") -> Object:
        return await self.get(JOB, name, CROSS_DOMAIN)

    async def job_status(self, name: str = "j") -> Object:
        return (await self.job(name)).get("status") or {}

    async def until_phase(self, wanted: str, name: str = "j", seconds: float = 60) -> Object:
        async def reached() -> bool:
            return (await self.job_status(name)).get("phase") == wanted

        await self.until(reached, seconds)
        return await self.job_status(name)

    async def tasks(self) -> dict[str, Object]:
        return {
            task["metadata"]["annotations"][labels.KUSCIA_TASK_ALIAS]: task
            for task in await self.list(TASK, CROSS_DOMAIN)
        }

    async def task_status(self, alias: str) -> Object:
        return (await self.tasks())[alias].get("status") or {}

    async def order(self, stage: str, version: int, trigger: str = "alice", name: str = "j") -> None:
        told = {labels.KUSCIA_JOB_STAGE: stage, labels.KUSCIA_JOB_STAGE_VERSION: str(version)}
        told[labels.KUSCIA_JOB_STAGE_TRIGGER] = trigger
        await self.client.patch(JOB, name, CROSS_DOMAIN, {"metadata": {"labels": told}})

    async def left_behind(self) -> list[str]:
        """Whatever of tasks is still there, except pods that failed and what belongs to them."""
        out = [f"group {each['metadata']['name']}" for each in (await self.client.list(GROUP)).items]
        out += [f"reservation {each['metadata']['name']}" for each in (await self.client.list(RESERVATION)).items]
        pods = (await self.client.list(POD)).items
        out += [f"pod {pod['metadata']['name']}" for pod in pods if pod["status"].get("phase") != "Failed"]
        services = (await self.client.list(SERVICE, labels=labels.KUSCIA_TASK_UID)).items
        out += [f"service {each['metadata']['name']}" for each in services]
        kept = {pod["metadata"]["uid"] for pod in pods}
        for each in (await self.client.list(CONFIG_MAP, labels=labels.KUSCIA_TASK_UID)).items:
            if each["metadata"]["ownerReferences"][0]["uid"] not in kept:
                out.append(f"config map {each['metadata']['name']}")
        return out

    async def until_clean(self, seconds: float = 60) -> None:
        async def clean() -> bool:
            return not await self.left_behind()

        await self.until(clean, seconds)

    async def picture(self) -> list[Any]:
        jobs = [(job["metadata"]["name"], job.get("status")) for job in (await self.client.list(JOB)).items]
        tasks = [(task["metadata"]["name"], task.get("status")) for task in (await self.client.list(TASK)).items]
        return [*jobs, *tasks, *await self.left_behind()]


def by_task(**outcomes: str) -> Callable[[Object], str]:
    """What becomes of pods, by the alias of their task or by `<alias>_<domain>`."""

    def outcome(pod: Object) -> str:
        alias = pod["metadata"]["annotations"].get(labels.KUSCIA_TASK_ALIAS, "")
        return outcomes.get(f"{alias}_{pod['metadata']['namespace']}") or outcomes.get(alias, "Succeeded")

    return outcome


@asynccontextmanager
async def job_world(
    *,
    partners: tuple[str, ...] = (),
    domains: tuple[str, ...] = ("alice", "bob"),
    makes: tuple[tuple[str, Make] | Make, ...] = JOB_PLANE,
    cpu: str = "4",
    clock: VirtualClock | None = None,
) -> AsyncIterator[JobWorld]:
    clock = clock or VirtualClock()
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), clock)
    await server.start()
    transport = InProcessTransport(server.handle, ADMIN)
    made = JobWorld(server, Client(transport, clock=clock), clock, Faulty(transport, Random(1), clock), makes)
    made.outcome = by_task()
    try:
        await made.start()
        for name in domains:
            await made.add_domain(
                name, nodes=name not in partners, cpu=cpu, **({"role": "partner"} if name in partners else {})
            )
        await made.client.create(IMAGE, an_image())
        await made.settle(2)
        yield made
    finally:
        await made.stop()
        await transport.close()
        await server.stop()
        await store.close()
