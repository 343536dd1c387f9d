"""What each party of a task consists of: its pods, their ports and services, by name. Pure.

Both control planes of a task make the same kit from the same task and the same AppImage, which is how each knows the
names under which the other's services are reached without having been told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coterie.kube.api.meta import Object
from coterie.kuscia.api.appimages import with_bandwidth
from coterie.kuscia.api.bandwidth import BandwidthError
from coterie.kuscia.api.engine_template import (
    LOCAL,
    EnginePort,
    EngineTemplateError,
    access_of,
    engine_of,
    service_name,
)
from coterie.kuscia.api.types.job import AppImage, BandwidthLimit, KusciaTask, PartyAllocatedPorts, TaskParty
from coterie.kuscia.bfia.variables import engine_variables
from coterie.kuscia.bfia.wire import BfiaRefused


@dataclass(frozen=True, slots=True)
class PodWorkload:
    name: str
    index: int
    identity: str
    """Value of the label by which its services select it."""
    services: Mapping[str, str]
    """Port name -> service name, of ports that are reached from outside the pod."""


@dataclass(frozen=True, slots=True)
class PartyWorkload:
    domain: str
    role: str
    app_image: str
    engine: str
    component_field: str
    image: str
    image_id: str
    image_sign: str
    containers: tuple[Object, ...] = field(repr=False)
    """Kuscia's containers, the party's own wishes laid over what the AppImage says."""
    restart_policy: str = "Never"
    ports: tuple[EnginePort, ...] = ()
    pods: tuple[PodWorkload, ...] = ()
    min_reserved_pods: int = 1
    access: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Port name -> domains that may call."""
    config_templates: Mapping[str, str] = field(default_factory=dict, repr=False)
    bandwidth: tuple[BandwidthLimit, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment of a BFIA task, beside that of the AppImage."""

    @property
    def port_keys(self) -> list[str]:
        """`<pod>/<port>` of all that need a number."""
        return [f"{pod.name}/{port.name}" for pod in self.pods for port in self.ports]


def party_workloads(task: KusciaTask, images: Mapping[str, AppImage]) -> tuple[PartyWorkload, ...]:
    """In the order of the task's parties. KitFault when an engine or a role is missing."""
    return tuple(_party_workload(task, party, images) for party in task.spec.parties)


def _party_workload(task: KusciaTask, party: TaskParty, images: Mapping[str, AppImage]) -> PartyWorkload:
    overrides = party.template
    engine = engine_of(
        images,
        party.app_image_ref,
        party.role,
        overrides.spec if overrides is not None else None,
        overrides.replicas if overrides is not None else None,
    )
    everyone = [(each.domain_id, each.role) for each in task.spec.parties]
    try:
        containers = with_bandwidth(engine.containers, task.spec.bandwidth_request, engine.replicas)
    except BandwidthError as problem:
        raise EngineTemplateError(f"bandwidthRequest: {problem}") from problem
    return PartyWorkload(
        domain=party.domain_id,
        role=party.role,
        app_image=engine.app_image,
        engine=engine.engine,
        component_field=engine.component_field,
        image=engine.image,
        image_id=party.image_digest or engine.image_id,
        image_sign=engine.image_sign,
        containers=containers,
        restart_policy=str(engine.spec.get("restartPolicy") or "Never"),
        ports=engine.ports,
        pods=tuple(_pod(task, party.role, index, engine.ports) for index in range(engine.replicas)),
        min_reserved_pods=min(party.min_reserved_pods or engine.replicas, engine.replicas),
        access=access_of(party.domain_id, everyone, engine.policy, engine.ports),
        config_templates=engine.config_templates,
        bandwidth=party.bandwidth_limits or (),
        variables=_bfia_variables(task, party, images.get(engine.app_image)),
    )


def _bfia_variables(task: KusciaTask, party: TaskParty, image: AppImage | None) -> Mapping[str, str]:
    try:
        return engine_variables(task, party.domain_id, party.role, image)
    except BfiaRefused as problem:
        raise EngineTemplateError(str(problem)) from problem


def _pod(task: KusciaTask, role: str, index: int, ports: tuple[EnginePort, ...]) -> PodWorkload:
    tail = f"{role}-{index}" if role else str(index)
    name = f"{task.metadata.name}-{tail}"
    services = {port.name: service_name(name, port.name) for port in ports if port.scope != LOCAL}
    return PodWorkload(name, index, f"{task.metadata.uid}-{tail}", services)


def numbers_of(allotted: Iterable[PartyAllocatedPorts] | None) -> Mapping[tuple[str, str], int]:
    """(domain, `<pod>/<port>`) -> number."""
    return {
        (party.domain_id, key): number for party in allotted or () for key, number in (party.named_port or {}).items()
    }
