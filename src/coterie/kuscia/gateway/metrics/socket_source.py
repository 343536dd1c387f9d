"""Connections to partners as the kernel measures them (round-trip time, retransmits), by the names of Kuscia's ss exporter.

Connections are those that the gateway opens to the addresses and ports of routes. They belong to Envoy, or, where an ordinary user's Envoy is inside
the pod network, to the relay outside; other programs of the machine may have connections to the same partner, so the owner is looked up
by the sockets' inodes.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from urllib.parse import quote

from coterie.base.exposition import Family
from coterie.kube.metrics.sources import SourceFailed
from coterie.kube.network.pods.netlink import NetlinkSocket
from coterie.kube.network.pods.sock_diag import NETLINK_SOCK_DIAG, Endpoint, TcpConnection, established
from coterie.kuscia.gateway import tls
from coterie.kuscia.gateway.admin import Admin, AdminError
from coterie.kuscia.gateway.egress import outbound_name
from coterie.kuscia.gateway.metrics.socket_totals import SocketTotals
from coterie.kuscia.gateway.model import SnapshotInputs

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_MAX_BYTES = 4 << 20
_CLUSTER_LINE = re.compile(
    r"^(?P<cluster>[^:\n]+)::\[?(?P<host>[0-9A-Fa-f.:]+?)\]?:(?P<port>\d+)::cx_active::", re.MULTILINE
)

Endpoints = dict[Endpoint, list[str]]
Owner = Callable[[], Awaitable[int | None]]
"""The process that opens connections to partners; None while there is none."""


def endpoints_of(inputs: SnapshotInputs) -> tuple[Endpoints, dict[str, str]]:
    """(partners by address and port, partners by the cluster that resolves their host name)."""
    fixed: Endpoints = {}
    named: dict[str, str] = {}
    for route in inputs.outbound:
        if not route.host or route.via or route.tunnel:
            continue
        for port in route.ports:
            if tls.is_address(route.host):
                _add(fixed, (route.host, port.port), route.destination)
            else:
                named[outbound_name(route, port)] = route.destination
    return fixed, named


def resolved(fixed: Mapping[Endpoint, Sequence[str]], named: Mapping[str, str], clusters: str) -> Endpoints:
    """With the addresses that Envoy found for host names: lines `alice-to-bob-http::10.0.0.2:1080::cx_active::1` of its admin page."""
    found: Endpoints = {endpoint: list(names) for endpoint, names in fixed.items()}
    for match in _CLUSTER_LINE.finditer(clusters):
        if match["cluster"] in named:
            _add(found, (match["host"], int(match["port"])), named[match["cluster"]])
    return found


def _add(endpoints: Endpoints, endpoint: Endpoint, partner: str) -> None:
    names = endpoints.setdefault(endpoint, [])
    if partner not in names:
        names.append(partner)


def sockets_of(pid: int) -> frozenset[int]:
    """Inodes of the sockets that a process has open. Raises OSError."""
    found = set()
    directory = f"/proc/{pid}/fd"
    for name in os.listdir(directory):
        try:
            match = _SOCKET.fullmatch(os.readlink(f"{directory}/{name}"))
        except FileNotFoundError:
            continue  # closed meanwhile
        if match is not None:
            found.add(int(match[1]))
    return frozenset(found)


def connections_of(pid: int, endpoints: Mapping[Endpoint, Sequence[str]]) -> list[TcpConnection]:
    """Of this process, in the network namespace of the calling thread. Raises OSError."""
    with closing(NetlinkSocket(NETLINK_SOCK_DIAG)) as netlink:
        found = established(netlink, endpoints)
    own = sockets_of(pid) if found else frozenset()
    return [each for each in found if each.inode in own]


class RouteSocketsSource:
    """Asked in the background: a thousand connections take some milliseconds."""

    name = "sockets"

    def __init__(self, admin: Admin, domain: str, inputs: Callable[[], SnapshotInputs | None], owner: Owner) -> None:
        self._admin = admin
        self._domain = domain
        self._inputs = inputs
        self._owner = owner
        self._totals = SocketTotals()

    async def families(self) -> Sequence[Family]:
        inputs, pid = self._inputs(), await self._owner()
        if inputs is None or pid is None:
            raise SourceFailed("the gateway does not run")
        fixed, named = endpoints_of(inputs)
        endpoints = resolved(fixed, named, await self._resolved_clusters(named)) if named else fixed
        found = await asyncio.to_thread(connections_of, pid, endpoints)
        self._totals.update(_partners(fixed, named), endpoints, found)
        return self._totals.families(self._domain)

    async def _resolved_clusters(self, named: Iterable[str]) -> str:
        wanted = "^(" + "|".join(re.escape(name) for name in named) + ")$"
        try:
            return await self._admin.ask(f"/clusters?filter={quote(wanted)}", limit=_MAX_BYTES)
        except AdminError as problem:
            raise SourceFailed(str(problem)) from problem


def _partners(fixed: Mapping[Endpoint, Sequence[str]], named: Mapping[str, str]) -> list[str]:
    return sorted({*named.values(), *(name for names in fixed.values() for name in names)})
