"""What the functions process is told: read by the node, and handed over on the command line and in the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from coterie.base.log_rotation import STANDARD, Rotation
from coterie.base.paths import DomainPaths
from coterie.functions.spare_plan import STANDARD_SPARES, SparePolicy

EMBEDDED = "embedded"
HOPS = "hops"
"""The listener for partners' calls (`functions/hops`)."""
BUS_VARIABLE = "COTERIE_FUNCTIONS_BUS"


@dataclass(frozen=True, slots=True)
class FunctionsSettings:
    domain: str
    paths: DomainPaths
    bus: str = field(default=EMBEDDED, repr=False)
    """Or `kafka://host:port,...`, which may have a password: it is not handed over on the command line."""
    image: str = ""
    """Of gateways, and of actions that name none; empty: the one that Coterie brings along."""
    max_body: int = 8 << 20
    """Bytes of a call or an answer."""
    min_gateways: int = 1
    max_gateways: int = 10
    spares: SparePolicy = STANDARD_SPARES
    netns: Path | None = None
    """The network namespace of the domain's pods; None: the one that the process is in."""
    gateway: Path | None = None
    """The socket of our own gateway for the node's calls to partners; None: there is no gateway."""
    own_network: bool = True
    """Each pod has a network of its own."""
    log_rotation: Rotation = STANDARD
    traces: Path | None = None
    """The socket to which spans are sent; None: there are none."""
    evidence: Path | None = None
    """The socket of the evidence log; None: there is none."""

    @property
    def directory(self) -> Path:
        """Of the embedded bus."""
        return self.paths.storage / "functions"

    def options(self) -> dict[str, str]:
        made = {
            "--domain": self.domain,
            "--home": str(self.paths.home),
            "--image": self.image,
            "--max-body": str(self.max_body),
            "--min-gateways": str(self.min_gateways),
            "--max-gateways": str(self.max_gateways),
            "--spare-actors": str(self.spares.size),
            "--spare-idle-seconds": f"{self.spares.idle_seconds:g}",
            "--own-network": "yes" if self.own_network else "no",
        }
        found = {"--netns": self.netns, "--gateway": self.gateway, "--evidence": self.evidence}
        return {**made, **{name: str(path) for name, path in found.items() if path is not None}}
