"""What the process that serves the console has to know, as its command line."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from coterie.base.files import write_atomic
from coterie.base.log_rotation import STANDARD, Rotation
from coterie.base.paths import DomainPaths

WEB, CONTROL = "web", "control"
"""Listeners: the port for browsers, and the socket by which `coterie console` asks for a login link."""

_LOCATION_FILE = "console.location"
_DEFAULT_PORTS = {"http": 80, "https": 443}
"""Browsers do not write them."""


@dataclass(frozen=True, slots=True)
class ConsoleLocation:
    """Where the console of a running node is, for other programs of this machine: a file, so that nobody has to start the
    process to find out. Where the socket is depends on the node's environment."""

    url: str
    control_socket: Path

    @classmethod
    def read(cls, paths: DomainPaths) -> ConsoleLocation | None:
        """None: there is no console."""
        try:
            url, socket = (paths.run / _LOCATION_FILE).read_text().splitlines()
        except (OSError, ValueError):
            return None
        return cls(url, Path(socket))

    def write(self, paths: DomainPaths) -> None:
        text = f"{self.url}\n{self.control_socket}\n"
        write_atomic(paths.run / _LOCATION_FILE, text, mode=0o600, durable=False)

    @staticmethod
    def remove(paths: DomainPaths) -> None:
        (paths.run / _LOCATION_FILE).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    domain: str
    mode: str
    address: str
    port: int
    """In the process, the one that is open; in the node, the one to open (0: any)."""
    kubeconfig: Path
    """Where the API server is, and who signs its certificate. The credentials in it are not used."""
    certificate: Path | None = None
    """With `key`: serve HTTPS. None: plain HTTP, on loopback only."""
    key: Path | None = None
    read_only: bool = False
    """Nothing can be changed from the page, whatever the person may do otherwise."""
    exec: bool = True
    """Whether a terminal in a container can be opened from the page."""
    names: tuple[str, ...] = ()
    """Other names under which browsers may reach the console."""
    log_rotation: Rotation = STANDARD

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What a browser may send as Host; anything else is somebody's DNS trick."""
        own = f"[{self.address}]" if ":" in self.address else self.address
        place = ipaddress.ip_address(self.address)
        # Nobody calls a machine by the address that means all of its addresses.
        names = [*self.names] if place.is_unspecified else [own, *self.names]
        if place.is_loopback:
            names.append("localhost")
        return tuple(name if self.port == _DEFAULT_PORTS[self.scheme] else f"{name}:{self.port}" for name in names)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.hosts[0]}"

    def options(self) -> dict[str, str]:
        out = {
            "--domain": self.domain,
            "--mode": self.mode,
            "--address": self.address,
            "--kubeconfig": str(self.kubeconfig),
            "--read-only": str(self.read_only).lower(),
            "--exec": str(self.exec).lower(),
            "--names": ",".join(self.names),
        }
        if self.certificate is not None and self.key is not None:
            out |= {"--certificate": str(self.certificate), "--key": str(self.key)}
        return out
