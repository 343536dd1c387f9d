"""What Envoy is started with: who it is, where its configuration lies, its private admin socket. Pure."""

from __future__ import annotations

from pathlib import Path

from coterie.kuscia.gateway.metrics.envoy_families import inclusion_list
from coterie.kuscia.gateway.model import Tuning
from coterie.kuscia.gateway.names import Json, T, file_source
from coterie.kuscia.gateway.snapshot import CLUSTERS_FILE, LISTENERS_FILE

FIRST_LOG_LEVEL = "warning"
"""The same always, for an Envoy with other arguments would not be taken over; `Envoy` changes it once it is live."""
_LONGEST_SOCKET_PATH = 107
_INTERNAL_LISTENER = T + "envoy.extensions.bootstrap.internal_listener.v3.InternalListener"
_REVERSE_TUNNEL = T + "envoy.extensions.bootstrap.reverse_tunnel."
_DIALLER = _REVERSE_TUNNEL + "downstream_socket_interface.v3.DownstreamReverseConnectionSocketInterface"
_ACCEPTOR = _REVERSE_TUNNEL + "upstream_socket_interface.v3.UpstreamReverseConnectionSocketInterface"
_MAX_CONNECTIONS = T + "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
_POD_CONNECTIONS = "envoy.resource_limits.listener.internal.connection_limit"
_INGRESS_CONNECTIONS = tuple(
    f"envoy.resource_limits.listener.{name}.connection_limit" for name in ("ingress-http", "ingress-https")
)


def bootstrap(domain: str, instance: str, directory: Path, socket: Path, tuning: Tuning) -> Json:
    if len(str(socket).encode()) > _LONGEST_SOCKET_PATH:
        raise ValueError(f"the path of the admin socket is too long for a socket: {socket}")
    return {
        "node": {"cluster": f"kuscia-gateway-{domain}", "id": f"kuscia-gateway-{domain}-{instance}"},
        "admin": {"address": {"pipe": {"path": str(socket), "mode": 0o600}}},
        "dynamic_resources": {
            "cds_config": file_source(directory / CLUSTERS_FILE),
            "lds_config": file_source(directory / LISTENERS_FILE),
        },
        # Always, used or not: a change here would mean another process, which cuts every connection.
        "bootstrap_extensions": [
            {"name": "envoy.bootstrap.internal_listener", "typed_config": {"@type": _INTERNAL_LISTENER}},
            {
                "name": "envoy.bootstrap.reverse_tunnel.downstream_socket_interface",
                "typed_config": {
                    "@type": _DIALLER,
                    "stat_prefix": "tunnels_dialled",
                    # A partner that comes back is found again after a second or two; Envoy's own pace is many seconds.
                    "max_reconnect_backoff": "2s",
                    "maintain_interval": "1s",
                },
            },
            {
                "name": "envoy.bootstrap.reverse_tunnel.upstream_socket_interface",
                "typed_config": {"@type": _ACCEPTOR, "stat_prefix": "tunnels_accepted"},
            },
        ],
        # See `Admin.settled`.
        "stats_flush_on_admin": True,
        # Thousands of services: a cluster's counters are made when its first request comes.
        "deferred_stat_options": {"enable_deferred_creation_stats": True},
        # A listed counter costs memory and time for each cluster; histograms cost as much per request as a filter.
        "stats_config": {"stats_matcher": {"inclusion_list": {"patterns": inclusion_list()}}},
        # Pods and Ingresses have limits of their own, so that they cannot take all descriptors from partners.
        "layered_runtime": {
            "layers": [
                {
                    "name": "limits",
                    "static_layer": {
                        _POD_CONNECTIONS: max(1, tuning.max_connections // 2),
                        **dict.fromkeys(_INGRESS_CONNECTIONS, max(1, tuning.max_connections // 4)),
                    },
                }
            ]
        },
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": _MAX_CONNECTIONS,
                        "max_active_downstream_connections": tuning.max_connections,
                    },
                }
            ]
        },
    }


def arguments(binary: Path, config: Path, log: Path, tuning: Tuning, workers: int) -> tuple[str, ...]:
    """`log`: written by Envoy itself and not through its standard error, so that it can be opened anew."""
    return (
        str(binary), "-c", str(config), "--concurrency", str(workers), "--disable-hot-restart",
        "--drain-time-s", str(tuning.drain_seconds), "--log-level", FIRST_LOG_LEVEL,
        "--log-path", str(log),
        "--file-flush-interval-msec", "1000",
        "--log-format", "%Y-%m-%dT%T.%eZ %l %n: %v",
    )  # fmt: skip
