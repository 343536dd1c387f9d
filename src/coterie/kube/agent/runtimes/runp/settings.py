"""What can be set about RunP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PodNetworkSettings:
    """The pod network of a node: a network namespace of its own, in which every pod has an address."""

    cidr: str = "100.96.0.0/16"
    """The node's range. The first address is the gateway's, the lower half is for ordinary pods, the upper for engines."""
    ports: tuple[tuple[str, int], ...] = ()
    """(tcp or udp, port) of the gateway address that every pod may reach."""
    ports_not_for_guests: tuple[tuple[str, int], ...] = ()
    """Likewise, but not for pods that another domain began."""
    mtu: int = 0
    """Of pods' devices; 0: the kernel's default."""
    cluster_cidr: str = ""
    """The range of all nodes of the domain; empty: pods reach those of this node only. For root."""
    node_mask_size: int = 0
    """The length of the prefix of every node's range."""
    control_gateway: str = ""
    """The gateway address of the control plane's node, from which every pod is reached; empty: this is that node."""


@dataclass(frozen=True, slots=True)
class RunpSettings:
    directory: Path
    """The runtime's own: the supervisor's socket, records of pods and runs. One for each node."""
    images: Path
    """The image store, which several nodes of a machine may share."""
    node: str
    """Name of the node; part of its control groups' names."""
    address: str = "127.0.0.1"
    """Where the ports of pods are reached: they share the machine's network."""
    network: PodNetworkSettings | None = None
    """None: pods share the machine's network."""
    allow_host_network: bool = False
    """Whether pods may ask for the machine's network (`hostNetwork`)."""
    hidden: tuple[Path, ...] = ()
    """Directories that no container may see: the agent's root with its keys."""
    log_bytes: int = 10 << 20
    """A log larger than this is rotated; 0: never."""
    log_files: int = 5
    """How many files of one log are kept, the current one among them."""
    log_age: float = 0.0
    """A log file is rotated after this many seconds even if it is small; 0: never."""
    idle_seconds: float = 300.0
    """The supervisor ends when there was no pod for this long, and starts again with the next; 0: it always runs."""
    zygote_idle_seconds: float = 300.0
    """An interpreter with preloaded modules ends when no container of its image ran for this long."""
    zygote_load_seconds: float = 60.0
    """How long it may take to import its modules."""
    without: tuple[str, ...] = ()
    """Means of isolation that are not to be used though the machine has them: `namespaces`, `groups`, `landlock`,
    `seccomp`, `network`, `zygotes`. For machines on which one of them misbehaves. Holds for supervisors started from now on."""
