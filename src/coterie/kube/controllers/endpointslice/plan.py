"""The endpoint slices of a service: which to make, change and remove so that little changes. Pure.

Endpoints stay in the slice they are in. New ones fill the gaps of slices with the same ports, then new slices of at most
a hundred; slices that become empty go. A service without any endpoint keeps one empty slice, so that readers can tell
"nobody" from "not known yet".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from coterie.kube.api.labels import ENDPOINTSLICE_MANAGED_BY, SERVICE_NAME
from coterie.kube.api.meta import Object
from coterie.kube.api.pod_state import addresses, is_ready
from coterie.kube.api.service_endpoints import (
    HEADLESS_LABEL,
    dns_hostname,
    is_headless,
    may_serve,
    selects,
    target_port,
)
from coterie.kube.api.types.core import ObjectReference
from coterie.kube.api.types.network import SERVICES, Endpoint, EndpointConditions, EndpointPort, EndpointSlice, Service
from coterie.kube.api.types.pods import Pod
from coterie.kube.control.controller_refs import reference

CONTROLLER = "endpointslice-controller.k8s.io"
SIZE = 100
_OURS = (SERVICE_NAME, ENDPOINTSLICE_MANAGED_BY, HEADLESS_LABEL)

Ports = tuple[EndpointPort, ...]
Identity = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SliceChange:
    found: EndpointSlice
    endpoints: tuple[Endpoint, ...]


@dataclass(slots=True)
class Plan:
    create: list[Object] = field(default_factory=list)
    change: list[SliceChange] = field(default_factory=list)
    delete: list[EndpointSlice] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    """What each slice carries."""


def plan(service: Service, pods: Iterable[Pod], slices: Sequence[EndpointSlice], size: int = SIZE) -> Plan:
    """`slices` are those of this service that are ours."""
    out = Plan(labels=labels(service))
    behind = [pod for pod in pods if selects(service, pod.metadata.labels) and may_serve(pod, also_terminating=True)]
    behind.sort(key=lambda pod: pod.metadata.name)
    families = service.spec.ip_families or ("IPv6" if ":" in service.spec.cluster_ip else "IPv4",)
    for family in families:
        _plan_family(out, service, family, behind, [one for one in slices if one.address_type == family], size)
    out.delete += [one for one in slices if one.address_type not in families]
    return out


def _plan_family(
    out: Plan, service: Service, family: str, pods: Iterable[Pod], slices: Sequence[EndpointSlice], size: int
) -> None:
    groups = _groups(service, family, pods)
    by_ports: dict[Ports, list[EndpointSlice]] = {}
    for one in sorted(slices, key=lambda one: one.metadata.name):
        by_ports.setdefault(_sorted_ports(one.ports or ()), []).append(one)
    kept = 0
    empty: list[EndpointSlice] = []
    for ports, endpoints in groups.items():
        filled, spare, fresh = _fill(endpoints, by_ports.pop(ports, []), size)
        kept += len(filled) + len(fresh)
        out.change += [SliceChange(one, content) for one, content in filled if _differs(one, content, out.labels)]
        out.create += [new_body(service, family, ports, content, out.labels) for content in fresh]
        empty += spare
    empty += [one for rest in by_ports.values() for one in rest]
    if not kept:
        # One empty slice stays; the one without ports, for it can be told from all others.
        placeholder = next((one for one in empty if not one.ports), None)
        if placeholder is None:
            out.create.append(new_body(service, family, (), (), out.labels))
        else:
            empty.remove(placeholder)
            if _differs(placeholder, (), out.labels):
                out.change.append(SliceChange(placeholder, ()))
    out.delete += empty


def _fill(
    endpoints: dict[Identity, Endpoint], slices: Sequence[EndpointSlice], size: int
) -> tuple[list[tuple[EndpointSlice, tuple[Endpoint, ...]]], list[EndpointSlice], list[tuple[Endpoint, ...]]]:
    """Slices with their content, slices that are not needed, and the content of new ones."""
    missing = dict(endpoints)
    contents: list[list[Endpoint]] = []
    for one in slices:
        here = [missing.pop(_identity(found), None) for found in (one.endpoints or ())]
        contents.append([found for found in here if found is not None][:size])
    placed = {_identity(found) for content in contents for found in content}
    waiting = [found for identity, found in endpoints.items() if identity not in placed]
    # The fullest first: what is nearly empty may then become empty and go.
    for content in sorted((c for c in contents if c), key=len, reverse=True):
        room = size - len(content)
        content += waiting[:room]
        waiting = waiting[room:]
    for content in contents:
        if not content and waiting:
            content += waiting[:size]
            waiting = waiting[size:]
    filled = [(one, tuple(content)) for one, content in zip(slices, contents, strict=True) if content]
    spare = [one for one, content in zip(slices, contents, strict=True) if not content]
    fresh = [tuple(waiting[i : i + size]) for i in range(0, len(waiting), size)]
    return filled, spare, fresh


def _groups(service: Service, family: str, pods: Iterable[Pod]) -> dict[Ports, dict[Identity, Endpoint]]:
    """Pods may know a named port by different numbers, so endpoints are grouped by the numbers."""
    out: dict[Ports, dict[Identity, Endpoint]] = {}
    for pod in pods:
        address = next((ip for ip in addresses(pod) if (":" in ip) == (family == "IPv6")), None)
        ports = _ports_of(service, pod)
        if address is None or ports is None:
            continue
        made = _endpoint(service, pod, address)
        out.setdefault(ports, {})[_identity(made)] = made
    return out


def _ports_of(service: Service, pod: Pod) -> Ports | None:
    if not service.spec.ports:
        return () if is_headless(service) else None
    found = _sorted_ports(
        EndpointPort(name=port.name, port=number, protocol=port.protocol, app_protocol=port.app_protocol)
        for port in service.spec.ports
        if (number := target_port(pod, port)) is not None
    )
    return found or None  # it answers on none of them


def _sorted_ports(ports: Iterable[EndpointPort]) -> Ports:
    return tuple(sorted(ports, key=lambda port: (port.name, port.port or 0, port.protocol)))


def _endpoint(service: Service, pod: Pod, address: str) -> Endpoint:
    serving, terminating = is_ready(pod), pod.metadata.deleting
    return Endpoint(
        addresses=(address,),
        conditions=EndpointConditions(
            ready=service.spec.publish_not_ready_addresses or (serving and not terminating),
            serving=serving,
            terminating=terminating,
        ),
        hostname=dns_hostname(service, pod) or None,
        node_name=pod.spec.node_name or None,
        target_ref=ObjectReference(
            kind="Pod", namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.metadata.uid
        ),
    )


def _identity(endpoint: Endpoint) -> Identity:
    return (
        endpoint.addresses[0] if endpoint.addresses else "",
        endpoint.target_ref.uid if endpoint.target_ref is not None else "",
    )


def _differs(found: EndpointSlice, content: tuple[Endpoint, ...], wanted: dict[str, str]) -> bool:
    return (found.endpoints or ()) != content or (found.metadata.labels or {}) != wanted


def labels(service: Service) -> dict[str, str]:
    out = {key: value for key, value in (service.metadata.labels or {}).items() if key not in _OURS}
    out[SERVICE_NAME] = service.metadata.name
    out[ENDPOINTSLICE_MANAGED_BY] = CONTROLLER
    if is_headless(service):
        out[HEADLESS_LABEL] = ""
    return out


def new_body(
    service: Service, family: str, ports: Ports, endpoints: Sequence[Endpoint], carried: dict[str, str]
) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "generateName": f"{service.metadata.name}-",
            "namespace": service.metadata.namespace,
            "labels": carried,
            "ownerReferences": [msgspec.to_builtins(reference(SERVICES, service.metadata))],
        },
        "addressType": family,
        "endpoints": msgspec.to_builtins(list(endpoints)),
        "ports": msgspec.to_builtins(list(ports)),
    }


def patch_of(change: SliceChange, carried: dict[str, str]) -> Object:
    meta = change.found.metadata
    changed: dict[str, str | None] = {key: None for key in meta.labels or {} if key not in carried}
    changed |= carried
    return {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "labels": changed},
        "endpoints": msgspec.to_builtins(list(change.endpoints)),
    }
