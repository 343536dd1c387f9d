"""Watches the Nodes of a domain and keeps the overlay of this node in step. A Runnable; leaves everything in place when it stops,
because pods outlive the node's process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.api.types.network import Service
from coterie.kube.api.types.nodes import NODES, Node
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.network.overlay.link_probe import LinkProbe
from coterie.kube.network.overlay.node_overlay import NodeOverlay
from coterie.kube.network.overlay.plan import OverlaySettings
from coterie.kube.network.pods.netlink import NetlinkSocket

_log = logger("network.overlay")
_RETRY = Policy(first=0.2, factor=2.0, limit=30.0)
_RECHECK_SECONDS = 30.0


class OverlayController:
    name = "overlay"

    def __init__(
        self,
        settings: Callable[[], Awaitable[OverlaySettings]],
        informers: Informers | None,
        selector: str,
        directory: Path,
        *,
        namespace: Callable[[], Path],
        domain_netlink: Callable[[int], NetlinkSocket],
        probe_socket: Callable[[], socket.socket],
        clock: Clock,
        services: Informer[Service] | None = None,
    ) -> None:
        """`settings` may ask the API server; `informers` None: this node has no peers. `probe_socket`: see LinkProbe; `services`:
        those to which the machine has a route each; the rest: see NodeOverlay."""
        self.ready = asyncio.Event()
        self.selector = selector if informers is not None else ""
        """Labels of the Nodes of this domain; empty: there are no others."""
        self._settings = settings
        self._informer = informers.get(NODES, labels=selector) if informers is not None else None
        self._services = services
        self._directory = directory
        self._namespace = namespace
        self._domain_netlink = domain_netlink
        self._clock = clock
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._renew = False
        self._probe = LinkProbe(probe_socket, clock, self._wake.set)
        self._by_link: frozenset[str] = frozenset()
        self._problems: list[str] = []

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def namespace_changed(self) -> None:
        """The domain's network namespace was made anew."""
        self._renew = True
        self._wake.set()

    async def run(self) -> None:
        overlay = NodeOverlay(
            await self._settings(), self._directory, namespace=self._namespace, domain_netlink=self._domain_netlink
        )
        removes = [] if self._services is None else [self._services.add_handler(self._service_changed)]
        try:
            if self._informer is not None:
                await self._informer.ready.wait()
                removes.append(self._informer.add_handler(self._changed))
            backoff = Backoff(_RETRY)
            recheck = False
            while not self._stop.is_set():
                self._wake.clear()
                if await self._reconcile(overlay, recheck=recheck):
                    backoff.succeeded()
                    self.ready.set()
                    recheck = await self._rest(overlay)
                else:
                    self.ready.set()
                    await self._wait(backoff.failed())
        finally:
            for remove in removes:
                remove()
            self._probe.close()
            overlay.close()

    async def _rest(self, overlay: NodeOverlay) -> bool:
        """Until something changes. Answers whether nothing did."""
        if not overlay.unsettled:
            await self._wake.wait()
        else:
            await self._wait(_RECHECK_SECONDS)
        return not self._wake.is_set()

    def _changed(self, change: ObjectChange[Node]) -> None:
        self._wake.set()

    def _service_changed(self, change: ObjectChange[Service]) -> None:
        if (
            change.type == "deleted"
            or change.old is None
            or change.old.spec.cluster_ip != change.object.spec.cluster_ip
        ):
            self._wake.set()

    def _cluster_ips(self) -> frozenset[str]:
        if self._services is None:
            return frozenset()
        addresses = {each.spec.cluster_ip for each in self._services.cache.list()}
        return frozenset(address for address in addresses if address and address != "None" and ":" not in address)

    async def _reconcile(self, overlay: NodeOverlay, *, recheck: bool) -> bool:
        nodes = self._informer.cache.list() if self._informer is not None else []
        if self._renew:
            self._renew = False
            overlay.namespace_changed()
            self._probe.namespace_changed()
        answering = self._probe.answering
        try:
            problems = await asyncio.to_thread(
                overlay.reconcile, nodes, answering, recheck=recheck, services=self._cluster_ips()
            )
        except OSError as problem:
            _log.error("The network to other nodes cannot be changed; trying again", error=problem)
            return False
        self._probe.follow(*overlay.link)
        self._log_links(nodes, answering)
        if problems != self._problems:
            for each in problems:
                _log.warning("The pod network is not complete", why=each)
            self._problems = problems
        return True

    def _log_links(self, nodes: Iterable[Node], answering: frozenset[str]) -> None:
        names = {node.spec.pod_cidr: node.metadata.name for node in nodes}
        for cidr in answering - self._by_link:
            _log.info("A node on the same link is reached without VXLAN", node=names.get(cidr, cidr))
        for cidr in self._by_link - answering:
            _log.info(
                "A node does not answer on the link any longer; it is reached by VXLAN", node=names.get(cidr, cidr)
            )
        self._by_link = answering

    async def _wait(self, seconds: float) -> None:
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        waking = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((sleeping, waking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()
