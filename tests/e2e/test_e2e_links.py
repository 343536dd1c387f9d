"""Machines on one subnet reach each other's pods without VXLAN, those behind a router with it.

m1  control plane and node    m2  joined, the same subnet    m4  joined, the other subnet
m3  on both subnets: at first a machine that is no node, later joined with its address on the subnet of m1 and m2
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import kubectl_runner
import pytest
from e2e_kit import container, pod
from machines_kit import DOMAIN, Bench, bench_problem, until

from coterie.kube.agent.runtimes.runp import pod_networks

pytestmark = [
    pytest.mark.xdist_group("e2e-links"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(bench_problem()), reason=bench_problem()),
]
PLAIN, VXLAN = "vlink0", "vx0"
BIG = 20_000_000
SERVER = f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = bytes({BIG} if self.path == "/big" else 4)
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
FETCH = "import sys, urllib.request; print(len(urllib.request.urlopen(sys.argv[1], timeout=5).read()))"
CALLER = """
import sys, time, urllib.request
while True:
    try:
        urllib.request.urlopen(sys.argv[1], timeout=15).read()
        print("ok", flush=True)
    except OSError as problem:
        print("failed", problem, flush=True)
    time.sleep(0.1)
"""
LISTENER = """
import socket
made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
made.bind(("", 9000))
print("listening", flush=True)
while True:
    print(made.recv(100).decode(), flush=True)
"""
SENDER = "import socket, sys; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'of a pod', (sys.argv[1], 9000))"
ATTACK = """
import socket, struct, sys
target, victim, attacks = bytes.fromhex(sys.argv[1]), sys.argv[2], sys.argv[3:]
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("eth0", 0))
def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
for attack in attacks:
    mac, source = attack.split("/")
    content = b"attack " + attack.encode()
    udp = struct.pack(">HHHH", 40000, 9000, 8 + len(content), 0) + content
    addresses = socket.inet_aton(source) + socket.inet_aton(victim)
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0) + addresses
    head = head[:10] + struct.pack(">H", checksum(head)) + head[12:]
    wire.send(target + bytes.fromhex(mac) + b"\\x08\\x00" + head + udp)
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = kubectl_runner.found()
    made = Bench(tmp_path_factory.mktemp("links"), found[kubectl_runner.chosen()[-1]])
    try:
        made.start_control_plane()
        made.join_all("m2", "m4")
        until("the nodes are ready", lambda: {"m1", "m2", "m4"} <= made.ready_nodes(), 60)
        made.apply(*(_python(f"on-{name}", name, SERVER) for name in ("m1", "m2", "m4")))
        for name in ("m1", "m2", "m4"):
            made.ready_pods(f"app=on-{name}", 1)
        yield made
    except BaseException:
        for machine in made.machines.values():
            print(f"--- log of {machine.name}\n{machine.log()}")
        raise
    finally:
        made.close()


def _python(name: str, node: str, program: str, *words: str) -> dict[str, Any]:
    script = f"exec python3 -c {shlex.quote(program)} {shlex.join(words)}"
    return pod(name, container(script=script), labels={"app": name}, nodeName=node)


def _address(bench: Bench, name: str) -> str:
    return str(bench.json(f"get pod {name}")["status"]["podIP"])


def _in_domain(bench: Bench, name: str, *words: str) -> str:
    """Run a command in the domain's network namespace of a machine."""
    facts = pod_networks.read_facts(str(bench[name].root / DOMAIN / "var" / "run" / "runp"))
    assert facts is not None
    return bench[name].do("nsenter", f"--net={facts['path']}", *words)


def _way(bench: Bench, source: str, target: str) -> str:
    """The device by which a node reaches the pods of another."""
    cidr = bench.json(f"get node {target}")["spec"]["podCIDR"]
    words = _in_domain(bench, source, "ip", "route", "show", cidr).split()
    return words[words.index("dev") + 1] if words else ""


def _both_ways(bench: Bench, one: str, other: str, device: str, seconds: float = 20.0) -> None:
    until(
        f"{one} and {other} reach each other by {device}",
        lambda: _way(bench, one, other) == device == _way(bench, other, one),
        seconds,
    )


def _link_address(bench: Bench, name: str) -> str:
    """Of `vlink0`, without colons. Not from /sys, which shows the network of who mounted it."""
    words = _in_domain(bench, name, "ip", "-o", "link", "show", PLAIN).split()
    return words[words.index("link/ether") + 1].replace(":", "")


def _fetch(bench: Bench, name: str, target: str, path: str = "") -> int:
    done = bench.try_kubectl("exec", name, "--", "python3", "-c", FETCH, f"http://{target}/{path}")
    return int(done.out) if done.code == 0 else 0


def _in_router(bench: Bench, *words: str) -> None:
    subprocess.run(["nsenter", "-t", str(bench.router.pid), "-n", *words], check=True, capture_output=True)


def test_nodes_on_one_link_are_reached_without_vxlan(bench: Bench) -> None:
    _both_ways(bench, "m1", "m2", PLAIN)
    _both_ways(bench, "m1", "m4", VXLAN)
    _both_ways(bench, "m2", "m4", VXLAN)
    assert PLAIN not in _in_domain(bench, "m4", "ip", "link")
    for name in ("m1", "m2"):
        devices = bench[name].do("ip", "-o", "link")
        assert PLAIN not in devices, "the machine's own network has no such device"
        assert "vlink" not in bench[name].do("ip", "route")
    for source in ("m1", "m2", "m4"):
        for target in ("m1", "m2", "m4"):
            assert _fetch(bench, f"on-{source}", f"{_address(bench, f'on-{target}')}:8080", "big") == BIG


def test_services_and_policies_work_on_the_link(bench: Bench) -> None:
    _both_ways(bench, "m1", "m2", PLAIN)
    head = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "plain"}}
    bench.apply({**head, "spec": {"selector": {"app": "on-m2"}, "ports": [{"port": 80, "targetPort": 8080}]}})
    virtual = bench.json("get service plain")["spec"]["clusterIP"]
    until("m1 reaches the Service", lambda: _fetch(bench, "on-m1", virtual))
    assert bench["m1"].do("curl", "-sS", "--max-time", "5", "-o", "/dev/null", "-w", "%{http_code}", virtual) == "200"
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "closed"}}
    only_m4 = [{"from": [{"podSelector": {"matchLabels": {"app": "on-m4"}}}]}]
    bench.apply({**policy, "spec": {"podSelector": {"matchLabels": {"app": "on-m2"}}, "ingress": only_m4}})
    until("m1 is refused", lambda: not _fetch(bench, "on-m1", virtual))
    assert not _fetch(bench, "on-m1", f"{_address(bench, 'on-m2')}:8080")
    assert _fetch(bench, "on-m4", virtual)
    bench.kubectl("delete networkpolicy/closed")
    until("m1 is allowed again", lambda: _fetch(bench, "on-m1", virtual))


def test_a_network_that_drops_such_frames_is_crossed_by_vxlan(bench: Bench) -> None:
    """The switch lets the port of m2 show one address only, as port security and clouds do. Nobody notices it for long."""
    _both_ways(bench, "m1", "m2", PLAIN)
    bench.apply(_python("caller", "m1", CALLER, f"http://{_address(bench, 'on-m2')}:8080"))
    until("the caller calls", lambda: "ok" in bench.try_kubectl("logs", "caller").out)
    words = bench["m2"].do("ip", "-o", "link", "show", "eth0").split()
    own = words[words.index("link/ether") + 1]
    _in_router(bench, "nft", "add table netdev port_security")
    chain = "{ type filter hook ingress device m2-0 priority 0; }"
    try:
        _in_router(bench, "nft", f"add chain netdev port_security m2 {chain}")
        _in_router(bench, "nft", f"add rule netdev port_security m2 ether saddr != {own} counter drop")
        _both_ways(bench, "m1", "m2", VXLAN, 12)
        assert _fetch(bench, "on-m1", f"{_address(bench, 'on-m2')}:8080", "big") == BIG
        assert _fetch(bench, "on-m2", f"{_address(bench, 'on-m1')}:8080", "big") == BIG
    finally:
        _in_router(bench, "nft", "delete table netdev port_security")
    _both_ways(bench, "m1", "m2", PLAIN, 40)
    assert "failed" not in bench.kubectl("logs caller")
    bench.kubectl("delete pod caller --grace-period=0 --force")


def test_a_machine_on_the_link_that_is_no_node_sends_nothing_in(bench: Bench) -> None:
    _both_ways(bench, "m1", "m2", PLAIN)
    bench.apply(_python("victim", "m1", LISTENER))
    until("the victim listens", lambda: "listening" in bench.try_kubectl("logs", "victim").out)
    victim, friend, far = (_address(bench, name) for name in ("victim", "on-m2", "on-m4"))
    target, node = _link_address(bench, "m1"), _link_address(bench, "m2")
    attacks = [f"020000000099/{source}" for source in (friend, far, "10.77.1.12")]
    attacks += [f"{node}/{source}" for source in (far, victim, "10.77.1.12")]
    bench["m3"].do("python3", "-c", ATTACK, target, victim, *attacks)

    def of_a_pod() -> bool:
        # Again and again: the switch takes m3 for the place of forged addresses until their owner says something.
        bench.kubectl(f"exec on-m2 -- python3 -c {shlex.quote(SENDER)} {victim}")
        return "of a pod" in bench.kubectl("logs victim")

    until("a pod of a node is heard", of_a_pod)
    assert "attack" not in bench.kubectl("logs victim")
    dropped = _in_domain(bench, "m1", "nft", "list", "table", "inet", "coterie_links")
    counted = re.search(r"counter packets (\d+)", dropped)
    assert counted is not None and int(counted[1]) >= len(attacks), dropped
    bench.kubectl("delete pod victim --grace-period=0 --force")


def test_a_node_that_stops_is_reached_by_vxlan_and_keeps_its_pods(bench: Bench) -> None:
    _both_ways(bench, "m1", "m2", PLAIN)
    address = _address(bench, "on-m2")
    bench.stop_node("m2")
    until("m1 uses VXLAN", lambda: _way(bench, "m1", "m2") == VXLAN, 10)
    assert _way(bench, "m2", "m1") == VXLAN
    assert _fetch(bench, "on-m1", f"{address}:8080", "big") == BIG
    bench.start_node("m2")
    _both_ways(bench, "m1", "m2", PLAIN, 40)
    assert _fetch(bench, "on-m1", f"{address}:8080", "big") == BIG


def test_a_machine_with_two_cards_shares_the_link_of_its_address(bench: Bench) -> None:
    before = bench["m3"].network_state()
    bench.join("m3")
    until("m3 is ready", lambda: "m3" in bench.ready_nodes(), 60)
    _both_ways(bench, "m1", "m3", PLAIN)
    _both_ways(bench, "m2", "m3", PLAIN)
    _both_ways(bench, "m3", "m4", VXLAN)
    cidr = bench.json("get node m3")["spec"]["podCIDR"]
    bench.apply(_python("on-m3", "m3", SERVER))
    bench.ready_pods("app=on-m3", 1)
    for source in ("on-m1", "on-m2", "on-m4"):
        assert _fetch(bench, source, f"{_address(bench, 'on-m3')}:8080", "big") == BIG
    bench["m3"].coterie("node", "reset", "--force")
    assert bench["m3"].network_state() == before
    until("m1 knows nothing of m3", lambda: not _in_domain(bench, "m1", "ip", "route", "show", cidr))
    assert cidr.partition("/")[0] not in _in_domain(bench, "m1", "nft", "list", "table", "inet", "coterie_links")
    _both_ways(bench, "m1", "m2", PLAIN)
