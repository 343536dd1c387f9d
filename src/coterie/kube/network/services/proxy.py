"""Keeps the table of Services in the domain's network namespace as Services and EndpointSlices say.

Every change is one transaction with what differs and nothing else. The whole table is written when this begins, and when the
kernel does not have what a change builds on: the namespace was made anew, or somebody else changed the table.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.network import ENDPOINT_SLICES, SERVICES, EndpointSlice, Service
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.network.pods import nftables
from coterie.kube.network.pods.links import Links
from coterie.kube.network.pods.netlink import NETLINK_NETFILTER, NETLINK_ROUTE, NetlinkMessage, NetlinkSocket
from coterie.kube.network.services.conntrack import forget_udp
from coterie.kube.network.services.node_scope import NodeScope
from coterie.kube.network.services.plan import PortChain, ServiceTable, TableChange, plan, service_of_slice
from coterie.kube.network.services.rules import change_messages, table_messages

log = logger("network.services")

SLICES_BY_SERVICE = "network/service"
_RETRY = Policy(first=0.2, factor=2.0, limit=30.0)
_SEND_BUFFER = 32 << 20
_SMALL_BATCH = 150_000
"""Bytes that every machine takes in one message."""


def slices_by_service(found: EndpointSlice) -> tuple[str, ...]:
    """Index."""
    key = service_of_slice(found)
    return (str(key),) if key is not None else ()


class ServiceRules:
    """The table in the kernel: effects only. `open_netlink`: a socket of a netlink protocol in the domain's namespace."""

    def __init__(self, open_netlink: Callable[[int], NetlinkSocket], gateway: str, service_cidr: str) -> None:
        self._open = open_netlink
        self._gateway = gateway
        self._service_cidr = service_cidr
        self._netlink: NetlinkSocket | None = None

    def load(self, everything: TableChange) -> None:
        """Replace the table, whatever is there. Raises OSError."""
        self.close()
        routes = Links(self._open(NETLINK_ROUTE))
        try:
            # The domain's own processes need a route before rules see their packets.
            routes.route_by_loopback(self._service_cidr, self._gateway)
        finally:
            routes.close()
        self._netlink = self._open(NETLINK_NETFILTER)
        self._netlink.enlarge(_SEND_BUFFER)
        first, rest = table_messages(self._gateway, self._service_cidr), change_messages(everything)
        try:
            self._transact([*first, *rest])
        except OSError as problem:
            if problem.errno != errno.EMSGSIZE:
                raise
            self._load_in_parts(first, everything)

    def apply(self, change: TableChange) -> None:
        """Raises OSError, also where `load` is needed."""
        if self._netlink is None:
            raise OSError(errno.ENOENT, "the table is not loaded")
        self._transact(change_messages(change))
        if change.gone_udp:
            forget_udp(self._netlink, change.gone_udp)

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def _load_in_parts(self, first: Sequence[NetlinkMessage], everything: TableChange) -> None:
        """Where an ordinary user may not send so much at once: chains first, what leads to them last."""
        self._transact(first)
        chains = list(everything.added.items())
        while chains:
            part: dict[str, PortChain] = {}
            size = 0
            while chains and size < _SMALL_BATCH:
                name, chain = chains.pop()
                part[name] = chain
                size += 600 + len(name) + 40 * len(chain.backends) * (8 if chain.affinity_seconds else 1)
            self._transact(change_messages(TableChange(part, {}, {})))
        self._transact(
            change_messages(
                TableChange({}, {}, {}, keys_added=everything.keys_added, hairpins_added=everything.hairpins_added)
            )
        )

    def _transact(self, messages: Sequence[NetlinkMessage]) -> None:
        assert self._netlink is not None
        if messages:
            self._netlink.request(nftables.batch(messages), acknowledged=-2)


class ServiceProxy:
    """A Runnable. `namespace`: whose Services this node sees; empty: of all namespaces."""

    name = "service-proxy"

    def __init__(
        self,
        informers: Informers,
        scope: NodeScope,
        rules: ServiceRules,
        *,
        namespace: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.ready = asyncio.Event()
        self.synced = asyncio.Event()
        """Set when the table has all Services."""
        self._scope = scope
        self._rules = rules
        self._clock = clock
        self._services = informers.get(SERVICES, namespace)
        self._slices = informers.get(ENDPOINT_SLICES, namespace)
        self._slices.cache.add_index(SLICES_BY_SERVICE, slices_by_service)
        self._table = ServiceTable()
        self._changed: set[ObjectKey] = set()
        self._wake = asyncio.Event()
        self._services.add_handler(self._service_changed)
        self._slices.add_handler(self._slice_changed)
        scope.on_change(self._enqueue_all)

    def _service_changed(self, change: ObjectChange[Service]) -> None:
        self._enqueue(change.object.key)

    def _slice_changed(self, change: ObjectChange[EndpointSlice]) -> None:
        for found in (change.object, change.old):
            key = service_of_slice(found) if found is not None else None
            if key is not None:
                self._enqueue(key)

    def _enqueue_all(self) -> None:
        for service in self._services.cache.list():
            self._enqueue(service.key)

    def _enqueue(self, key: ObjectKey) -> None:
        self._changed.add(key)
        self._wake.set()

    async def run(self) -> None:
        self.ready.set()
        await self._services.ready.wait()
        await self._slices.ready.wait()
        await self._scope.wait_ready()
        backoff = Backoff(_RETRY)
        loaded = False
        try:
            while True:
                self._wake.clear()
                change = self._table.update({key: self._plan(key) for key in self._take()})
                if loaded and change.empty:
                    await self._wake.wait()
                    continue
                try:
                    if loaded:
                        self._rules.apply(change)
                    else:
                        await asyncio.to_thread(self._rules.load, self._table.everything())
                except OSError as problem:
                    pause = 0.0 if loaded else backoff.failed()
                    log.warning("Rules of Services were not taken; writing all of them", error=problem, again_in=pause)
                    loaded = False
                    await self._clock.sleep(pause)
                    continue
                loaded = True
                backoff = Backoff(_RETRY)
                self.synced.set()
        finally:
            self._rules.close()

    def _take(self) -> set[ObjectKey]:
        found, self._changed = self._changed, set()
        return found

    def _plan(self, key: ObjectKey) -> dict[str, PortChain]:
        slices = self._slices.cache.by_index(SLICES_BY_SERVICE, str(key))
        return plan(self._services.cache.by_key(key), slices, self._scope.view)
