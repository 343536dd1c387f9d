"""What the pod network does, played in namespaces of its own: `python pod_network_scenarios.py root|user SCENARIO`.

One process plays everybody: a socket stays in the network namespace in which it was made. Ends with 0, with 77 where
the machine forbids it, or with a traceback.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from coterie.base.linux_namespaces import CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWUSER, unshare
from coterie.kube.network.pods import namespaces
from coterie.kube.network.pods.firewall import Firewall, FirewallPlan
from coterie.kube.network.pods.links import Links, configure_domain, configure_pod_end, write_sysctl

FORBIDDEN = 77
GATEWAY = "100.96.0.1"
RANGE = "100.96.0.0/16"
PORTS = [("udp", 53), ("tcp", 53), ("tcp", 80)]
PORTS_NOT_FOR_GUESTS = [("tcp", 8060)]
RELAY_PORT = 15001
_SO_ORIGINAL_DST = 80
_IP_TRANSPARENT = 19
"""What a pod may not set: lets the owner of its network namespace send from any address."""
_SO_BINDTODEVICE = 25
_LONG_ENOUGH = 5.0
_SHORT = 0.3
"""For what is dropped without an answer."""


class Pod:
    def __init__(self, number: int, kind: str, netns: int) -> None:
        self.name = f"p{number}"
        self.address = f"100.96.{number >> 8}.{number & 255}"
        self.kind = kind
        self.netns = netns


class Domain:
    def __init__(self, relay_port: int = 0, egress_for_pods: bool = False) -> None:
        namespaces.unshare_net()
        self.netns = namespaces.own_netns_fd()
        configure_domain(GATEWAY)
        self.links = Links()
        self.firewall = Firewall()
        self.plan = FirewallPlan(GATEWAY, RANGE, PORTS, PORTS_NOT_FOR_GUESTS, relay_port, egress_for_pods)
        self.firewall.load(self.plan)
        if relay_port:
            self.links.default_by_loopback(GATEWAY)

    def pod(self, number: int, kind: str = "ordinary", *, known: bool = True) -> Pod:
        namespaces.unshare_net()
        pod = Pod(number, kind, namespaces.own_netns_fd())
        self.links.attach(pod.name, pod.netns, pod.address)
        configure_pod_end(pod.address)
        namespaces.enter(self.netns)
        if known:
            self.firewall.add_pod(pod.name, pod.address, kind)
        return pod


@contextmanager
def inside(where: Pod | Domain) -> Iterator[None]:
    before = namespaces.own_netns_fd()
    namespaces.enter(where.netns)
    try:
        yield
    finally:
        namespaces.enter(before)
        os.close(before)


def new_socket(where: Pod | Domain, kind: int = socket.SOCK_STREAM) -> socket.socket:
    with inside(where):
        made = socket.socket(socket.AF_INET, kind)
    made.settimeout(_LONG_ENOUGH)
    return made


def listen(where: Pod | Domain, address: str, port: int) -> socket.socket:
    listener = new_socket(where)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen()
    return listener


def talk(caller: Pod | Domain, listener: socket.socket, target: tuple[str, int] | None = None) -> tuple[str, int]:
    """Connect, exchange a word in each direction; the caller's address as the listener sees it."""
    with new_socket(caller) as client:
        client.connect(target or listener.getsockname())
        accepted, peer = listener.accept()
        with accepted:
            accepted.settimeout(_LONG_ENOUGH)
            client.sendall(b"question")
            assert accepted.recv(100) == b"question"
            accepted.sendall(b"answer")
            assert client.recv(100) == b"answer"
            return str(peer[0]), int(peer[1])


def outcome(caller: Pod | Domain, target: tuple[str, int], bound_to: str = "", timeout: float = _LONG_ENOUGH) -> str:
    with new_socket(caller) as client:
        client.settimeout(timeout)
        if bound_to:
            client.setsockopt(socket.IPPROTO_IP, _IP_TRANSPARENT, 1)
            client.bind((bound_to, 0))
        try:
            client.connect(target)
        except TimeoutError:
            return "timeout"
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "connected"


def refused(caller: Pod | Domain, target: tuple[str, int]) -> None:
    assert outcome(caller, target) in ("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH"), outcome(caller, target)


# --- scenarios ------------------------------------------------------------------------------------------------------


def ordinary_pods_reach_each_other() -> None:
    domain = Domain()
    one, two = domain.pod(2), domain.pod(3)
    with listen(one, one.address, 8000) as first, listen(two, two.address, 8000) as second:
        assert talk(two, first)[0] == two.address
        assert talk(one, second)[0] == one.address


def ordinary_pod_reaches_engine_and_not_the_reverse() -> None:
    domain = Domain()
    ordinary, engine = domain.pod(2), domain.pod(0x8002, "engine")
    with listen(engine, engine.address, 8000) as listener, listen(ordinary, ordinary.address, 8000):
        assert talk(ordinary, listener)[0] == ordinary.address
        refused(engine, (ordinary.address, 8000))


def engines_reach_each_other_only_as_a_pair() -> None:
    domain = Domain()
    one, two, other = (domain.pod(number, "engine") for number in (0x8002, 0x8003, 0x8004))
    pairs = [(one.address, two.address), (two.address, one.address)]
    with listen(one, one.address, 8000) as first, listen(two, two.address, 8000) as second:
        refused(one, (two.address, 8000))
        domain.firewall.allow(pairs)
        domain.firewall.allow(pairs)
        talk(one, second)
        talk(two, first)
        refused(other, (one.address, 8000))
        domain.firewall.forbid(pairs)
        domain.firewall.forbid(pairs)
        refused(one, (two.address, 8000))


def a_pair_in_one_direction_is_not_the_other() -> None:
    domain = Domain()
    one, two = domain.pod(0x8002, "engine"), domain.pod(0x8003, "engine")
    domain.firewall.allow([(one.address, two.address)])
    with listen(one, one.address, 8000), listen(two, two.address, 8000) as second:
        talk(one, second)
        refused(two, (one.address, 8000))


def guest_reaches_no_pod_and_no_pod_reaches_it() -> None:
    domain = Domain()
    guest, ordinary, engine = domain.pod(0x8002, "guest"), domain.pod(2), domain.pod(0x8003, "engine")
    other = domain.pod(0x8004, "guest")
    everybody = (guest, ordinary, engine, other)
    listeners = [listen(pod, pod.address, 8000) for pod in everybody]
    for pod in (ordinary, engine, other):
        refused(guest, (pod.address, 8000))
        refused(pod, (guest.address, 8000))
    for listener in listeners:
        listener.close()


def guest_gets_no_udp_to_pods() -> None:
    domain = Domain()
    guest, ordinary = domain.pod(0x8002, "guest"), domain.pod(2)
    with new_socket(ordinary, socket.SOCK_DGRAM) as server, new_socket(guest, socket.SOCK_DGRAM) as client:
        server.bind((ordinary.address, 9000))
        client.connect((ordinary.address, 9000))
        client.send(b"question")
        try:
            client.recv(100)
            raise AssertionError("an answer")
        except ConnectionRefusedError:
            pass


def gateway_ports_are_reached_with_the_pods_address() -> None:
    domain = Domain()
    pods = [domain.pod(2), domain.pod(0x8002, "engine"), domain.pod(0x8003, "guest")]
    with listen(domain, GATEWAY, 80) as listener, listen(domain, GATEWAY, 8060) as internal:
        for pod in pods:
            assert talk(pod, listener)[0] == pod.address
        for pod in pods[:2]:
            assert talk(pod, internal)[0] == pod.address
        refused(pods[2], (GATEWAY, 8060))


def other_gateway_ports_are_refused() -> None:
    domain = Domain()
    for pod in (domain.pod(2), domain.pod(0x8002, "engine"), domain.pod(0x8003, "guest")):
        with listen(domain, "0.0.0.0", 9999):
            refused(pod, (GATEWAY, 9999))
            refused(pod, (GATEWAY, 22))


def names_are_resolved_over_udp() -> None:
    domain = Domain()
    guest = domain.pod(0x8002, "guest")
    with new_socket(domain, socket.SOCK_DGRAM) as server, new_socket(guest, socket.SOCK_DGRAM) as client:
        server.bind((GATEWAY, 53))
        client.sendto(b"question", (GATEWAY, 53))
        question, peer = server.recvfrom(100)
        assert (question, peer[0]) == (b"question", guest.address)
        server.sendto(b"answer", peer)
        assert client.recvfrom(100) == (b"answer", (GATEWAY, 53))


def gateway_answers_ping() -> None:
    domain = Domain()
    guest = domain.pod(0x8002, "guest")
    with inside(guest):
        ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    with ping:
        ping.settimeout(_LONG_ENOUGH)
        ping.sendto(struct.pack(">BBHHH", 8, 0, 0, 0, 1), (GATEWAY, 0))
        assert ping.recv(100)[0] == 0


def no_packet_is_lost_after_the_start() -> None:
    """A device whose carrier came on sends nothing until a worker of the kernel has seen it, unless it is asked."""
    domain = Domain()
    with new_socket(domain, socket.SOCK_DGRAM) as server:
        server.bind((GATEWAY, 53))
        for number in range(2, 52):
            pod = domain.pod(number)
            with new_socket(pod, socket.SOCK_DGRAM) as client:
                client.sendto(b"question", (GATEWAY, 53))
                server.sendto(b"answer", server.recvfrom(100)[1])
                assert client.recv(100) == b"answer"


def domain_reaches_every_pod() -> None:
    domain = Domain()
    for pod in (domain.pod(2), domain.pod(0x8002, "engine"), domain.pod(0x8003, "guest")):
        with listen(pod, pod.address, 80) as listener:
            assert talk(domain, listener)[0] == GATEWAY


def forged_source_is_dropped() -> None:
    domain = Domain()
    liar, victim, target = domain.pod(2), domain.pod(3), domain.pod(4)
    with listen(domain, GATEWAY, 80) as listener, listen(target, target.address, 8000) as other:
        for source in (victim.address, GATEWAY, "10.1.2.3"):
            for where in ((GATEWAY, 80), (target.address, 8000)):
                assert outcome(liar, where, source, _SHORT) == "timeout", source
        for silent in (listener, other):
            silent.settimeout(_SHORT)
            try:
                silent.accept()
                raise AssertionError("accepted")
            except TimeoutError:
                silent.settimeout(_LONG_ENOUGH)
        talk(liar, listener)
    # A datagram needs no answer to do harm.
    with new_socket(domain, socket.SOCK_DGRAM) as server, new_socket(liar, socket.SOCK_DGRAM) as client:
        server.bind((GATEWAY, 53))
        server.settimeout(_SHORT)
        client.setsockopt(socket.IPPROTO_IP, _IP_TRANSPARENT, 1)
        client.bind((victim.address, 0))
        client.sendto(b"forged", (GATEWAY, 53))
        try:
            server.recv(100)
            raise AssertionError("received")
        except TimeoutError:
            pass


def removed_pod_reaches_nothing() -> None:
    domain = Domain()
    pod, unknown = domain.pod(2), domain.pod(3, known=False)
    with listen(domain, GATEWAY, 80) as listener:
        talk(pod, listener)
        domain.firewall.remove_pod(pod.name, pod.address, pod.kind)
        domain.firewall.remove_pod(pod.name, pod.address, pod.kind)
        assert outcome(pod, (GATEWAY, 80), timeout=_SHORT) == "timeout"
        assert outcome(unknown, (GATEWAY, 80), timeout=_SHORT) == "timeout"
        domain.firewall.add_pod(pod.name, pod.address, pod.kind)
        talk(pod, listener)


def removing_half_known_pod_removes_the_rest() -> None:
    domain = Domain()
    pod = domain.pod(0x8002)
    domain.firewall.remove_pod(pod.name, pod.address, "guest")
    with listen(domain, GATEWAY, 80):
        assert outcome(pod, (GATEWAY, 80), timeout=_SHORT) == "timeout"


def load_replaces_the_table() -> None:
    domain = Domain()
    one, two, gone = domain.pod(0x8002, "engine"), domain.pod(0x8003, "engine"), domain.pod(5)
    guest = domain.pod(0x8004, "guest")
    kept = [(pod.name, pod.address, pod.kind) for pod in (one, two, guest)]
    for _ in range(2):
        domain.firewall.load(domain.plan, kept, [(one.address, two.address)])
    with (
        listen(domain, GATEWAY, 80) as listener,
        listen(two, two.address, 8000) as second,
        listen(domain, GATEWAY, 8060),
    ):
        talk(one, second)
        talk(guest, listener)
        refused(guest, (GATEWAY, 8060))
        refused(two, (one.address, 8000))
        assert outcome(gone, (GATEWAY, 80), timeout=_SHORT) == "timeout"


def load_takes_many_pods_and_pairs() -> None:
    domain = Domain()
    one, two = domain.pod(0x8002, "engine"), domain.pod(0x8003, "engine")
    pods = [(f"p{number}", f"100.96.{number >> 8}.{number & 255}", "engine") for number in range(0x8002, 0x8002 + 5000)]
    addresses = [address for _, address, _ in pods[:110]]
    pairs = [(a, b) for a in addresses for b in addresses if a != b]
    domain.firewall.load(domain.plan, pods, pairs)
    with listen(two, two.address, 8000) as second:
        talk(one, second)
    domain.firewall.forbid(pairs)
    refused(one, (two.address, 8000))
    domain.firewall.allow(pairs)
    with listen(two, two.address, 8000) as second:
        talk(one, second)


def outward_calls_of_the_domain_meet_the_relay() -> None:
    domain = Domain(RELAY_PORT)
    pod = domain.pod(2)
    with listen(domain, "127.0.0.1", RELAY_PORT) as relay, listen(pod, pod.address, 8000) as direct:
        for target in (("192.0.2.7", 443), ("127.0.1.2", 1080), ("127.0.0.1", 5000)):
            with new_socket(domain) as client:
                client.connect(target)
                accepted, _ = relay.accept()
                with accepted:
                    assert original_destination(accepted) == target
                    accepted.sendall(b"answer")
                    assert client.recv(100) == b"answer"
        assert talk(domain, direct)[0] == GATEWAY
        with listen(domain, GATEWAY, 80) as own:
            assert talk(domain, own)[0] == GATEWAY
            assert talk(pod, own)[0] == pod.address
        # Pods have no egress here, nor the relay's port.
        refused(pod, ("192.0.2.7", 443))
        refused(pod, (GATEWAY, RELAY_PORT))


def outward_datagrams_are_refused() -> None:
    domain = Domain(RELAY_PORT)
    for where in (domain, domain.pod(2)):
        with new_socket(where, socket.SOCK_DGRAM) as client:
            client.connect(("192.0.2.7", 53))
            try:
                client.send(b"question")
                client.recv(100)
                raise AssertionError("an answer")
            except (ConnectionRefusedError, PermissionError):
                pass


def outward_calls_without_relay_fail_at_once() -> None:
    domain = Domain()
    for where in (domain, domain.pod(2), domain.pod(0x8002, "engine"), domain.pod(0x8003, "guest")):
        refused(where, ("192.0.2.7", 443))
        refused(where, ("169.254.169.254", 80))


def ordinary_pods_may_leave_by_the_relay() -> None:
    domain = Domain(RELAY_PORT, egress_for_pods=True)
    pod, other = domain.pod(2), domain.pod(3)
    strict = [domain.pod(0x8002, "engine"), domain.pod(0x8003, "guest")]
    with listen(domain, "0.0.0.0", RELAY_PORT) as relay:
        with new_socket(pod) as client:
            client.connect(("192.0.2.7", 443))
            accepted, peer = relay.accept()
            with accepted:
                assert (original_destination(accepted), peer[0]) == (("192.0.2.7", 443), pod.address)
                accepted.sendall(b"answer")
                assert client.recv(100) == b"answer"
        refused(pod, (GATEWAY, RELAY_PORT))
        refused(pod, (GATEWAY, 443))
        refused(pod, (other.address, 443))
        for fenced in strict:
            refused(fenced, ("192.0.2.7", 443))
            refused(fenced, (GATEWAY, RELAY_PORT))
        # The machine's loopback is not outside, even where namespaces inherit route_localnet from the machine.
        for where in (domain, pod):
            with inside(where):
                write_sysctl("ipv4/conf/all/route_localnet", "1")
        with new_socket(pod) as client:
            client.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, b"eth0")
            client.settimeout(_SHORT)
            try:
                client.connect(("127.0.1.2", 1080))
                raise AssertionError("connected")
            except OSError:
                pass


def original_destination(accepted: socket.socket) -> tuple[str, int]:
    raw = accepted.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, 16)
    return socket.inet_ntoa(raw[4:8]), int.from_bytes(raw[2:4], "big")


def strict_reverse_path_filter_does_not_harm() -> None:
    """Many distributions set it, and new namespaces inherit it."""
    domain = Domain(RELAY_PORT, egress_for_pods=True)
    one, two = domain.pod(2), domain.pod(3)
    for where in (domain, one, two):
        with inside(where):
            write_sysctl("ipv4/conf/all/rp_filter", "1")
    with listen(two, two.address, 8000) as second, listen(domain, GATEWAY, 80) as gateway:
        assert talk(one, second)[0] == one.address
        assert talk(one, gateway)[0] == one.address
        assert talk(domain, second)[0] == GATEWAY
    with listen(domain, "0.0.0.0", RELAY_PORT) as relay:
        for caller in (domain, one):
            talk(caller, relay, ("192.0.2.7", 443))


def two_domains_have_the_same_range() -> None:
    first, second = Domain(), Domain()
    namespaces.enter(first.netns)
    mine = first.pod(2)
    namespaces.enter(second.netns)
    yours = second.pod(2)
    third = second.pod(3)
    assert mine.address == yours.address
    with listen(mine, mine.address, 8000), listen(yours, yours.address, 8001) as listener:
        refused(third, (yours.address, 8000))
        assert talk(third, listener)[0] == third.address
        with listen(first, GATEWAY, 80) as gateway:
            talk(mine, gateway)
            refused(yours, (GATEWAY, 80))


def detach_leaves_no_device() -> None:
    domain = Domain()
    pods = [domain.pod(number) for number in range(2, 7)]
    assert domain.links.names() == [pod.name for pod in pods]
    domain.links.detach("p2")
    domain.links.detach("p2")
    assert domain.links.names() == ["p3", "p4", "p5", "p6"]
    domain.links.detach_all(["p2", "p3", "p4"])
    assert domain.links.names() == ["p5", "p6"]
    domain.links.detach_all(["p2"])
    with listen(domain, GATEWAY, 80) as listener:
        talk(pods[4], listener)
    namespaces.enter(pods[0].netns)
    assert [name for _, name in socket.if_nameindex()] == ["lo"]


def failed_attach_leaves_nothing() -> None:
    domain = Domain()
    pod = domain.pod(2)
    namespaces.unshare_net()
    other = namespaces.own_netns_fd()
    for name, netns, address, number in (
        ("p2", other, "100.96.0.9", errno.EEXIST),  # the name is taken
        ("p3", other, pod.address, errno.EEXIST),  # the address is
        ("p3", pod.netns, "100.96.0.9", errno.EEXIST),  # the pod has an eth0
        ("p3", 9999, "100.96.0.9", errno.EBADF),
    ):
        try:
            domain.links.attach(name, netns, address)
            raise AssertionError(f"{name} attached")
        except OSError as error:
            assert error.errno == number, error
            assert error.filename, error
    assert domain.links.names() == ["p2"]
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    with listen(domain, GATEWAY, 80) as listener:
        assert talk(pod, listener)[0] == pod.address
    for name in ("q1", "p", "p1x", "eth0"):
        try:
            domain.links.attach(name, other, "100.96.0.9")
            raise AssertionError(f"{name} attached")
        except ValueError:
            pass


def a_pods_end_takes_its_device_along() -> None:
    domain = Domain()
    pod = domain.pod(2)
    os.close(pod.netns)
    until = time.monotonic() + _LONG_ENOUGH
    while domain.links.names():
        assert time.monotonic() < until
        time.sleep(0.01)


def pods_have_their_sysctls() -> None:
    domain = Domain()
    pod = domain.pod(2)
    with inside(pod):
        for name, value in (("ipv4/ip_unprivileged_port_start", "0"), ("ipv6/conf/eth0/disable_ipv6", "1")):
            with open(f"/proc/sys/net/{name}") as file:
                assert file.read().strip() == value, name
    with open("/proc/sys/net/ipv4/ip_forward") as file:
        assert file.read().strip() == "1"


def calls_work_from_any_namespace() -> None:
    domain = Domain()
    one = domain.pod(2)
    domain.links.loopback(GATEWAY)
    domain.links.loopback()
    with inside(one):
        assert domain.links.names() == ["p2"]
        domain.firewall.remove_pod(one.name, one.address, one.kind)
        domain.firewall.add_pod(one.name, one.address, one.kind)
    with listen(domain, GATEWAY, 80) as listener:
        talk(one, listener)


def handles_lead_back() -> None:
    before = namespaces.own_netns_fd()
    namespaces.unshare_net()
    here = namespaces.netns_of(os.getpid())
    assert namespaces.inode(here) != namespaces.inode(before)
    assert not os.get_inheritable(here)
    namespaces.enter(before)
    again = namespaces.own_netns_fd()
    assert namespaces.inode(again) == namespaces.inode(before)


def many_pods_come_and_go() -> None:
    domain = Domain()
    attached, loaded = [], []
    for number in range(2, 202):
        namespaces.unshare_net()
        netns = namespaces.own_netns_fd()
        address = f"100.96.0.{number}"
        began = time.perf_counter()
        domain.links.attach(f"p{number}", netns, address)
        configure_pod_end(address)
        domain.firewall.add_pod(f"p{number}", address, "ordinary")
        attached.append(time.perf_counter() - began)
        namespaces.enter(domain.netns)
        os.close(netns)
        if number % 20 == 0:
            domain.links.detach(f"p{number}")
            domain.firewall.remove_pod(f"p{number}", address, "ordinary")
    for _ in range(10):
        began = time.perf_counter()
        domain.firewall.load(domain.plan)
        loaded.append(time.perf_counter() - began)
    domain.links.detach_all([f"p{number}" for number in range(2, 202)])
    assert domain.links.names() == []
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    with open("/proc/net/route") as routes:
        assert len(routes.readlines()) <= 1
    assert len(os.listdir("/proc/self/fd")) < 12
    print(f"attach + configure + add_pod p50 {median(attached) * 1e3:.2f} ms, load p50 {median(loaded) * 1e3:.2f} ms")


SCENARIOS: dict[str, Callable[[], None]] = {
    scenario.__name__: scenario
    for scenario in (
        ordinary_pods_reach_each_other,
        ordinary_pod_reaches_engine_and_not_the_reverse,
        engines_reach_each_other_only_as_a_pair,
        a_pair_in_one_direction_is_not_the_other,
        guest_reaches_no_pod_and_no_pod_reaches_it,
        guest_gets_no_udp_to_pods,
        gateway_ports_are_reached_with_the_pods_address,
        other_gateway_ports_are_refused,
        names_are_resolved_over_udp,
        gateway_answers_ping,
        no_packet_is_lost_after_the_start,
        domain_reaches_every_pod,
        forged_source_is_dropped,
        removed_pod_reaches_nothing,
        removing_half_known_pod_removes_the_rest,
        load_replaces_the_table,
        load_takes_many_pods_and_pairs,
        outward_calls_of_the_domain_meet_the_relay,
        outward_datagrams_are_refused,
        outward_calls_without_relay_fail_at_once,
        ordinary_pods_may_leave_by_the_relay,
        strict_reverse_path_filter_does_not_harm,
        two_domains_have_the_same_range,
        detach_leaves_no_device,
        failed_attach_leaves_nothing,
        a_pods_end_takes_its_device_along,
        pods_have_their_sysctls,
        calls_work_from_any_namespace,
        handles_lead_back,
        many_pods_come_and_go,
    )
}


def become_user() -> None:
    """An ordinary user who is root in a user namespace of its own."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else /proc/self stays root's
    user, group = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET)
    for name, line in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)


def main(mode: str, name: str) -> int:
    try:
        if mode == "user":
            become_user()
        else:
            unshare(CLONE_NEWNET)
        Links().loopback()
    except OSError as error:
        print(f"{mode}: {error}", file=sys.stderr)
        return FORBIDDEN
    SCENARIOS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
