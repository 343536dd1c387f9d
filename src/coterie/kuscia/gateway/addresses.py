"""Addresses, keys and listeners of a gateway: the part of its model that a configuration is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Protocol(StrEnum):
    """What the external port speaks. MTLS is the default: plain text only when somebody asked for it."""

    NOTLS = "NOTLS"
    TLS = "TLS"
    MTLS = "MTLS"


@dataclass(frozen=True, slots=True, order=True)
class SocketAddress:
    host: str
    """Or the path of a Unix socket, which has no port."""
    port: int

    @property
    def is_socket(self) -> bool:
        return self.host.startswith("/")

    def __str__(self) -> str:
        if self.is_socket:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate chain and its key, by file: Envoy reads them itself and again whenever they are replaced."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class IngressListeners:
    """Where the domain's Ingresses are served, to everybody who reaches these ports."""

    http: SocketAddress | None = None
    https: SocketAddress | None = None
    http_socket: str = ""
    """Path of the Unix socket on which a relay brings the connections, each with a PROXY protocol header; empty: Envoy listens
    on the port itself."""
    https_socket: str = ""


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """The network in which the domain's pods live, apart from the machine's."""

    cidr: str
    """Addresses of this node's pods, `100.96.0.0/20`."""
    engines: str
    """Its upper half: pods of tasks and deployments. Each of them calls only what it was allowed."""
    gateway: SocketAddress
    """Where pods reach the gateway."""
    cluster: str = ""
    """Addresses of the pods of all nodes of the domain; empty: this one is alone."""
    namespace: str = ""
    """File of the network namespace; empty when Envoy itself runs inside it."""
    resolver: SocketAddress | None = None
    """The DNS server that Envoy asks when it runs inside."""
    public_socket: str = ""
    """Path of the Unix socket on which partners' connections arrive, each with a PROXY protocol header; empty: Envoy listens
    on the public port itself."""
