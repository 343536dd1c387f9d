"""What Envoy is told about body encryption: the filter and the cluster. Pure.

The filter stands in both listeners from the start, switched off: to add it later would cut every open stream. A route
that is encrypted switches it on (routing.py), so others pay nothing.
"""

from __future__ import annotations

from pathlib import Path

from coterie.kuscia.gateway.crypt.exchange import LOOKED_AT, RouteSide
from coterie.kuscia.gateway.names import (
    CRYPT_FILTER,
    ENCRYPT_LENGTH,
    EXT_PROC,
    HEADER_MUTATION,
    HTTP_OPTIONS,
    LENGTH_FILTER,
    OVERWRITE,
    Json,
    T,
)

CLUSTER = "crypt"
_ANSWER_SECONDS = "30s"
_MANY = 1 << 16
# Below, our child waits; above, Envoy holds what its reader does not take.
_STREAM_WINDOW = 1 << 20
_CONNECTION_WINDOW = 512 << 20


def http_filters(side: RouteSide) -> list[Json]:
    """In the order of requests. Envoy takes Content-Length away from whatever is processed; where the child knows the
    true one, the filter that comes after it puts it back: for services that take no other body, and for HEAD."""
    if side is RouteSide.SERVE:
        return [_crypt(), _length("request_mutations", "REQ")]
    return [_length("response_mutations", "RESP"), _crypt()]


def _crypt() -> Json:
    config: Json = {
        "@type": EXT_PROC,
        "grpc_service": {"envoy_grpc": {"cluster_name": CLUSTER}},
        # Never without: when the child cannot be asked, nothing passes.
        "failure_mode_allow": False,
        "status_on_error": {"code": "ServiceUnavailable"},
        "message_timeout": _ANSWER_SECONDS,
        "request_attributes": ["xds.route_name"],
        "forward_rules": {"allowed_headers": {"patterns": [{"exact": each} for each in LOOKED_AT]}},
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
    }
    return {"name": CRYPT_FILTER, "disabled": True, "typed_config": config}


def _length(where: str, command: str) -> Json:
    header_value = {"key": "content-length", "value": f"%{command}({ENCRYPT_LENGTH})%"}
    mutations = [{"append": {"header": header_value, "append_action": OVERWRITE}}, {"remove": ENCRYPT_LENGTH}]
    config: Json = {"@type": HEADER_MUTATION, "mutations": {where: mutations}}
    return {"name": LENGTH_FILTER, "disabled": True, "typed_config": config}


def cluster(socket: Path) -> Json:
    options: Json = {
        "@type": T + HTTP_OPTIONS,
        "explicit_http_config": {
            "http2_protocol_options": {
                "initial_stream_window_size": _STREAM_WINDOW,
                "initial_connection_window_size": _CONNECTION_WINDOW,
            }
        },
    }
    return {
        "name": CLUSTER,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": str(socket)}}}}]}],
        },
        "circuit_breakers": {
            "thresholds": [{"max_connections": _MANY, "max_pending_requests": _MANY, "max_requests": _MANY}]
        },
        "typed_extension_protocol_options": {HTTP_OPTIONS: options},
    }
