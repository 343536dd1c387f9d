"""The Endpoints object of a service: addresses of its pods, grouped by the ports they answer on. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

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
from coterie.kube.api.types.network import EndpointAddress, EndpointPort, Endpoints, EndpointSubset, Service
from coterie.kube.api.types.pods import Pod

MANAGED_BY = "endpoints.kubernetes.io/managed-by"
CONTROLLER = "endpoint-controller"
OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
CAPACITY = 1000
"""Addresses an Endpoints object holds; who has more reads slices."""

Ports = tuple[EndpointPort, ...]


@dataclass(frozen=True, slots=True)
class DesiredEndpoints:
    labels: dict[str, str]
    subsets: tuple[EndpointSubset, ...]
    truncated: bool


def desired_endpoints(service: Service, pods: Iterable[Pod]) -> DesiredEndpoints:
    found = [
        (ports, address, is_ready(pod) or service.spec.publish_not_ready_addresses)
        for pod in sorted(pods, key=lambda pod: pod.metadata.name)
        if selects(service, pod.metadata.labels)
        and may_serve(pod, also_terminating=service.spec.publish_not_ready_addresses)
        and (ports := ports_of(service, pod)) is not None
        and (address := _address(service, pod)) is not None
    ]
    truncated = len(found) > CAPACITY
    if truncated:
        found = sorted(found, key=lambda entry: not entry[2])[:CAPACITY]
    labels = dict(service.metadata.labels or {})
    labels.pop(HEADLESS_LABEL, None)
    if is_headless(service):
        labels[HEADLESS_LABEL] = ""
    labels[MANAGED_BY] = CONTROLLER
    return DesiredEndpoints(labels, _subsets(found), truncated)


def ports_of(service: Service, pod: Pod) -> Ports | None:
    """None when the pod answers on none of the service's ports."""
    if not service.spec.ports:
        return () if is_headless(service) else None
    out = [
        EndpointPort(name=port.name, port=number, protocol=port.protocol, app_protocol=port.app_protocol)
        for port in service.spec.ports
        if (number := target_port(pod, port)) is not None
    ]
    return tuple(sorted(out, key=lambda port: (port.name, port.port or 0, port.protocol))) or None


def _address(service: Service, pod: Pod) -> EndpointAddress | None:
    family = (service.spec.ip_families or ("IPv6" if ":" in service.spec.cluster_ip else "IPv4",))[0]
    for ip in addresses(pod):
        if (":" in ip) == (family == "IPv6") and _can_be_listed(ip):
            return EndpointAddress(
                ip=ip,
                hostname=dns_hostname(service, pod),
                node_name=pod.spec.node_name or None,
                target_ref=ObjectReference(
                    kind="Pod", namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.metadata.uid
                ),
            )
    return None


def _can_be_listed(ip: str) -> bool:
    """The API takes no link-local addresses here; one such pod must not keep the others out."""
    try:
        parsed = ipaddress.ip_address(ip)
    except ValueError:
        return False
    return not (parsed.is_link_local or parsed.is_unspecified)


def _subsets(found: Iterable[tuple[Ports, EndpointAddress, bool]]) -> tuple[EndpointSubset, ...]:
    groups: dict[Ports, tuple[list[EndpointAddress], list[EndpointAddress]]] = {}
    for ports, address, ready in found:
        groups.setdefault(ports, ([], []))[0 if ready else 1].append(address)
    return tuple(
        EndpointSubset(
            addresses=tuple(sorted(ready, key=_by_ip)) or None,
            not_ready_addresses=tuple(sorted(waiting, key=_by_ip)) or None,
            ports=ports or None,
        )
        for ports, (ready, waiting) in sorted(groups.items(), key=lambda item: [(p.name, p.port) for p in item[0]])
    )


def _by_ip(address: EndpointAddress) -> tuple[str, str]:
    return address.ip, address.target_ref.uid if address.target_ref is not None else ""


def correction(found: Endpoints, right: DesiredEndpoints) -> Object | None:
    """The patch that makes an Endpoints object right; None when it is."""
    labels = found.metadata.labels or {}
    annotations = found.metadata.annotations or {}
    capacity_mark = "truncated" if right.truncated else None
    same = labels == right.labels and (found.subsets or ()) == right.subsets
    if same and annotations.get(OVER_CAPACITY) == capacity_mark:
        return None
    changed: dict[str, str | None] = {key: None for key in labels if key not in right.labels}
    changed |= right.labels
    return {
        "metadata": {
            "uid": found.metadata.uid,
            "resourceVersion": found.metadata.resource_version,
            "labels": changed,
            "annotations": {OVER_CAPACITY: capacity_mark},
        },
        "subsets": subsets_json(right) or None,
    }


def new_body(service: Service, right: DesiredEndpoints) -> Object:
    meta: Object = {"name": service.metadata.name, "namespace": service.metadata.namespace, "labels": right.labels}
    if right.truncated:
        meta["annotations"] = {OVER_CAPACITY: "truncated"}
    return {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": subsets_json(right)}


def subsets_json(right: DesiredEndpoints) -> list[Object]:
    out: list[Object] = msgspec.to_builtins(list(right.subsets))
    return out
