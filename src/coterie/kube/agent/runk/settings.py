"""What mirrored pods look like in the backing cluster, as documented data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coterie.kube.api.meta import Object

OWNER_LABEL = "coterie.io/owner"
"""Whose agent made an object: two control planes with the same names must not take each other's pods for orphans."""
GROUP_LABEL = "coterie.io/group"
"""Pods of one task or deployment."""
DEFAULT_EPHEMERAL_STORAGE = "20Gi"
GATE = "coterie.io/objects"
"""The scheduling gate of a copy whose ConfigMaps, Secrets and NetworkPolicy are not there yet."""


@dataclass(frozen=True, slots=True)
class MirrorLabels:
    """Names of the labels by which a copy and its original are known to each other."""

    namespace: str = "coterie.io/mirrored-namespace"
    node: str = "coterie.io/mirrored-node"
    pod_uid: str = "coterie.io/mirrored-uid"


@dataclass(frozen=True, slots=True)
class ReachableService:
    """A port of the node that engines may use."""

    address: str
    protocol: str
    """UDP or TCP."""
    port: int
    guests: bool = True
    """Whether also those that another domain began."""


@dataclass(frozen=True, slots=True)
class RunkSettings:
    namespace: str
    """Of the backing cluster, where all copies are."""
    owner: str
    """The value of OWNER_LABEL: the same for each life of this agent, and nobody else's."""
    labels: MirrorLabels = MirrorLabels()
    dns_servers: tuple[str, ...] = ()
    """What engines ask; empty: the backing cluster's own DNS."""
    dns_search: tuple[str, ...] = ()
    labels_to_add: Mapping[str, str] = field(default_factory=dict)
    annotations_to_add: Mapping[str, str] = field(default_factory=dict)
    affinity: Object = field(default_factory=dict)
    """Beside the pod's own."""
    runtime_class: str = ""
    pull_secrets: tuple[str, ...] = ()
    """Secrets of the backing namespace with credentials of registries."""
    service_account: str = ""
    """Of the backing namespace; empty: its default. Its token is never mounted."""
    run_as_user: int = 10001
    """Of containers that name no user."""
    allow_root: bool = False
    """Whether containers may run as the user of their image, and as root."""
    allow_privileged: bool = False
    """Whether pods that are no engines keep their security context."""
    network_policies: bool = True
    """Whether engines get a NetworkPolicy."""
    node_addresses: tuple[str, ...] = ()
    """From which the domain's gateway calls engines."""
    services: tuple[ReachableService, ...] = ()
    dropped_resources: tuple[str, ...] = ()
    """Extended resources that only this node's control plane counts."""
    default_memory: str = ""
    """Limit of containers that have none; empty: what the node can allocate."""
    default_ephemeral_storage: str = DEFAULT_EPHEMERAL_STORAGE
    keep_logs: bool = True
    """Whether output is also kept in files of this node, where logs are searched."""
    log_directory: Path | None = None
    """None: where the node keeps the output of its pods."""
    log_bytes: int = 10 << 20
    log_files: int = 5
    start_failure_seconds: float = 60.0
    """A pod with `restartPolicy: Never` fails when it could not be started for this long; 0: never."""
    workers: int = 8
