"""Domains and routes as objects, and routes as lines of a table. Pure.

A route is one direction. The two ends of it may live in two control planes, and each must know of it: the source's, to
call; the destination's, to let the caller in. Only the source's copy needs an address.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from coterie.base import pki
from coterie.base.clock import parse_rfc3339
from coterie.kube.api.meta import Object
from coterie.kuscia.api.domainroutes import route_name
from coterie.kuscia.api.kuscia_wire import KusciaWireForm, wire_forms, written
from coterie.kuscia.api.labels import COTERIE_KUSCIA_WIRE
from coterie.kuscia.api.types.domain import (
    KUSCIA_PROTOCOL,
    PARTNER,
    REVERSE_TUNNEL,
    RSA_GEN,
    THIRD_DOMAIN,
    TOKEN,
    UNUSED,
    ClusterDomainRoute,
    Domain,
    RouteToken,
)
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.registration.master_trust import with_pin
from coterie.kuscia.gateway.settings import GatewaySettings, MasterEndpoint

ROLLING_SECONDS = 86400
"""A token is renewed once a day; calls do not notice."""
_PORT = "http"
TUNNEL = "tunnel"
COLUMNS = ("SOURCE", "DESTINATION", "VIA", "AUTH", "READY", "REASON", "TOKEN AGE")


# Domains.


def encoded(pem: str) -> str:
    """As `spec.cert` has it."""
    return base64.b64encode(pem.encode()).decode()


def partner(name: str, certificate: str, master: str = "") -> Object:
    """A domain that another control plane hosts. `certificate`: PEM; `master`: that control plane's domain, if it is not
    the partner's own."""
    spec: Object = {"role": PARTNER, "cert": encoded(certificate), "interConnProtocols": [KUSCIA_PROTOCOL]}
    if master not in ("", name):
        spec["master"] = master
    return {"metadata": {"name": name}, "spec": spec}


def member(name: str, certificate: str = "") -> Object:
    """A domain of this control plane, whose nodes may come with a deploy token."""
    spec: Object = {"authCenter": {"authenticationType": TOKEN, "tokenGenMethod": RSA_GEN}}
    if certificate:
        spec["cert"] = encoded(certificate)
    return {"metadata": {"name": name}, "spec": spec}


def certificate_of(domain: Domain) -> str:
    """PEM; empty when it has none that can be read."""
    return decoded(domain.spec.cert)


def decoded(text: str) -> str:
    """The other way round than `encoded`; empty when it cannot be read."""
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode()
    except ValueError:
        return ""


def unused_token(domain: Domain) -> str:
    listed = domain.status.deploy_token_statuses or ()
    return next((each.token for each in listed if each.state == UNUSED), "")


def pinned_token(token: str, control_plane: str) -> str:
    """The token with the certificate (PEM) by which a lite knows that it is really its control plane that it joins."""
    return with_pin(token, pki.load_certificate(control_plane.encode()))


# Routes.


def endpoint_of(gateway: GatewaySettings) -> MasterEndpoint | None:
    """How others on this machine reach a gateway; None when it has no public port."""
    if gateway.external is None:
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(gateway.external.host, gateway.external.host)
    return MasterEndpoint(host, gateway.external.port, gateway.protocol is not Protocol.NOTLS)


def url_of(endpoint: MasterEndpoint) -> str:
    where = SocketAddress(endpoint.host, endpoint.port)
    return f"{'https' if endpoint.tls else 'http'}://{where}{endpoint.prefix}"


def route(
    source: str,
    destination: str,
    endpoint: MasterEndpoint | None = None,
    *,
    via: str = "",
    tunnel: bool = False,
    body_encryption: bool = False,
    kuscia_wire: Iterable[KusciaWireForm] = (),
) -> Object:
    spec: Object = {
        "source": source,
        "destination": destination,
        "interConnProtocol": KUSCIA_PROTOCOL,
        "authenticationType": TOKEN,
        "tokenConfig": {"tokenGenMethod": RSA_GEN, "rollingUpdatePeriod": ROLLING_SECONDS},
    }
    if endpoint is not None:
        spec["endpoint"] = endpoint_object(endpoint)
    if via:
        spec["transit"] = {"transitMethod": THIRD_DOMAIN, "domain": {"domainID": via}}
    if tunnel:
        spec["transit"] = {"transitMethod": REVERSE_TUNNEL}
    if body_encryption:
        spec["bodyEncryption"] = {"algorithm": "AES"}
    metadata: Object = {"name": route_name(source, destination)}
    if forms := written(kuscia_wire):
        metadata["annotations"] = {COTERIE_KUSCIA_WIRE: forms}
    return {"metadata": metadata, "spec": spec}


def endpoint_object(endpoint: MasterEndpoint) -> Object:
    port: Object = {"name": _PORT, "protocol": "HTTP", "port": endpoint.port, "isTLS": endpoint.tls}
    if endpoint.prefix:
        port["pathPrefix"] = endpoint.prefix
    return {"host": endpoint.host, "ports": [port]}


# Lines.


@dataclass(frozen=True, slots=True)
class RouteLine:
    """One direction, as one control plane sees it."""

    source: str
    destination: str
    via: str
    """The domain that carries it, or `tunnel`; empty: it is dialled directly."""
    auth: str
    ready: bool
    reason: str
    message: str
    token_age: float | None
    """Seconds since the token in use was agreed on."""
    revision: int = 0
    kuscia_wire: tuple[KusciaWireForm, ...] = ()
    """The weaker forms of Kuscia's wire that it uses."""

    @property
    def name(self) -> str:
        return f"{self.source} -> {self.destination}"

    @property
    def row(self) -> tuple[str, ...]:
        return (
            self.source,
            self.destination,
            self.via or "<none>",
            self.auth,
            str(self.ready),
            self.reason or "<none>",
            age_text(self.token_age),
        )

    def document(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "destination": self.destination,
            "via": self.via,
            "authentication": self.auth,
            "ready": self.ready,
            "reason": self.reason,
            "message": self.message,
            "kusciaWire": [str(each) for each in self.kuscia_wire],
            "tokenRevision": self.revision,
            "tokenAgeSeconds": round(self.token_age, 1) if self.token_age is not None else None,
        }


def line_of(found: ClusterDomainRoute, now: datetime) -> RouteLine:
    spec, condition = found.spec, found.ready
    tunnel = spec.transit is not None and spec.transit.method == REVERSE_TUNNEL
    via = TUNNEL if tunnel else spec.transit.through if spec.transit is not None else ""
    token = newest_token(found)
    since = parse_rfc3339(token.revision_time) if token is not None and token.revision_time else None
    return RouteLine(
        spec.source,
        spec.destination,
        via,
        spec.authentication_type + (f"+{spec.body_encryption.algorithm}" if spec.body_encryption else ""),
        condition is not None and condition.status == "True",
        condition.reason if condition is not None else "NotLookedAtYet",
        condition.message if condition is not None else "",
        max(0.0, (now - since).total_seconds()) if since is not None else None,
        token.revision if token is not None else 0,
        tuple(sorted(wire_forms(found.metadata.annotations))),
    )


def lines_of(found: Iterable[ClusterDomainRoute], now: datetime) -> list[RouteLine]:
    return sorted((line_of(each, now) for each in found), key=lambda line: (line.source, line.destination))


def newest_token(found: ClusterDomainRoute) -> RouteToken | None:
    tokens = found.status.token_status
    listed = ((tokens.source_tokens or tokens.destination_tokens) if tokens is not None else None) or ()
    ready = [each for each in listed if each.is_ready]
    return ready[-1] if ready else None


def age_text(seconds: float | None) -> str:
    """As kubectl writes ages: `42s`, `7m`, `3h`, `5d`."""
    if seconds is None:
        return "<none>"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"
