"""The overlay of one node: brings the kernel to what the Node objects say. Synchronous; nothing is sent when nothing changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from coterie.kube.api.types.nodes import Node
from coterie.kube.network.overlay import cleanup, devices, plan
from coterie.kube.network.overlay.devices import Namespaces, OverlayDevices
from coterie.kube.network.overlay.link_routes import LinkRoutes
from coterie.kube.network.overlay.outer_filter import OuterFilter
from coterie.kube.network.overlay.plan import OverlaySettings, PeerNode
from coterie.kube.network.pods.netlink import NETLINK_NETFILTER, NETLINK_ROUTE, NetlinkSocket


class NodeOverlay:
    def __init__(
        self,
        settings: OverlaySettings,
        directory: Path,
        *,
        namespace: Callable[[], Path],
        domain_netlink: Callable[[int], NetlinkSocket],
    ) -> None:
        """Made in the machine's network namespace. `directory`: where the record of what was made is kept; `namespace`: the
        path of the domain's; `domain_netlink`: a socket of a netlink protocol in it."""
        self._settings = settings
        self._directory = directory
        self._namespace = namespace
        self._domain_netlink = domain_netlink
        self._machine = NetlinkSocket(NETLINK_ROUTE)
        self._rules = NetlinkSocket(NETLINK_NETFILTER)
        self._filter = OuterFilter(self._rules, settings.vni)
        self._where: Namespaces | None = None
        self._devices: OverlayDevices | None = None
        self._links: LinkRoutes | None = None
        self._peers: dict[str, PeerNode] = {}
        """By range: what the kernel has."""
        self._allowed: set[str] | None = None
        """Outer addresses in the filter; None: there is none yet."""
        self._leftovers = False
        """Whether an earlier process may have left a device and rules."""
        self._machine_problems: list[str] = []
        """Why the machine does not reach pods or Services."""
        self._answering: frozenset[str] = frozenset()
        self._no_card = False
        """No network card has the node's address now."""
        self._link_problems: list[str] = []
        """Why peers on the same link are reached by VXLAN."""
        self._services: frozenset[str] | None = None
        """Cluster IPs to which the machine has routes; None: to none that this process made."""
        self._service_problems: list[str] = []

    @property
    def link(self) -> tuple[int, dict[str, str]]:
        """The device on the link that the machine shares with others, and the peers there: by range, the gateway address."""
        if self._links is None:
            return 0, {}
        return self._links.index, {cidr: peer.gateway for cidr, peer in self._links.peers.items()}

    @property
    def unsettled(self) -> bool:
        """Whether a peer could be on the link, or is and does not answer there: worth another look after a while."""
        silent = self._links is not None and not self._links.peers.keys() <= self._answering
        return bool(self._link_problems) or self._no_card or silent

    def reconcile(
        self,
        nodes: Iterable[Node],
        answering: frozenset[str] = frozenset(),
        *,
        recheck: bool = False,
        services: frozenset[str] = frozenset(),
    ) -> list[str]:
        """Answers what is wrong with the nodes. `answering`: ranges of the peers that answer on the link; `recheck`: look who is on
        the link although no node changed; `services`: cluster IPs of the domain's Services, see `OverlaySettings.each_service`. Raises
        OSError; then it is to be called again."""
        settings = self._settings
        opened = self._open()
        wanted, problems = plan.peers_of(settings, nodes) if settings.between_machines else ({}, [])
        if wanted and not plan.can_carry(settings.address):
            problems = [f"agent.address {settings.address} is not one that other machines reach: no overlay", *problems]
            wanted = {}
        recheck = recheck or bool(self._answering - answering)
        self._answering = answering
        self._apply(opened, wanted, recheck=recheck)
        self._route_services(opened, services)
        return problems + self._machine_problems + self._link_problems + self._service_problems

    def _route_services(self, opened: OverlayDevices, services: frozenset[str]) -> None:
        if not self._settings.each_service or services == self._services:
            return
        refused = opened.route_services(services)
        self._service_problems = [f"{text} leads elsewhere on this machine: no route to it" for text in refused]
        self._services = services

    def namespace_changed(self) -> None:
        """The domain has another network namespace: everything in it is to be made again."""
        if self._links is not None:
            self._links.close()
        if self._where is not None:
            self._where.domain.close()
            os.close(self._where.handle)
        self._where = self._devices = self._links = self._services = None

    def close(self) -> None:
        """Leaves the kernel as it is, because pods outlive this process; but without it nobody finds out who answers on the link."""
        if self._links is not None and self._devices is not None:
            with contextlib.suppress(OSError):  # the namespace went
                self._devices.route(self._links.plain.values())
        self.namespace_changed()
        self._machine.close()
        self._rules.close()

    def _open(self) -> OverlayDevices:
        if self._devices is not None:
            return self._devices
        if self._where is None:
            handle = devices.open_namespace(self._namespace())
            try:
                self._where = Namespaces(self._machine, self._domain_netlink(NETLINK_ROUTE), handle)
            except OSError:
                os.close(handle)
                raise
        if self._links is None:
            self._links = LinkRoutes(self._settings, self._where, self._domain_netlink(NETLINK_NETFILTER))
        found = OverlayDevices(self._settings, self._where)
        before = cleanup.recorded(self._directory)
        self._link_machine(found, before)
        self._peers = found.adopt()
        self._answering = frozenset()
        self._leftovers = bool(before)
        self._devices = found
        return found

    def _link_machine(self, found: OverlayDevices, before: int) -> None:
        settings = self._settings
        if before and before != settings.vni:
            cleanup.clean(self._directory)
        try:
            refused = found.link_machine(lambda: before == settings.vni)
        except FileExistsError:
            self._machine_problems = [f"{settings.host_device} belongs to another node of this domain on this machine"]
            return
        cleanup.record(self._directory, settings.vni)
        self._machine_problems = [f"{text} leads elsewhere on this machine: no route to it" for text in refused]

    def _apply(self, opened: OverlayDevices, wanted: dict[str, PeerNode], *, recheck: bool) -> None:
        outer = devices.outer_addresses(wanted)
        # First who may send, then the ways; and the reverse for those who leave.
        if wanted and self._allowed is None:
            self._filter.load(outer)
            self._allowed = set(outer)
        elif self._allowed is not None and outer - self._allowed:
            self._filter.change(outer - self._allowed, ())
            self._allowed |= outer
        changed = plan.changes(self._peers, wanted)
        moved = self._peers != wanted
        self._leave_link(opened, {peer.pod_cidr for peer in (*changed.removed, *changed.added)})
        if changed:
            opened.apply(changed)
        self._peers = dict(wanted)
        self._use_link(opened, wanted, recheck=recheck or moved or self._leftovers)
        if not wanted:
            if self._allowed is not None or self._leftovers:
                opened.remove_vxlan()
                self._filter.remove()
            self._allowed = None
        elif self._allowed is not None and self._allowed - outer:
            self._filter.change((), self._allowed - outer)
            self._allowed &= outer
        self._leftovers = False

    def _leave_link(self, opened: OverlayDevices, cidrs: Collection[str]) -> None:
        """Reach these peers by VXLAN, and those that do not answer on the link."""
        links = self._links
        leaving = (
            [peer for cidr, peer in links.plain.items() if cidr in cidrs or cidr not in self._answering]
            if links
            else []
        )
        if links is not None and leaving:
            opened.route(leaving)
            links.plain = {cidr: peer for cidr, peer in links.plain.items() if peer not in leaving}

    def _use_link(self, opened: OverlayDevices, wanted: dict[str, PeerNode], *, recheck: bool) -> None:
        """Reach the peers that answer on the link by plain routes. What fails here is left to VXLAN."""
        links = self._links
        if links is None:
            return
        try:
            if recheck:
                card, found = links.candidates(wanted)
                self._no_card = bool(wanted) and not card
                self._leave_link(opened, links.plain.keys() - found.keys())
                links.follow(card, found, opened.mtu)
            answering = [
                peer for cidr, peer in links.peers.items() if cidr in self._answering and cidr not in links.plain
            ]
            links.route(answering)
            self._link_problems = []
        except OSError as problem:
            opened.route(links.plain.values())
            with contextlib.suppress(OSError):
                links.remove()
            self._link_problems = [f"machines on the same link are reached by VXLAN: {problem}"]
