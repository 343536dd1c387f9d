"""Routes and services as the gateway knows them, read from API objects. Pure.

What cannot be read is a `SnapshotProblem` and no half of it is used. What an object leaves open is read as Kuscia reads it, with
two exceptions on the safe side: a service without an access list, or with an empty one, is opened to no partner, and
addresses in `sourceWhiteIPList` count.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coterie.base.secret import SecretValue
from coterie.kube.api.meta import Object
from coterie.kube.api.types import network
from coterie.kuscia.api import labels
from coterie.kuscia.api.kuscia_wire import wire_forms
from coterie.kuscia.api.types.domain import BFIA_PROTOCOL
from coterie.kuscia.gateway.addresses import KeyPair, SocketAddress
from coterie.kuscia.gateway.model import (
    Affinity,
    Authentication,
    DomainService,
    Route,
    RoutePort,
    ServiceProtocol,
    SnapshotProblem,
    TaskBandwidthLimit,
    TaskLink,
)

_SCOPE_DOMAIN = "Domain"
_SCOPE_LOCAL = "Local"
_THIRD_DOMAIN = "THIRD-DOMAIN"
_REVERSE_TUNNEL = "REVERSE-TUNNEL"
_EVERY_DOMAIN = "*"
_DEFAULT_COOKIE_SECONDS = 86400
_COOKIE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HOW_CARRIED = {labels.COTERIE_HOP_BY_HOP: True, labels.COTERIE_END_TO_END: False}


def service_of(
    service: network.Service, endpoints: network.Endpoints | None, *, aliases: Sequence[str] = ()
) -> DomainService | SnapshotProblem | None:
    """None: the service is for one pod only and no matter of the gateway."""
    about = f"service {service.metadata.name}"
    annotations = service.metadata.annotations or {}
    scope = (service.metadata.labels or {}).get(labels.KUSCIA_PORT_SCOPE, "")
    if scope == _SCOPE_LOCAL:
        return None
    try:
        protocol = ServiceProtocol((annotations.get(labels.KUSCIA_PROTOCOL) or "HTTP").upper())
    except ValueError:
        return SnapshotProblem(
            about, f"protocol {annotations[labels.KUSCIA_PROTOCOL]!r} is none of {', '.join(ServiceProtocol)}"
        )
    return DomainService(
        service.metadata.name,
        _external(service, protocol) or _addresses(service, endpoints),
        protocol,
        access=_access(annotations.get(labels.KUSCIA_ACCESS_DOMAIN)),
        domain_only=scope == _SCOPE_DOMAIN,
        affinity=_affinity(service, annotations),
        aliases=tuple(aliases),
        task=_task(service),
    )


def _task(service: network.Service) -> str:
    """Only services that the task's controller made: anybody can write the annotation alone."""
    marked = (service.metadata.labels or {}).get(labels.KUSCIA_TASK_UID)
    return (service.metadata.annotations or {}).get(labels.KUSCIA_TASK_ID, "") if marked else ""


def task_links_of(services: Iterable[network.Service], domain: str) -> tuple[TaskLink, ...]:
    found: set[TaskLink] = set()
    for service in services:
        task = "" if service.metadata.deleting else _task(service)
        parties = (service.metadata.annotations or {}).get(labels.COTERIE_TASK_PARTIES, "")
        found |= {TaskLink(task, peer) for peer in parties.split(",") if task and peer and peer != domain}
    return tuple(sorted(found))


def _external(service: network.Service, protocol: ServiceProtocol) -> tuple[SocketAddress, ...]:
    if service.spec.type != "ExternalName" or not service.spec.external_name:
        return ()
    ports = service.spec.ports or ()
    return (SocketAddress(service.spec.external_name, ports[0].port if ports else 443 if protocol.tls else 80),)


def _addresses(service: network.Service, endpoints: network.Endpoints | None) -> tuple[SocketAddress, ...]:
    """The addresses of the service's first port."""
    wanted = service.spec.ports[0].name if service.spec.ports else None
    found = {
        SocketAddress(address.ip, port.port)
        for subset in (endpoints.subsets if endpoints is not None else None) or ()
        for port in (subset.ports or ())
        if port.port is not None and wanted in (None, port.name)
        for address in subset.addresses or ()
    }
    return tuple(sorted(found))


def _access(text: str | None) -> frozenset[str] | None:
    """`*` stands for every authenticated domain."""
    named = frozenset(each.strip() for each in (text or "").split(",") if each.strip())
    return None if _EVERY_DOMAIN in named else named


def _affinity(service: network.Service, annotations: Mapping[str, str]) -> Affinity:
    named = annotations.get(labels.KUSCIA_STICKY_SESSION_COOKIE, "")
    cookie = named if _COOKIE_NAME.fullmatch(named) else ""
    text = annotations.get(labels.KUSCIA_STICKY_SESSION_TTL, "").removesuffix("s")
    life = int(text) if text.isdigit() else _DEFAULT_COOKIE_SECONDS
    return Affinity(service.spec.session_affinity == "ClientIP", cookie, life if cookie else 0)


def limits_of(services: Iterable[network.Service]) -> tuple[TaskBandwidthLimit, ...]:
    """One per task and destination; when the services of a task disagree, the lowest."""
    found: dict[tuple[str, str], int] = {}
    for service in services:
        annotations = service.metadata.annotations or {}
        task = annotations.get(labels.KUSCIA_TASK_ID, "")
        for key, value in annotations.items():
            if not task or not key.startswith(labels.KUSCIA_BANDWIDTH_LIMIT_PREFIX) or not value.isdigit():
                continue
            pair = (task, key.removeprefix(labels.KUSCIA_BANDWIDTH_LIMIT_PREFIX))
            if limit := int(value):
                found[pair] = min(limit, found.get(pair, limit))
    return tuple(TaskBandwidthLimit(task, destination, limit) for (task, destination), limit in sorted(found.items()))


def route_of(
    domain_route: Object,
    *,
    tokens: Sequence[SecretValue] = (),
    certificates: Sequence[str] = (),
    client: KeyPair | None = None,
    unverified: bool = False,
    aliases: Sequence[str] = (),
) -> Route | SnapshotProblem:
    """`tokens`: those in force, in clear, newest last. `certificates`: what is known of the partner (PEM), e.g. its
    Domain's. The private key inside `mTLSConfig` is not read; who holds it keeps it in a file and gives `client`."""
    spec: Mapping[str, Any] = domain_route.get("spec") or {}
    source, destination = str(spec.get("source") or ""), str(spec.get("destination") or "")
    about = f"route {source}-{destination}"
    transit = spec.get("transit") or {}
    method = transit.get("transitMethod") or _THIRD_DOMAIN
    mtls = spec.get("mTLSConfig") or {}
    try:
        authentication = Authentication(spec.get("authenticationType") or "Token")
        authority = _pem(mtls, "tlsCA")
        shown = _pem(mtls, "sourceClientCert")
    except ValueError as error:
        return SnapshotProblem(about, str(error))
    via = str((transit.get("domain") or {}).get("domainID") or "") if transit and method == _THIRD_DOMAIN else ""
    if transit and method == _THIRD_DOMAIN and not via:
        return SnapshotProblem(about, "transit through a third domain, and none is named")
    endpoint = spec.get("endpoint") or {}
    annotations: Mapping[str, str] = domain_route.get("metadata", {}).get("annotations") or {}
    # The client certificate is the partner's only on the destination's side.
    inbound = domain_route.get("metadata", {}).get("namespace") == destination
    return Route(
        source,
        destination,
        authentication,
        host=str(endpoint.get("host") or ""),
        ports=tuple(_port(each) for each in endpoint.get("ports") or ()),
        via=via,
        hop_by_hop=_HOW_CARRIED.get(annotations.get(labels.COTERIE_TRANSIT, "")),
        tunnel=bool(transit) and method == _REVERSE_TUNNEL,
        tokens=tuple(tokens),
        certificates=(*certificates, shown) if shown and inbound else tuple(certificates),
        authority=authority,
        unverified=unverified,
        client=client,
        source_addresses=tuple(spec.get("sourceWhiteIPList") or ()),
        headers=tuple(sorted((spec.get("requestHeadersToAdd") or {}).items())),
        kuscia_wire=wire_forms(annotations),
        body_encryption=str((spec.get("bodyEncryption") or {}).get("algorithm") or ""),
        aliases=tuple(aliases),
        bfia=spec.get("interConnProtocol") == BFIA_PROTOCOL,
    )


def _port(port: Mapping[str, Any]) -> RoutePort:
    return RoutePort(
        str(port.get("name") or ""),
        int(port.get("port") or 0),
        grpc=port.get("protocol") == "GRPC",
        tls=bool(port.get("isTLS")),
        path_prefix=str(port.get("pathPrefix") or ""),
    )


def _pem(config: Mapping[str, Any], key: str) -> str:
    text = config.get(key)
    if not text:
        return ""
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"mTLSConfig.{key} is not base64 of PEM") from error
