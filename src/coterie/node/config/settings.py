"""What a configuration comes to: documented data, read once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.base.log_rotation import STANDARD, Rotation
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.base.store_address import StoreAddress
from coterie.kube.agent.images.sources import PullSettings
from coterie.kube.agent.settings import CapacitySettings, DeviceSettings, PodDefaults, PressureSettings
from coterie.kuscia.datamesh.settings import DataProxy
from coterie.kuscia.gateway.settings import GatewaySettings
from coterie.kuscia.kusciaapi.settings import USUAL_TIMEOUTS, Timeouts
from coterie.kuscia.transport.settings import QueueLimits

EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """`apiServer`: the Kubernetes API of this node; at a lite that registered, that for the other machines of its domain."""

    host: str = "127.0.0.1"
    """Address to listen on. The API authenticates every caller, but operators should still not be the whole world."""
    port: int = 6443
    """Port to listen on; 0 picks a free one, which the kubeconfig then names."""
    names: tuple[str, ...] = ()
    """More DNS names and addresses under which clients reach the API; they go into its certificate."""
    event_ttl_seconds: int = 3600
    """How long Event objects are kept."""
    audit_log: str = "audit.jsonl"
    """File for one JSON line for each changing request; empty: none. A relative path lies below var/logs."""
    audit_policy: str = ""
    """File with an audit policy of Kubernetes (`audit.k8s.io/v1`); empty: changes without bodies. A relative path lies below the
    domain's directory."""
    kubeconfig: str = ""
    """Instead of an API server of our own, somebody's Kubernetes: the file with the way to it, or `in-cluster` for a pod there.
    Controllers of the cluster run there, and its store and API server are not ours (modes master and autonomy)."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """`controllers`: when a control plane gives nodes up, which ports it gives away (modes master and autonomy)."""

    node_grace_seconds: int = 32
    """A node that gave no sign of life for this long is not ready: its pods get no traffic. `profile: quick`: 6."""
    pod_eviction_seconds: int = 5
    """Pods without a toleration of their own are replaced after their node was not ready for this long. `profile: quick`:
    1."""
    autoscaler_seconds: int = 15
    """`autoscalerSeconds`: how often HorizontalPodAutoscalers are evaluated."""
    stall_seconds: int = 300
    """`stallSeconds`: tasks whose engines are idle for so long at all parties are shown as Stalled; 0: never."""
    health_port: int = 8090
    """`healthPort`: where this machine may ask for the health and the metrics of the controllers; 0: nowhere."""
    local_slurm_user: str = ""
    """`localSlurmUser`: the user as whom SlurmClusters with `local: true` run Slurm's commands on this machine; empty: such
    clusters are refused."""
    port_range: tuple[int, int] = (20000, 32766)
    """`portRange`, first and last: the ports that engines of tasks get. Control planes that share a machine need ranges
    that do not meet."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """`network`: the addresses of the domain's pods and Services. At a lite, `serviceCIDR` is the master's."""

    pod_cidr: str = "100.96.0.0/12"
    """`podCIDR`: the addresses of all pods; every node gets a part of it."""
    node_mask_size: int = 20
    """`nodeMaskSize`: the length of the prefix of a node's part."""
    service_cidr: str = "100.112.0.0/16"
    """`serviceCIDR`: the virtual addresses of Services."""

    @property
    def first_node(self) -> str:
        """The part of the control plane's own node."""
        return f"{self.pod_cidr.partition('/')[0]}/{self.node_mask_size}"


@dataclass(frozen=True, slots=True)
class RunkConfig:
    """`runk`: the backing cluster in which the pods run (`runtime: runk`)."""

    namespace: str = ""
    """Where the copies are; empty: the namespace of the kubeconfig's context, or that of the pod the node runs in."""
    kubeconfig_file: str = ""
    """`kubeconfigFile`; empty: the service account of the pod in which the node runs."""
    dns_servers: tuple[str, ...] = ()
    """`dnsServers`: what engines ask; empty: the node's own server."""
    pod_cidr: tuple[str, ...] = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
    """`podCIDRs`: addresses that pods of the backing cluster have; the node's DNS answers no others."""
    keep_logs: bool = True
    """`enableLogging`: whether output of pods is also kept in files of this node, where jobs' logs are searched."""
    log_directory: str = ""
    """`logDirectory`; empty: var/stdout/pods."""
    log_max_files: int = 0
    """`logMaxFiles`; 0: as `logrotate.maxFiles`."""
    log_max_bytes: int = 0
    """`logMaxSize`; 0: as `logrotate.maxFileSizeMB`, else 10 MB."""
    labels: dict[str, str] = field(default_factory=dict)
    """`labelsToAdd`."""
    annotations: dict[str, str] = field(default_factory=dict)
    """`annotationsToAdd`."""
    affinity: dict[str, Any] = field(default_factory=dict)
    """`affinitiesToAdd`: beside the pod's own."""
    runtime_class: str = ""
    """`runtimeClassName`, such as kata."""
    pull_secrets: tuple[str, ...] = ()
    """`imagePullSecrets`: Secrets of the backing namespace with credentials of registries."""
    service_account: str = ""
    """`serviceAccountName` of the pods; its token is never mounted."""
    run_as_user: int = 10001
    """`runAsUser` of containers that name no user."""
    allow_root: bool = False
    """`allowRoot`: whether pods may run as root, or as whom their image says."""
    network_policies: bool = True
    """`networkPolicies`: whether engines get a NetworkPolicy."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """`agent`, `capacity`, `reservedResources`: the node agent (modes lite and autonomy)."""

    node_name: str
    """Name of the Node object; the machine's host name unless given. Empty: as the file says with which it joins."""
    address: str = "127.0.0.1"
    """The node's address: where its endpoint listens and its pods are reached."""
    port: int = 10250
    """Port of the agent's endpoint (logs, exec, ...); 0 picks a free one."""
    taint: bool = False
    """Whether the Node has Kuscia's taint, which only pods of tasks tolerate."""
    host_paths: tuple[str, ...] = ()
    """Directories below which hostPath volumes may lie; none unless given."""
    allow_privileged: bool = False
    pod_cidr: str = "100.96.0.0/20"
    """`podCIDR`: the addresses of this node's pods. A node that joins has the one of its join file; all others, unless it
    is given, the first of `network.podCIDR`."""
    allow_host_network: bool = False
    """Whether pods may ask for the machine's network (`hostNetwork: true`)."""
    link_routes: bool = True
    """`linkRoutes`: whether nodes on the same link are reached without VXLAN where the link lets such frames pass."""
    runtime: str = "runp"
    """`runtime`: what runs pods that name no RuntimeClass; runp or runc. runk: all pods run in a backing cluster."""
    runk: RunkConfig | None = None
    """Of nodes with `runtime: runk`."""
    container_runtime: str = "auto"
    """`containerRuntime`: what runs containers of the handler runc; auto, containerd, runc or crun."""
    lease_seconds: int = 40
    """How long a sign of life is good for; a new one is given four times in this time."""
    defaults: PodDefaults = field(default_factory=PodDefaults)
    """`agent.defaults`: limits of pods that set none of their own."""
    pressure: PressureSettings = field(default_factory=PressureSettings)
    """`agent.eviction`: when memory, disk or processes run short, and pods are evicted."""
    capacity: CapacitySettings = field(default_factory=CapacitySettings)
    devices: DeviceSettings = field(default_factory=DeviceSettings)
    """`agent.gpus`: which GPUs the node offers."""
    bandwidth_mbit: int = 0
    """`capacity.bandwidth`; 0: the speed of the network card."""
    reserved_bandwidth_mbit: int = 10


@dataclass(frozen=True, slots=True)
class DnsConfig:
    """`dns`: the server that knows the domain's names."""

    enabled: bool = True
    address: str = "127.0.0.1"
    port: int = 53
    upstream: tuple[str, ...] = ()
    """Servers for all other names, as `address` or `address:port`; none: those of the machine's /etc/resolv.conf."""
    cluster_domain: str = "cluster.local"
    """`clusterDomain`: what names of Services in all namespaces end in, as in Kubernetes."""


@dataclass(frozen=True, slots=True)
class DataMeshConfig:
    """`dataMesh`: the domain's data for its engines (modes lite and autonomy)."""

    enabled: bool = True
    """False unless said otherwise where the gateway is switched off: such a node runs no tasks with others."""
    address: str = "127.0.0.1"
    """The name `datamesh` leads to the DNS server's address, so listening elsewhere needs another name."""
    http_port: int = 8070
    grpc_port: int = 8071
    proxies: tuple[DataProxy, ...] = ()
    """`dataProxyList`: Flight servers that open sources of some types."""


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """`transport`: the message queue of engines (modes lite and autonomy)."""

    enabled: bool = True
    """False unless said otherwise where the gateway is switched off."""
    limits: QueueLimits = field(default_factory=QueueLimits)


@dataclass(frozen=True, slots=True)
class KusciaApiConfig:
    """`kusciaAPI`, `kusciaAPISans`, `confManager`: the API for operators and platforms, and the one for engines."""

    enabled: bool = True
    """False unless said otherwise where the gateway is switched off."""
    address: str = "127.0.0.1"
    http_port: int = 8082
    grpc_port: int = 8083
    protocol: str = "MTLS"
    """MTLS: callers show a certificate and the token; TLS: the token; NOTLS: nothing, in plain text."""
    names: tuple[str, ...] = ()
    """More DNS names and addresses for the certificate."""
    conf_address: str = "127.0.0.1"
    """The name `confmanager` leads to the DNS server's address, so listening elsewhere needs another name."""
    conf_http_port: int = 8060
    conf_grpc_port: int = 8061
    timeouts: Timeouts = USUAL_TIMEOUTS
    conf_timeouts: Timeouts = USUAL_TIMEOUTS


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """`metrics`: the one page for Prometheus."""

    enabled: bool = True
    address: str = "127.0.0.1"
    port: int = 9091
    required: bool = False
    """Whether the port was asked for. Without that, a node whose port is taken runs without the page and says so."""
    allow: tuple[str, ...] = ()
    """Addresses and networks that may scrape besides the machine itself."""
    token_file: str = ""
    """A file with a token with which anybody may scrape; empty: there is none."""


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """`console`: pages for people, of control planes."""

    enabled: bool = True
    address: str = "127.0.0.1"
    port: int = 8088
    required: bool = False
    """Whether the port was asked for. Without that, the console of a node whose port is taken has another one."""
    read_only: bool = False
    exec: bool = True
    names: tuple[str, ...] = ()
    """Other names under which browsers reach it."""


@dataclass(frozen=True, slots=True)
class FunctionsConfig:
    """`functions`: Actions and Triggers of the domain (mode autonomy)."""

    enabled: bool = True
    bus: str = field(default=EMBEDDED, repr=False)
    """`embedded`, or `kafka://host:port,...`: where calls are kept until they are answered. It may have a password."""
    image: str = ""
    """Of gateways, and of actions that name no image; empty: the one that Coterie brings along."""
    max_body_mb: int = 8
    """`maxBodyMB`: of calls and of answers."""
    min_gateways: int = 1
    """`gateway.minReplicas`."""
    max_gateways: int = 10
    """`gateway.maxReplicas`."""
    spare_actors: int = 2
    """`spareActors.size`: pods that wait for the first call of a cold function, of each kind (image, resources, timeout) that was called lately."""
    spare_idle_seconds: int = 300
    """`spareActors.idleSeconds`: how long after the last call they stay."""


@dataclass(frozen=True, slots=True)
class TraceExportConfig:
    """`traces.otlp`: a collector that takes OTLP over HTTP as JSON."""

    endpoint: str
    """The whole address, as https://collector:4318/v1/traces; without a path, that one is taken."""
    headers_file: str = ""
    """A file with lines `name: value`: headers of each request, such as a token."""
    ca_file: str = ""
    """Whom the collector's certificate must be signed by; empty: an authority of the machine."""
    certificate_file: str = ""
    """`certFile`, with `keyFile`: the certificate that is shown to the collector."""
    key_file: str = ""
    timeout_seconds: int = 10


@dataclass(frozen=True, slots=True)
class TracesConfig:
    """`traces`: spans of jobs."""

    enabled: bool = False
    """True unless said otherwise where `otlp.endpoint` is given."""
    file: bool = True
    """Whether they are written to var/logs/traces.jsonl."""
    otlp: TraceExportConfig | None = None


@dataclass(frozen=True, slots=True)
class LogRotation:
    """`logrotate`: how much is kept of logs that grow without end."""

    max_files: int = 5
    max_file_mb: int | None = None
    """None: as each kind of log has it."""
    max_age_days: int = 30
    max_total_mb: int = 2048
    """Of all output of pods that are gone; 0: no limit."""

    @property
    def of_node(self) -> Rotation:
        """For the logs of the node's own processes."""
        size = STANDARD.max_bytes if self.max_file_mb is None else self.max_file_mb << 20
        return Rotation(size, self.max_files, self.max_age_days)


@dataclass(frozen=True, slots=True)
class InlineFile:
    """A file whose content stands in the configuration; whoever runs the node writes it."""

    path: Path
    content: SecretValue


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about the configuration that its owner should know, said once when the node starts."""

    sentence: str
    key: str
    value: str = ""
    advice: str = ""
    """What to do."""


IN_CLUSTER = "in-cluster"
"""`apiServer.kubeconfig` of a pod: its service account."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    mode: str
    """master, lite or autonomy."""
    domain: str
    """The domain's id: an RFC 1123 label."""
    paths: DomainPaths
    gateway: GatewaySettings
    dns: DnsConfig = field(default_factory=DnsConfig)
    data_mesh: DataMeshConfig = field(default_factory=DataMeshConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    kuscia_api: KusciaApiConfig = field(default_factory=KusciaApiConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    functions: FunctionsConfig = field(default_factory=FunctionsConfig)
    traces: TracesConfig = field(default_factory=TracesConfig)
    domain_key: SecretValue | None = None
    """The domain's RSA key (PEM) when the configuration carries it; None: the one in var/certs, made when missing."""
    log_level: str = "INFO"
    log_json: bool = False
    """Log lines as JSON objects instead of text."""
    logrotate: LogRotation = field(default_factory=LogRotation)
    api: ApiSettings = field(default_factory=ApiSettings)
    store: StoreAddress | None = None
    """Where a control plane keeps its objects; None: in a file below `paths`."""
    controllers: ControllerSettings = field(default_factory=ControllerSettings)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    agent: AgentConfig | None = None
    """Of nodes that run pods: lite and autonomy."""
    images: PullSettings = field(default_factory=PullSettings)
    join: Path | None = None
    """lite: the file that `coterie node add` made at the master. None: it registers at `gateway.master`."""
    node_api: ApiSettings | None = None
    """lite with `masterEndpoint`: where the other machines of its domain find the API (`apiServer`); None: it has none."""
    only_namespace: str = ""
    """lite: the only namespace whose objects this node may read; empty: all. Of a node that joined it comes from the join file."""
    remote_gateway: str = ""
    """Of a node that joined: the address in the pod network at which the gateway of its domain is, with data mesh and
    ConfManager. Comes from the join file."""
    workload_approve: bool | None = None
    """Whether somebody of this domain must approve jobs and deployments that partners begin. None: their policies decide.
    False: so they do, and whoever has no policy is accepted, as in Kuscia."""
    job_gc_hours: int = 720
    """Jobs that ended longer ago are deleted."""
    data_gc_hours: int | None = None
    """DomainData that engines made longer ago are deleted; None: never."""
    inline_files: tuple[InlineFile, ...] = ()
    notices: tuple[Notice, ...] = ()

    @property
    def runk(self) -> RunkConfig | None:
        """Of a node whose pods run in a backing cluster."""
        return self.agent.runk if self.agent is not None else None
