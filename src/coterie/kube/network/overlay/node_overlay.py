"""The overlay of one node: brings the kernel to what the Node objects say. Synchronous; nothing is sent when nothing changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from coterie.kube.api.types.nodes import Node
from coterie.kube.network.overlay import cleanup, devices, plan
from coterie.kube.network.overlay.devices import Namespaces, OverlayDevices
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
        domain_netlink: Callable[[], NetlinkSocket],
    ) -> None:
        """Made in the machine's network namespace. `directory`: where the record of what was made is kept; `namespace`: the
        path of the domain's; `domain_netlink`: a socket in it for devices and routes."""
        self._settings = settings
        self._directory = directory
        self._namespace = namespace
        self._domain_netlink = domain_netlink
        self._machine = NetlinkSocket(NETLINK_ROUTE)
        self._rules = NetlinkSocket(NETLINK_NETFILTER)
        self._filter = OuterFilter(self._rules, settings.vni)
        self._where: Namespaces | None = None
        self._devices: OverlayDevices | None = None
        self._peers: dict[str, PeerNode] = {}
        """By range: what the kernel has."""
        self._allowed: set[str] | None = None
        """Outer addresses in the filter; None: there is none yet."""
        self._leftovers = False
        """Whether an earlier process may have left a device and rules."""
        self._machine_problems: list[str] = []
        """Why the machine does not reach pods or Services."""

    def reconcile(self, nodes: Iterable[Node]) -> list[str]:
        """Answers what is wrong with the nodes. Raises OSError; then it is to be called again."""
        settings = self._settings
        opened = self._open()
        wanted, problems = plan.peers_of(settings, nodes) if settings.between_machines else ({}, [])
        if wanted and not plan.can_carry(settings.address):
            problems = [f"agent.address {settings.address} is not one that other machines reach: no overlay", *problems]
            wanted = {}
        self._apply(opened, wanted)
        return problems + self._machine_problems

    def namespace_changed(self) -> None:
        """The domain has another network namespace: everything in it is to be made again."""
        if self._where is not None:
            self._where.domain.close()
            os.close(self._where.handle)
        self._where = self._devices = None

    def close(self) -> None:
        """Leaves the kernel as it is: pods outlive this process."""
        self.namespace_changed()
        self._machine.close()
        self._rules.close()

    def _open(self) -> OverlayDevices:
        if self._devices is not None:
            return self._devices
        if self._where is None:
            handle = devices.open_namespace(self._namespace())
            try:
                self._where = Namespaces(self._machine, self._domain_netlink(), handle)
            except OSError:
                os.close(handle)
                raise
        found = OverlayDevices(self._settings, self._where)
        before = cleanup.recorded(self._directory)
        self._link_machine(found, before)
        self._peers = found.adopt()
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

    def _apply(self, opened: OverlayDevices, wanted: dict[str, PeerNode]) -> None:
        outer = devices.outer_addresses(wanted)
        # First who may send, then the ways; and the reverse for those who leave.
        if wanted and self._allowed is None:
            self._filter.load(outer)
            self._allowed = set(outer)
        elif self._allowed is not None and outer - self._allowed:
            self._filter.change(outer - self._allowed, ())
            self._allowed |= outer
        changed = plan.changes(self._peers, wanted)
        if changed:
            opened.apply(changed)
            self._peers = dict(wanted)
        if not wanted:
            if self._allowed is not None or self._leftovers:
                opened.remove_vxlan()
                self._filter.remove()
            self._allowed = None
        elif self._allowed is not None and self._allowed - outer:
            self._filter.change((), self._allowed - outer)
            self._allowed &= outer
        self._leftovers = False
