"""What KusciaAPI is told: read by the node, and handed to the process that serves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from coterie.base.log_rotation import STANDARD, Rotation
from coterie.base.paths import DomainPaths

HTTP, GRPC, CONF_HTTP, CONF_GRPC, INNER = "http", "grpc", "conf-http", "conf-grpc", "inner"
"""Names of the listeners."""


class Protection(StrEnum):
    """Of the ports of KusciaAPI."""

    MTLS = "MTLS"
    """Callers show a certificate of the domain's authority, and the token."""
    TLS = "TLS"
    """Callers show the token."""
    NOTLS = "NOTLS"
    """Plain text, and whoever reaches the port may do everything."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Of an HTTP port, in seconds; 0: the usual."""

    read: int = 0
    """For the head of a request to arrive, and again for its body."""
    write: int = 0
    """For an answer to be taken."""
    idle: int = 0
    """For the next request on the same connection."""

    @classmethod
    def parse(cls, text: str) -> Timeouts:
        """What `str` made."""
        return cls(*map(int, text.split(",")))

    def __str__(self) -> str:
        return f"{self.read},{self.write},{self.idle}"


USUAL_TIMEOUTS = Timeouts()


@dataclass(frozen=True, slots=True)
class KusciaApiSettings:
    domain: str
    mode: str
    """master, lite or autonomy."""
    paths: DomainPaths
    address: str = "127.0.0.1"
    http_port: int = 8082
    grpc_port: int = 8083
    protection: Protection = Protection.MTLS
    conf_address: str = "127.0.0.1"
    conf_http_port: int = 8060
    conf_grpc_port: int = 8061
    inner: Path | None = None
    """The Unix socket for what comes from lites through the gateway; None where there are no lites."""
    gateway: str = ""
    """Of a lite: the Unix socket on which its own gateway takes what leaves."""
    timeouts: Timeouts = USUAL_TIMEOUTS
    """Of KusciaAPI's HTTP port."""
    conf_timeouts: Timeouts = USUAL_TIMEOUTS
    """Of ConfManager's."""
    log_rotation: Rotation = STANDARD
    """Of the node that starts it."""
    node: str = ""
    """The name of that node."""

    @property
    def ports(self) -> tuple[tuple[str, str, int], ...]:
        """Name, address and port of each listener that is no Unix socket."""
        return (
            (HTTP, self.address, self.http_port),
            (GRPC, self.address, self.grpc_port),
            (CONF_HTTP, self.conf_address, self.conf_http_port),
            (CONF_GRPC, self.conf_address, self.conf_grpc_port),
        )

    def options(self) -> dict[str, str]:
        """As `read` takes them."""
        return {
            "--domain": self.domain,
            "--mode": self.mode,
            "--home": str(self.paths.home),
            "--address": self.address,
            "--http": str(self.http_port),
            "--grpc": str(self.grpc_port),
            "--protection": self.protection,
            "--conf-address": self.conf_address,
            "--conf-http": str(self.conf_http_port),
            "--conf-grpc": str(self.conf_grpc_port),
            "--gateway": self.gateway,
            "--node": self.node,
            "--timeouts": str(self.timeouts),
            "--conf-timeouts": str(self.conf_timeouts),
        }
