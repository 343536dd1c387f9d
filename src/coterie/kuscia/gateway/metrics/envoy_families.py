"""Which of Envoy's statistics exist, and which of them stand on the page of metrics. Pure.

Envoy makes only what `inclusion_list` names: what the page shows (`FAMILIES`), and what this package reads itself
(`gateway/admin.py`, `gateway/heartbeat.py`, `gateway/envoy.py`). The list is part of the bootstrap: a change means another Envoy process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coterie.kuscia.gateway.names import Json

CLUSTER = "envoy_cluster_name"
LISTENERS = ("external", "internal", "ingress", "transit")
"""Names of connection managers, as in `listeners.py`."""


@dataclass(frozen=True, slots=True)
class EnvoyFamily:
    name: str
    """As Prometheus sees it, without `envoy_`."""
    stat: str
    """The end of its name inside Envoy, as a regular expression."""
    kind: str
    help: str
    promised: bool = False
    """In Kuscia's list: each route has a row from the beginning, though Envoy counts only from the first request on."""


def _cluster(name: str, kind: str, words: str, *, stat: str = "", promised: bool = False) -> EnvoyFamily:
    return EnvoyFamily(f"cluster_{name}", stat or name, kind, words, promised)


def _http(name: str, kind: str, words: str, *, stat: str = "") -> EnvoyFamily:
    return EnvoyFamily(f"http_{name}", stat or name, kind, words)


OF_CLUSTERS = (
    _cluster("upstream_cx_total", "counter", "Connections opened to a partner.", promised=True),
    _cluster("upstream_cx_active", "gauge", "Open connections to a partner."),
    _cluster("upstream_cx_rx_bytes_total", "counter", "Bytes received from a partner.", promised=True),
    _cluster("upstream_cx_tx_bytes_total", "counter", "Bytes sent to a partner.", promised=True),
    _cluster("upstream_cx_connect_fail", "counter", "Connections that could not be opened.", promised=True),
    _cluster("upstream_cx_connect_timeout", "counter", "Connections that timed out while opening.", promised=True),
    _cluster(
        "upstream_cx_destroy_remote_with_active_rq", "counter", "Connections that a partner cut during a request."
    ),
    _cluster("upstream_rq_total", "counter", "Requests sent to a partner.", promised=True),
    _cluster("upstream_rq_active", "gauge", "Requests to a partner that are under way."),
    _cluster("upstream_rq_timeout", "counter", "Requests that timed out waiting for a partner.", promised=True),
    _cluster("upstream_rq_retry", "counter", "Requests that were sent again."),
    _cluster("ssl_connection_error", "counter", "Failed TLS handshakes with a partner.", stat=r"ssl\.connection_error"),
    _cluster(
        "ssl_fail_verify_cert_hash",
        "counter",
        "Partners that showed a certificate that is not pinned.",
        stat=r"ssl\.fail_verify_cert_hash",
    ),
    _cluster(
        "ssl_fail_verify_error",
        "counter",
        "Partners whose certificate no known authority signed.",
        stat=r"ssl\.fail_verify_error",
    ),
    # We configure no active health checks: always 0.
    _cluster("health_check_attempt", "counter", "Health checks.", stat=r"health_check\.attempt", promised=True),
    _cluster("health_check_failure", "counter", "Failed health checks.", stat=r"health_check\.failure", promised=True),
    _cluster("membership_total", "gauge", "Addresses of a partner.", promised=True),
    _cluster("membership_healthy", "gauge", "Healthy addresses of a partner.", promised=True),
)
OF_LISTENERS = (
    _http("downstream_cx_total", "counter", "Connections accepted."),
    _http("downstream_cx_active", "gauge", "Open connections."),
    _http("downstream_cx_rx_bytes_total", "counter", "Bytes received."),
    _http("downstream_cx_tx_bytes_total", "counter", "Bytes sent."),
    _http("downstream_rq_total", "counter", "Requests received."),
    _http("downstream_rq_active", "gauge", "Requests under way."),
    _http("downstream_rq_xx", "counter", "Responses, by class of status.", stat=r"downstream_rq_\dxx"),
    _http("rbac_allowed", "counter", "Requests that access rules let through.", stat=r"rbac\.allowed"),
    _http("rbac_denied", "counter", "Requests that access rules refused.", stat=r"rbac\.denied"),
    _http("no_route", "counter", "Requests for which there is no route."),
)
OF_THE_SERVER = (
    EnvoyFamily("server_live", r"server\.live", "gauge", "Whether Envoy is live."),
    EnvoyFamily("server_uptime", r"server\.uptime", "gauge", "Seconds since Envoy started."),
    EnvoyFamily("server_memory_allocated", r"server\.memory_allocated", "gauge", "Bytes that Envoy has allocated."),
    EnvoyFamily("server_total_connections", r"server\.total_connections", "gauge", "Open connections of Envoy."),
    EnvoyFamily(
        "cluster_manager_cds_update_rejected",
        r"cluster_manager\.cds\.update_rejected",
        "counter",
        "Configurations of clusters that Envoy refused.",
    ),
    EnvoyFamily(
        "listener_manager_lds_update_rejected",
        r"listener_manager\.lds\.update_rejected",
        "counter",
        "Configurations of listeners that Envoy refused.",
    ),
)
FAMILIES = {f"envoy_{each.name}": each for each in (*OF_CLUSTERS, *OF_LISTENERS, *OF_THE_SERVER)}

_READ_HERE = (
    {"prefix": "server."},
    {"prefix": "cluster_manager."},
    {"prefix": "listener_manager."},
    {"prefix": "sds."},
    {"prefix": "extension_config_discovery."},
    {"prefix": "tunnels_accepted"},
    {"prefix": "tunnels_dialled"},
    {"contains": ".rds."},
    {"contains": ".http_bandwidth_limit."},
    {"suffix": ".membership_total"},
    {"suffix": ".membership_healthy"},
)


def inclusion_list() -> list[Json]:
    """Patterns of the bootstrap's `stats_matcher`. Clusters of services are left out but for the number of their addresses."""
    listeners = "|".join(each.stat for each in OF_LISTENERS)
    return [
        *({**each} for each in _READ_HERE),
        {"safe_regex": {"regex": rf"cluster\.[^.]+-to-[^.]+\.({_stats_of_clusters()})"}},
        {"safe_regex": {"regex": rf"http\.({'|'.join(LISTENERS)})\.({listeners})"}},
    ]


def _stats_of_clusters() -> str:
    return "|".join(each.stat for each in OF_CLUSTERS)


def query_filter(domain: str) -> str:
    """What Envoy is asked for: all of `FAMILIES`, and of clusters those that lead to partners."""
    server = "|".join(each.stat for each in OF_THE_SERVER)
    listeners = "|".join(each.stat for each in OF_LISTENERS)
    return (
        rf"^(cluster\.{re.escape(domain)}-to-[^.]+\.({_stats_of_clusters()})"
        rf"|http\.({'|'.join(LISTENERS)})\.({listeners})|{server})$"
    )
