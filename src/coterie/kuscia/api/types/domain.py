"""Domains, the routes between them, and the gateways they run: `kuscia.secretflow/v1alpha1`.

Deploy tokens, route tokens, private keys and added headers (they carry bearer tokens) print as stars: a whole object
may end up in a log line or an exception. Fields that the schema requires have no default here, because defaults are
not written.
"""

from __future__ import annotations

import msgspec

from coterie.base.secret import STARS
from coterie.kube.api.meta import ApiObject, Model
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.kind import Kind

GROUP, VERSION = "kuscia.secretflow", "v1alpha1"
PARTNER = "partner"
TOKEN, MTLS, NO_AUTHENTICATION = "Token", "MTLS", "None"
RSA_GEN, UID_RSA_GEN = "RSA-GEN", "UID-RSA-GEN"
THIRD_DOMAIN, REVERSE_TUNNEL = "THIRD-DOMAIN", "REVERSE-TUNNEL"
KUSCIA_PROTOCOL, BFIA_PROTOCOL = "kuscia", "bfia"
UNUSED, USED = "unused", "used"
DOMAIN_CONFIG = "domain-config"
"""The ConfigMap in a domain's namespace with the values that it keeps for its engines, each sealed with its key."""

RESERVED_DOMAINS = frozenset(("master", "default", "kube-system", "kube-public", "kube-node-lease", "cross-domain"))
"""Names that no domain may have: their namespaces, or their names inside the mesh, mean something else."""


def kuscia_resource(plural: str, kind: str, *, namespaced: bool) -> Resource:
    return Resource(GROUP, VERSION, plural, kind, namespaced, singular=kind.lower(), custom=True)


# Domain.


class AuthCenter(Model, frozen=True, kw_only=True):
    authentication_type: str
    token_gen_method: str = ""


class DomainResourceQuota(Model, frozen=True, kw_only=True):
    pod_max_count: int | None = None


class DomainSpec(Model, frozen=True, kw_only=True):
    role: str = ""
    master: str = ""
    inter_conn_protocols: tuple[str, ...] | None = None
    cert: str = ""
    auth_center: AuthCenter | None = None
    resource_quota: DomainResourceQuota | None = None


class DomainNodeStatus(Model, frozen=True, kw_only=True):
    name: str
    version: str
    status: str
    bandwidth: str = ""
    bandwidth_bits: int | None = None
    bandwidth_allocatable_bits: int | None = None
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class DeployToken(Model, frozen=True, kw_only=True):
    token: str
    state: str
    last_transition_time: str | None = None

    def __repr__(self) -> str:
        return f"DeployToken({STARS}, state={self.state!r}, since={self.last_transition_time})"


class DomainStatus(Model, frozen=True, kw_only=True):
    node_statuses: tuple[DomainNodeStatus, ...] | None = None
    deploy_token_statuses: tuple[DeployToken, ...] | None = None


class Domain(ApiObject, frozen=True, kw_only=True):
    spec: DomainSpec = DomainSpec()
    status: DomainStatus = DomainStatus()

    @property
    def partner(self) -> bool:
        """Another control plane hosts it; its namespace here is only a mirror."""
        return self.spec.role == PARTNER

    @property
    def protocol(self) -> str:
        """The protocol spoken with its control plane; empty when nothing is said."""
        return (self.spec.inter_conn_protocols or ("",))[0]


# Routes.


class DomainPort(Model, frozen=True, kw_only=True):
    name: str
    protocol: str
    port: int
    path_prefix: str = ""
    is_tls: bool = msgspec.field(name="isTLS", default=False)


class RouteEndpoint(Model, frozen=True, kw_only=True):
    host: str = ""
    ports: tuple[DomainPort, ...] | None = None


class TransitDomain(Model, frozen=True, kw_only=True):
    domain_id: str = msgspec.field(name="domainID")


class Transit(Model, frozen=True, kw_only=True):
    transit_method: str = ""
    domain: TransitDomain | None = None

    @property
    def method(self) -> str:
        return self.transit_method or THIRD_DOMAIN

    @property
    def through(self) -> str:
        """The domain that forwards; empty when none is named."""
        return self.domain.domain_id if self.domain is not None else ""


class TokenConfig(Model, frozen=True, kw_only=True):
    token_gen_method: str
    source_public_key: str = ""
    destination_public_key: str = ""
    rolling_update_period: int = 0


class BodyEncryption(Model, frozen=True, kw_only=True):
    algorithm: str


class MtlsConfig(Model, frozen=True, kw_only=True):
    tls_ca: str = msgspec.field(name="tlsCA", default="")
    source_client_private_key: str = ""
    source_client_cert: str = ""

    def __repr__(self) -> str:
        return f"MtlsConfig(private_key={STARS if self.source_client_private_key else None})"


class RouteSpec(Model, frozen=True, kw_only=True):
    source: str
    destination: str
    authentication_type: str
    inter_conn_protocol: str = ""
    endpoint: RouteEndpoint | None = None
    transit: Transit | None = None
    token_config: TokenConfig | None = None
    body_encryption: BodyEncryption | None = None
    mtls_config: MtlsConfig | None = msgspec.field(name="mTLSConfig", default=None)
    source_white_ip_list: tuple[str, ...] | None = msgspec.field(name="sourceWhiteIPList", default=None)
    request_headers_to_add: dict[str, str] | None = None

    @property
    def needs_token(self) -> bool:
        """Calls are told apart, or bodies encrypted, by a negotiated token."""
        return self.authentication_type == TOKEN or self.body_encryption is not None

    def __repr__(self) -> str:
        return f"RouteSpec({self.source} -> {self.destination}, {self.authentication_type})"


class RouteToken(Model, frozen=True, kw_only=True):
    """`token` is encrypted under the key of the domain in whose namespace it lies."""

    is_ready: bool
    token: str = ""
    revision: int = 0
    revision_time: str | None = None
    expiration_time: str | None = None
    heart_beat_time: str | None = None
    effective_instances: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"RouteToken(revision={self.revision}, is_ready={self.is_ready}, since={self.revision_time})"


class DomainRouteTokens(Model, frozen=True, kw_only=True):
    revision_initializer: str = ""
    revision_token: RouteToken | None = None
    tokens: tuple[RouteToken, ...] | None = None

    @property
    def newest(self) -> RouteToken | None:
        return self.tokens[-1] if self.tokens else None


class DomainRouteStatus(Model, frozen=True, kw_only=True):
    is_destination_authorized: bool
    is_destination_unreachable: bool
    token_status: DomainRouteTokens | None = None


class DomainRoute(ApiObject, frozen=True, kw_only=True):
    spec: RouteSpec
    status: DomainRouteStatus | None = None

    @property
    def token_status(self) -> DomainRouteTokens:
        found = self.status.token_status if self.status is not None else None
        return found if found is not None else DomainRouteTokens()


class RouteCondition(Model, frozen=True, kw_only=True):
    type: str
    status: str
    last_update_time: str | None = None
    last_transition_time: str | None = None
    reason: str = ""
    message: str = ""


class ClusterDomainRouteTokens(Model, frozen=True, kw_only=True):
    revision: int = 0
    revision_time: str | None = None
    source_tokens: tuple[RouteToken, ...] | None = None
    destination_tokens: tuple[RouteToken, ...] | None = None


class EndpointStatus(Model, frozen=True, kw_only=True):
    endpoint_healthy: bool


class ClusterDomainRouteStatus(Model, frozen=True, kw_only=True):
    token_status: ClusterDomainRouteTokens | None = None
    conditions: tuple[RouteCondition, ...] | None = None
    endpoint_statuses: dict[str, EndpointStatus] | None = None


class ClusterDomainRoute(ApiObject, frozen=True, kw_only=True):
    spec: RouteSpec
    status: ClusterDomainRouteStatus = ClusterDomainRouteStatus()

    @property
    def ready(self) -> RouteCondition | None:
        return next((found for found in self.status.conditions or () if found.type == "Ready"), None)


# Gateway.


class NetworkStatus(Model, frozen=True, kw_only=True):
    name: str
    type: str
    total_endpoints_count: int
    healthy_endpoints_count: int


class TaskLinkUsage(Model, frozen=True, kw_only=True):
    """What one task sends to and receives from one partner, as the gateway measured it."""

    task: str
    peer: str
    sent_bits_per_second: int = 0
    received_bits_per_second: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    limit_bits_per_second: int | None = None
    at: str = ""


class LinkUsage(Model, frozen=True, kw_only=True):
    """All traffic with one partner."""

    peer: str
    sent_bits_per_second: int = 0
    received_bits_per_second: int = 0


class GatewayStatus(Model, frozen=True, kw_only=True):
    address: str
    uptime: str
    heartbeat_time: str
    public_key: str
    version: str
    network_status: tuple[NetworkStatus, ...] | None = None
    usage: tuple[TaskLinkUsage, ...] | None = None
    links: tuple[LinkUsage, ...] | None = None


class Gateway(ApiObject, frozen=True, kw_only=True):
    """Its status is missing for a moment after it was created: the API takes status in a second request."""

    status: GatewayStatus | None = None


# InteropConfig.


class InteropConfigSpec(Model, frozen=True, kw_only=True):
    host: str
    members: tuple[str, ...]


class InteropConfig(ApiObject, frozen=True, kw_only=True):
    """Tells InterConn that these domains of ours follow that partner's control plane."""

    spec: InteropConfigSpec


DOMAINS = Kind(kuscia_resource("domains", "Domain", namespaced=False), Domain)
CLUSTER_DOMAIN_ROUTES = Kind(
    kuscia_resource("clusterdomainroutes", "ClusterDomainRoute", namespaced=False), ClusterDomainRoute
)
DOMAIN_ROUTES = Kind(kuscia_resource("domainroutes", "DomainRoute", namespaced=True), DomainRoute)
GATEWAYS = Kind(kuscia_resource("gateways", "Gateway", namespaced=True), Gateway)
INTEROP_CONFIGS = Kind(kuscia_resource("interopconfigs", "InteropConfig", namespaced=False), InteropConfig)
