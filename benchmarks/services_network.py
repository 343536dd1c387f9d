"""Pods in network namespaces of their own, and what a virtual address costs between them: `python -m benchmarks.services_network SECONDS`.

Prints one JSON object. Rounds with and without the virtual address take turns.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import threading
import time
from statistics import median
from typing import Any

from coterie.base.linux_namespaces import CLONE_NEWNET, unshare
from coterie.kube.api.meta import ObjectKey
from coterie.kube.network.pods import namespaces
from coterie.kube.network.pods.firewall import Firewall, FirewallPlan
from coterie.kube.network.pods.links import Links, configure_domain, configure_pod_end
from coterie.kube.network.pods.netlink import NetlinkSocket
from coterie.kube.network.services.plan import Backend, PortChain, ServiceTable
from coterie.kube.network.services.proxy import ServiceRules

GATEWAY, RANGE, SERVICES, VIP = "100.96.0.1", "100.96.0.0/20", "100.112.0.0/16", "100.112.1.1"
_TCP = 6
_STREAM, _ECHO = 8000, 8001
_CHUNK = bytes(1 << 20)
_ROUNDS = 4


def _pod(domain: int, links: Links, firewall: Firewall, number: int) -> int:
    namespaces.unshare_net()
    netns = namespaces.own_netns_fd()
    address = f"100.96.0.{number}"
    links.attach(f"p{number}", netns, address)
    configure_pod_end(address)
    namespaces.enter(domain)
    firewall.add_pod(f"p{number}", address, "ordinary")
    return netns


def _serve(netns: int, port: int) -> None:
    """In a process of its own: swallow what comes, or send it back."""
    namespaces.enter(netns)
    listener = socket.create_server(("", port), backlog=64)
    while True:
        made, _ = listener.accept()
        threading.Thread(target=_echo if port == _ECHO else _swallow, args=(made,), daemon=True).start()


def _swallow(made: socket.socket) -> None:
    room = bytearray(1 << 20)
    while made.recv_into(room):
        pass
    made.close()


def _echo(made: socket.socket) -> None:
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := made.recv(100):
        made.sendall(data)
    made.close()


def _throughput(address: str, seconds: float) -> float:
    """GB/s."""
    sent = 0
    with socket.create_connection((address, _STREAM), 5) as made:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            sent += made.send(_CHUNK)
        return sent / (time.perf_counter() - began) / 1e9


def _round_trip(address: str, seconds: float) -> float:
    """Microseconds, the median."""
    took = []
    with socket.create_connection((address, _ECHO), 5) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            made.sendall(b"x" * 64)
            made.recv(100)
            took.append(time.perf_counter() - began)
    return median(took) * 1e6


def _connect(address: str, seconds: float) -> float:
    """Microseconds of a new connection, the median."""
    took = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        made = socket.create_connection((address, _ECHO), 5)
        took.append(time.perf_counter() - began)
        made.close()
    return median(took) * 1e6


def _many(count: int, endpoints: int) -> dict[ObjectKey, dict[str, PortChain]]:
    found = {}
    for number in range(count):
        backends = tuple(
            Backend(f"100.97.{number // 25}.{1 + number % 25 * endpoints + n}", 80) for n in range(endpoints)
        )
        key = (f"100.112.{16 + number // 250}.{1 + number % 250}", _TCP, 80)
        found[ObjectKey("default", f"s{number}")] = {
            f"service-default/s{number}/tcp/80": PortChain(_TCP, (key,), backends)
        }
    return found


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main(seconds: float) -> dict[str, Any]:
    unshare(CLONE_NEWNET)
    domain = namespaces.own_netns_fd()
    configure_domain(GATEWAY)
    links, firewall = Links(), Firewall()
    firewall.load(FirewallPlan(GATEWAY, RANGE, []))
    caller, server = (_pod(domain, links, firewall, number) for number in (2, 3))
    children = []
    for port in (_STREAM, _ECHO):
        child = os.fork()
        if not child:
            _serve(server, port)
        children.append(child)
    rules, table = ServiceRules(NetlinkSocket, GATEWAY, SERVICES), ServiceTable()
    own = {
        f"service-default/own/tcp/{port}": PortChain(_TCP, ((VIP, _TCP, port),), (Backend("100.96.0.3", port),))
        for port in (_STREAM, _ECHO)
    }
    table.update({ObjectKey("default", "own"): own})
    before = _resident()
    many = _many(1000, 10)
    table.update(many)
    began = time.perf_counter()
    rules.load(table.everything())
    loaded = time.perf_counter() - began
    memory = _resident() - before
    changes = []
    key, chains = next(iter(many.items()))
    [(name, chain)] = chains.items()
    for number in range(200):
        fewer = PortChain(_TCP, chain.keys, chain.backends[: 9 + number % 2])
        began = time.perf_counter()
        rules.apply(table.update({key: {name: fewer}}))
        changes.append(time.perf_counter() - began)
    out: dict[str, Any] = {
        "load_ms": loaded * 1e3,
        "change_ms": median(changes) * 1e3,
        "slowest_change_ms": max(changes) * 1e3,
        "memory_mb": memory / 1e6,
    }
    namespaces.enter(caller)
    time.sleep(0.2)
    for what, measure in (("gbytes", _throughput), ("round_trip_us", _round_trip), ("connect_us", _connect)):
        found: dict[str, list[float]] = {"direct": [], "virtual": []}
        for _ in range(_ROUNDS):
            for way, address in (("direct", "100.96.0.3"), ("virtual", VIP)):
                found[way].append(measure(address, seconds / _ROUNDS))
        for way, values in found.items():
            out[f"{way}_{what}"] = max(values) if what == "gbytes" else min(values)
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return out


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]))))
