"""Everything about an agent that can be set, as documented data. Whoever reads the configuration fills these in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from coterie.base.paths import DomainPaths

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """What the node offers. An empty text or 0 means: measure it."""

    cpu: str = ""
    """Cores, as a quantity; measured: the cgroup's quota, else the machine's processors."""
    memory: str = ""
    """Bytes, as a quantity; measured: the cgroup's limit, else the machine's memory."""
    storage: str = ""
    """Disk for data, as a quantity; measured: the size of the file system below the agent's root."""
    ephemeral_storage: str = ""
    """Disk for pods, as a quantity; measured likewise."""
    pods: int = 500
    """How many pods may run at once."""
    reserved_cpu: str = "500m"
    """CPU kept for Coterie itself; taken off what is allocatable."""
    reserved_memory: str = "500Mi"


@dataclass(frozen=True, slots=True)
class PressureThreshold:
    """How much of something should be available: an amount, or a part of the whole."""

    quantity: int = 0
    percent: float = 0.0
    most: int = 0
    """Bounds the part; 0: nothing does."""

    def of(self, total: int) -> int:
        """0: it is never met."""
        if not self.percent:
            return self.quantity
        part = int(total * self.percent / 100)
        return min(part, self.most) if self.most else part


@dataclass(frozen=True, slots=True)
class PressureSettings:
    """When the node says that something runs short, and evicts pods because of it. A threshold of 0 is off."""

    memory: PressureThreshold = PressureThreshold(100 * MIB)
    pids: PressureThreshold = PressureThreshold(percent=10)
    disk: PressureThreshold = PressureThreshold(percent=5, most=3 * GIB)
    inodes: PressureThreshold = PressureThreshold(percent=5)
    soft_memory: PressureThreshold = PressureThreshold()
    """Met for `soft_grace_seconds` before pods are evicted."""
    soft_disk: PressureThreshold = PressureThreshold()
    soft_grace_seconds: float = 90.0
    transition_seconds: float = 300.0
    """A condition stays so long after its signal recovered: a node must not come and go."""
    out_of_disk_free: int = 100 * MIB
    out_of_disk_inodes: int = 1000


@dataclass(frozen=True, slots=True)
class NodeObjectSettings:
    """The Node object and its heartbeat."""

    lease_seconds: int = 40
    """After this long without renewal the node counts as gone."""
    renew_seconds: float = 10.0
    status_seconds: float = 300.0
    """The status is written this often even when nothing changed."""
    measure_seconds: float = 30.0
    """How often conditions are looked at; a change is written at once."""
    collision_retry_seconds: float = 5.0
    """How often to try again while another machine still runs a node of our name."""
    on_exit: Literal["keep", "cordon", "delete"] = "keep"
    """What an orderly stop does to the Node: nothing (pods go on, the next agent takes over), Ready=False and
    unschedulable, or delete it."""
    labels: dict[str, str] = field(default_factory=dict)
    """More labels for the Node."""
    pod_cidr: str = ""
    """The range of this node's pods, `spec.podCIDR`; empty: the control plane gives it one."""
    addresses: tuple[str, ...] = ()
    """More addresses of the machine."""


@dataclass(frozen=True, slots=True)
class PodDefaults:
    """Limits of pods that set none of their own."""

    pids: int = 4096
    """Most processes and threads of one pod; 0: no limit."""
    open_files: int = 65536
    """Soft limit of open files of one process; the hard limit is 1048576, or what the machine allows. 0: the agent's
    own."""
    memory: str = ""
    """Memory of one pod, as a quantity; empty: what the node can allocate to pods."""
    ephemeral_storage: str = ""
    """Disk of one pod: what it writes outside of persistent volumes, and its logs. Empty: 20Gi or half of the disk,
    whichever is smaller."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """How the disk that pods use is watched."""

    check_seconds: float = 2.0
    """How often the free space is read while there are pods."""
    measure_seconds: float = 30.0
    """A pod's files are counted this often, sooner when the disk fills."""
    measure_share: float = 0.1
    """Most of the time that is spent counting."""
    evict_bytes: int = 100 * MIB
    """Under disk pressure, pods that use less are not evicted."""
    evict_inodes: int = 10_000


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    """Pods that use less are not evicted: their end would free nothing."""

    evict_memory: int = 16 * MIB
    evict_pids: int = 16
    pause_seconds: float = 3.0
    """For an eviction to free memory or processes before the next pod goes."""


@dataclass(frozen=True, slots=True)
class PodSettings:
    """How pods are run."""

    namespace: str = ""
    """Only pods of this namespace; empty: of all."""
    backoff_first: float = 10.0
    """Pause before the second restart of a container; doubles with each."""
    backoff_limit: float = 300.0
    backoff_reset: float = 600.0
    """A run that lasted this long starts the pauses anew."""
    start_failure_seconds: float = 60.0
    """A pod that is never restarted (`restartPolicy: Never`) fails when one of its containers could not be started
    for this long (image missing, configuration missing): a task that fails instead of one that hangs. 0: wait for ever,
    as a kubelet does."""
    start_retry_first: float = 5.0
    """Pause before a start that failed is tried again; doubles up to `backoff_limit`."""
    min_grace: float = 2.0
    """Seconds a container has after its preStop hook, however long that took."""
    orphan_grace: float = 30.0
    """Seconds to end for containers whose pod is unknown to the API."""
    workers: int = 8
    """Pods looked at side by side."""
    status_writers: int = 8
    """Status writes under way at once; the limit of the load one agent puts on the API."""
    status_pause: float = 0.0
    """Least seconds between two status writes of one pod."""
    pending_status_delay: float = 0.1
    """A pod that starts faster than this is told as Running at once: nobody waits to hear that it is still Pending."""
    defaults: PodDefaults = PodDefaults()
    kept_logs: int = 5
    """Runs of one container whose logs are kept while the pod exists."""
    allow_privileged: bool = False
    """Otherwise `privileged: true` is dropped."""
    host_paths: tuple[str, ...] = ()
    """Directories below which hostPath volumes may lie. Empty: hostPath is refused."""
    withheld: tuple[Path, ...] = ()
    """Directories of the node itself, which no hostPath volume shows."""
    extra_mounts: tuple[tuple[Path, str, bool], ...] = ()
    """(source, target, read only) that every container gets."""
    termination_message_limit: int = 4096
    termination_log_limit: int = 2048
    """Bytes of log that stand in for a missing termination message; at most 80 lines."""


@dataclass(frozen=True, slots=True)
class DnsSettings:
    """What a pod's resolver file says."""

    servers: tuple[str, ...] = ()
    """The domain's DNS, on port 53: resolver files cannot name another. Empty: pods get a copy of the machine's file."""
    search: tuple[str, ...] = ()
    """What short names are completed with, before what the machine's own file says."""
    cluster_domain: str = ""
    """`cluster.local`: names end so in all namespaces; empty: they do not."""
    domain_namespace: str = ""
    """Pods of this namespace search `search` before the cluster's domain, all others after it."""
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(address, names) for every pod's hosts file: what a pod must find even without the domain's DNS."""
    ndots: int = 1
    host_resolv_conf: Path = Path("/etc/resolv.conf")


@dataclass(frozen=True, slots=True)
class PodLogSettings:
    """What happens to the output of pods that are gone."""

    max_age_days: float = 30.0
    """Output of a pod that the API no longer knows is kept this long."""
    max_total_bytes: int = 2 << 30
    """The oldest of it goes when there is more; 0: no limit."""
    gc_seconds: float = 600.0
    gc_batch: int = 100
    """Most directories removed in one round."""


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """Which devices (GPUs) the node offers."""

    enabled: bool = True
    """Otherwise no driver is looked for."""
    only: tuple[str, ...] = ()
    """Ids, beginnings of ids or numbers of the devices that this node offers. Empty: all of the machine."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    node_name: str
    paths: DomainPaths
    """The agent's own root: several agents on one machine have one each."""
    address: str = "127.0.0.1"
    """InternalIP of the node, and the address of pods that share the machine's network."""
    port: int = 10250
    """Where the kubelet-like endpoint listens; told in the Node's status."""
    default_handler: str = "runp"
    """What runs containers of pods that name no RuntimeClass."""
    machine_id: str = ""
    """Who the machine is; empty: the system's. Tests with several "machines" set it."""
    capacity: CapacitySettings = CapacitySettings()
    pressure: PressureSettings = PressureSettings()
    node: NodeObjectSettings = field(default_factory=NodeObjectSettings)
    pods: PodSettings = PodSettings()
    dns: DnsSettings = DnsSettings()
    logs: PodLogSettings = PodLogSettings()
    storage: StorageSettings = StorageSettings()
    eviction: EvictionSettings = EvictionSettings()
    devices: DeviceSettings = DeviceSettings()

    @property
    def pods_directory(self) -> Path:
        """One directory per pod: volumes, history and the runtime's files."""
        return self.paths.var / "pods"

    @property
    def devices_directory(self) -> Path:
        """The record of which pod has which device."""
        return self.paths.var / "devices"

    @property
    def volumes_directory(self) -> Path:
        """One directory per local-path PersistentVolume; pods come and go, these stay."""
        return self.paths.var / "volumes"
