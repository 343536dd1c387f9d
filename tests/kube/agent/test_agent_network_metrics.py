"""What pods sent and received, by the kernel's counters of their devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coterie.kube.agent.server.network_metrics import PodNetworkSource, pod_network_families
from coterie.kube.network.pods.links import pod_device_index
from coterie.kube.network.pods.netlink import NETLINK_ROUTE, NetlinkSocket
from coterie.kube.network.pods.rtnetlink import traffic

CIDR = "100.96.16.0/20"


def test_the_outer_end_of_a_device_is_the_mirror_of_the_pods() -> None:
    counted = {pod_device_index(2): (1, 2, 30, 40), pod_device_index(3): (5, 6, 70, 80), 1: (9, 9, 9, 9)}
    pods = [
        ("alice", "a", "100.96.16.2"),
        ("alice", "b", "100.96.16.3"),
        ("alice", "host", "10.0.0.1"),
        ("alice", "none", ""),
        ("alice", "gone", "100.96.16.9"),
    ]
    found = {family.name: dict(family.rows) for family in pod_network_families(pods, CIDR, counted)}
    a, b = (f'namespace="alice",pod="{name}",interface="eth0"' for name in "ab")
    assert found == {
        "container_network_receive_bytes_total": {a: 40, b: 80},
        "container_network_receive_packets_total": {a: 2, b: 6},
        "container_network_transmit_bytes_total": {a: 30, b: 70},
        "container_network_transmit_packets_total": {a: 1, b: 5},
    }


def test_the_kernel_counts_as_in_proc() -> None:
    netlink = NetlinkSocket(NETLINK_ROUTE)
    try:
        found = traffic(netlink)
    finally:
        netlink.close()
    with open("/proc/self/net/dev") as file:
        lo = next(line for line in file if line.strip().startswith("lo:")).partition(":")[2].split()
    packets, _, size, _ = found[1]
    assert packets <= int(lo[1])
    assert size <= int(lo[0])


async def test_nothing_is_asked_without_pods() -> None:
    def open_netlink() -> Any:
        raise AssertionError("would make the namespace")

    runtime: Any = SimpleNamespace(pods=lambda: [], pod_ip=lambda uid: "")
    families = await PodNetworkSource(runtime, open_netlink, CIDR).families()
    assert [family.rows for family in families] == [[], [], [], []]
