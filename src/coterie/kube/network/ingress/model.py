"""Virtual hosts as plain data: what a request's host and path lead to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from coterie.base.secret import SecretValue

CONTROLLER = "coterie.io/ingress"
"""`spec.controller` of the IngressClasses whose Ingresses are served here."""
CLASS = "coterie"
"""The IngressClass that every cluster has."""


class UpstreamProtocol(StrEnum):
    HTTP = "http"
    HTTP2 = "http2"
    HTTPS = "https"


@dataclass(frozen=True, slots=True)
class Upstream:
    """One port of a Service."""

    service: str
    port: str
    """Number or name, as the object spells it."""
    endpoints: tuple[tuple[str, int], ...] = ()
    """Ready ones; none: requests are answered with 503."""
    protocol: UpstreamProtocol = UpstreamProtocol.HTTP
    sticky: bool = False
    """A client stays at one endpoint (`sessionAffinity: ClientIP`)."""


@dataclass(frozen=True, slots=True)
class PathRule:
    path: str
    """Without a slash at its end where it is a prefix, so empty for the prefix of everything."""
    exact: bool
    upstream: Upstream
    to_root: bool = False
    """The upstream sees `/` instead of the path."""


@dataclass(frozen=True, slots=True)
class VirtualHost:
    host: str
    """`*.name`: one label in front of the name; empty: every host that has no rules of its own."""
    rules: tuple[PathRule, ...] = ()
    """In the order in which they are tried."""
    default: Upstream | None = None
    """For paths without a rule; None: 404."""
    for_pods: bool = False
    """Pods find this host by its name."""


@dataclass(frozen=True, slots=True)
class IngressCertificate:
    secret: str
    hosts: tuple[str, ...]
    """Server names; empty: for clients that ask for any other one."""
    chain: str = field(repr=False)
    key: SecretValue = field(repr=False)


@dataclass(frozen=True, slots=True, order=True)
class IngressProblem:
    """Something that was asked for and is not served, for an event of the object."""

    kind: str
    """`ingress` or `dns`."""
    name: str
    message: str


@dataclass(frozen=True, slots=True)
class IngressTable:
    hosts: tuple[VirtualHost, ...] = ()
    default: Upstream | None = None
    """For hosts without rules; None: 404."""
    certificates: tuple[IngressCertificate, ...] = ()
    served: frozenset[str] = frozenset()
    """Names of the Ingresses that are ours to serve."""


NO_INGRESS = IngressTable()
