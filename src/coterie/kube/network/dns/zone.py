"""What a domain's names stand for, made from its API objects. Pure.

    Service + Endpoints ──> ServiceNames      addresses, ports, names of single endpoints, or another name
    Pod with subdomain  ──> its own name      <hostname>.<subdomain>
    settings            ──> Zone              own domain, the gateway's address, names that lead to the node itself

Names stand for endpoints, never for a cluster address: nothing here translates addresses, and a pod reaches another
domain through the gateway; a `clusterIP` is a mere label.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coterie.kube.api.pod_state import addresses as pod_addresses
from coterie.kube.api.types.network import Endpoints, Service
from coterie.kube.api.types.pods import Pod

GATEWAY_PORT = 80


@dataclass(frozen=True, slots=True)
class SrvTarget:
    """One endpoint of a named port: what an SRV record says."""

    label: str
    """The endpoint's name below the service."""
    port: int


@dataclass(frozen=True, slots=True)
class ServiceNames:
    addresses: tuple[str, ...] = ()
    ports: Mapping[tuple[str, str], tuple[SrvTarget, ...]] = field(default_factory=dict)
    """By (port name, protocol), both in lower case."""
    endpoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Addresses by the label of a single endpoint: its host name, or its address with dashes."""
    alias: str = ""
    """Another host's name, of an ExternalName service."""
    by_gateway: bool = False
    """Reached through the own gateway, as other domains reach it."""


@dataclass(frozen=True, slots=True)
class Zone:
    domain: str
    gateway: tuple[str, ...]
    """Addresses of the gateway's internal port, at most one for each family."""
    host: tuple[str, ...]
    """Addresses of the node's own services."""
    services: Mapping[str, ServiceNames] = field(default_factory=dict)
    pods: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """Addresses by (host name, subdomain)."""
    gateway_port: int = GATEWAY_PORT
    host_services: frozenset[str] = frozenset()
    """Names of services of the node process itself."""
    gateway_services: frozenset[str] = frozenset()
    """Names that the gateway itself leads to."""
    gateway_label: tuple[str, str] | None = None
    """(key, value) of the label of services that are reached through the own gateway."""
    serial: int = 1
    ttl: int = 5


def zone_of(
    domain: str,
    gateway: tuple[str, ...],
    host: tuple[str, ...],
    services: Iterable[Service] = (),
    endpoints: Iterable[Endpoints] = (),
    pods: Iterable[Pod] = (),
    gateway_label: tuple[str, str] | None = None,
) -> Zone:
    """Everything at once, of the objects in the domain's namespace; a `ZoneKeeper` does it change by change."""
    behind = {each.metadata.name: each for each in endpoints if each.metadata.namespace == domain}
    named = {
        service.metadata.name: service_names(service, behind.get(service.metadata.name), gateway_label)
        for service in services
        if service.metadata.namespace == domain
    }
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for pod in pods:
        if pod.metadata.namespace == domain and (name := pod_name(pod)) is not None:
            found[name] = (*found.get(name, ()), *pod_addresses(pod))
    return Zone(domain, gateway, host, named, found, gateway_label=gateway_label)


def service_names(
    service: Service, endpoints: Endpoints | None, gateway_label: tuple[str, str] | None = None
) -> ServiceNames:
    if service.spec.type == "ExternalName":
        target = service.spec.external_name
        if _is_address(target):
            return ServiceNames((target,))
        # The API takes labels of any length here, DNS does not.
        return (
            ServiceNames(alias=target)
            if all(0 < len(e) < 64 for e in target.rstrip(".").split("."))
            else ServiceNames()
        )
    addresses: dict[str, None] = {}
    ports: dict[tuple[str, str], dict[SrvTarget, None]] = {
        (port.name.lower(), port.protocol.lower()): {} for port in service.spec.ports or () if port.name
    }
    single: dict[str, dict[str, None]] = {}
    for subset in (endpoints.subsets if endpoints is not None else None) or ():
        for address in subset.addresses or ():
            if not _is_address(address.ip):
                continue
            label = address.hostname.lower() or _dashed(address.ip)
            addresses[address.ip] = None
            single.setdefault(label, {})[address.ip] = None
            for port in subset.ports or ():
                if port.name and port.port:
                    ports.setdefault((port.name.lower(), port.protocol.lower()), {})[SrvTarget(label, port.port)] = None
    return ServiceNames(
        tuple(addresses),
        {key: tuple(targets) for key, targets in ports.items()},
        {label: tuple(found) for label, found in single.items()},
        by_gateway=gateway_label is not None and gateway_label in (service.metadata.labels or {}).items(),
    )


def pod_name(pod: Pod) -> tuple[str, str] | None:
    """(host name, subdomain) of a pod that asks for a name and can be reached."""
    if not pod.spec.subdomain or pod.ended or pod.metadata.deleting or not pod_addresses(pod):
        return None
    hostname = (pod.spec.hostname or pod.metadata.name)[:63].rstrip("-.").lower()
    return None if "." in hostname else (hostname, pod.spec.subdomain.lower())


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _dashed(address: str) -> str:
    return ipaddress.ip_address(address).exploded.replace(".", "-").replace(":", "-")
