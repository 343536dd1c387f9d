"""What the overlay does, played in namespaces of its own: `python overlay_scenarios.py root|user|plain SCENARIO`.

`plain`: as root, with plain routes in use between machines on one link.

Ends with 0, with 77 where the machine forbids it, or with a traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import overlay_kit as kit
import pod_network_scenarios as pods
from overlay_kit import CLUSTER, HALF, MTU, SERVICES, VICTIM_PORT, Machine, all_know, link, routed
from pod_network_scenarios import inside, listen, outcome, refused, talk

from coterie.base.clock import SYSTEM_CLOCK
from coterie.kube.network.overlay import cleanup
from coterie.kube.network.overlay.link_paths import LOST_AFTER
from coterie.kube.network.overlay.link_probe import LinkProbe
from coterie.kube.network.overlay.plan import link_mac_of
from coterie.kube.network.pods import rtnetlink
from coterie.kube.network.pods.firewall import LINK_PROBE_PORT
from coterie.kube.network.pods.links import write_sysctl
from coterie.kube.network.pods.netlink import (
    CREATE,
    NETLINK_NETFILTER,
    REPLACE,
    NetlinkMessage,
    NetlinkSocket,
    attribute,
    nest,
    text,
)

_SHORT = 0.3
_IP_MTU_DISCOVER, _PMTUDISC_DO = 10, 2


def two() -> tuple[Machine, Machine]:
    one, other = link("10.1.0.1", "10.1.0.2")
    all_know((one, other))
    assert one.way_to(other) == ("vlink0" if kit.PLAIN else "vx0")
    return one, other


def tables(machine: Any) -> list[str]:
    """Names of the nftables tables of the machine or the domain."""
    with inside(machine):
        rules = NetlinkSocket(NETLINK_NETFILTER)
    found = rules.dump(NetlinkMessage("list tables", 10 << 8 | 1, 0x300, struct.pack("=BBH", 1, 0, 0)))
    rules.close()
    return [answer[8:].split(b"\0")[0].decode() for answer in found]


def ping(caller: Any, target: str, size: int) -> str:
    """With "don't fragment"; `size`: of the content."""
    with inside(caller):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    with made:
        made.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_DO)
        made.settimeout(5)
        try:
            made.sendto(struct.pack(">BBHHH", 8, 0, 0, 0, 1) + bytes(size), (target, 0))
            answer = made.recv(9000)
        except OSError as problem:
            return errno.errorcode.get(problem.errno or 0, "timeout")
        return "answered" if answer[0] == 0 and len(answer) == size + 8 else "?"


class Udp:
    """A victim that notes what reaches it."""

    def __init__(self, where: Any, address: str, port: int = VICTIM_PORT) -> None:
        self._socket = pods.new_socket(where, socket.SOCK_DGRAM)
        self._socket.bind((address, port))

    def received(self, timeout: float = _SHORT) -> bytes:
        self._socket.settimeout(timeout)
        try:
            return self._socket.recv(2000)
        except TimeoutError:
            return b""


def send_outer(sender: Machine, target: Machine, content: bytes) -> None:
    """A UDP packet to the VXLAN port, with the sender's own address."""
    with pods.new_socket(sender, socket.SOCK_DGRAM) as outer:
        outer.sendto(content, (target.address, 8472))


def send_inner(
    sender: Machine, target: Machine, source: str, destination: str, content: bytes, port: int = VICTIM_PORT
):
    """What a node whose root is hostile can send."""
    if kit.PLAIN:
        sender.frame(target, kit.datagram(source, destination, port, content))
        return
    send_outer(sender, target, kit.vxlan(kit.datagram(source, destination, port, content), target))


# --- pods across machines -------------------------------------------------------------------------------------------


def pods_on_one_link_reach_each_other() -> None:
    one, other = two()
    first, second = one.domain.pod(2), other.domain.pod(3)
    with listen(first, first.address, 8000) as here, listen(second, second.address, 8000) as there:
        assert talk(second, here)[0] == second.address
        assert talk(first, there)[0] == first.address


def pods_reach_each_other_across_a_router() -> None:
    _, machines = routed("10.1.0.1", "10.2.0.1", "10.3.0.1")
    all_know(machines)
    everybody = [machine.domain.pod(2) for machine in machines]
    for target in everybody:
        with listen(target, target.address, 8000) as listener:
            for caller in everybody:
                if caller is not target:
                    assert talk(caller, listener)[0] == caller.address


def pods_see_nothing_of_the_machines_network() -> None:
    one, other = two()
    pod = one.domain.pod(2)
    with listen(other, other.address, 9999), listen(one, one.address, 9999):
        for address in (one.address, other.address):
            assert outcome(pod, (address, 9999)) in ("EHOSTUNREACH", "ENETUNREACH", "ECONNREFUSED")


def packets_of_the_right_size_pass() -> None:
    one, other = two()
    first, second = one.domain.pod(2), other.domain.pod(2)
    assert one.domain.device("vx0").mtu == MTU
    assert ping(first, second.address, 1400) == "answered"
    assert ping(first, second.address, MTU - 28) == "answered"
    assert ping(first, second.address, MTU - 27) == "EMSGSIZE"


def a_smaller_network_between_machines_makes_smaller_packets() -> None:
    one, other = link("10.1.0.1", "10.1.0.2")
    for machine in (one, other):
        machine.netlink.request([rtnetlink.set_mtu(machine.device("eth0").index, "eth0", 1300)])
    all_know((one, other))
    first, second = one.domain.pod(2), other.domain.pod(2)
    assert one.domain.device("vx0").mtu == 1250
    assert ping(first, second.address, 1222) == "answered"
    transfer(first, second, 4 << 20)


def large_transfers_pass() -> None:
    one, other = two()
    transfer(one.domain.pod(2), other.domain.pod(2), 64 << 20)


def transfer(source: kit.Pod, target: kit.Pod, size: int) -> None:
    with listen(target, target.address, 8000) as listener, pods.new_socket(source) as client:
        client.connect((target.address, 8000))
        accepted, _ = listener.accept()
        accepted.settimeout(20)
        client.settimeout(20)
        block = os.urandom(1 << 16)
        sender = threading.Thread(target=lambda: [client.sendall(block) for _ in range(size >> 16)])
        sender.start()
        received, buffer = 0, bytearray(1 << 20)
        while received < size:
            count = accepted.recv_into(buffer)
            assert count
            received += count
        sender.join()
        accepted.close()


def engines_on_two_nodes_talk_only_as_a_pair() -> None:
    one, other = two()
    first, second = one.domain.pod(HALF + 1, "engine"), other.domain.pod(HALF + 1, "engine")
    stranger = other.domain.pod(HALF + 2, "engine")
    pairs = [(first.address, second.address), (second.address, first.address)]
    with listen(first, first.address, 8000) as here, listen(second, second.address, 8000) as there:
        refused(first, (second.address, 8000))
        one.domain.firewall.allow(pairs)
        refused(first, (second.address, 8000))  # the other node does not know of it yet
        other.domain.firewall.allow(pairs)
        talk(first, there)
        talk(second, here)
        refused(stranger, (first.address, 8000))
        one.domain.firewall.forbid(pairs)
        refused(first, (second.address, 8000))


def ordinary_pods_reach_engines_of_other_nodes_and_not_the_reverse() -> None:
    one, other = two()
    ordinary, engine = one.domain.pod(2), other.domain.pod(HALF + 1, "engine")
    with listen(engine, engine.address, 8000) as listener, listen(ordinary, ordinary.address, 8000):
        talk(ordinary, listener)
        refused(engine, (ordinary.address, 8000))


def guests_reach_no_pod_of_another_node() -> None:
    one, other = two()
    guest = one.domain.pod(HALF + 1, "guest")
    others = [other.domain.pod(2), other.domain.pod(HALF + 1, "engine"), other.domain.pod(HALF + 2, "guest")]
    listeners = [listen(pod, pod.address, 8000) for pod in (guest, *others)]
    for pod in others:
        refused(guest, (pod.address, 8000))
        refused(pod, (guest.address, 8000))
    for listener in listeners:
        listener.close()


def gateway_ports_are_for_other_nodes_what_they_are_for_ours() -> None:
    one, other = link("10.1.0.1", "10.1.0.2", control_gateway="100.96.0.1")
    all_know((one, other))
    ordinary, engine, guest = (
        other.domain.pod(2),
        other.domain.pod(HALF + 1, "engine"),
        other.domain.pod(HALF + 2, "guest"),
    )
    with (
        listen(one.domain, one.gateway, 80) as public,
        listen(one.domain, one.gateway, 8060) as own,
        listen(one.domain, one.gateway, 9999),
    ):
        for pod in (ordinary, engine, guest):
            assert talk(pod, public)[0] == pod.address
            refused(pod, (one.gateway, 9999))
        talk(ordinary, own)
        refused(engine, (one.gateway, 8060))  # until somebody says that it is no guest
        one.domain.firewall.add_remote([(engine.address, "engine"), (guest.address, "guest")])
        talk(engine, own)
        refused(guest, (one.gateway, 8060))
        one.domain.firewall.remove_remote([(engine.address, "engine")])
        refused(engine, (one.gateway, 8060))


def the_gateway_of_the_control_plane_reaches_every_pod() -> None:
    one, other = link("10.1.0.1", "10.1.0.2", control_gateway="100.96.0.1")
    all_know((one, other))
    engine, guest = other.domain.pod(HALF + 1, "engine"), other.domain.pod(HALF + 2, "guest")
    for pod in (engine, guest):
        with listen(pod, pod.address, 8000) as listener:
            assert talk(one.domain, listener)[0] == one.gateway
    guest_of_control_plane = one.domain.pod(HALF + 1, "guest")
    with listen(guest_of_control_plane, guest_of_control_plane.address, 8000):
        refused(other.domain, (guest_of_control_plane.address, 8000))


def domains_on_the_same_machines_never_meet() -> None:
    """With the same ranges, as those of two control planes may have."""
    one, other = two()
    mine, theirs = one.domain.pod(2), other.domain.pod(2)
    second = [Machine(number, machine.address, vni=0x123456) for number, machine in enumerate((one, other))]
    for machine, again in zip((one, other), second, strict=True):
        os.close(again.netns)
        again.netns, again.netlink = machine.netns, machine.netlink
        again.overlay = again.new_overlay()
    all_know(second)
    here, there = second[0].domain.pod(2), second[1].domain.pod(2)
    assert (mine.address, theirs.address) == (here.address, there.address)
    with listen(theirs, theirs.address, 8000) as first, listen(there, there.address, 8000) as twin:
        talk(mine, first)
        talk(here, twin)
        first.settimeout(_SHORT)
        talk(here, twin)
        assert outcome(here, (theirs.address, 8001)) == "ECONNREFUSED"
        try:
            first.accept()
            raise AssertionError("a connection of the other domain")
        except TimeoutError:
            pass
    assert "leads elsewhere" in " ".join(second[0].problems)


# --- nodes come and go ----------------------------------------------------------------------------------------------


def a_node_joins_and_leaves() -> None:
    _, machines = routed("10.1.0.1", "10.2.0.1", "10.3.0.1")
    one, other, third = machines
    all_know((one, other))
    first, second, last = (machine.domain.pod(2) for machine in machines)
    with listen(second, second.address, 8000) as kept, listen(last, last.address, 8000) as listener:
        assert outcome(first, (last.address, 8000), timeout=_SHORT) != "connected"
        all_know(machines)
        talk(first, listener)
        with pods.new_socket(first) as client:
            client.connect((second.address, 8000))
            accepted, _ = kept.accept()
            all_know((one, other))
            client.sendall(b"still here")
            assert accepted.recv(100) == b"still here"
            accepted.close()
        assert outcome(first, (last.address, 8000), timeout=_SHORT) in ("ENETUNREACH", "EHOSTUNREACH")
    udp = Udp(first, first.address)
    send_inner(third, one, last.address, first.address, b"left")
    assert not udp.received()


def the_last_peer_takes_the_device_along() -> None:
    one, other = two()
    assert "vx0" in one.domain.device_names()
    one.knows(one)
    assert one.domain.device_names() == ["host0"]
    assert tables(one) == []
    all_know((one, other))
    first, second = one.domain.pod(2), other.domain.pod(2)
    with listen(second, second.address, 8000) as listener:
        talk(first, listener)


def a_node_changes_its_address() -> None:
    router, machines = routed("10.1.0.1", "10.2.0.1")
    all_know(machines)
    one, other = machines
    first, second = one.domain.pod(2), other.domain.pod(2)
    device = other.device("eth0")
    other.netlink.request([rtnetlink.add_address(device.index, "eth0", "10.2.0.9")])
    subnet = router.device("r1")
    router.netlink.request([rtnetlink.add_route("10.2.0.9", subnet.index, flags=0x400)])
    other.address = "10.2.0.9"
    other.restart()
    all_know(machines)
    with listen(second, second.address, 8000) as listener:
        talk(first, listener)
    assert other.domain.device("vx0").local == "10.2.0.9"


def a_restart_interrupts_nobody() -> None:
    one, other = two()
    first, second = one.domain.pod(2), other.domain.pod(2)
    index = one.domain.device("vx0").index
    with listen(second, second.address, 8000) as listener, pods.new_socket(first) as client:
        client.connect((second.address, 8000))
        accepted, _ = listener.accept()
        one.restart()
        client.sendall(b"meanwhile")
        assert accepted.recv(100) == b"meanwhile"
        one.knows(one, other)
        client.sendall(b"afterwards")
        assert accepted.recv(100) == b"afterwards"
        accepted.close()
    assert one.domain.device("vx0").index == index


def a_peer_that_left_during_a_restart_is_removed() -> None:
    _, machines = routed("10.1.0.1", "10.2.0.1", "10.3.0.1")
    one, other, _third = machines
    all_know(machines)
    one.restart()
    one.knows(one, other)
    index = one.domain.device("vx0").index
    routes = [route.destination for route in rtnetlink.routes(one.domain.netlink) if route.index == index]
    assert routes == [other.cidr]


def a_new_namespace_gets_everything_again() -> None:
    one, other = two()
    one.domain.end()
    one.domain = kit.Domain(one.cidr)
    one.overlay.namespace_changed()
    wait_until(lambda: attempt(lambda: one.knows(one, other)))
    first, second = one.domain.pod(2), other.domain.pod(2)
    with listen(second, second.address, 8000) as listener, listen(first, first.address, 8000) as own:
        talk(first, listener)
        talk(one, own)


def nothing_is_sent_while_nothing_changes() -> None:
    one, other = two()
    sent: list[str] = []
    original = NetlinkSocket._send

    def counted(self: NetlinkSocket, messages: Any, acknowledged: int) -> int:
        sent.extend(message.what for message in messages)
        return original(self, messages, acknowledged)

    NetlinkSocket._send = counted  # type: ignore[method-assign]
    one.knows(one, other)
    one.knows(other, one)
    assert sent == []


def nothing_is_left_behind() -> None:
    one, other = two()
    one.domain.pod(2)
    assert tables(one) == [f"coterie-{one.vni:x}"]
    one.overlay.close()
    one.domain.end()
    with inside(one):
        cleanup.clean(one.directory)
        cleanup.clean(one.directory)
    assert one.device_names() == ["eth0"]
    assert tables(one) == []
    assert [route.destination for route in rtnetlink.routes(one.netlink)] == ["10.1.0.0/24"]
    assert list(one.directory.iterdir()) == []
    other.knows(other)


def attempt(work: Callable[[], None]) -> bool:
    try:
        work()
    except OSError:
        return False
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- nodes on one link ----------------------------------------------------------------------------------------------


def no_vxlan_is_needed_on_a_link() -> None:
    one, other = two()
    first, second = one.domain.pod(2), other.domain.pod(3)
    for machine in (one, other):
        machine.domain.netlink.request([rtnetlink.delete_device("vx0")])
    with listen(second, second.address, 8000) as listener:
        assert talk(first, listener)[0] == first.address
    assert one.device_names() == [f"ct{one.vni:x}", "eth0"]


def a_router_between_machines_makes_it_vxlan() -> None:
    _, machines = routed("10.1.0.1", "10.2.0.1")
    all_know(machines)
    one, other = machines
    assert one.way_to(other) == "vx0"
    assert "vlink0" not in one.domain.device_names()
    assert "coterie_links" not in tables(one.domain)


def who_does_not_answer_is_reached_by_vxlan() -> None:
    """Also while one side only has changed its mind, and where the kernel checks the way back of packets."""
    one, other = link("10.1.0.1", "10.1.0.2")
    for machine in (one, other):
        with inside(machine.domain):
            write_sysctl("ipv4/conf/all/rp_filter", "1")
    one.knows(one, other, answering=())
    other.knows(one, other, answering=())
    first, second = one.domain.pod(2), other.domain.pod(3)
    with listen(second, second.address, 8000) as listener, pods.new_socket(first) as client:
        client.connect((second.address, 8000))
        accepted, _ = listener.accept()
        accepted.settimeout(5)
        for mine, theirs in ((True, False), (True, True), (False, True), (False, False), (True, False)):
            one.knows(one, other, answering=[other] if mine else ())
            other.knows(one, other, answering=[one] if theirs else ())
            assert one.way_to(other) == ("vlink0" if mine else "vx0")
            client.sendall(b"1234")
            assert accepted.recv(100) == b"1234"
            assert ping(first, second.address, MTU - 28) == "answered"
        accepted.close()


def a_lost_device_costs_nothing_but_the_plain_route() -> None:
    one, other = two()
    first, second = one.domain.pod(2), other.domain.pod(3)
    one.domain.netlink.request([rtnetlink.delete_device("vlink0")])
    with listen(second, second.address, 8000) as listener:
        one.knows(one, other, answering=())
        talk(first, listener)
        one.knows(one, other)
        assert one.way_to(other) == "vlink0"
        talk(first, listener)


def a_card_that_is_gone_leaves_no_device() -> None:
    one, other = two()
    one.netlink.request([rtnetlink.delete_device("eth0")])
    one.knows(one, other, answering=())
    assert "vlink0" not in one.domain.device_names()
    assert one.way_to(other) == "vx0"
    assert one.overlay.unsettled


def a_stopped_process_leaves_vxlan() -> None:
    one, other = two()
    first, second = one.domain.pod(2), other.domain.pod(3)
    one.restart()
    assert one.way_to(other) == "vx0"
    with listen(second, second.address, 8000) as listener:
        talk(first, listener)  # and back on the link
        one.knows(one, other)
        assert one.way_to(other) == "vlink0"
        talk(first, listener)
    one.overlay.namespace_changed()  # as kill -9: nobody had the time to
    one.overlay = one.new_overlay()
    one.knows(one, other, answering=())
    assert one.way_to(other) == "vx0"


def a_card_with_ports_of_another_kind_is_left_to_vxlan() -> None:
    """A network card that belongs to a bridge cannot have a second link-layer address."""
    one, other = link("10.1.0.1", "10.1.0.2")
    bridge = NetlinkMessage("add bridge", 16, 0x600, rtnetlink.link(0) + text(3, "br0") + nest(18, text(1, "bridge")))
    one.netlink.request([bridge])
    joined = rtnetlink.link(one.device("eth0").index) + attribute(10, struct.pack("=I", one.device("br0").index))
    one.netlink.request([NetlinkMessage("join the bridge", 16, 0, joined)])
    one.knows(one, other)
    assert "reached by VXLAN" in " ".join(one.problems)
    assert one.way_to(other) == "vx0"
    assert "vlink0" not in one.domain.device_names()


def probes_find_out_who_answers() -> None:
    one, other = two()

    async def play() -> None:
        changed = asyncio.Event()
        probes = {machine: probe_of(machine, changed) for machine in (one, other)}
        probes[one].follow(*one.overlay.link)
        await asyncio.sleep(1.2)
        assert not probes[one].answering
        probes[other].follow(*other.overlay.link)

        async def both(expected: bool) -> None:
            async with asyncio.timeout(8):
                while any(bool(probe.answering) != expected for probe in probes.values()):
                    changed.clear()
                    await changed.wait()

        await both(True)
        assert probes[one].answering == {other.cidr}
        other.domain.netlink.request([rtnetlink.delete_neighbour(one.gateway, other.domain.device("vlink0").index)])
        await both(False)  # one of the directions is enough
        probes[one].close()
        probes[other].close()

    asyncio.run(play())


def a_probe_that_ends_says_so() -> None:
    one, other = two()

    async def play() -> None:
        changed = asyncio.Event()
        first, second = probe_of(one, changed), probe_of(other, changed)
        for machine, probe in ((one, first), (other, second)):
            probe.follow(*machine.overlay.link)
        async with asyncio.timeout(5):
            while not (first.answering and second.answering):
                changed.clear()
                await changed.wait()
        begin = time.monotonic()
        second.close()
        async with asyncio.timeout(5):
            while first.answering:
                changed.clear()
                await changed.wait()
        assert time.monotonic() - begin < LOST_AFTER - 1
        first.close()

    asyncio.run(play())


def probe_of(machine: Machine, changed: asyncio.Event) -> LinkProbe:
    def opened() -> socket.socket:
        made = pods.new_socket(machine.domain, socket.SOCK_DGRAM)
        made.bind((machine.gateway, LINK_PROBE_PORT))
        made.setblocking(False)
        return made

    return LinkProbe(opened, SYSTEM_CLOCK, changed.set)


def who_is_no_node_sends_nothing_into_the_link() -> None:
    one, other = two()
    victim, source = one.domain.pod(2), other.domain.pod(2).address
    udp, probe = Udp(victim, victim.address), Udp(one.domain, one.gateway, LINK_PROBE_PORT)
    mac = link_mac_of(other.vni, other.name)
    node = (source, mac)
    attacks = [
        (source, other.device("eth0").mac),
        (source, b"\x02" + bytes(5)),
        (source, link_mac_of(one.vni, one.name)),
        (source, link_mac_of(one.vni ^ 1, other.name)),
        ("100.96.32.7", mac),
        ("100.96.32.7", link_mac_of(one.vni, "node-2")),
        (one.domain.pod(3).address, mac),
        (one.gateway, mac),
        ("10.1.0.2", mac),
        ("8.8.8.8", mac),
    ]
    for claimed, sender in (*attacks, node):
        content = b"attack" if (claimed, sender) != node else b"of a node"
        other.frame(one, kit.datagram(claimed, victim.address, VICTIM_PORT, content), sender)
        other.frame(one, kit.datagram(claimed, one.gateway, LINK_PROBE_PORT, content), sender)
    assert udp.received(5) == b"of a node"
    assert not udp.received()
    assert not probe.received()  # a pod is no node either
    other.frame(one, kit.datagram(other.gateway, one.gateway, LINK_PROBE_PORT, b"probe"))
    assert probe.received(5) == b"probe"


def frames_that_are_not_ipv4_or_not_for_pods_are_dropped() -> None:
    one, other = two()
    machine = Udp(one, "0.0.0.0")
    with inside(other):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        wire.bind(("eth0", 0))
    mac, target = link_mac_of(other.vni, other.name), link_mac_of(one.vni, one.name)
    question = struct.pack(">HHBBH", 1, 0x800, 6, 4, 1) + mac + socket.inet_aton(other.gateway)
    question += bytes(6) + socket.inet_aton(one.gateway)
    wire.settimeout(_SHORT)
    for destination in (target, b"\xff" * 6):
        wire.send(destination + mac + b"\x08\x06" + question)
    for address in (one.address, one.host_address, "10.1.0.2", "100.112.0.10", "255.255.255.255"):
        other.frame(one, kit.datagram("100.96.16.77", address, VICTIM_PORT, b"through"))
    assert not machine.received()
    answers = []
    with contextlib.suppress(TimeoutError):
        while True:
            answers.append(wire.recv(2000))
    assert not [frame for frame in answers if frame[6:14] == target + b"\x08\x06"]


# --- the machine and pods -------------------------------------------------------------------------------------------


def the_machine_reaches_ordinary_pods_of_all_nodes() -> None:
    one, other = two()
    for pod in (one.domain.pod(2), other.domain.pod(2)):
        with listen(pod, pod.address, 8000) as listener:
            assert talk(one, listener)[0] == one.host_address
    assert {CLUSTER, SERVICES} <= {route.destination for route in rtnetlink.routes(one.netlink)}


def two_domains_that_share_the_range_of_services() -> None:
    """The machine has a route to each Service of either domain, as long as it exists."""
    one, other = two()
    first, second = "100.112.0.9", "100.112.0.10"

    def service_routes() -> set[str]:
        found = {route.destination for route in rtnetlink.routes(one.netlink)}
        return {text for text in found if ipaddress.IPv4Network(text).subnet_of(ipaddress.IPv4Network(SERVICES))}

    def problems_with(*addresses: str) -> list[str]:
        with inside(one):
            return one.overlay.reconcile([other.node()], services=frozenset(addresses))

    one.each_service = True
    one.restart()
    assert problems_with(first, second) == []
    assert service_routes() == {f"{first}/32", f"{second}/32"}
    assert problems_with(second) == []
    assert service_routes() == {f"{second}/32"}
    one.restart()
    assert problems_with(second) == [] and service_routes() == {f"{second}/32"}
    device = one.device("eth0")
    one.netlink.request([rtnetlink.add_route(f"{first}/32", device.index, flags=CREATE | REPLACE)])
    assert problems_with(first, second) == [f"{first} leads elsewhere on this machine: no route to it"]
    pod = one.domain.pod(2)
    with listen(pod, pod.address, 8000) as listener:
        assert talk(one, listener)[0] == one.host_address


def the_machine_reaches_no_engine_and_no_guest() -> None:
    one, other = two()
    for machine in (one, other):
        for offset, kind in ((HALF + 1, "engine"), (HALF + 2, "guest")):
            pod = machine.domain.pod(offset, kind)
            with listen(pod, pod.address, 8000):
                refused(one, (pod.address, 8000))


def the_machine_resolves_names_and_calls_no_other_port() -> None:
    one, other = two()
    with listen(one.domain, one.gateway, 53) as names, listen(one.domain, one.gateway, 80):
        talk(one, names)
        refused(one, (one.gateway, 80))
        refused(one, (one.gateway, 8060))
    with listen(other.domain, other.gateway, 8060):
        refused(one, (other.gateway, 8060))


def nobody_reaches_the_machine() -> None:
    one, other = two()
    with listen(one, "0.0.0.0", 9999):
        for machine in (one, other):
            for offset, kind in ((2, "ordinary"), (HALF + 1, "engine"), (HALF + 2, "guest")):
                assert outcome(machine.domain.pod(offset, kind), (one.host_address, 9999)) != "connected", kind
        assert outcome(one.domain, (one.host_address, 9999)) != "connected"
        assert outcome(other.domain, (one.host_address, 9999)) != "connected"


def a_range_that_leads_elsewhere_is_left_alone() -> None:
    one, other = link("10.1.0.1", "10.1.0.2")
    one.netlink.request([rtnetlink.add_route("100.96.32.0/24", one.device("eth0").index, flags=0x400)])
    all_know((one, other))
    found = [route.destination for route in rtnetlink.routes(one.netlink)]
    assert CLUSTER not in found
    assert SERVICES not in found
    assert f"ct{one.vni:x}" not in one.device_names()
    assert "leads elsewhere" in " ".join(one.problems)


def a_second_node_of_the_domain_takes_no_device() -> None:
    one, _other = two()
    twin = Machine(5, one.address)
    os.close(twin.netns)
    twin.netns, twin.netlink = one.netns, one.netlink
    twin.overlay = twin.new_overlay()
    twin.knows(twin)
    assert "belongs to another node" in " ".join(twin.problems)
    twin.overlay.close()
    with inside(twin):
        cleanup.clean(twin.directory)
    pod = one.domain.pod(2)
    with listen(pod, pod.address, 8000) as listener:
        talk(one, listener)


# --- attacks --------------------------------------------------------------------------------------------------------


def a_machine_that_is_no_node_sends_nothing_in() -> None:
    _, machines = routed("10.1.0.1", "10.2.0.1", "10.3.0.1")
    one, other, attacker = machines
    all_know((one, other))
    victim = one.domain.pod(2)
    udp, source = Udp(victim, victim.address), other.domain.pod(2).address
    send_inner(other, one, source, victim.address, b"of a node")
    assert udp.received(5) == b"of a node"
    send_inner(attacker, one, source, victim.address, b"of a stranger")
    assert not udp.received()


def a_header_in_two_fragments_is_no_way_in() -> None:
    """The number of the VXLAN is in the second fragment of a packet."""
    _, machines = routed("10.1.0.1", "10.2.0.1", "10.3.0.1")
    one, other, attacker = machines
    all_know((one, other))
    victim = one.domain.pod(2)
    udp, source = Udp(victim, victim.address), other.domain.pod(2).address

    def in_fragments(sender: Machine, content: bytes, identifier: int) -> None:
        outer = kit.vxlan(kit.datagram(source, victim.address, VICTIM_PORT, content), one)
        packet = struct.pack(">HHHH", 50000, 8472, 8 + len(outer), 0) + outer
        with inside(sender):
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        with raw:
            for offset, part, more in ((0, packet[:8], 0x2000), (1, packet[8:], 0)):
                head = kit.ip_header(sender.address, one.address, len(part), 17, identifier, more | offset)
                raw.sendto(head + part, (one.address, 0))

    in_fragments(other, b"of a node", 77)
    assert udp.received(5) == b"of a node"
    in_fragments(attacker, b"of a stranger", 78)
    assert not udp.received()


def another_domains_number_is_no_way_in() -> None:
    one, other = two()
    victim, source = one.domain.pod(2), other.domain.pod(2).address
    udp = Udp(victim, victim.address)
    inner = kit.datagram(source, victim.address, VICTIM_PORT, b"wrong number")
    send_outer(other, one, kit.vxlan(inner, one, vni=one.vni ^ 1))
    assert not udp.received()


def forged_sources_from_a_node_are_dropped() -> None:
    one, other = two()
    victim, beside = one.domain.pod(2), one.domain.pod(3)
    udp = Udp(victim, victim.address)
    gateway = Udp(one.domain, one.gateway, 53)
    lies = (
        beside.address,
        victim.address,
        one.gateway,
        one.host_address,
        "10.1.0.2",
        "127.0.0.1",
        "100.112.0.10",
        "8.8.8.8",
    )
    for lie in lies:
        send_inner(other, one, lie, victim.address, b"forged")
        send_inner(other, one, lie, one.gateway, b"forged", 53)
    assert not udp.received()
    assert not gateway.received()
    # The positive case, so that silence above means something.
    send_inner(other, one, "100.96.16.77", victim.address, b"true")
    assert udp.received(5) == b"true"


def packets_from_a_node_go_to_pods_of_this_one_only() -> None:
    one, other = two()
    machine = Udp(one, "0.0.0.0")
    for target in (one.host_address, one.address, "100.112.0.10", "10.1.0.1", other.gateway, "255.255.255.255"):
        send_inner(other, one, "100.96.16.77", target, b"through")
    assert not machine.received()


def engines_of_a_node_without_a_pair_reach_nothing() -> None:
    one, other = two()
    targets = [one.domain.pod(2), one.domain.pod(HALF + 1, "engine"), one.domain.pod(HALF + 2, "guest")]
    listening = [Udp(pod, pod.address) for pod in targets]
    engine = "100.96.24.9"
    for pod in targets:
        send_inner(other, one, engine, pod.address, b"no pair")
    assert not any(each.received() for each in listening)
    one.domain.firewall.allow([(engine, targets[1].address)])
    send_inner(other, one, engine, targets[1].address, b"pair")
    assert listening[1].received(5) == b"pair"
    send_inner(other, one, engine, targets[0].address, b"no pair")
    assert not listening[0].received()


def ordinary_pods_of_a_node_reach_no_guest() -> None:
    one, other = two()
    guest = one.domain.pod(HALF + 1, "guest")
    udp = Udp(guest, guest.address)
    for source in ("100.96.16.77", other.gateway, other.host_address):
        send_inner(other, one, source, guest.address, b"to a guest")
    assert not udp.received()


def another_machine_reaches_no_engine() -> None:
    one, other = two()
    engine, ordinary = one.domain.pod(HALF + 1, "engine"), one.domain.pod(2)
    udp, control = Udp(engine, engine.address), Udp(ordinary, ordinary.address)
    for pod in (engine, ordinary):
        send_inner(other, one, other.host_address, pod.address, b"of a machine")
    assert control.received(5) == b"of a machine"
    assert not udp.received()


def the_machine_cannot_lend_its_way() -> None:
    """Packets that the machine forwards for others come by the same device, with other sources."""
    one, _other = two()
    pod = one.domain.pod(2)
    udp = Udp(pod, pod.address)
    with inside(one):
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    with raw:
        for source in ("10.1.0.2", "100.96.0.3", one.gateway, "100.96.16.2"):
            raw.sendto(kit.datagram(source, pod.address, VICTIM_PORT, b"lent"), (pod.address, 0))
        assert not udp.received()
        raw.sendto(kit.datagram(one.host_address, pod.address, VICTIM_PORT, b"own"), (pod.address, 0))
        assert udp.received(5) == b"own"


PODS = (
    pods_on_one_link_reach_each_other,
    pods_reach_each_other_across_a_router,
    pods_see_nothing_of_the_machines_network,
    packets_of_the_right_size_pass,
    a_smaller_network_between_machines_makes_smaller_packets,
    large_transfers_pass,
    engines_on_two_nodes_talk_only_as_a_pair,
    ordinary_pods_reach_engines_of_other_nodes_and_not_the_reverse,
    guests_reach_no_pod_of_another_node,
    gateway_ports_are_for_other_nodes_what_they_are_for_ours,
    the_gateway_of_the_control_plane_reaches_every_pod,
    domains_on_the_same_machines_never_meet,
)
NODES = (
    a_node_joins_and_leaves,
    the_last_peer_takes_the_device_along,
    a_node_changes_its_address,
    a_restart_interrupts_nobody,
    a_peer_that_left_during_a_restart_is_removed,
    a_new_namespace_gets_everything_again,
    nothing_is_sent_while_nothing_changes,
    nothing_is_left_behind,
)
MACHINE = (
    the_machine_reaches_ordinary_pods_of_all_nodes,
    two_domains_that_share_the_range_of_services,
    the_machine_reaches_no_engine_and_no_guest,
    the_machine_resolves_names_and_calls_no_other_port,
    nobody_reaches_the_machine,
    a_range_that_leads_elsewhere_is_left_alone,
    a_second_node_of_the_domain_takes_no_device,
)
ATTACKS = (
    a_machine_that_is_no_node_sends_nothing_in,
    a_header_in_two_fragments_is_no_way_in,
    another_domains_number_is_no_way_in,
    forged_sources_from_a_node_are_dropped,
    packets_from_a_node_go_to_pods_of_this_one_only,
    engines_of_a_node_without_a_pair_reach_nothing,
    ordinary_pods_of_a_node_reach_no_guest,
    another_machine_reaches_no_engine,
    the_machine_cannot_lend_its_way,
)
LINK = (
    no_vxlan_is_needed_on_a_link,
    a_router_between_machines_makes_it_vxlan,
    who_does_not_answer_is_reached_by_vxlan,
    a_lost_device_costs_nothing_but_the_plain_route,
    a_card_that_is_gone_leaves_no_device,
    a_stopped_process_leaves_vxlan,
    a_card_with_ports_of_another_kind_is_left_to_vxlan,
    probes_find_out_who_answers,
    a_probe_that_ends_says_so,
    who_is_no_node_sends_nothing_into_the_link,
    frames_that_are_not_ipv4_or_not_for_pods_are_dropped,
)
ALSO_BY_LINK = (
    packets_of_the_right_size_pass,
    a_smaller_network_between_machines_makes_smaller_packets,
    large_transfers_pass,
    engines_on_two_nodes_talk_only_as_a_pair,
    ordinary_pods_reach_engines_of_other_nodes_and_not_the_reverse,
    guests_reach_no_pod_of_another_node,
    gateway_ports_are_for_other_nodes_what_they_are_for_ours,
    the_gateway_of_the_control_plane_reaches_every_pod,
    domains_on_the_same_machines_never_meet,
    the_last_peer_takes_the_device_along,
    a_restart_interrupts_nobody,
    a_new_namespace_gets_everything_again,
    nothing_is_sent_while_nothing_changes,
    nothing_is_left_behind,
    the_machine_reaches_ordinary_pods_of_all_nodes,
    the_machine_reaches_no_engine_and_no_guest,
    nobody_reaches_the_machine,
    forged_sources_from_a_node_are_dropped,
    packets_from_a_node_go_to_pods_of_this_one_only,
    engines_of_a_node_without_a_pair_reach_nothing,
    ordinary_pods_of_a_node_reach_no_guest,
    another_machine_reaches_no_engine,
)
SCENARIOS: dict[str, Callable[[], None]] = {each.__name__: each for each in (*PODS, *NODES, *MACHINE, *LINK, *ATTACKS)}


def main(mode: str, name: str) -> int:
    directories: list[str] = []
    original = kit.tempfile.mkdtemp

    def made(**options: Any) -> str:
        directories.append(original(**options))
        return directories[-1]

    kit.tempfile.mkdtemp = made  # type: ignore[assignment]
    try:
        if mode == "user":
            pods.become_user()
        else:
            pods.unshare(pods.CLONE_NEWNET)
    except OSError as error:
        print(f"{mode}: {error}", file=sys.stderr)
        return pods.FORBIDDEN
    kit.PLAIN = mode == "plain"
    try:
        SCENARIOS[name]()
    finally:
        for each in directories:
            shutil.rmtree(each, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
