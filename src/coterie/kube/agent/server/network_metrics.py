"""What pods sent and received, as families for Prometheus under cAdvisor's names.

Each pod has a pair of devices whose outer end is in the domain's network namespace, so the kernel lists all of them in one answer, for root and for an
ordinary user. Pods that share the machine's network have none, and no rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from ipaddress import AddressValueError, IPv4Address, IPv4Network

from coterie.base.exposition import Family, Row, labels
from coterie.kube.agent.runtimes.protocol import PodRuntime
from coterie.kube.network.pods.links import POD_DEVICE, pod_device_index
from coterie.kube.network.pods.netlink import NetlinkSocket
from coterie.kube.network.pods.rtnetlink import traffic

Traffic = Mapping[int, tuple[int, int, int, int]]
"""By index of the device: packets received and sent, bytes received and sent, seen from outside the pod."""


def pod_network_families(pods: Iterable[tuple[str, str, str]], cidr: str, found: Traffic) -> list[Family]:
    """`pods`: (namespace, name, address)."""
    network = IPv4Network(cidr)
    base = int(network.network_address)
    received_bytes: list[Row] = []
    received_packets: list[Row] = []
    sent_bytes: list[Row] = []
    sent_packets: list[Row] = []
    for namespace, name, text in pods:
        try:
            address = IPv4Address(text)
        except AddressValueError:
            continue
        counted = found.get(pod_device_index(int(address) - base)) if address in network else None
        if counted is None:
            continue
        where = labels(namespace=namespace, pod=name, interface=POD_DEVICE)
        # What comes out of the outer end went into the pod.
        packets_out, packets_in, bytes_out, bytes_in = counted
        received_bytes.append((where, bytes_in))
        received_packets.append((where, packets_in))
        sent_bytes.append((where, bytes_out))
        sent_packets.append((where, packets_out))
    return [
        Family("container_network_receive_bytes_total", "Bytes that pods received.", "counter", received_bytes),
        Family("container_network_receive_packets_total", "Packets that pods received.", "counter", received_packets),
        Family("container_network_transmit_bytes_total", "Bytes that pods sent.", "counter", sent_bytes),
        Family("container_network_transmit_packets_total", "Packets that pods sent.", "counter", sent_packets),
    ]


class PodNetworkSource:
    """A source of metrics, asked in the background. `open_netlink`: an rtnetlink socket in the domain's network namespace; may block."""

    name = "pod-network"

    def __init__(self, runtime: PodRuntime, open_netlink: Callable[[], NetlinkSocket], cidr: str) -> None:
        self._runtime = runtime
        self._open_netlink = open_netlink
        self._cidr = cidr

    async def families(self) -> Sequence[Family]:
        pods = [(pod.namespace, pod.name, self._runtime.pod_ip(pod.uid)) for pod in self._runtime.pods()]
        # Without pods there may be no namespace, and asking would make it.
        found = await asyncio.to_thread(self._traffic) if pods else {}
        return pod_network_families(pods, self._cidr, found)

    def _traffic(self) -> Traffic:
        with closing(self._open_netlink()) as netlink:
            return traffic(netlink)
