"""The listeners: filters, limits, access logs. Pure, and the same for as long as addresses and protocol are.

    external   partners; the public port, or a Unix socket behind a relay that tells their addresses (PROXY protocol)
    internal   pods; an address in their own network, or one of the machine's
    node       the node itself; a Unix socket in a private directory
    ingress-*  everybody, where ports for Ingresses are configured (ingress.py)

A changed listener closes all its connections after the drain time, so nothing that changes in operation stands here:
certificates, keys, tokens, rules and routes are all read from files of their own.
"""

from __future__ import annotations

from pathlib import Path

from coterie.kuscia.gateway import identity, ingress, tls, transit, tunnel
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.clusters import http2_options
from coterie.kuscia.gateway.crypt import config as crypt
from coterie.kuscia.gateway.crypt.exchange import RouteSide
from coterie.kuscia.gateway.egress import polled
from coterie.kuscia.gateway.model import SnapshotInputs
from coterie.kuscia.gateway.names import (
    ACCESS_FILTER,
    AUTH_FILTER,
    CEL_FILTER,
    ERROR,
    FILE_LOG,
    HCM,
    HOST,
    HTTP_INSPECTOR,
    POD_FILTER,
    PROXY_PROTOCOL,
    RBAC,
    ROUTER,
    SOURCE,
    TLS_INSPECTOR,
    TRACEPARENT,
    Json,
    address,
    file_source,
    header,
    literal,
    seconds,
)
from coterie.kuscia.gateway.routes import EXTERNAL, INTERNAL, bridge_filter, cause, diagnostic_rate_filter
from coterie.kuscia.gateway.task_bandwidth import limiter

NODE = "node"
_HANDSHAKE_SECONDS = 10.0
_OWN_LIMIT: Json = {"ignore_global_conn_limit": True}
"""Of listeners inside: partners, who share a limit of connections, cannot take theirs. `bootstrap.py` has the limit of pods."""

_START = f" - [%START_TIME%] %REQ({SOURCE})% %REQ({HOST}?:authority)%"
_REQUEST = '"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %REQ(x-b3-traceid)% %REQ(x-b3-spanid)%'
_RESULT = "%RESPONSE_CODE% %RESPONSE_FLAGS% %REQ(content-length)% %UPSTREAM_WIRE_BYTES_RECEIVED% %DURATION%"
_DURATIONS = "%REQUEST_DURATION% %RESPONSE_DURATION% %RESPONSE_TX_DURATION%"
# Bodies are never logged; their two columns stay, so that whoever splits Kuscia's lines still finds the others. After
# them come the reason and the trace, which Kuscia does not have.
_END = f"- - %RESPONSE_CODE_DETAILS% %REQ({TRACEPARENT}):55%\n"
EXTERNAL_LOG = " ".join(("%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%" + _START, _REQUEST, _RESULT, _END))
FAILED_LOG = (
    "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% - [%START_TIME%] - %REQUESTED_SERVER_NAME% - - - - - - - - - -"
    " connection_refused{%DOWNSTREAM_TRANSPORT_FAILURE_REASON%}\n"
)
# A relay that has closed its end already when we say goodbye has refused nothing.
_NOT_THROUGH = (
    "connection.transport_failure_reason != '' && !connection.transport_failure_reason.contains('Broken pipe')"
)
# The address of the connection: pods may send an X-Forwarded-For of their own.
INTERNAL_LOG = " ".join(
    ("%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%" + _START, _REQUEST, _RESULT, _DURATIONS, _END)
)


def route_file(directory: Path, side: str) -> Path:
    return directory / f"rds-{side}.json"


def filter_file(directory: Path, name: str) -> Path:
    return directory / f"ecds-{name}.json"


def listeners(inputs: SnapshotInputs) -> list[Json]:
    found = [_node(inputs)]
    if (pods := _pods(inputs)) is not None:
        found.append(pods)
    if inputs.external is not None:
        found.append(_external(inputs, inputs.external))
    behind = _external_manager(inputs)
    found += [*tunnel.dialling_listeners(inputs, behind), *transit.inner_listeners(inputs, behind)]
    if inputs.polling is not None and any(map(polled, inputs.inbound)):
        found.append(_listener("polled", _private_pipe(inputs.polling.entrance.host), behind, None) | _OWN_LIMIT)
    log = [_access_log(inputs.logs / f"{INTERNAL}.log", INTERNAL_LOG)] if inputs.tuning.access_logs else []
    found += ingress.listeners(inputs, route_file(inputs.directory, ingress.SIDE))
    found += transit.source_listeners(inputs, route_file(inputs.directory, transit.SIDE), log)
    return sorted(found, key=lambda each: str(each["name"]))


def _external(inputs: SnapshotInputs, where: SocketAddress) -> Json:
    listener = _listener(EXTERNAL, address(where.host, where.port), _external_manager(inputs), tls.downstream(inputs))
    filters: list[Json] = []
    if inputs.pods is not None and inputs.pods.public_socket:
        listener["address"] = _private_pipe(inputs.pods.public_socket)
        # The relay tells who calls; what comes without that is refused.
        filters.append({"name": "envoy.filters.listener.proxy_protocol", "typed_config": {"@type": PROXY_PROTOCOL}})
    if inputs.tuning.access_logs:
        # What ends before there is a request would leave no trace: plain text, a certificate that nobody knows.
        failed = _access_log(inputs.logs / f"{EXTERNAL}.log", FAILED_LOG)
        listener["access_log"] = [failed | {"filter": _cel(_NOT_THROUGH)}]
    if (filter_chain := tunnel.reverse_tunnel_filter_chain(inputs)) is not None:
        listener["filter_chains"].append(filter_chain)
        filters.append({"name": "envoy.filters.listener.tls_inspector", "typed_config": {"@type": TLS_INSPECTOR}})
    if inputs.protocol is Protocol.NOTLS:
        # Waits for the first bytes: a silent connection ends with the time limit below. With TLS the handshake has one.
        filters.append({"name": "envoy.filters.listener.http_inspector", "typed_config": {"@type": HTTP_INSPECTOR}})
    if filters:
        listener["listener_filters"] = filters
        listener["listener_filters_timeout"] = seconds(inputs.tuning.headers_seconds)
    return listener


def _external_manager(inputs: SnapshotInputs) -> Json:
    """What stands behind the public port, and behind the tunnels that stand in for one."""
    filters = [
        _discovered(inputs, AUTH_FILTER),
        # Only on the virtual hosts that bring rules: those of services have them in their routes, which costs less.
        {"name": ACCESS_FILTER, "typed_config": identity.deny_all(), "disabled": True},
        diagnostic_rate_filter(),
        limiter(),
        *_crypt(inputs, RouteSide.SERVE),
    ]
    tuning = inputs.tuning
    idle = tuning.idle_connection_seconds
    if inputs.protocol is not Protocol.MTLS:
        idle = min(idle, tuning.idle_unknown_seconds)
    return _manager(inputs, EXTERNAL, filters, identity.external_mutations(), EXTERNAL_LOG) | {
        "common_http_protocol_options": {"idle_timeout": seconds(idle)},
        "http2_protocol_options": http2_options(inputs.tuning) | {"max_concurrent_streams": 1024},
        "use_remote_address": True,
        "request_headers_timeout": seconds(inputs.tuning.headers_seconds),
    }


def _node(inputs: SnapshotInputs) -> Json:
    """For the node itself: the whole table, and only who may enter the directory gets here."""
    return _listener(NODE, _private_pipe(inputs.node_socket.host), _internal_manager(inputs, []), None) | _OWN_LIMIT


def _pods(inputs: SnapshotInputs) -> Json | None:
    """For pods: what the rules leave them of the same table."""
    where = inputs.pods.gateway if inputs.pods is not None else inputs.internal
    if where is None:
        return None
    listener_address = address(where.host, where.port)
    if inputs.pods is not None and inputs.pods.namespace:
        listener_address["socket_address"]["network_namespace_filepath"] = inputs.pods.namespace
    manager = _internal_manager(inputs, [_discovered(inputs, POD_FILTER)])
    return _listener(INTERNAL, listener_address, manager, None) | _OWN_LIMIT


def _internal_manager(inputs: SnapshotInputs, first: list[Json]) -> Json:
    filters: list[Json] = [*first, bridge_filter(), limiter(), *_crypt(inputs, RouteSide.CALL)]
    mutations = identity.internal_mutations(inputs.domain)
    return _manager(inputs, INTERNAL, filters, mutations, INTERNAL_LOG) | {
        "http_protocol_options": {"accept_http_10": True},
        "http2_protocol_options": {"allow_connect": True},
    }


def _private_pipe(path: str) -> Json:
    """Envoy itself removes what an earlier process left there."""
    return {"pipe": {"path": path, "mode": 0o600}}


def _crypt(inputs: SnapshotInputs, side: RouteSide) -> list[Json]:
    return crypt.http_filters(side) if inputs.crypt is not None else []


def _listener(name: str, where: Json, manager: Json, socket: Json | None) -> Json:
    chain: Json = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    if socket is not None:
        chain["transport_socket"] = socket
        chain["transport_socket_connect_timeout"] = seconds(_HANDSHAKE_SECONDS)
    return {
        "name": name,
        "address": where,
        # Otherwise a forgotten older process keeps the same port without a word and takes half of the connections.
        "enable_reuse_port": False,
        "filter_chains": [chain],
    }


def _manager(inputs: SnapshotInputs, side: str, filters: list[Json], mutations: list[Json], log: str) -> Json:
    return {
        "@type": HCM,
        "stat_prefix": side,
        "server_name": "kuscia-gateway",
        "rds": {"route_config_name": side, "config_source": file_source(route_file(inputs.directory, side))},
        "http_filters": [
            *filters,
            # Nobody reads the counters by status and cluster, and they cost as much as a filter.
            {
                "name": "router",
                "typed_config": {"@type": ROUTER, "suppress_envoy_headers": True, "dynamic_stats": False},
            },
        ],
        "early_header_mutation_extensions": identity.early_mutation(mutations),
        # CONNECT only where a route says so: for those whom we carry.
        "upgrade_configs": [{"upgrade_type": "websocket"}, {"upgrade_type": "CONNECT", "enabled": False}],
        "strip_any_host_port": True,
        "normalize_path": True,
        "generate_request_id": False,
        "stream_idle_timeout": seconds(inputs.tuning.idle_stream_seconds),
        "common_http_protocol_options": {"idle_timeout": seconds(inputs.tuning.idle_connection_seconds)},
        "drain_timeout": "5s",
        "local_reply_config": _local_replies(inputs, side),
        "access_log": [_access_log(inputs.logs / f"{side}.log", log)] if inputs.tuning.access_logs else [],
    }


def _local_replies(inputs: SnapshotInputs, side: str) -> Json:
    """Errors that this gateway itself answers say so. A lite knows its master's gateway by exactly this 401."""
    because = header(ERROR, cause(inputs, side, "%RESPONSE_CODE_DETAILS%"), "ADD_IF_ABSENT")
    unauthorized: Json = {
        "filter": _unknown_caller(),
        "status_code": 401,
        "headers_to_add": [header(ERROR, cause(inputs, side, "unauthorized."))],
        "body_format_override": {
            "json_format": {
                "domain": literal(inputs.domain),
                "instance": literal(inputs.instance),
                "kuscia": literal(inputs.version),
                "reason": "unauthorized.",
            }
        },
    }
    refused_pod: Json = {
        "filter": _cel("response.code_details.startsWith('rbac_access_denied')"),
        "headers_to_add": [
            header(
                ERROR,
                cause(
                    inputs,
                    side,
                    'pod %DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT% may not call "%REQ(:authority)%".',
                ),
            )
        ],
        "body_format_override": {
            "text_format_source": {
                "inline_string": 'Pod %DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT% may not call "%REQ(:authority)%".\n'
            }
        },
    }
    by_rule = unauthorized if side == EXTERNAL else refused_pod
    return {"mappers": [by_rule, {"filter": _status("GE", 400), "headers_to_add": [because]}]}


def _status(op: str, value: int) -> Json:
    comparison = {"op": op, "value": {"default_value": value, "runtime_key": f"coterie.status_{value}"}}
    return {"status_code_filter": {"comparison": comparison}}


def _unknown_caller() -> Json:
    """The refusal of the `auth` filter, told apart from those of the other two."""
    return _cel(f"response.code_details == 'rbac_access_denied_matched_policy[{identity.UNAUTHORIZED}]'")


def _cel(expression: str) -> Json:
    return {"extension_filter": {"name": "cel", "typed_config": {"@type": CEL_FILTER, "expression": expression}}}


def _access_log(path: Path, line: str) -> Json:
    config: Json = {
        "@type": FILE_LOG,
        "path": str(path),
        "log_format": {"text_format_source": {"inline_string": line}},
    }
    return {"name": "file", "typed_config": config}


def _discovered(inputs: SnapshotInputs, name: str) -> Json:
    """A rule filter whose settings lie in a file. Until they were read once, nothing passes."""
    source = file_source(filter_file(inputs.directory, name))
    return {"name": name, "config_discovery": {"config_source": source, "type_urls": [RBAC]}}
