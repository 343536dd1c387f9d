"""What the gateway is told: plain frozen data from which `snapshot` makes Envoy's configuration.

    own domain ─┐
    routes ─────┤                       a Route is one direction: outbound when we are its source,
    services ───┼──> Inputs ──> snapshot      inbound when we are its destination
    keys, ports ┘

Nothing here knows of Envoy or of API objects (`objects.py` makes routes and services from those). Tokens are `SecretValue`s;
private keys are only ever named by their file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from coterie.base.secret import SecretValue
from coterie.kube.network.ingress.model import NO_INGRESS, IngressTable
from coterie.kuscia.api.kuscia_wire import KusciaWireForm
from coterie.kuscia.gateway.addresses import IngressListeners, KeyPair, PodNetwork, Protocol, SocketAddress

MASTER = "master"
"""The name under which a control plane is reached besides its own domain's."""
NOOP_TOKEN = "noop"
"""What Kuscia sends where no token is asked for."""


class Authentication(StrEnum):
    TOKEN = "Token"
    MTLS = "MTLS"
    NONE = "None"


class ServiceProtocol(StrEnum):
    HTTP = "HTTP"
    HTTPS = "HTTPS"
    GRPC = "GRPC"
    GRPCS = "GRPCS"

    @property
    def tls(self) -> bool:
        return self in (ServiceProtocol.HTTPS, ServiceProtocol.GRPCS)

    @property
    def http2(self) -> bool:
        return self in (ServiceProtocol.GRPC, ServiceProtocol.GRPCS)


@dataclass(frozen=True, slots=True)
class RoutePort:
    name: str
    port: int
    grpc: bool = False
    tls: bool = False
    path_prefix: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """One direction between two domains."""

    source: str
    destination: str
    authentication: Authentication = Authentication.TOKEN
    host: str = ""
    """The destination's gateway as the source sees it; empty when it is not reached directly."""
    ports: tuple[RoutePort, ...] = ()
    via: str = ""
    """The domain that carries this route's traffic (Kuscia's THIRD-DOMAIN)."""
    hop_by_hop: bool | None = None
    """How it is carried. True: as Kuscia does it, the carrier reads all and speaks for the source. False: the carrier
    passes on an encrypted connection of the source's own. None: hop by hop only where our own port is plain text."""
    tunnel: bool = False
    """The destination cannot be dialled, it dials us (Kuscia's REVERSE-TUNNEL)."""
    tokens: tuple[SecretValue, ...] = ()
    """Newest last. The source sends the newest, the destination accepts all."""
    revisions: tuple[int, ...] = ()
    """Of the tokens, in their order. Only body encryption needs them: they tell the partner which key was taken."""
    certificates: tuple[str, ...] = ()
    """Certificates (PEM) that the partner may show; compared as a whole, never by the names inside."""
    authority: str = ""
    """PEM of the authority that signed the destination's server certificate, where it is not pinned itself."""
    unverified: bool = False
    """The destination's certificate is not looked at: Kuscia's own gateways make a new one at each start."""
    client: KeyPair | None = None
    """What we show to the destination; None: the domain's own certificate."""
    source_addresses: tuple[str, ...] = ()
    """Addresses or CIDR blocks from which the source may call; empty: any."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Added at the destination to each request of this source; may carry credentials."""
    body_encryption: str = ""
    kuscia_wire: frozenset[KusciaWireForm] = frozenset()
    """The weaker forms that it uses."""
    aliases: tuple[str, ...] = ()
    """Further names of the destination: a lite reaches its control plane as `master` too."""
    bfia: bool = False
    """The route is for BFIA (`interConnProtocol: bfia`)."""

    @property
    def by_certificate(self) -> bool:
        """The source may call as BFIA describes it, without what Kuscia's gateways add: its certificate says who it is, and
        `x-ptp-source-node-id` or `x-node-id` must say the same."""
        return self.bfia and self.authentication is Authentication.MTLS and not self.body_encryption


@dataclass(frozen=True, slots=True)
class Affinity:
    """What keeps a caller at one of several endpoints, besides the `Kuscia-Session-Id` header."""

    client_address: bool = False
    cookie: str = ""
    cookie_seconds: int = 0


@dataclass(frozen=True, slots=True)
class DomainService:
    """A service of our own domain."""

    name: str
    endpoints: tuple[SocketAddress, ...] = ()
    protocol: ServiceProtocol = ServiceProtocol.HTTP
    access: frozenset[str] | None = None
    """Domains that may call; None: every authenticated one."""
    domain_only: bool = False
    """No partner may call, whatever `access` says."""
    affinity: Affinity = Affinity()
    aliases: tuple[str, ...] = ()
    """Further domain names under which it is known, e.g. `master`."""
    credentials: tuple[tuple[str, SecretValue], ...] | None = None
    """By domain, the `Authorization` with which its calls go on, whatever they brought. With such a list a domain that
    is not in it does not get through, and neither does one for which another speaks."""

    task: str = ""
    """The task to which it belongs: what partners send to it is counted for the task."""

    def opened_to(self, domain: str) -> bool:
        return not self.domain_only and (self.access is None or domain in self.access)


@dataclass(frozen=True, slots=True, order=True)
class TaskBandwidthLimit:
    """All calls of one task's services to one destination together, requests and responses each."""

    task: str
    destination: str
    kib_per_second: int


@dataclass(frozen=True, slots=True, order=True)
class TaskLink:
    """A task of ours and one of its partners: what goes between them is counted."""

    task: str
    peer: str


@dataclass(frozen=True, slots=True, order=True)
class TransitGrant:
    """We carry the source's traffic to a destination to which we have a route of our own. Nobody is carried without."""

    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class FunctionsInbox:
    """Where partners' calls and replies to functions go, and whose."""

    socket: SocketAddress
    callers: frozenset[str]


@dataclass(frozen=True, slots=True)
class EvidenceInbox:
    """Where checkpoints of partners' evidence logs go, and whose."""

    socket: SocketAddress
    callers: frozenset[str]


@dataclass(frozen=True, slots=True)
class TransportInbox:
    """The message queue of engines: where messages of partners go, and whose, and where our own engines take them."""

    partners: SocketAddress
    engines: SocketAddress
    callers: frozenset[str]


@dataclass(frozen=True, slots=True)
class BfiaInbox:
    """Where scheduling requests of partners that speak BFIA go, and whose."""

    socket: SocketAddress
    callers: frozenset[str]


@dataclass(frozen=True, slots=True)
class PollingSockets:
    """For tunnels in Kuscia's frames (polling/)."""

    partners: SocketAddress
    """Where partners fetch calls, and reply."""
    calls: SocketAddress
    """Where our own calls become frames."""
    entrance: SocketAddress
    """Where Envoy takes calls that we fetched."""
    secret: SecretValue
    """By which these are told from others; a new one at each start."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes and times with the reasons for their defaults."""

    stream_window: int = 2 << 20
    """HTTP/2, one request. Bounds what a reader that stalls makes us hold; 2 MiB is 40 MB/s at 50 ms round trip."""
    connection_window: int = 512 << 20
    """HTTP/2, one partner. Must hold many stalled streams: with Envoy's own default two of them hang the partner."""
    connect_seconds: float = 10.0
    idle_stream_seconds: float = 3600.0
    """A call that moves no byte for so long is given up. Engines compute for many minutes between two messages."""
    idle_connection_seconds: float = 900.0
    headers_seconds: float = 10.0
    """For the whole request head, from partners: against clients that send a byte a minute. Before that as long again for
    the first byte, and for the TLS handshake."""
    idle_unknown_seconds: float = 60.0
    """An idle connection of a partner, where certificates do not say who it is (`protocol: TLS` or `NOTLS`)."""
    max_connections: int = 32768
    """Of partners, at the public port and at tunnels; those of pods and of the node itself do not count."""
    drain_seconds: int = 60
    """How long open connections may live on after a listener changed or the gateway is replaced."""
    access_logs: bool = True
    tunnel_connections: int = 4
    """How many connections of a tunnel we hold open to each address of the partner. Each worker of the partner's gateway
    needs one; a spare one takes over at once when another breaks."""
    tunnel_check_seconds: int = 5
    """How often an idle connection of a tunnel is looked at; a dead one is given up after three misses."""


@dataclass(frozen=True, slots=True, order=True)
class PodCaller:
    """What one engine pod may call."""

    address: str
    """Or a range, `100.96.16.0/21`: the ordinary pods of another node of the domain."""
    hosts: frozenset[str] = frozenset()
    """`*`: everything. Host names in lower case, without port: `task-x-0-psi.bob.svc`. One that is followed by a path may be called with this
    path and query only: `reporter.master.svc/report/progress?task_id=task-x`."""
    task: str = ""
    """Of an engine: the task whose sessions of the message queue it may use; empty: none."""


@dataclass(frozen=True, slots=True)
class DiagnosticSockets:
    """Where our diagnostic endpoint listens."""

    http: SocketAddress
    grpc: SocketAddress


@dataclass(frozen=True, slots=True)
class SnapshotInputs:
    domain: str
    internal: SocketAddress | None
    """Where pods call that share the machine's network; None: nobody does."""
    external: SocketAddress | None
    """None: the domain has no public port."""
    handshake: SocketAddress
    """Where our own handshake and registration server listens."""
    node_socket: SocketAddress
    """Where the node itself calls."""
    directory: Path
    """Where the configuration files lie, since they name each other."""
    logs: Path
    instance: str = "0"
    """Which of the domain's gateways this is, for error messages."""
    version: str = ""
    protocol: Protocol = Protocol.MTLS
    identity: KeyPair | None = None
    shown: KeyPair | None = None
    """What the public port shows instead: an organisation's own certificate, which partners check by its authority."""
    fingerprint: str = ""
    """SHA-256 of our certificate in hex: the name under which our tunnels are known. Only tunnels that we dial need it."""
    newcomers: bool = False
    """MTLS: let clients without certificate as far as the handshake and registration endpoints, and no further."""
    aliases: tuple[str, ...] = ()
    """Further names of our own domain: a control plane is `master` too."""
    routes: tuple[Route, ...] = ()
    services: tuple[DomainService, ...] = ()
    limits: tuple[TaskBandwidthLimit, ...] = ()
    task_links: tuple[TaskLink, ...] = ()
    """Of the tasks that have services here."""
    transit: tuple[TransitGrant, ...] = ()
    peer_gateways: tuple[SocketAddress, ...] = ()
    """The internal addresses of our domain's other live gateways: a tunnel may end at one of them."""
    pods: PodNetwork | None = None
    """None: there are no pods, or they share the machine's network."""
    callers: tuple[PodCaller, ...] = ()
    ingress: IngressTable = NO_INGRESS
    ingress_listeners: IngressListeners | None = None
    crypt: Path | None = None
    """The socket of the child process that encrypts bodies; None: there is none, and routes that ask for it are refused."""
    diagnose: DiagnosticSockets | None = None
    """None: there is no diagnostic endpoint for partners."""
    functions: FunctionsInbox | None = None
    """None: no partner takes part in functions of ours."""
    evidence: EvidenceInbox | None = None
    """None: no partner's control plane has a route of its own to us."""
    bfia: BfiaInbox | None = None
    """None: no partner speaks BFIA."""
    transport: TransportInbox | None = None
    """None: there is no message queue here."""
    polling: PollingSockets | None = None
    """None: no tunnel is in Kuscia's frames."""
    tuning: Tuning = Tuning()

    @property
    def inbound(self) -> tuple[Route, ...]:
        return tuple(sorted((r for r in self.routes if r.destination == self.domain), key=lambda r: r.source))

    @property
    def outbound(self) -> tuple[Route, ...]:
        mine = (r for r in self.routes if r.source == self.domain and r.destination != self.domain)
        return tuple(sorted(mine, key=lambda r: r.destination))

    def relayed(self, route: Route) -> bool:
        """Whether another domain speaks for the route's source, rather than the source for itself."""
        if not route.via:
            return False
        return self.protocol is Protocol.NOTLS if route.hop_by_hop is None else route.hop_by_hop

    @property
    def proxied(self) -> bool:
        """Whether partners' connections arrive through a relay that tells their addresses by the PROXY protocol."""
        return self.pods is not None and bool(self.pods.public_socket)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.domain, *self.aliases)


@dataclass(frozen=True, slots=True, order=True)
class SnapshotProblem:
    """Something that was asked for and is refused, in words for the object's status."""

    about: str
    """`route alice-bob`, `service psi-0-spu` ..."""
    message: str
