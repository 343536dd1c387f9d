"""Where requests go: one cluster per partner's port, one per service of our own, one for the handshake. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from coterie.gateway import tls
from coterie.gateway.crypt import config as crypt
from coterie.gateway.leaving import outbound_name
from coterie.gateway.model import Address, Inputs, Problem, Route, RoutePort, Service, Tuning
from coterie.gateway.names import HTTP_OPTIONS, Json, T, address, seconds

HANDSHAKE = "handshake"
_ENVOYS_CONNECT_SECONDS = 5.0
_LOCAL_CONNECT_SECONDS = _ENVOYS_CONNECT_SECONDS
# Envoy's own limit of 1,024 calls at once is less than one busy engine.
_MANY = 1 << 16


def service_name(service: Service) -> str:
    return f"service-{service.name}"


def clusters(inputs: Inputs) -> tuple[list[Json], list[Problem]]:
    """Those of partners whom we dial, of our services and of the handshake.

    A port that must not be called has no cluster, and a problem says why.
    """
    found = [cluster(HANDSHAKE, [inputs.handshake], _LOCAL_CONNECT_SECONDS, {})]
    if inputs.crypt is not None:
        found.append(crypt.cluster(inputs.crypt))
    problems: list[Problem] = []
    for route in inputs.outbound:
        if not route.host or route.via or route.tunnel:
            continue
        for port in route.ports:
            socket, problem = tls.upstream(inputs, route, port)
            if problem is not None:
                problems.append(problem)
                continue
            found.append(_partner(inputs.tuning, route, port, socket))
    found += [_service(service) for service in inputs.services if service.endpoints]
    return found, problems


def _partner(tuning: Tuning, route: Route, port: RoutePort, socket: Json | None) -> Json:
    target = Address(route.host, port.port)
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


@lru_cache(maxsize=16384)
def _service(service: Service) -> Json:
    """Remembered: of a thousand services one changes at a time. Nobody may change what is handed out."""
    options: Json = {}  # HTTP/1.1
    if service.protocol.http2:
        options = {"explicit_http_config": {"http2_protocol_options": {"allow_connect": True}}}
    made = cluster(service_name(service), sorted(service.endpoints), _LOCAL_CONNECT_SECONDS, options)
    if len(service.endpoints) > 1:
        made["lb_policy"] = "RING_HASH"  # without a session to hash, it is a random choice
    if service.protocol.tls:
        made["transport_socket"] = tls.to_service()
    return made


def cluster(name: str, endpoints: Sequence[Address], connect: float, options: Json) -> Json:
    fixed = all(tls.is_address(each.host) for each in endpoints)
    made: Json = {
        "name": name,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [_endpoint(each) for each in endpoints]}],
        },
        "circuit_breakers": {
            "thresholds": [
                {"max_connections": _MANY, "max_pending_requests": _MANY, "max_requests": _MANY, "max_retries": 1024}
            ]
        },
    }
    if options:
        made["typed_extension_protocol_options"] = {HTTP_OPTIONS: {"@type": T + HTTP_OPTIONS, **options}}
    # What Envoy takes for granted is left out: of a thousand services each word is read a thousand times.
    if connect != _ENVOYS_CONNECT_SECONDS:
        made["connect_timeout"] = seconds(connect)
    if not fixed:
        made |= {"type": "STRICT_DNS", "dns_lookup_family": "V4_PREFERRED"}
    return made


def _endpoint(target: Address) -> Json:
    # The host name is what `auto_host_rewrite` puts into the request.
    return {"endpoint": {"address": address(target.host, target.port), "hostname": str(target)}}
