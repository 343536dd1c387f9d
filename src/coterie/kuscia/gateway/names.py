"""Names on the wire and Envoy's type names, spelt in one place, and the small shapes that recur everywhere."""

from __future__ import annotations

from typing import Any

from coterie.kuscia.api import evidence_exchange
from coterie.kuscia.bfia import wire

Json = dict[str, Any]

# ---- headers that gateways exchange; HTTP/2 knows only lower case ----
SOURCE = "kuscia-source"
TOKEN = "kuscia-token"
HOST = "kuscia-host"
ORIGIN = "kuscia-origin-source"
PROTOCOL = "x-interconn-protocol"
ERROR = "kuscia-error-message"
SESSION = "kuscia-session-id"
HANDSHAKE_CLUSTER = "kuscia-handshake-cluster"
TRANSIT_FLAG = "kuscia-transit-flag"
TRANSIT_HASH = "kuscia-transit-hash"
TOKEN_REVISION = "kuscia-token-revision"
ENCRYPT_VERSION = "kuscia-encrypt-version"
ENCRYPT_IV = "kuscia-encrypt-iv"
ENCRYPT_SCHEME = "x-coterie-encrypt"

# ---- headers that never leave a gateway ----
PEER_KEY = "x-coterie-peer-key"
ENCRYPT_LENGTH = "x-coterie-length"
POLLED_PATH = "x-coterie-path"
"""The path of a call that goes into a frame, as it was written."""
PEER_FINGERPRINT = "x-coterie-peer-fingerprint"
DOWNSTREAM_PROTOCOL = "x-coterie-downstream-protocol"
"""In which a call arrived; set for the diagnostic endpoint."""
ORIGINAL_PATH = "x-envoy-original-path"
"""Of a rewritten path, for the access log; Envoy's own."""

HANDSHAKE_SERVICE = "kuscia-handshake"
API_SERVICE = "apiserver"
KUSCIA_API_SERVICE = "kusciaapi"
RECEIVER_SERVICE = "receiver"
"""Where a partner without a public port fetches calls in Kuscia's frames (polling/)."""
DIAGNOSE_SERVICE = "diagnose"
FUNCTIONS_SERVICE = "coterie-functions"
"""Where partners' functions send calls and replies to ours (functions/hops)."""
EVIDENCE_SERVICE = evidence_exchange.EVIDENCE_SERVICE
"""Where partners' control planes send checkpoints of their evidence logs (kuscia/evidence)."""
TRANSPORT_SERVICE = "transport"
"""The message queue of engines (kuscia/transport)."""
SCHEDULER_SERVICE = wire.SCHEDULER_SERVICE
"""Where partners that speak BFIA send scheduling requests (kuscia/bfia)."""
FUNCTION_CALLS_PATH = "/functions/v1/hops"
FUNCTION_REPLIES_PATH = "/functions/v1/replies"

# ---- headers and paths of the message queue, BFIA's ----
PTP_SESSION = "x-ptp-session-id"
PTP_TOPIC = "x-ptp-topic"
PTP_SOURCE_NODE = "x-ptp-source-node-id"
PTP_SOURCE_INSTITUTION = "x-ptp-source-inst-id"
PTP_TARGET_NODE = "x-ptp-target-node-id"
NODE_ID = "x-node-id"
CHANNEL_PATH = "/v1/interconn/chan/"
CHANNEL_GRPC_PATH = "/org.ppc.ptp.PrivateTransferTransport/"
CHANNEL_SIZE = "x-coterie-size"
"""How long the answer to a gRPC call is."""

# ---- headers between the gateways of one domain ----
TUNNEL_HERE = "x-coterie-tunnel"

T = "type.googleapis.com/"
_HTTP = T + "envoy.extensions.filters.http."
CLUSTER = T + "envoy.config.cluster.v3.Cluster"
LISTENER = T + "envoy.config.listener.v3.Listener"
ROUTES = T + "envoy.config.route.v3.RouteConfiguration"
SECRET = T + "envoy.extensions.transport_sockets.tls.v3.Secret"
EXTENSION = T + "envoy.config.core.v3.TypedExtensionConfig"
FILTER_CONFIG = T + "envoy.config.route.v3.FilterConfig"
RBAC = _HTTP + "rbac.v3.RBAC"
RBAC_PER_ROUTE = _HTTP + "rbac.v3.RBACPerRoute"
BANDWIDTH = _HTTP + "bandwidth_limit.v3.BandwidthLimit"
LOCAL_RATE_LIMIT = _HTTP + "local_ratelimit.v3.LocalRateLimit"
HEADER_MUTATION = _HTTP + "header_mutation.v3.HeaderMutation"
HEADER_MUTATION_PER_ROUTE = _HTTP + "header_mutation.v3.HeaderMutationPerRoute"
GRPC_BRIDGE = _HTTP + "grpc_http1_reverse_bridge.v3.FilterConfig"
GRPC_BRIDGE_PER_ROUTE = _HTTP + "grpc_http1_reverse_bridge.v3.FilterConfigPerRoute"
ROUTER = _HTTP + "router.v3.Router"
EXT_PROC = _HTTP + "ext_proc.v3.ExternalProcessor"
EXT_PROC_PER_ROUTE = _HTTP + "ext_proc.v3.ExtProcPerRoute"
HCM = T + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
EARLY_MUTATION = T + "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
UPSTREAM_TLS = T + "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
DOWNSTREAM_TLS = T + "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
FILE_LOG = T + "envoy.extensions.access_loggers.file.v3.FileAccessLog"
CEL_FILTER = T + "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
TCP_PROXY = T + "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
PROXY_PROTOCOL = T + "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol"
CARES = T + "envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig"
HTTP_INSPECTOR = T + "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector"
TLS_INSPECTOR = T + "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"
REVERSE_TUNNEL = T + "envoy.extensions.filters.network.reverse_tunnel.v3.ReverseTunnel"
COMPOSITE_CLUSTER = T + "envoy.extensions.clusters.composite.v3.ClusterConfig"
REVERSE_CLUSTER = T + "envoy.extensions.clusters.reverse_connection.v3.ReverseConnectionClusterConfig"
PREVIOUS_HOSTS = T + "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"

# ---- names of our filters; per-route settings refer to them ----
AUTH_FILTER = "auth"
ACCESS_FILTER = "access"
POD_FILTER = "pods"
BANDWIDTH_FILTER = "bandwidth"
DIAGNOSE_RATE_FILTER = "diagnose-rate"
CRYPT_FILTER = "crypt"
BRIDGE_FILTER = "grpc-bridge"
LENGTH_FILTER = "length"

TRACEPARENT = "traceparent"
TRACE_BAGGAGE = ("tracestate", "baggage")
"""What tracing libraries add besides: names and values of the sender's own, so they stay in its domain."""

OVERWRITE = "OVERWRITE_IF_EXISTS_OR_ADD"
IF_ABSENT = "ADD_IF_ABSENT"
IF_PRESENT = "OVERWRITE_IF_EXISTS"
APPEND = "APPEND_IF_EXISTS_OR_ADD"


def header(key: str, value: str, action: str = OVERWRITE) -> Json:
    """A header to set; `value` may hold Envoy's `%COMMANDS%`."""
    return {"header": {"key": key, "value": value}, "append_action": action}


def literal(text: str) -> str:
    """Text in which a per cent sign is only that."""
    return text.replace("%", "%%")


def seconds(value: float) -> str:
    """Envoy's spelling of a duration."""
    return f"{value:g}s"


def address(host: str, port: int) -> Json:
    if host.startswith("/"):
        return {"pipe": {"path": host}}
    return {"socket_address": {"address": host, "port_value": port}}


def file_source(path: object) -> Json:
    return {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}
