"""How Envoy reaches pods when it runs outside their network: it opens the connection inside their namespace. Pure."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from coterie.kuscia.gateway.addresses import PodNetwork, SocketAddress
from coterie.kuscia.gateway.model import DomainService
from coterie.kuscia.gateway.names import Json

_FIRST_POD = 2


@lru_cache(maxsize=16)
def _network(cidr: str) -> IPv4Network | IPv6Network:
    return ip_network(cidr)


def needs_namespace(pods: PodNetwork | None, target: SocketAddress) -> bool:
    """Whether this address means something in the pods' network only, and Envoy is not in there."""
    if pods is None or not pods.namespace or target.is_socket:
        return False
    try:
        address = ip_address(target.host)
        return any(address in _network(each) for each in (pods.cidr, pods.cluster) if each)
    except ValueError:
        return False  # a host name


def is_ordinary_pod(pods: PodNetwork, host: str) -> bool:
    """Whether a pod has this address that is no engine; the node's own address is nobody's."""
    try:
        target = ip_address(host)
    except ValueError:
        return False
    own = _network(pods.cidr)
    if not any(target in _network(each) for each in (pods.cidr, pods.cluster) if each):
        return False
    # The ranges of all nodes are of one size; in each the node itself has the first address, engines have the upper half.
    offset = int(target) % own.num_addresses
    return _FIRST_POD <= offset < own.num_addresses // 2


def reachable_endpoints(pods: PodNetwork | None, service: DomainService) -> tuple[SocketAddress, ...]:
    """All of them, or, when some are pods with a network of their own and some are not, the pods: a cluster's connections
    are opened in one place."""
    inside = tuple(each for each in service.endpoints if needs_namespace(pods, each))
    return inside or service.endpoints


def bind_config(pods: PodNetwork) -> Json:
    source = {"address": "0.0.0.0", "port_value": 0, "network_namespace_filepath": pods.namespace}
    return {"source_address": source}
