"""Ingresses and Dns objects as Envoy serves them. Pure.

    ingress-http    plain HTTP     ┐ one route table (`rds-ingress.json`); only there while a port is configured. Nobody is
    ingress-https   TLS by SNI     ┘ authenticated: whoever reaches the port reaches the pods behind the rules, and nothing else
    internal        pods' own port: hosts of Dns objects, beside the domain's other names (`pod_hosts`)

The table holds endpoints of Services of the own domain and no names, so a request's Host can never lead to a partner, to the node
itself or to an engine. Headers by which gateways speak with each other are removed on arrival: backends trust them.

Each certificate is a filter chain of the TLS listener with a secret file of its own. A renewed certificate changes that file
alone. A new or removed one changes the listener's chains, and Envoy then closes the connections of the changed chains only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from coterie.kube.network.ingress.model import (
    IngressCertificate,
    IngressTable,
    PathRule,
    Upstream,
    UpstreamProtocol,
    VirtualHost,
)
from coterie.kuscia.gateway import tls
from coterie.kuscia.gateway.addresses import IngressListeners, SocketAddress
from coterie.kuscia.gateway.clusters import NEVER_ARRIVED, cluster
from coterie.kuscia.gateway.identity import early_mutation
from coterie.kuscia.gateway.model import SnapshotInputs, Tuning
from coterie.kuscia.gateway.names import (
    DOWNSTREAM_TLS,
    ENCRYPT_IV,
    ENCRYPT_LENGTH,
    ENCRYPT_SCHEME,
    ENCRYPT_VERSION,
    FILE_LOG,
    HANDSHAKE_CLUSTER,
    HCM,
    HOST,
    HTTP_INSPECTOR,
    ORIGIN,
    ORIGINAL_PATH,
    PEER_FINGERPRINT,
    PEER_KEY,
    PROTOCOL,
    PROXY_PROTOCOL,
    ROUTER,
    SESSION,
    SOURCE,
    TLS_INSPECTOR,
    TOKEN,
    TRANSIT_FLAG,
    TUNNEL_HERE,
    Json,
    address,
    file_source,
    seconds,
)
from coterie.kuscia.gateway.pod_upstreams import bind_config
from coterie.kuscia.gateway.service_hosts import refusal

SIDE = "ingress"
HTTP_LISTENER, HTTPS_LISTENER = "ingress-http", "ingress-https"
_CONNECT_SECONDS = 5.0
_IDLE_CONNECTION_SECONDS = 75.0
_IDLE_STREAM_SECONDS = 300.0
_STREAMS = 128
_HTTP2: Json = {"explicit_http_config": {"http2_protocol_options": {"allow_connect": True}}}
_ALL: Json = {"prefix": "/"}
_GATEWAY_HEADERS = (
    SOURCE, TOKEN, HOST, ORIGIN, PROTOCOL, SESSION, HANDSHAKE_CLUSTER, TRANSIT_FLAG, ENCRYPT_VERSION, ENCRYPT_IV, ENCRYPT_SCHEME,
    PEER_KEY, ENCRYPT_LENGTH, PEER_FINGERPRINT, ORIGINAL_PATH, TUNNEL_HERE,
)  # fmt: skip
_LOG = (
    '%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% - [%START_TIME%] %REQ(:authority)% "%REQ(:METHOD)%'
    ' %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT%'
    " %DURATION% %UPSTREAM_HOST% %RESPONSE_CODE_DETAILS%\n"
)


# ---- clusters ----


def clusters(inputs: SnapshotInputs) -> list[Json]:
    return [_cluster(inputs, each) for each in sorted(_upstreams(inputs.ingress), key=_name) if each.endpoints]


def _upstreams(table: IngressTable) -> set[Upstream]:
    found = {rule.upstream for host in table.hosts for rule in host.rules}
    found |= {host.default for host in table.hosts if host.default is not None}
    return found | ({table.default} if table.default is not None else set())


def _name(upstream: Upstream) -> str:
    return f"{SIDE}/{upstream.service}/{upstream.port}"


def _cluster(inputs: SnapshotInputs, upstream: Upstream) -> Json:
    endpoints = [SocketAddress(host, port) for host, port in upstream.endpoints]
    options = _HTTP2 if upstream.protocol is UpstreamProtocol.HTTP2 else {}
    made = cluster(_name(upstream), endpoints, _CONNECT_SECONDS, options)
    if inputs.pods is not None and inputs.pods.namespace:
        # All of them are pods.
        made["upstream_bind_config"] = bind_config(inputs.pods)
    if upstream.sticky:
        made["lb_policy"] = "RING_HASH"
    if upstream.protocol is UpstreamProtocol.HTTPS:
        made["transport_socket"] = tls.to_service()
    return made


# ---- routes ----


def is_served(inputs: SnapshotInputs) -> bool:
    listeners = inputs.ingress_listeners
    return listeners is not None and (listeners.http is not None or listeners.https is not None)


def routes(inputs: SnapshotInputs) -> Json:
    table = inputs.ingress
    every = next((each for each in table.hosts if not each.host), VirtualHost("", (), table.default))
    fallback = _host_routes(every)
    hosts = [_virtual_host(each, fallback) for each in table.hosts if each.host]
    return {
        "name": SIDE,
        "ignore_port_in_host_matching": True,
        "virtual_hosts": [*hosts, {"name": "*", "domains": ["*"], "routes": fallback}],
    }


def _virtual_host(host: VirtualHost, fallback: list[Json]) -> Json:
    if not host.host.startswith("*."):
        return {"name": host.host, "domains": [host.host], "routes": _host_routes(host)}
    # Envoy's wildcard stands for any number of labels, Kubernetes' for one.
    pattern = rf"(?i)[^.]+{re.escape(host.host[1:])}"
    condition = {"name": ":authority", "string_match": {"safe_regex": {"regex": pattern}}}
    limited = [{**each, "match": {**each["match"], "headers": [condition]}} for each in _host_routes(host)]
    return {"name": host.host, "domains": [host.host], "routes": [*limited, *fallback]}


def _host_routes(host: VirtualHost) -> list[Json]:
    default = {"match": _ALL, **(_action(host.default) if host.default is not None else refusal(404, "Not found."))}
    return [*(_rule(each) for each in host.rules), default]


def _rule(rule: PathRule) -> Json:
    if rule.exact:
        match: Json = {"path": rule.path}
    else:
        match = {"path_separated_prefix": rule.path} if rule.path else _ALL
    action = _action(rule.upstream)
    if rule.to_root and "route" in action:
        action = {"route": {**action["route"], "prefix_rewrite": "/"}}
    return {"match": match, **action}


def _action(upstream: Upstream) -> Json:
    if not upstream.endpoints:
        return refusal(503, f"Service {upstream.service} has no endpoints.")
    action: Json = {"cluster": _name(upstream), "timeout": "0s", "retry_policy": NEVER_ARRIVED}
    if upstream.sticky:
        action["hash_policy"] = [{"connection_properties": {"source_ip": True}}]
    return {"route": action}


def pod_hosts(inputs: SnapshotInputs) -> list[Json]:
    """Virtual hosts for the port of pods: those that pods find by their names."""
    return [
        {"name": f"{SIDE}-{each.host}", "domains": [each.host], "routes": _host_routes(each)}
        for each in inputs.ingress.hosts
        if each.for_pods
    ]


# ---- certificates ----


def secrets(inputs: SnapshotInputs) -> dict[str, Json]:
    if inputs.ingress_listeners is None or inputs.ingress_listeners.https is None:
        return {}
    return {_secret_name(each): _secret(each) for each in inputs.ingress.certificates}


def _secret_name(certificate: IngressCertificate) -> str:
    # Stands in names of counters, where a dot would end it.
    return f"{SIDE}-{hashlib.sha256(certificate.secret.encode()).hexdigest()[:12]}"


def _secret(certificate: IngressCertificate) -> Json:
    return {
        "name": _secret_name(certificate),
        "tls_certificate": {
            "certificate_chain": {"inline_string": certificate.chain},
            "private_key": {"inline_string": certificate.key.reveal()},
        },
    }


# ---- listeners ----


def listeners(inputs: SnapshotInputs, routes_file: object) -> list[Json]:
    """`routes_file`: where the route table lies."""
    where = inputs.ingress_listeners
    if where is None:
        return []
    manager = _manager(inputs, routes_file)
    found: list[Json] = []
    if where.http is not None:
        inspector = {"name": "envoy.filters.listener.http_inspector", "typed_config": {"@type": HTTP_INSPECTOR}}
        filters = [*_proxied(where), inspector]
        found.append(_listener(inputs.tuning, HTTP_LISTENER, where.http, where.http_socket, filters, [_chain(manager)]))
    if where.https is not None:
        inspector = {"name": "envoy.filters.listener.tls_inspector", "typed_config": {"@type": TLS_INSPECTOR}}
        # A listener needs a chain; without certificates every connection is closed.
        chains = list(_tls_chains(inputs, manager)) or [_nobody(manager)]
        found.append(
            _listener(
                inputs.tuning, HTTPS_LISTENER, where.https, where.https_socket, [*_proxied(where), inspector], chains
            )
        )
    return found


def _listener(
    tuning: Tuning, name: str, where: SocketAddress, socket: str, filters: list[Json], chains: list[Json]
) -> Json:
    return {
        "name": name,
        "address": {"pipe": {"path": socket, "mode": 0o600}} if socket else address(where.host, where.port),
        "enable_reuse_port": False,
        # They have a limit of their own (bootstrap.py).
        "ignore_global_conn_limit": True,
        "per_connection_buffer_limit_bytes": 1 << 20,
        "listener_filters": filters,
        "listener_filters_timeout": seconds(tuning.headers_seconds),
        "filter_chains": chains,
    }


def _proxied(where: IngressListeners) -> list[Json]:
    """Connections that a relay brings say whose they are."""
    if not (where.http_socket or where.https_socket):
        return []
    return [{"name": "envoy.filters.listener.proxy_protocol", "typed_config": {"@type": PROXY_PROTOCOL}}]


def _tls_chains(inputs: SnapshotInputs, manager: Json) -> Iterator[Json]:
    for each in inputs.ingress.certificates:
        name = _secret_name(each)
        context: Json = {
            "@type": DOWNSTREAM_TLS,
            "common_tls_context": {
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_certificate_sds_secret_configs": [
                    {"name": name, "sds_config": file_source(tls.secret_file(inputs.directory, name))}
                ],
            },
        }
        chain = _chain(manager) | {
            "name": f"{name}-{'named' if each.hosts else 'others'}",
            "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context},
            "transport_socket_connect_timeout": seconds(inputs.tuning.headers_seconds),
        }
        yield chain | ({"filter_chain_match": {"server_names": list(each.hosts)}} if each.hosts else {})


def _nobody(manager: Json) -> Json:
    return _chain(manager) | {"name": "no-certificate", "filter_chain_match": {"server_names": ["invalid.invalid"]}}


def _chain(manager: Json) -> Json:
    return {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}


def _manager(inputs: SnapshotInputs, routes_file: object) -> Json:
    router = {"@type": ROUTER, "suppress_envoy_headers": True, "dynamic_stats": False}
    log: Json = {
        "@type": FILE_LOG,
        "path": str(inputs.logs / f"{SIDE}.log"),
        "log_format": {"text_format_source": {"inline_string": _LOG}},
    }
    return {
        "@type": HCM,
        "stat_prefix": SIDE,
        "server_name": "coterie",
        "rds": {"route_config_name": SIDE, "config_source": file_source(routes_file)},
        "http_filters": [{"name": "router", "typed_config": router}],
        "early_header_mutation_extensions": early_mutation([{"remove": each} for each in _GATEWAY_HEADERS]),
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "use_remote_address": True,
        "strip_any_host_port": True,
        "normalize_path": True,
        "generate_request_id": False,
        "stream_idle_timeout": seconds(_IDLE_STREAM_SECONDS),
        "request_headers_timeout": seconds(inputs.tuning.headers_seconds),
        "common_http_protocol_options": {"idle_timeout": seconds(_IDLE_CONNECTION_SECONDS)},
        "http2_protocol_options": {"max_concurrent_streams": _STREAMS},
        "drain_timeout": "5s",
        "access_log": [{"name": "file", "typed_config": log}] if inputs.tuning.access_logs else [],
    }
