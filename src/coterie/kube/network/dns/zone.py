"""What a domain's names stand for, made from its API objects. Pure.

    Service + Endpoints ──> ServiceNames      addresses, ports, names of single endpoints, or another name
    Pod with subdomain  ──> its own name      <hostname>.<subdomain>
    Namespace           ──> a local namespace, unless it is another domain's (`Zone.namespaces`)
    settings            ──> Zone              own domain, the gateway's address, names that lead to the node itself

A Service with a cluster IP from `Zone.virtual` stands for that address; every other one stands for its ready endpoints.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from coterie.kube.api.pod_state import addresses as pod_addresses
from coterie.kube.api.types.network import EndpointAddress, Endpoints, EndpointSlice, EndpointSubset, Service
from coterie.kube.api.types.pods import Pod
from coterie.kube.network.dns.model import Name
from coterie.kube.network.dns.settings import Network

GATEWAY_PORT = 80
CLUSTER_DOMAIN: Name = (b"cluster", b"local")


@dataclass(frozen=True, slots=True)
class SrvTarget:
    """What an SRV record of a named port says."""

    label: str
    """The endpoint's name below the service; empty: the service itself, which has a cluster IP."""
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
    virtual: bool = False
    """`addresses` is the cluster IP, not the endpoints."""

    def reverse(self) -> dict[str, str]:
        """By address, the label below the service that the address has a PTR record for; empty: the service itself."""
        if self.by_gateway or self.alias:
            return {}
        if self.virtual:
            return dict.fromkeys(self.addresses, "")
        return {address: label for label, addresses in self.endpoints.items() for address in addresses}


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
    namespaces: frozenset[str] = frozenset()
    """Namespaces of this cluster besides the own domain's whose names are answered here. Every other namespace is another
    domain's, and its names lead to the gateway."""
    others: Mapping[tuple[str, str], ServiceNames] = field(default_factory=dict)
    """Services by (namespace, name), of all namespaces but the own domain's."""
    pod_addresses: Collection[tuple[str, str]] = frozenset()
    """(namespace, address) of every pod that runs."""
    reverse: Mapping[str, Mapping[tuple[str, str], str]] = field(default_factory=dict)
    """By address, the Services it belongs to as (namespace, name), with the label below each (`ServiceNames.reverse`)."""
    hosts: Mapping[Name, tuple[str, ...]] = field(default_factory=dict)
    """Addresses of names that stand for themselves, outside every namespace."""
    virtual: Network | None = None
    """The range of cluster IPs; None: nothing here leads them to endpoints."""
    networks: tuple[Network, ...] = ()
    """Ranges of pods and cluster IPs: nobody else is asked about an address in them."""
    cluster_domain: Name = CLUSTER_DOMAIN
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
    namespaces: Iterable[str] = (),
    virtual: Network | None = None,
) -> Zone:
    """Everything at once; a `ZoneUpdater` does it change by change. `namespaces`: the local ones besides the domain's."""
    behind = {(each.metadata.namespace, each.metadata.name): each for each in endpoints}
    named: dict[str, ServiceNames] = {}
    others: dict[tuple[str, str], ServiceNames] = {}
    reverse: dict[str, dict[tuple[str, str], str]] = {}
    for service in services:
        key = service.metadata.namespace, service.metadata.name
        names = service_names(service, behind.get(key), gateway_label if key[0] == domain else None, virtual)
        if key[0] == domain:
            named[key[1]] = names
        else:
            others[key] = names
        for address, label in names.reverse().items():
            reverse.setdefault(address, {})[key] = label
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    addresses: set[tuple[str, str]] = set()
    for pod in pods:
        addresses |= {(pod.metadata.namespace, address) for address in current_addresses(pod)}
        if pod.metadata.namespace == domain and (name := pod_name(pod)) is not None:
            found[name] = (*found.get(name, ()), *pod_addresses(pod))
    return Zone(
        domain,
        gateway,
        host,
        named,
        found,
        frozenset(namespaces) - {domain},
        others,
        addresses,
        reverse,
        gateway_label=gateway_label,
        virtual=virtual,
    )


def service_names(
    service: Service,
    endpoints: Endpoints | None,
    gateway_label: tuple[str, str] | None = None,
    virtual: Network | None = None,
    slices: Iterable[EndpointSlice] = (),
) -> ServiceNames:
    """`slices`: those that no controller made, whose endpoints are in no Endpoints object."""
    if service.spec.type == "ExternalName":
        return _external(service.spec.external_name)
    ports: dict[tuple[str, str], dict[SrvTarget, None]] = {
        (port.name.lower(), port.protocol.lower()): {} for port in service.spec.ports or () if port.name
    }
    addresses: dict[str, None] = {}
    single: dict[str, dict[str, None]] = {}
    by_endpoint: dict[tuple[str, str], dict[SrvTarget, None]] = {key: {} for key in ports}
    subsets = (endpoints.subsets if endpoints is not None else None) or ()
    for subset in (*subsets, *(_subset(each) for each in slices)):
        for address in subset.addresses or ():
            if not _is_address(address.ip):
                continue
            label = address.hostname.lower() or _dashed(address.ip)
            addresses[address.ip] = None
            single.setdefault(label, {})[address.ip] = None
            for port in subset.ports or ():
                if port.name and port.port:
                    key = port.name.lower(), port.protocol.lower()
                    by_endpoint.setdefault(key, {})[SrvTarget(label, port.port)] = None
    cluster_ip = service.spec.cluster_ip
    has_virtual = virtual is not None and _is_address(cluster_ip) and ipaddress.ip_address(cluster_ip) in virtual
    if has_virtual:
        addresses = {cluster_ip: None}
        for each in service.spec.ports or ():
            if each.name:
                ports[each.name.lower(), each.protocol.lower()][SrvTarget("", each.port)] = None
    return ServiceNames(
        tuple(addresses),
        {key: tuple(targets) for key, targets in (ports if has_virtual else by_endpoint).items()},
        {label: tuple(found) for label, found in single.items()},
        by_gateway=gateway_label is not None and gateway_label in (service.metadata.labels or {}).items(),
        virtual=has_virtual,
    )


def _subset(endpoint_slice: EndpointSlice) -> EndpointSubset:
    """The ready endpoints of a slice; one that does not say whether it is ready counts as ready."""
    ready = [each for each in endpoint_slice.endpoints or () if each.conditions.ready is not False]
    addresses = tuple(EndpointAddress(ip=ip, hostname=each.hostname or "") for each in ready for ip in each.addresses)
    return EndpointSubset(addresses=addresses, ports=endpoint_slice.ports)


def _external(target: str) -> ServiceNames:
    if _is_address(target):
        return ServiceNames((target,))
    # The API takes labels of any length here, DNS does not.
    fits = all(0 < len(label) < 64 for label in target.rstrip(".").split("."))
    return ServiceNames(alias=target) if fits else ServiceNames()


def current_addresses(pod: Pod) -> tuple[str, ...]:
    """Of a pod that has not ended."""
    return () if pod.ended else tuple(address for address in pod_addresses(pod) if _is_address(address))


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
