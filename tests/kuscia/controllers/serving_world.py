"""A control plane that runs deployments of engines, for tests: all controllers behind a KusciaDeployment, virtual time."""

from __future__ import annotations

from random import Random
from typing import Any

from job_world import JOB_PLANE, JobWorld
from workload_world import DEPLOYMENT, ENDPOINTS, POD, RS, SERVICE

from coterie.kube.api import labels
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.client.client import Client
from coterie.kube.control.events import EventRecorder
from coterie.kube.controllers.deployment import controller as deployment
from coterie.kube.controllers.endpoints import controller as endpoints
from coterie.kube.controllers.replicaset import controller as replicaset
from coterie.kuscia.api.types.deployment import KUSCIA_DEPLOYMENTS
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.control.port_pool import PortPool
from coterie.kuscia.controllers.kusciadeployment import controller as kusciadeployment

KD = KUSCIA_DEPLOYMENTS.as_dynamic
CONFIG_MAP = CONFIG_MAPS.as_dynamic


def _together(client: Client, informers: Any, clock: Any) -> list[Any]:
    """Those that share the port numbers."""
    pool = PortPool(random=Random(7), informers=informers)
    told = EventRecorder(client, "kusciadeployment-controller", clock=clock)
    return [
        told,
        replicaset.make(client, informers, pod_hook=pool, clock=clock),
        kusciadeployment.make(client, informers, ports=pool, events=told, clock=clock),
    ]


SERVING_PLANE = (
    *JOB_PLANE,
    deployment.make,
    endpoints.make,
    _together,
)


def a_serving(*parties: str | Object, name: str = "s", initiator: str = "alice", **spec: Any) -> Object:
    named = [{"domainID": each, "appImageRef": "engine"} if isinstance(each, str) else each for each in parties]
    body = {"initiator": initiator, "inputConfig": '{"n": 1}', "parties": named, **spec}
    return {"metadata": {"name": name, "namespace": CROSS_DOMAIN}, "spec": body}


def a_party(domain: str, role: str = "", image: str = "engine", **more: Any) -> Object:
    return {"domainID": domain, "appImageRef": image, **({"role": role} if role else {}), **more}


async def serving(plane: JobWorld, name: str = "s") -> Object:
    return await plane.get(KD, name, CROSS_DOMAIN)


async def serving_status(plane: JobWorld, name: str = "s") -> Object:
    found = [each for each in await plane.list(KD, CROSS_DOMAIN) if each["metadata"]["name"] == name]
    return (found[0].get("status") or {}) if found else {}


async def until_serving(plane: JobWorld, phase: str, name: str = "s", seconds: float = 60) -> Object:
    async def reached() -> bool:
        return (await serving_status(plane, name)).get("phase") == phase

    await plane.until(reached, seconds)
    return await serving_status(plane, name)


async def change_party(plane: JobWorld, place: int = 0, name: str = "s", **party: Any) -> None:
    found = await serving(plane, name)
    parties = list(found["spec"]["parties"])
    parties[place] = {**parties[place], **party}
    await plane.client.patch(KD, name, CROSS_DOMAIN, {"spec": {"parties": parties}})


async def pods_of(plane: JobWorld, domain: str, name: str = "s") -> list[Object]:
    """Those that run and are not on their way out."""
    return [
        pod
        for pod in await plane.list(POD, domain)
        if pod["metadata"]["labels"].get(labels.KUSCIA_KD_NAME) == name and not pod["metadata"].get("deletionTimestamp")
    ]


async def left_of(plane: JobWorld) -> list[str]:
    """Everything that was made of any deployment and is still there."""
    found = []
    for kind in (KD, DEPLOYMENT, RS, POD, SERVICE, CONFIG_MAP, ENDPOINTS):
        for each in (await plane.client.list(kind)).items:
            known = each["metadata"].get("labels") or {}
            if kind is KD or known.get(labels.KUSCIA_CONTROLLER) == labels.KUSCIA_CONTROLLER_DEPLOYMENT:
                found.append(f"{kind} {each['metadata']['name']}")
    return found
