"""Where requests go: one cluster per partner's port, one for the handshake, two for nearly all services (two more for those
in the pods' network, when Envoy is outside it). Pure.

A service with a single address needs no cluster of its own: its route writes that address into the Host header, and the
shared cluster connects to what stands there (nothing that a caller says gets so far). A new service then costs Envoy a
virtual host at each door, and a thousand of them take 30 MB less. Several endpoints, TLS and host names need their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from coterie.kuscia.gateway import tls
from coterie.kuscia.gateway.addresses import PodNetwork, SocketAddress
from coterie.kuscia.gateway.crypt import config as crypt
from coterie.kuscia.gateway.egress import outbound_name
from coterie.kuscia.gateway.model import (
    DomainService,
    Route,
    RoutePort,
    SnapshotInputs,
    SnapshotProblem,
    Tuning,
)
from coterie.kuscia.gateway.names import HTTP_OPTIONS, Json, T, address, seconds
from coterie.kuscia.gateway.pod_upstreams import bind_config, needs_namespace, reachable_endpoints
from coterie.kuscia.gateway.snapshot_cache import remembered

HANDSHAKE = "handshake"
DIAGNOSE = "diagnose"
DIAGNOSE_GRPC = "diagnose-grpc"
FUNCTIONS = "functions"
EVIDENCE = "evidence"
TRANSPORT = "transport"
TRANSPORT_ENGINES = "transport-engines"
BFIA = "bfia"
DIRECT = "direct"
_DIRECT_HTTP2 = "direct-http2"
_PODS = "-pods"
_ENVOYS_CONNECT_SECONDS = 5.0
_LOCAL_CONNECT_SECONDS = _ENVOYS_CONNECT_SECONDS
# Envoy's own limit of 1,024 calls at once is less than one busy engine.
_MANY = 1 << 16
_SERVICE_HTTP2: Json = {"allow_connect": True}
_OF_ALL_SERVICES = 1 << 20
_DIAGNOSTIC_CALLS = 128
_FUNCTION_CALLS = 1024
_CHECKPOINTS = 64
_TRANSPORT_CALLS = 4096
"""Of partners, and as many of our own engines: many of them wait for messages."""
_SCHEDULE_CALLS = 64
NEVER_ARRIVED: Json = {"retry_on": "connect-failure,refused-stream,reset-before-request", "num_retries": 2}
"""What may be tried again is only what certainly never reached the other side."""


ENDPOINT_KEY = "%UPSTREAM_METADATA(envoy.lb:hash_key)%"
"""In a header: the key of the endpoint that answered, under which it stands on the ring."""


def service_name(service: DomainService, pods: PodNetwork | None) -> str:
    """The cluster that leads to it."""
    if not is_direct(service):
        return f"service-{service.name}"
    shared = _DIRECT_HTTP2 if service.protocol.http2 else DIRECT
    return shared + _PODS if needs_namespace(pods, service.endpoints[0]) else shared


def is_direct(service: DomainService) -> bool:
    return len(service.endpoints) == 1 and not service.protocol.tls and tls.is_address(service.endpoints[0].host)


def clusters(inputs: SnapshotInputs) -> tuple[list[Json], list[SnapshotProblem]]:
    """Those of partners whom we dial, of our services and of the handshake.

    A port that must not be called has no cluster, and a problem says why.
    """
    found = [cluster(HANDSHAKE, [inputs.handshake], _LOCAL_CONNECT_SECONDS, {}), *_direct()]
    if inputs.pods is not None and inputs.pods.namespace:
        bound = {"upstream_bind_config": bind_config(inputs.pods)}
        found += [{**each, **bound, "name": each["name"] + _PODS} for each in _direct()]
    if inputs.crypt is not None:
        found.append(crypt.cluster(inputs.crypt))
    if inputs.diagnose is not None:
        http2: Json = {"explicit_http_config": {"http2_protocol_options": {}}}
        # Envoy refuses what is more; the endpoint has a process to share.
        bounded: Json = {"circuit_breakers": _breakers(_DIAGNOSTIC_CALLS)}
        found.append(cluster(DIAGNOSE, [inputs.diagnose.http], _LOCAL_CONNECT_SECONDS, {}) | bounded)
        found.append(cluster(DIAGNOSE_GRPC, [inputs.diagnose.grpc], _LOCAL_CONNECT_SECONDS, http2) | bounded)
    if inputs.functions is not None:
        bounded = {"circuit_breakers": _breakers(_FUNCTION_CALLS)}
        found.append(cluster(FUNCTIONS, [inputs.functions.socket], _LOCAL_CONNECT_SECONDS, {}) | bounded)
    if inputs.evidence is not None:
        bounded = {"circuit_breakers": _breakers(_CHECKPOINTS)}
        found.append(cluster(EVIDENCE, [inputs.evidence.socket], _LOCAL_CONNECT_SECONDS, {}) | bounded)
    if inputs.transport is not None:
        bounded = {"circuit_breakers": _breakers(_TRANSPORT_CALLS)}
        for name, socket_address in (
            (TRANSPORT, inputs.transport.partners),
            (TRANSPORT_ENGINES, inputs.transport.engines),
        ):
            found.append(cluster(name, [socket_address], _LOCAL_CONNECT_SECONDS, {}) | bounded)
    if inputs.bfia is not None:
        bounded = {"circuit_breakers": _breakers(_SCHEDULE_CALLS)}
        found.append(cluster(BFIA, [inputs.bfia.socket], _LOCAL_CONNECT_SECONDS, {}) | bounded)
    problems: list[SnapshotProblem] = []
    for route in inputs.outbound:
        if not route.host or route.via or route.tunnel:
            continue
        for port in route.ports:
            socket, problem = tls.upstream(inputs, route, port)
            if problem is not None:
                problems.append(problem)
                continue
            found.append(_partner(inputs.tuning, route, port, socket))
    for service in inputs.services:
        if not service.endpoints or is_direct(service):
            continue
        found.append(_service(service, inputs.pods))
        if left_out := set(service.endpoints) - set(reachable_endpoints(inputs.pods, service)):
            listed = ", ".join(str(each) for each in sorted(left_out))
            why = f"has endpoints in the pods' network and outside it; those outside are not called: {listed}"
            problems.append(SnapshotProblem(f"service {service.name}", why))
    return found, problems


def _partner(tuning: Tuning, route: Route, port: RoutePort, socket: Json | None) -> Json:
    target = SocketAddress(route.host, port.port)
    made = cluster(outbound_name(route, port), [target], tuning.connect_seconds, hop_options(tuning, port))
    made["upstream_connection_options"] = {
        "tcp_keepalive": {"keepalive_time": 60, "keepalive_interval": 15, "keepalive_probes": 4}
    }
    if socket is not None:
        made["transport_socket"] = socket
    return made


def hop_options(tuning: Tuning, port: RoutePort) -> Json:
    """What we speak with a partner's gateway.

    A gRPC port is HTTP/2. Over TLS both sides agree on the best they have, which between two gateways is HTTP/2. In plain
    text nothing can be agreed on, and a proxy in between may know only HTTP/1.1: each request keeps the version it had.
    """
    common: Json = {"common_http_protocol_options": {"idle_timeout": seconds(tuning.idle_connection_seconds)}}
    http2 = http2_options(tuning)
    if port.grpc:
        return common | {"explicit_http_config": {"http2_protocol_options": http2}}
    kind = "auto_config" if port.tls else "use_downstream_protocol_config"
    return common | {kind: {"http_protocol_options": {}, "http2_protocol_options": http2}}


def http2_options(tuning: Tuning) -> Json:
    return {
        "initial_stream_window_size": tuning.stream_window,
        "initial_connection_window_size": tuning.connection_window,
        "allow_connect": True,  # web sockets travel inside HTTP/2 as an extended CONNECT
        "connection_keepalive": {"interval": "30s", "timeout": "15s"},
    }


def _direct() -> list[Json]:
    """Always there, so that no service ever changes the file of clusters."""
    plain: Json = {"http_protocol_options": {}}
    http2: Json = {"http2_protocol_options": _SERVICE_HTTP2}
    return [
        {
            "name": name,
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": {"use_http_header": True, "http_header_name": ":authority"},
            # An address to which no connection is open is forgotten.
            "cleanup_interval": "60s",
            "circuit_breakers": _breakers(_OF_ALL_SERVICES),
            # Here, because a thousand virtual hosts would repeat it.
            "typed_extension_protocol_options": _http({"explicit_http_config": speech, "retry_policy": NEVER_ARRIVED}),
        }
        for name, speech in ((DIRECT, plain), (_DIRECT_HTTP2, http2))
    ]


@remembered
def _service(service: DomainService, pods: PodNetwork | None) -> Json:
    """Remembered: of a thousand services one changes at a time. Nobody may change what is handed out."""
    options: Json = {}  # HTTP/1.1
    if service.protocol.http2:
        options = {"explicit_http_config": {"http2_protocol_options": _SERVICE_HTTP2}}
    endpoints = sorted(reachable_endpoints(pods, service))
    made = cluster(service_name(service, pods), endpoints, _LOCAL_CONNECT_SECONDS, options)
    if pods is not None and needs_namespace(pods, endpoints[0]):
        made["upstream_bind_config"] = bind_config(pods)
    if len(service.endpoints) > 1:
        made["lb_policy"] = "RING_HASH"  # without a session to hash, it is a random choice
        if service.affinity.cookie:
            for each in made["load_assignment"]["endpoints"][0]["lb_endpoints"]:
                each["metadata"] = {"filter_metadata": {"envoy.lb": {"hash_key": _key(service, each)}}}
    if service.protocol.tls:
        made["transport_socket"] = tls.to_service()
    return made


def _key(service: DomainService, endpoint: Json) -> str:
    """What callers are told of an endpoint: always the same, and not where it is."""
    return hashlib.sha256(f"{service.name}/{endpoint['endpoint']['hostname']}".encode()).hexdigest()[:16]


def cluster(name: str, endpoints: Sequence[SocketAddress], connect: float, options: Json) -> Json:
    fixed = all(each.is_socket or tls.is_address(each.host) for each in endpoints)
    made: Json = {
        "name": name,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [_endpoint(each) for each in endpoints]}],
        },
        "circuit_breakers": _breakers(_MANY),
    }
    if options:
        made["typed_extension_protocol_options"] = _http(options)
    # What Envoy takes for granted is left out: of a thousand services each word is read a thousand times.
    if connect != _ENVOYS_CONNECT_SECONDS:
        made["connect_timeout"] = seconds(connect)
    if not fixed:
        made |= {"type": "STRICT_DNS", "dns_lookup_family": "V4_PREFERRED"}
    return made


def _http(options: Json) -> Json:
    return {HTTP_OPTIONS: {"@type": T + HTTP_OPTIONS, **options}}


def _breakers(many: int) -> Json:
    limits = {"max_connections": many, "max_pending_requests": many, "max_requests": many, "max_retries": 1024}
    return {"thresholds": [limits]}


def _endpoint(target: SocketAddress) -> Json:
    # The host name is what `auto_host_rewrite` puts into the request.
    name = "localhost" if target.is_socket else str(target)
    return {"endpoint": {"address": address(target.host, target.port), "hostname": name}}
