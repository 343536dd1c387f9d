"""Pods with a network of their own: addresses, what they reach, and what is left when things are killed."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from pathlib import Path

import overlay_kit
import pod_network_scenarios as scenarios
import pytest
from runp_kit import RunpHarness

from coterie.kube.agent.network_check import NetworkCheck, has_answer, question
from coterie.kube.agent.runtimes.protocol import PodKind, PodNetworkClass, PodSandbox, RemotePod, RuntimeFailure
from coterie.kube.agent.runtimes.runp import network_access, pause, pod_networks, processes
from coterie.kube.agent.runtimes.runp.client import group_of
from coterie.kube.agent.runtimes.runp.holder_monitor import HolderMonitor
from coterie.kube.agent.runtimes.runp.network_access import NamespaceSockets, PodAddresses, engine_range
from coterie.kube.agent.runtimes.runp.settings import PodNetworkSettings
from coterie.kube.network.pods import links, rtnetlink
from coterie.kube.network.pods.links import Links
from coterie.kube.network.pods.netlink import CREATE, NETLINK_ROUTE
from coterie.kube.network.pods.rtnetlink import DeviceEnd

NETWORK = PodNetworkSettings(ports=(("udp", 53), ("tcp", 80)), ports_not_for_guests=(("tcp", 8060),))
GATEWAY = "100.96.0.1"
CALL = (
    "python3 -c 'import socket, sys\n"
    "try:\n  print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).recv(99).decode())\n"
    'except OSError as problem:\n  print("refused", problem.errno)\' '
)


class NetworkHarness:
    def __init__(self, harness: RunpHarness, facts: network_access.PodNetworkFacts) -> None:
        self.runp = harness
        self.facts = facts
        self.sockets = NamespaceSockets(harness.settings.directory, harness.group)
        self.servers: list[asyncio.Server] = []

    async def serve(self, port: int) -> None:
        """A service of the node that tells callers their addresses."""

        async def tell(reader, writer):
            writer.write(writer.get_extra_info("peername")[0].encode())
            writer.close()

        self.servers.append(await asyncio.start_server(tell, sock=self.sockets.tcp(GATEWAY, port)))

    async def pod(self, uid: str, kind: PodKind = PodKind.ORDINARY, group: str = "") -> str:
        runtime = self.runp.runtime
        address = runtime.assign_address(uid, PodNetworkClass(kind, group))
        sandbox = PodSandbox(
            uid, "alice", uid, uid, self.runp.root / "pods" / uid, address=address, kind=kind, group=group
        )
        await runtime.prepare_pod(sandbox)
        return address

    async def says(self, uid: str, command: str) -> str:
        """What a command prints in a pod, run as a container of its own."""
        pod = self.runp.runtime.pod(uid)
        name = f"c{len(pod.containers) if pod is not None else 0}"
        spec = await self.runp.start(command, name, uid=uid)
        await self.runp.ended(name, uid)
        return "\n".join(line.split(" ", 3)[3] for line in spec.log_path.read_text().splitlines())

    async def server(self, uid: str, where: str = "", port: int = 9000) -> None:
        """A server in a pod that tells callers their addresses; returns when it listens."""
        script = (
            f'python3 -c \'import socket\ns = socket.create_server(("{where}", {port}))\n'
            "while True:\n  c, a = s.accept(); c.sendall(a[0].encode()); c.close()'"
        )
        await self.runp.start(script, "server" if port == 9000 else f"server-{port}", uid=uid)
        for _ in range(200):
            try:
                _, writer = await self.runp.runtime.dial(uid, port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
        pytest.fail("the server never listened")

    async def reaches(self, uid: str, address: str, port: int) -> str:
        return await self.says(uid, CALL + f"{address} {port}")


@pytest.fixture
async def network(tmp_path: Path):
    try:
        facts = network_access.ensure(tmp_path / "runp", group_of("test", tmp_path / "runp"), NETWORK)
    except network_access.NotFenced as problem:
        pytest.skip(f"this machine allows no pod networks: {problem}")
    async with RunpHarness.opened(tmp_path, network=NETWORK) as harness:
        made = NetworkHarness(harness, facts)
        yield made
        for server in made.servers:
            server.close()


async def test_a_pod_calls_from_its_own_address(network):
    await network.serve(80)
    for uid in ("uid-1", "uid-2"):
        address = await network.pod(uid)
        assert network.runp.runtime.pod_ip(uid) == address
        assert await network.reaches(uid, GATEWAY, 80) == address


async def test_kinds_of_pods_reach_what_they_may(network):
    await network.serve(80)
    await network.serve(8060)
    await network.serve(8099)
    await network.pod("ordinary")
    await network.pod("guest", PodKind.GUEST, "task/a")
    assert await network.reaches("ordinary", GATEWAY, 8060) == network.runp.runtime.pod_ip("ordinary")
    assert (await network.reaches("guest", GATEWAY, 8060)).startswith("refused")
    assert (await network.reaches("ordinary", GATEWAY, 8099)).startswith("refused")
    assert await network.reaches("guest", GATEWAY, 80) == network.runp.runtime.pod_ip("guest")


@pytest.mark.parametrize("kind", [PodKind.ENGINE, PodKind.GUEST])
async def test_engines_of_one_task_reach_each_other_and_nobody_else(network, kind):
    addresses = {
        uid: await network.pod(uid, kind, group)
        for uid, group in (("a-0", "task/a"), ("a-1", "task/a"), ("b-0", "task/b"))
    }
    addresses["own"] = await network.pod("own")
    for uid in ("a-1", "b-0", "own"):
        await network.server(uid)
    assert await network.reaches("a-0", addresses["a-1"], 9000) == addresses["a-0"]
    assert (await network.reaches("a-0", addresses["b-0"], 9000)).startswith("refused")
    assert (await network.reaches("a-0", addresses["own"], 9000)).startswith("refused")
    expected = addresses["own"] if kind is PodKind.ENGINE else "refused"
    assert (await network.reaches("own", addresses["b-0"], 9000)).startswith(expected)


async def test_engines_and_pods_of_partners_do_not_reach_gateways_and_actors_of_functions(network):
    """Also not actors that read tables, which are engines to the network. Ordinary pods reach the ports, and need tokens there
    (test_e2e_functions)."""
    functions = await network.pod("functions")
    ordinary = await network.pod("ordinary")
    for uid, kind in (("guest", PodKind.GUEST), ("engine", PodKind.ENGINE)):
        await network.pod(uid, kind, "task/a")
    for port in (6810, 6811, 6812):
        await network.server("functions", port=port)
        assert await network.reaches("ordinary", functions, port) == ordinary
        for uid in ("guest", "engine"):
            assert (await network.reaches(uid, functions, port)).startswith("refused")


async def test_pods_and_the_machine_do_not_share_a_loopback(network):
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    await network.pod("uid-1")
    assert (await network.reaches("uid-1", "127.0.0.1", port)).startswith("refused")
    listening.close()


async def test_a_pod_binds_any_port_and_cannot_change_its_network(network):
    await network.pod("uid-1")
    script = (
        "python3 -c 'import socket\n"
        'socket.create_server(("", 80)); print("bound")\n'
        "try:\n  socket.socket(socket.AF_INET, socket.SOCK_RAW, 255); print(0)\n"
        "except OSError as problem:\n  print(problem.errno)\n"
        "try:\n  socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print(0)\n"
        "except OSError as problem:\n  print(problem.errno)'"
    )
    assert (await network.says("uid-1", script)).split() == ["bound", "1", "1"]  # EPERM is 1 too


async def test_probes_and_port_forward_reach_a_server_on_the_loopback_of_a_pod(network):
    await network.pod("uid-1")
    await network.server("uid-1", "127.0.0.1")
    reader, writer = await network.runp.runtime.dial("uid-1", 9000)
    assert await reader.read() == b"127.0.0.1"
    writer.close()


async def test_exec_is_in_the_network_of_the_pod(network):
    await network.pod("uid-1")
    await network.runp.start("sleep 60")
    session = await network.runp.runtime.exec(
        "uid-1", "main", ["sh", "-c", "cat /proc/net/fib_trie"], stdin=False, tty=False
    )
    text = b""
    while data := await session.read_stdout():
        text += data
    await session.close()
    assert network.runp.runtime.pod_ip("uid-1").encode() in text


async def test_containers_of_one_pod_share_their_network_over_restarts(network):
    await network.pod("uid-1")
    await network.server("uid-1")
    assert await network.reaches("uid-1", "127.0.0.1", 9000) == "127.0.0.1"
    first = await network.says("uid-1", "readlink /proc/self/ns/net")
    assert await network.says("uid-1", "readlink /proc/self/ns/net") == first


@pytest.mark.parametrize("victims", ["supervisor", "holder", "both"])
async def test_the_network_outlives_who_made_it(network, victims):
    await network.serve(80)
    address = await network.pod("uid-1")
    await network.runp.start("sleep 600")
    if victims != "supervisor":
        os.kill(network.facts.holder, signal.SIGKILL)
    if victims != "holder":
        os.kill(network.runp.shepherd, signal.SIGKILL)
    await asyncio.sleep(0.3)
    assert await network.reaches("uid-1", GATEWAY, 80) == address
    second = await network.pod("uid-2")
    assert second != address
    assert await network.reaches("uid-2", GATEWAY, 80) == second
    facts = pod_networks.read_facts(str(network.runp.settings.directory))
    assert facts is not None and pod_networks.holder_alive(facts)
    assert facts["path"] == str(network.facts.namespace)


async def test_a_holder_that_is_killed_while_no_supervisor_runs_is_replaced(network):
    """A node without pods has no supervisor; its gateway must be able to enter the network all the same."""
    directory = str(network.runp.settings.directory)
    await network.runp.runtime._end_supervisor()
    os.kill(network.facts.holder, signal.SIGKILL)
    for _ in range(200):
        facts = pod_networks.read_facts(directory)
        if facts["holder"] != network.facts.holder and pod_networks.holder_alive(facts):
            break
        await asyncio.sleep(0.05)
    assert facts["path"] == str(network.facts.namespace), "it is the same network"
    assert os.stat(facts["path"]).st_ino == facts["inode"]


def has_ended(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()  # a zombie has none
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_holder_that_is_killed_before_it_goes_on_is_no_failure_of_who_started_it() -> None:
    """Else the supervisor would not watch it, and start no other."""
    started: list[int] = []

    def killed_at_once(pid: int) -> None:
        started.append(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    pause.start(killed_at_once)
    assert len(started) == 1


async def test_a_network_that_vanished_is_made_again_with_the_same_addresses(network):
    """Agent, supervisor and holder are killed together; only the pod's processes are left."""
    address = await network.pod("uid-1")
    await network.runp.start("sleep 600")
    shepherd, holder = network.runp.shepherd, network.facts.holder
    await network.runp.runtime.close()
    network.runp.runtime._client.release()
    for pid in (shepherd, holder):
        os.kill(pid, signal.SIGKILL)
        await network.runp.until(lambda pid=pid: has_ended(pid))
    facts = network_access.ensure(network.runp.settings.directory, network.runp.group, NETWORK)
    await network.runp.restart()
    assert network.runp.runtime.pod_ip("uid-1") == address
    network.facts = facts
    await network.serve(80)
    assert await network.reaches("uid-1", GATEWAY, 80) == address


async def test_nothing_is_left_after_the_last_pod(network):
    await network.pod("uid-1")
    await network.runp.start("sleep 600")
    await network.runp.runtime.remove_pod("uid-1")
    await network.runp.runtime.close()
    await network.runp.until(lambda: not os.path.exists(f"/proc/{network.facts.holder}"))
    assert not network.facts.namespace.is_symlink()
    left = os.listdir(network.runp.settings.directory)
    assert pod_networks.FACTS_FILE not in left


async def test_pods_with_a_network_outlive_an_agent_that_is_stopped(network):
    address = await network.pod("uid-1")
    await network.runp.start("sleep 600")
    await network.runp.restart()
    assert network.runp.runtime.pod_ip("uid-1") == address
    await network.serve(80)
    assert await network.reaches("uid-1", GATEWAY, 80) == address


async def test_no_program_inherits_what_the_supervisor_hands_over(network):
    """An Envoy that had the DNS listener too would keep its port from the node's next life."""
    for made in (network.sockets.udp(GATEWAY, 53), network.sockets.tcp(GATEWAY, 53)):
        assert not made.get_inheritable()
        made.close()
    assert network.runp.runtime._client._namespaces
    assert not any(os.get_inheritable(each) for each in network.runp.runtime._client._namespaces)
    await network.pod("uid-1")
    with await network.runp.runtime._socket_of("uid-1") as made:
        assert not made.get_inheritable()


async def test_a_port_that_is_taken_is_called_so(network):
    first = network.sockets.tcp(GATEWAY, 80)
    with pytest.raises(OSError) as problem:
        network.sockets.tcp(GATEWAY, 80)
    assert problem.value.errno == errno.EADDRINUSE
    first.close()


async def test_host_network_needs_trust(network):
    with pytest.raises(RuntimeFailure, match="allowHostNetwork"):
        network.runp.runtime.assign_address("uid-9", PodNetworkClass(host=True))


async def test_the_check_tells_what_a_pod_cannot_do(network):
    check = NetworkCheck(network.runp.runtime, GATEWAY, "gateway.alice.svc", 80, None, needed=lambda: False)  # type: ignore[arg-type]
    assert "DNS" in await check.check()

    class Names(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, addr):
            self.transport.sendto(data[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + data[12:], addr)

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        Names, sock=network.sockets.udp(GATEWAY, 53)
    )
    assert "gateway" in await check.check()

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\n\r\n")
        writer.close()

    network.servers.append(await asyncio.start_server(answer, sock=network.sockets.tcp(GATEWAY, 80)))
    assert await check.check() == ""
    transport.close()


def test_addresses_are_given_out_again_as_late_as_possible():
    addresses = PodAddresses("100.96.0.0/29")
    assert [addresses.assign(uid, engine=False) for uid in "ab"] == ["100.96.0.2", "100.96.0.3"]
    with pytest.raises(RuntimeFailure, match="podCIDR"):
        addresses.assign("c", engine=False)
    assert addresses.assign("d", engine=True) == "100.96.0.4"
    addresses.free("d")
    assert addresses.assign("e", engine=True) == "100.96.0.5"
    assert addresses.of("e") == "100.96.0.5"
    assert addresses.of("d") == ""
    addresses.free("a")
    assert addresses.assign("c", engine=False) == "100.96.0.2"
    assert engine_range("100.96.0.0/16") == "100.96.128.0/17"


def test_addresses_of_pods_from_before_are_kept():
    addresses = PodAddresses("100.96.0.0/16")
    addresses.take("old", "100.96.128.7")
    assert addresses.of("old") == "100.96.128.7"
    assert addresses.assign("new", engine=True) == "100.96.128.8"


def test_what_is_an_answer():
    query = question("gateway.alice.svc")
    assert not has_answer(query)
    assert has_answer(query[:2] + b"\x81\x80\0\1\0\1\0\0\0\0")
    assert not has_answer(query[:2] + b"\x81\x83\0\1\0\1\0\0\0\0")
    assert not has_answer(b"")


async def test_devices_of_the_domain_are_changed_from_outside(network):
    """With a socket of the domain's namespace, by a process that never enters it."""
    there = Links(network.sockets.netlink(NETLINK_ROUTE))
    await network.pod("uid-1")
    try:
        assert there.names() == ["p2"]
        there.detach("p2")
        assert there.names() == []
    finally:
        there.close()


CLUSTERED = PodNetworkSettings(
    cidr="100.96.0.0/20",
    ports=(("tcp", 80),),
    mtu=1400,
    cluster_cidr="100.96.0.0/16",
    node_mask_size=20,
)
REMOTE = "100.96.24.7"
MTU = (
    "python3 -c 'import fcntl, socket, struct\n"
    'answer = fcntl.ioctl(socket.socket(), 0x8921, struct.pack("16si", b"eth0", 0))\n'
    'print(struct.unpack("16si", answer)[1])\''
)


@pytest.fixture
async def clustered(tmp_path: Path):
    """A node whose other machine is a network namespace: it has one engine, at REMOTE."""
    if os.getuid():
        pytest.skip("the network between machines needs root")
    facts = network_access.ensure(tmp_path / "runp", group_of("test", tmp_path / "runp"), CLUSTERED)
    async with RunpHarness.opened(tmp_path, network=CLUSTERED) as harness:
        made = NetworkHarness(harness, facts)
        other = overlay_kit.Place()
        netlink = made.sockets.netlink(NETLINK_ROUTE)
        ours, theirs = DeviceEnd("vx0", links.GATEWAY_MAC), DeviceEnd("eth0", links.POD_MAC)
        netlink.request([rtnetlink.add_pair(ours, theirs, other.netns)])
        (device,) = (each for each in rtnetlink.devices(netlink) if each.name == "vx0")
        netlink.request(
            [
                rtnetlink.set_up(device.index, "vx0"),
                rtnetlink.add_route("100.96.16.0/20", device.index, flags=CREATE),
                rtnetlink.add_neighbour(REMOTE, device.index, links.POD_MAC),
            ]
        )
        netlink.close()
        other.netlink.request([rtnetlink.set_up_by_name("eth0")])
        with scenarios.inside(other):
            links.configure_pod_end(REMOTE)
        yield made, other
        other.netlink.close()
        os.close(other.netns)


async def test_engines_of_one_task_reach_each_other_across_machines(clustered):
    network, other = clustered
    runtime = network.runp.runtime
    engine = await network.pod("a-0", PodKind.ENGINE, "task/a")
    await network.server("a-0")
    assert await network.says("a-0", MTU) == "1400"
    refused, reached = "ECONNREFUSED", "connected"
    assert scenarios.outcome(other, (engine, 9000)) == refused
    await runtime.set_remote_pods([RemotePod(REMOTE, PodKind.ENGINE, "task/b")])
    assert scenarios.outcome(other, (engine, 9000)) == refused
    await runtime.set_remote_pods([RemotePod(REMOTE, PodKind.GUEST, "task/a")])
    assert scenarios.outcome(other, (engine, 9000)) == refused
    await runtime.set_remote_pods([RemotePod(REMOTE, PodKind.ENGINE, "task/a")])
    assert scenarios.outcome(other, (engine, 9000)) == reached
    with scenarios.listen(other, REMOTE, 9000) as listener:

        def answer() -> None:
            accepted, caller = listener.accept()
            accepted.sendall(caller[0].encode())
            accepted.close()

        answering = asyncio.create_task(asyncio.to_thread(answer))
        listener.settimeout(20)
        assert await network.reaches("a-0", REMOTE, 9000) == engine
        await answering
    # A pod that comes later, and a supervisor that starts before its agent speaks to it.
    late = await network.pod("a-1", PodKind.ENGINE, "task/a")
    await network.server("a-1")
    assert scenarios.outcome(other, (late, 9000)) == reached
    os.kill(network.runp.shepherd, signal.SIGKILL)
    await network.pod("b-0", PodKind.ENGINE, "task/b")
    assert scenarios.outcome(other, (late, 9000)) == reached
    await runtime.set_remote_pods([])
    for address in (engine, late):
        assert scenarios.outcome(other, (address, 9000)) == refused


async def test_an_address_of_this_node_is_never_a_remote_one(clustered):
    network, _ = clustered
    ordinary, target = await network.pod("one"), await network.pod("two")
    await network.server("two")
    # A hostile node could say so in the status of a pod of its own.
    await network.runp.runtime.set_remote_pods([RemotePod(ordinary, PodKind.GUEST, "task/a")])
    assert await network.reaches("one", target, 9000) == ordinary
    await network.runp.runtime.set_remote_pods([])
    assert await network.reaches("one", target, 9000) == ordinary


async def test_a_network_that_was_made_anew_is_announced(tmp_path):
    renewed: list[int] = []

    async def no_supervisor() -> None:
        return None

    def holder(inode: int) -> subprocess.Popen[bytes]:
        made = subprocess.Popen(["sleep", "600"])
        facts = {"holder": made.pid, "ticks": processes.start_ticks(made.pid), "boot": processes.boot_id()}
        pod_networks.write_facts(str(tmp_path), {**facts, "inode": inode})
        return made

    async def next_holder(before: subprocess.Popen[bytes], inode: int) -> subprocess.Popen[bytes]:
        made = holder(inode)
        before.kill()
        before.wait()
        await asyncio.sleep(0.3)
        return made

    current = holder(1)
    monitor = HolderMonitor(tmp_path, no_supervisor, lambda: renewed.append(1))
    monitor.start()
    await asyncio.sleep(0.1)
    current = await next_holder(current, 1)
    assert renewed == [], "another process holds the same network"
    current = await next_holder(current, 2)
    assert renewed == [1]
    await monitor.close()
    current.kill()
    current.wait()
