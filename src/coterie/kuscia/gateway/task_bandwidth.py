"""What each task sends to and receives from each partner is counted, and limited where the task says so. Pure.

Envoy's filter `bandwidth_limit` does both: it counts the bytes of request and response bodies as they pass, also those of
streams that stay open for hours, by a `stat_prefix` of our choice. A task without limit gets one that no network reaches.
The filter is off except on the routes of tasks, so nothing is counted when no task runs.

    our engine calls bob       internal listener   task.<task>.to.bob.http_bandwidth_limit.request_allowed_total_size     sent
                                                                                         ...response_...                 received
    bob calls our engine       external listener   task.<task>.from.bob.http_bandwidth_limit.request_allowed_total_size   received
                                                                                         ...response_...                 sent

A stream keeps the limit with which it began: Envoy reads it once. A new limit therefore holds for the requests that begin
after it; no connection is closed for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coterie.kuscia.gateway.model import SnapshotInputs, TaskLink
from coterie.kuscia.gateway.names import BANDWIDTH, BANDWIDTH_FILTER, Json

UNLIMITED_KIB = 1 << 33
"""8 TiB a second."""
STATS_FILTER = r"^(task\..*\.http_bandwidth_limit\.(request|response)_allowed_total_size|cluster\..*-to-.*\.upstream_cx_(tx|rx)_bytes_total)$"
"""The counters that are read, for Envoy's admin interface; the bootstrap must not leave them out."""
_TASK = re.compile(
    r"^task\.(?P<task>.+)\.(?P<way>to|from)\.(?P<peer>[^.]+)\.http_bandwidth_limit\.(?P<part>request|response)_allowed_total_size: (?P<count>\d+)$",
    re.MULTILINE,
)
_CLUSTER = re.compile(
    r"^cluster\.(?P<name>[^:]+)\.upstream_cx_(?P<way>tx|rx)_bytes_total: (?P<count>\d+)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class ByteCount:
    sent: int = 0
    received: int = 0

    def __add__(self, other: ByteCount) -> ByteCount:
        return ByteCount(self.sent + other.sent, self.received + other.received)


@dataclass(frozen=True, slots=True)
class BandwidthCounters:
    """Envoy's counters at one moment; they begin at zero with each Envoy."""

    called: Mapping[TaskLink, ByteCount]
    """Of calls to partners."""
    served: Mapping[TaskLink, ByteCount]
    """Of calls by partners."""
    outbound: Mapping[str, ByteCount]
    """By peer: all that went over the connections that we opened, with headers and without tasks."""


def limiter() -> Json:
    """The filter of a listener: off, except on routes that bring a configuration of their own."""
    nothing: Json = {"@type": BANDWIDTH, "stat_prefix": "unlimited", "enable_mode": "DISABLED"}
    return {"name": BANDWIDTH_FILTER, "typed_config": nothing, "disabled": True}


def outgoing(inputs: SnapshotInputs, destination: str) -> dict[str, Json]:
    """By task: the filter's configuration for its calls to the destination."""
    found = {link.task: UNLIMITED_KIB for link in inputs.task_links if link.peer == destination}
    found |= {
        each.task: each.kib_per_second
        for each in inputs.limits
        if each.destination == destination and each.kib_per_second > 0
    }
    return {task: _config(f"task.{task}.to.{destination}", limit) for task, limit in found.items()}


def incoming(task: str, origin: str) -> Json:
    """For calls of a partner to a service of the task: only counted. The caller's side has the limit."""
    return {BANDWIDTH_FILTER: _config(f"task.{task}.from.{origin}", UNLIMITED_KIB)}


def _config(prefix: str, kib_per_second: int) -> Json:
    return {
        "@type": BANDWIDTH,
        "stat_prefix": prefix,
        "enable_mode": "REQUEST_AND_RESPONSE",
        "limit_kbps": kib_per_second,
        "fill_interval": "0.1s",
    }


def read_counters(stats: str, domain: str, peers: Collection[str]) -> BandwidthCounters:
    called: dict[TaskLink, ByteCount] = {}
    served: dict[TaskLink, ByteCount] = {}
    for match in _TASK.finditer(stats):
        count, link = int(match["count"]), TaskLink(match["task"], match["peer"])
        into = called if match["way"] == "to" else served
        sent = (match["way"] == "to") == (match["part"] == "request")
        into[link] = into.get(link, ByteCount()) + (ByteCount(sent=count) if sent else ByteCount(received=count))
    outbound: dict[str, ByteCount] = {}
    for match in _CLUSTER.finditer(stats):
        peer = _peer(match["name"], domain, peers)
        if peer:
            count = int(match["count"])
            more = ByteCount(sent=count) if match["way"] == "tx" else ByteCount(received=count)
            outbound[peer] = outbound.get(peer, ByteCount()) + more
    return BandwidthCounters(called, served, outbound)


def _peer(cluster: str, domain: str, peers: Collection[str]) -> str:
    """Clusters of routes are named `<source>-to-<destination>-<port>`; names of domains and ports may have dashes."""
    rest = cluster.removeprefix(f"{domain}-to-")
    if rest == cluster:
        return ""
    return max((peer for peer in peers if rest.startswith(f"{peer}-")), key=len, default="")
