"""Rows of what leads traffic to pods: services, endpoints, ingresses, policies."""

from __future__ import annotations

from coterie.kube.apiserver.tables.ages import age
from coterie.kube.apiserver.tables.columns import AGE, NAME, NONE, SELECTOR, UNSET, Cells, Object, TableLayout, text
from coterie.kube.apiserver.tables.formats import (
    created,
    host_port,
    items,
    labels,
    load_balancer,
    name_of,
    part,
    selector,
    truncated,
)

_SHOWN = 3
"""Endpoints, ports and hosts that are listed before "+ n more..."."""


def service(obj: Object, now: float) -> Cells:
    spec = part(obj, "spec")
    cluster_ips = items(spec, "clusterIPs")
    return [
        name_of(obj),
        spec.get("type") or "",
        (cluster_ips[0] if cluster_ips else spec.get("clusterIP")) or NONE,
        external_address(spec, part(obj, "status")),
        service_ports(spec) or NONE,
        age(created(obj), now),
        labels(spec.get("selector")),
    ]


def external_address(spec: Object, status: Object) -> str:
    kind = spec.get("type")
    outside = ",".join(items(spec, "externalIPs"))
    if kind in ("ClusterIP", "NodePort"):
        return outside or NONE
    if kind == "LoadBalancer":
        return ",".join(filter(None, (load_balancer(status), outside))) or "<pending>"
    if kind == "ExternalName":
        return spec.get("externalName") or ""
    return "<unknown>"


def service_ports(spec: Object) -> str:
    pieces = []
    for port in items(spec, "ports"):
        node_port = port.get("nodePort")
        number = f"{port.get('port')}:{node_port}" if node_port else str(port.get("port"))
        pieces.append(f"{number}/{port.get('protocol') or 'TCP'}")
    return ",".join(pieces)


def endpoints(obj: Object, now: float) -> Cells:
    return [name_of(obj), endpoint_addresses(obj), age(created(obj), now)]


def endpoint_addresses(obj: Object) -> str:
    subsets = items(obj, "subsets")
    if not subsets:
        return NONE
    texts: list[str] = []
    for subset in subsets:
        addresses = [address.get("ip") or "" for address in items(subset, "addresses")]
        ports = items(subset, "ports")
        if not ports:  # a headless service may have none
            texts += addresses
        for port in ports:
            texts += [host_port(address, port.get("port") or 0) for address in addresses]
    return truncated(texts, len(texts), _SHOWN)


def endpoint_slice(obj: Object, now: float) -> Cells:
    ports: list[str] = []
    for port in items(obj, "ports"):
        number = port.get("port")
        ports.append(str(number) if number is not None else port.get("name") or "*")
    addresses = [address for endpoint in items(obj, "endpoints") for address in items(endpoint, "addresses")]
    return [
        name_of(obj),
        obj.get("addressType") or "",
        truncated(ports, len(ports), _SHOWN) or UNSET,
        truncated(addresses, len(addresses), _SHOWN) or UNSET,
        age(created(obj), now),
    ]


def ingress(obj: Object, now: float) -> Cells:
    spec = part(obj, "spec")
    class_name = spec.get("ingressClassName")
    return [
        name_of(obj),
        NONE if class_name is None else class_name,
        _hosts(items(spec, "rules")),
        load_balancer(part(obj, "status")),
        "80, 443" if items(spec, "tls") else "80",
        age(created(obj), now),
    ]


def _hosts(rules: list[Object]) -> str:
    hosts: list[str] = []
    more = False
    for rule in rules:
        if len(hosts) == _SHOWN:
            more = True
            break
        if rule.get("host"):
            hosts.append(rule["host"])
    message = ",".join(hosts) or "*"
    return f"{message} + {len(rules) - _SHOWN} more..." if more else message


def ingress_class(obj: Object, now: float) -> Cells:
    spec = part(obj, "spec")
    parameters = part(spec, "parameters")
    parameters_text = NONE
    if parameters:
        group = parameters.get("apiGroup")
        kind = parameters.get("kind") or ""
        parameters_text = f"{f'{kind}.{group}' if group is not None else kind}/{parameters.get('name') or ''}"
    return [name_of(obj), spec.get("controller") or "", parameters_text, age(created(obj), now)]


def network_policy(obj: Object, now: float) -> Cells:
    return [name_of(obj), selector(part(obj, "spec").get("podSelector")) or NONE, age(created(obj), now)]


NETWORK: dict[tuple[str, str], TableLayout] = {
    ("", "endpoints"): TableLayout(
        (NAME, text("Endpoints", "Addresses and ports behind the service."), AGE), endpoints
    ),
    ("", "services"): TableLayout(
        (
            NAME,
            text("Type", "How the service is exposed."),
            text("Cluster-IP", "Address inside the cluster."),
            text("External-IP", "Addresses outside the cluster."),
            text("Port(s)", "Ports, node ports and protocols."),
            AGE,
            SELECTOR,
        ),
        service,
    ),
    ("discovery.k8s.io", "endpointslices"): TableLayout(
        (
            NAME,
            text("AddressType", "IPv4, IPv6 or FQDN."),
            text("Ports", "Ports of the endpoints."),
            text("Endpoints", "Addresses of the endpoints."),
            AGE,
        ),
        endpoint_slice,
    ),
    ("networking.k8s.io", "ingressclasses"): TableLayout(
        (
            NAME,
            text("Controller", "Who carries out ingresses of this class."),
            text("Parameters", "Object with more settings."),
            AGE,
        ),
        ingress_class,
    ),
    ("networking.k8s.io", "ingresses"): TableLayout(
        (
            NAME,
            text("Class", "Class of the ingress."),
            text("Hosts", "Host names the rules are for."),
            text("Address", "Where the load balancer listens."),
            text("Ports", "Ports it listens on."),
            AGE,
        ),
        ingress,
    ),
    ("networking.k8s.io", "networkpolicies"): TableLayout(
        (NAME, text("Pod-Selector", "Pods the policy is for."), AGE), network_policy
    ),
}
