"""What each party of a task consists of: its pods, their ports and services, by name. Pure.

Both control planes of a task make the same kit from the same task and the same AppImage, which is how each knows the
names under which the other's services are reached without having been told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.api.appimages import choose_template, replicas_of
from coterie.api.meta import Object
from coterie.api.types.kuscia_job import AppImage, BandwidthLimit, KusciaTask, TaskParty

CLUSTER, DOMAIN, LOCAL = "Cluster", "Domain", "Local"
_SERVICE_NAME_LIMIT = 63
_DIGEST = 16


class KitFault(Exception):
    """The task cannot be made as it is; the message is a sentence for the task's status."""


@dataclass(frozen=True, slots=True)
class Port:
    name: str
    protocol: str
    scope: str


@dataclass(frozen=True, slots=True)
class PodKit:
    name: str
    index: int
    identity: str
    """Value of the label by which its services select it."""
    services: Mapping[str, str]
    """Port name -> service name, of ports that are reached from outside the pod."""


@dataclass(frozen=True, slots=True)
class PartyKit:
    domain: str
    role: str
    image: str
    image_id: str
    containers: tuple[Object, ...] = field(repr=False)
    """Kuscia's containers, the party's own wishes laid over what the AppImage says."""
    restart_policy: str = "Never"
    ports: tuple[Port, ...] = ()
    pods: tuple[PodKit, ...] = ()
    min_reserved_pods: int = 1
    access: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Port name -> domains that may call."""
    config_templates: Mapping[str, str] = field(default_factory=dict, repr=False)
    bandwidth: tuple[BandwidthLimit, ...] = ()


def party_kits(task: KusciaTask, images: Mapping[str, AppImage]) -> tuple[PartyKit, ...]:
    """In the order of the task's parties. KitFault when an engine or a role is missing."""
    return tuple(_kit(task, party, images) for party in task.spec.parties)


def _kit(task: KusciaTask, party: TaskParty, images: Mapping[str, AppImage]) -> PartyKit:
    image = images.get(party.app_image_ref)
    if image is None:
        raise KitFault(f'there is no AppImage "{party.app_image_ref}"')
    chosen = choose_template(image.spec.deploy_templates, party.role)
    if chosen is None:
        raise KitFault(f'AppImage "{party.app_image_ref}" has nothing for the role "{party.role}"')
    wished = party.template
    replicas = replicas_of(chosen) if wished is None or wished.replicas is None else wished.replicas
    spec = merged(chosen.spec, (wished.spec if wished is not None else None) or {})
    ports = _ports(spec["containers"], party.app_image_ref)
    name = image.spec.image
    return PartyKit(
        domain=party.domain_id,
        role=party.role,
        image=f"{name.name}:{name.tag}",
        image_id=name.id,
        containers=tuple(spec["containers"]),
        restart_policy=str(spec.get("restartPolicy") or "Never"),
        ports=ports,
        pods=tuple(_pod(task, party.role, index, ports) for index in range(replicas)),
        min_reserved_pods=min(party.min_reserved_pods or replicas, replicas),
        access=_access(task, party, chosen.network_policy, ports),
        config_templates=image.spec.config_templates or {},
        bandwidth=party.bandwidth_limits or (),
    )


def _pod(task: KusciaTask, role: str, index: int, ports: tuple[Port, ...]) -> PodKit:
    tail = f"{role}-{index}" if role else str(index)
    name = f"{task.metadata.name}-{tail}"
    services = {port.name: service_name(name, port.name) for port in ports if port.scope != LOCAL}
    return PodKit(name, index, f"{task.metadata.uid}-{tail}", services)


def service_name(pod: str, port: str) -> str:
    """`<pod>-<port>`, made into a name that DNS takes."""
    name = f"{pod}-{port}"
    if name[0].isdigit():
        name = f"svc-{name}"
    if len(name) <= _SERVICE_NAME_LIMIT:
        return name
    tail = f"-{hashlib.sha256(pod.encode()).hexdigest()[:_DIGEST]}-{port}"
    kept = pod[: _SERVICE_NAME_LIMIT - len("svc-") - len(tail)].rstrip("-")
    return f"svc-{kept}{tail}"


def _ports(containers: list[Object], image: str) -> tuple[Port, ...]:
    found = [
        Port(port["name"], port.get("protocol") or "HTTP", port.get("scope") or LOCAL)
        for container in containers
        for port in container.get("ports") or ()
    ]
    names = [port.name for port in found]
    for name in names:
        if names.count(name) > 1:
            raise KitFault(f'AppImage "{image}" names the port "{name}" twice in one template')
    return tuple(found)


def _access(
    task: KusciaTask, party: TaskParty, policy: Mapping[str, Any] | None, ports: tuple[Port, ...]
) -> dict[str, frozenset[str]]:
    parties = task.spec.parties
    if policy is None or len(parties) == 1:
        # A task of one party has nobody to talk to; Kuscia opens such ports to everybody.
        everyone = frozenset(each.domain_id for each in parties)
        return {port.name: everyone for port in ports}
    allowed: dict[str, set[str]] = {port.name: {party.domain_id} for port in ports}
    for rule in policy.get("ingresses") or ():
        roles = set((rule.get("from") or {}).get("roles") or ())
        domains = {each.domain_id for each in parties if each.role in roles}
        for port in rule.get("ports") or ():
            allowed.setdefault(port["port"], set()).update(domains)
    return {name: frozenset(domains) for name, domains in allowed.items()}


# Laying a party's wishes over the AppImage's template.


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Object:
    """Containers by their place in the list; lists of variables by name, the rest field by field."""
    wishes = over.get("containers") or ()
    containers = [
        _container(container, wishes[place] if place < len(wishes) else {})
        for place, container in enumerate(base.get("containers") or ())
    ]
    out = {**base, "containers": containers}
    if over.get("restartPolicy"):
        out["restartPolicy"] = over["restartPolicy"]
    return out


def _container(base: Object, over: Mapping[str, Any]) -> Object:
    out = dict(base)
    if over.get("name"):
        out["name"] = over["name"]
    if over.get("command") or over.get("args"):
        out["command"], out["args"] = list(over.get("command") or ()), list(over.get("args") or ())
    if over.get("env"):
        named = {each["name"]: each for each in (*(base.get("env") or ()), *over["env"])}
        out["env"] = list(named.values())
    resources = {
        kind: amounts
        for kind in ("requests", "limits")
        if (amounts := {**_amounts(base, kind), **_amounts(over, kind)})
    }
    if resources:
        out["resources"] = resources
    return out


def _amounts(container: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return (container.get("resources") or {}).get(kind) or {}
