"""Virtual addresses of Services in the kernel, played in namespaces of its own: `python service_scenarios.py root|user SCENARIO`."""

from __future__ import annotations

import collections
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from pod_network_scenarios import (
    FORBIDDEN,
    GATEWAY,
    RELAY_PORT,
    Domain,
    Pod,
    become_user,
    inside,
    listen,
    new_socket,
    outcome,
    refused,
    talk,
)

from coterie.base.linux_namespaces import CLONE_NEWNET, unshare
from coterie.kube.api.meta import ObjectKey
from coterie.kube.network.pods.links import Links
from coterie.kube.network.pods.netlink import NetlinkSocket
from coterie.kube.network.services.plan import Backend, PortChain, ServiceTable
from coterie.kube.network.services.proxy import ServiceRules

CIDR = "100.112.0.0/16"
VIP, OTHER_VIP, OUTSIDE = "100.112.1.1", "100.112.1.2", "203.0.113.9"
TCP, UDP = 6, 17
WEB = ObjectKey("default", "web")


class Services:
    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.table = ServiceTable()
        self.rules = ServiceRules(NetlinkSocket, GATEWAY, CIDR)
        with inside(domain):
            self.rules.load(self.table.everything())

    def set(self, key: ObjectKey, *chains: PortChain) -> None:
        named = {f"service-{key.namespace}/{key.name}/{index}": chain for index, chain in enumerate(chains)}
        self.rules.apply(self.table.update({key: named}))

    def ruleset(self) -> str:
        with inside(self.domain):
            done = subprocess.run(
                ["nft", "--stateless", "list", "table", "ip", "coterie_services"], capture_output=True, text=True
            )
        assert done.returncode == 0, done.stderr
        return done.stdout


def to(*pods: Pod, port: int = 8000, at: str = VIP, protocol: int = TCP, affinity: int = 0) -> PortChain:
    return PortChain(protocol, ((at, protocol, 80),), tuple(Backend(pod.address, port) for pod in pods), affinity)


def _domains() -> list[Domain]:
    return [Domain(), Domain(RELAY_PORT)]


def _answering(callers: Pod | Domain, listeners: list[socket.socket], times: int) -> collections.Counter[str]:
    """Which of the listeners gets how many of so many connections to the virtual address."""
    found: collections.Counter[str] = collections.Counter()
    for listener in listeners:
        listener.setblocking(False)
    for _ in range(times):
        with new_socket(callers) as client:
            client.connect((VIP, 80))
            accepted = False
            while not accepted:
                for listener in listeners:
                    try:
                        listener.accept()[0].close()
                    except BlockingIOError:
                        continue
                    found[listener.getsockname()[0]] += 1
                    accepted = True
    return found


# --- scenarios ------------------------------------------------------------------------------------------------------


def a_virtual_address_leads_to_the_endpoint() -> None:
    for domain in _domains():
        services = Services(domain)
        caller, server = domain.pod(2), domain.pod(3)
        services.set(WEB, to(server))
        with listen(server, server.address, 8000) as listener:
            assert talk(caller, listener, (VIP, 80))[0] == caller.address
            assert talk(domain, listener, (VIP, 80))[0] == GATEWAY


def c_72_connections_are_spread_over_the_endpoints() -> None:
    domain = Domain()
    services = Services(domain)
    caller, servers = domain.pod(2), [domain.pod(number) for number in (3, 4, 5)]
    services.set(WEB, to(*servers))
    found = _answering(caller, [listen(each, each.address, 8000) for each in servers], 300)
    assert all(70 <= found[each.address] <= 130 for each in servers), found


def without_endpoints_connections_are_refused_at_once() -> None:
    for domain in _domains():
        services = Services(domain)
        caller, server = domain.pod(2), domain.pod(3)
        for where in (caller, domain):
            assert outcome(where, (VIP, 80)) == "ECONNREFUSED"
        services.set(WEB, to(server))
        with listen(server, server.address, 8000) as listener:
            talk(caller, listener, (VIP, 80))
            for where in (caller, domain):
                assert outcome(where, (VIP, 81)) == "ECONNREFUSED"
                with new_socket(where, socket.SOCK_DGRAM) as client:
                    client.connect((VIP, 80))
                    try:
                        client.send(b"question")
                        client.recv(100)
                        raise AssertionError("an answer")
                    except (ConnectionRefusedError, PermissionError):
                        pass
            services.set(WEB)
            assert outcome(caller, (VIP, 80)) == "ECONNREFUSED"


def an_endpoint_reaches_itself() -> None:
    domain = Domain()
    services = Services(domain)
    server = domain.pod(3)
    services.set(WEB, to(server))
    with listen(server, server.address, 8000) as listener:
        assert talk(server, listener, (VIP, 80))[0] == GATEWAY


def datagrams_follow_the_endpoints() -> None:
    domain = Domain()
    services = Services(domain)
    caller, servers = domain.pod(2), [domain.pod(3), domain.pod(4)]
    sockets = []
    for each in servers:
        made = new_socket(each, socket.SOCK_DGRAM)
        made.bind((each.address, 53))
        sockets.append(made)
    services.set(WEB, to(servers[0], port=53, protocol=UDP))
    with new_socket(caller, socket.SOCK_DGRAM) as client:
        client.connect((VIP, 80))
        for chosen in (0, 1):
            # The same client, from the same port: what the kernel remembers of it must go with the endpoint.
            services.set(WEB, to(servers[chosen], port=53, protocol=UDP))
            client.send(b"question")
            data, peer = sockets[chosen].recvfrom(100)
            assert (data, peer[0]) == (b"question", caller.address)
            sockets[chosen].sendto(b"answer", peer)
            assert client.recv(100) == b"answer"


def a_client_stays_with_its_endpoint() -> None:
    domain = Domain()
    services = Services(domain)
    caller, servers = domain.pod(2), [domain.pod(number) for number in (3, 4, 5)]
    listeners = [listen(each, each.address, 8000) for each in servers]
    services.set(WEB, to(*servers, affinity=60))
    [(first, count)] = _answering(caller, listeners, 20).items()
    assert count == 20
    # With other endpoints beside it, it stays; without its own it gets another one, and stays there.
    fourth = domain.pod(6)
    listeners.append(listen(fourth, fourth.address, 8000))
    services.set(WEB, to(*servers, fourth, affinity=60))
    assert _answering(caller, listeners, 10) == {first: 10}
    rest = [each for each in (*servers, fourth) if each.address != first]
    services.set(WEB, to(*rest, affinity=60))
    assert len(_answering(caller, listeners, 10)) == 1
    found: set[str] = set()
    for number in range(10, 30):
        found |= set(_answering(domain.pod(number), listeners, 1))
    assert len(found) == 3
    services.set(WEB, to(*rest, affinity=90))
    services.set(WEB, to(*rest))
    assert len(_answering(caller, listeners, 40)) == 3
    services.set(WEB)


def affinity_ends_after_its_time() -> None:
    domain = Domain()
    services = Services(domain)
    caller, servers = domain.pod(2), [domain.pod(3), domain.pod(4)]
    listeners = [listen(each, each.address, 8000) for each in servers]
    services.set(WEB, to(*servers, affinity=1))
    found: set[str] = set()
    for _ in range(12):
        found |= set(_answering(caller, listeners, 1))
        if len(found) == 2:
            return
        time.sleep(1.3)
    raise AssertionError(found)


def engines_and_guests_reach_nobody_by_a_virtual_address() -> None:
    domain = Domain()
    services = Services(domain)
    ordinary = domain.pod(2)
    engine, peer, guest = domain.pod(0x8002, "engine"), domain.pod(0x8003, "engine"), domain.pod(0x8004, "guest")
    domain.firewall.allow([(engine.address, peer.address), (peer.address, engine.address)])
    services.set(WEB, to(ordinary))
    with listen(ordinary, ordinary.address, 8000) as listener, listen(peer, peer.address, 8000) as other:
        for fenced in (engine, guest):
            refused(fenced, (VIP, 80))
        talk(domain.pod(3), listener, (VIP, 80))
        services.set(WEB, to(peer))
        talk(engine, other, (VIP, 80))
        refused(guest, (VIP, 80))
        services.set(WEB, to(guest))
        refused(ordinary, (VIP, 80))


def addresses_outside_the_range_are_seen_from_pods() -> None:
    domain = Domain()
    services = Services(domain)
    caller, server = domain.pod(2), domain.pod(3)
    services.set(WEB, PortChain(TCP, ((VIP, TCP, 80), (OUTSIDE, TCP, 80)), (Backend(server.address, 8000),)))
    with listen(server, server.address, 8000) as listener:
        talk(caller, listener, (OUTSIDE, 80))
        refused(caller, (OUTSIDE, 81))


def open_connections_live_on_when_their_endpoint_leaves() -> None:
    domain = Domain()
    services = Services(domain)
    caller, servers = domain.pod(2), [domain.pod(3), domain.pod(4)]
    services.set(WEB, to(servers[0]))
    with listen(servers[0], servers[0].address, 8000) as listener, new_socket(caller) as client:
        client.connect((VIP, 80))
        accepted, _ = listener.accept()
        services.set(WEB, to(servers[1]))
        client.sendall(b"question")
        assert accepted.recv(100) == b"question"
        services.set(WEB)
        accepted.sendall(b"answer")
        assert client.recv(100) == b"answer"
        assert outcome(caller, (VIP, 80)) == "ECONNREFUSED"


def the_table_is_replaced_as_a_whole() -> None:
    domain = Domain()
    services = Services(domain)
    caller, server = domain.pod(2), domain.pod(3)
    services.set(WEB, to(server))
    with inside(domain):
        services.rules.load(services.table.everything())
    with listen(server, server.address, 8000) as listener:
        talk(caller, listener, (VIP, 80))


def c_71_a_change_touches_only_its_service() -> None:
    if shutil.which("nft") is None:
        return
    domain = Domain()
    services = Services(domain)
    pods = [domain.pod(number) for number in (2, 3, 4)]
    empty = services.ruleset()
    other = ObjectKey("default", "other")
    services.set(other, to(pods[0], pods[1], at=OTHER_VIP))
    before = services.ruleset()
    services.set(WEB, to(*pods), PortChain(UDP, ((VIP, UDP, 53),), (Backend(pods[2].address, 53),), 60))
    between = services.ruleset()
    assert _about(before, "default/other") == _about(between, "default/other")
    assert "numgen random mod 3 map" in between
    assert f"0 : {pods[0].address} . 8000" in between
    assert f"{VIP} . tcp . 80 : goto service-default/web/0" in between
    assert f"update @affinity-default/web/1/{pods[2].address}/53 {{ ip saddr }} dnat to {pods[2].address}:53" in between
    services.set(WEB, to(pods[1]))
    assert _about(between, "default/other") == _about(services.ruleset(), "default/other")
    services.set(WEB)
    assert services.ruleset() == before
    services.set(other)
    assert services.ruleset() == empty


def _about(ruleset: str, name: str) -> list[str]:
    """The elements and the chain of one Service, without what depends on their place in a list."""
    lines = ruleset.splitlines()
    found = [line.removeprefix("\t\telements = {").strip(" \t,}") for line in lines if f"goto service-{name}" in line]
    start = lines.index(f"\tchain service-{name}/0 {{")
    return found + lines[start : lines.index("\t}", start)]


def many_services_and_one_change() -> None:
    domain = Domain()
    services = Services(domain)
    caller, server = domain.pod(2), domain.pod(3)
    many = {}
    for number in range(1000):
        backends = tuple(Backend(f"100.96.{4 + number // 25}.{1 + number % 25 * 10 + n}", 8000) for n in range(10))
        chain = PortChain(TCP, ((f"100.112.{2 + number // 250}.{1 + number % 250}", TCP, 80),), backends)
        many[ObjectKey("default", f"s{number}")] = {f"service-default/s{number}/tcp/80": chain}
    services.table.update(many)
    with inside(domain):
        services.rules.load(services.table.everything())
    services.set(WEB, to(server))
    took = []
    for _ in range(20):
        started = time.perf_counter()
        services.set(WEB, to(server, caller))
        services.set(WEB, to(server))
        took.append((time.perf_counter() - started) / 2)
    print(f"one change at 1,000 x 10: median {sorted(took)[10] * 1000:.2f} ms")
    with listen(server, server.address, 8000) as listener:
        talk(caller, listener, (VIP, 80))


SCENARIOS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        a_virtual_address_leads_to_the_endpoint,
        c_72_connections_are_spread_over_the_endpoints,
        without_endpoints_connections_are_refused_at_once,
        an_endpoint_reaches_itself,
        datagrams_follow_the_endpoints,
        a_client_stays_with_its_endpoint,
        affinity_ends_after_its_time,
        engines_and_guests_reach_nobody_by_a_virtual_address,
        addresses_outside_the_range_are_seen_from_pods,
        open_connections_live_on_when_their_endpoint_leaves,
        the_table_is_replaced_as_a_whole,
        c_71_a_change_touches_only_its_service,
        many_services_and_one_change,
    )
}


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
