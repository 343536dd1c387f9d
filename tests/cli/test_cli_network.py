"""The plan of a local network, its files and addresses, and the processes in the background."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from coterie.base.paths import DomainPaths
from coterie.cli import background, domain_invitation, network, node_health
from coterie.cli.app import CliError, UsageError
from coterie.kube.agent.runtimes.runp import halt
from coterie.kuscia.gateway.registration.registration_files import registration_file
from coterie.kuscia.gateway.settings import MasterEndpoint
from coterie.node import config
from coterie.node.config import ports


@pytest.fixture
def anywhere(monkeypatch):
    """Every address is free, whatever else this machine runs or is about to run."""
    monkeypatch.setattr(network, "_refusal", lambda address, port: 0)
    monkeypatch.setattr(network, "_HELD", f"\0coterie-test-{os.getpid()}-{{}}")


# The plan.


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (
            "center",
            [
                ("kuscia-system", "master", "127.0.1.1", 6443, 0, ""),
                ("alice", "lite", "127.0.1.2", 0, 10250, "alice-node"),
                ("bob", "lite", "127.0.1.3", 0, 10250, "bob-node"),
            ],
        ),
        (
            "p2p",
            [
                ("alice", "autonomy", "127.0.1.1", 6443, 10250, "alice-node"),
                ("bob", "autonomy", "127.0.1.2", 6443, 10250, "bob-node"),
            ],
        ),
    ],
    ids=["center", "p2p"],
)
def test_what_a_new_network_looks_like(tmp_path, anywhere, topology, expected):
    nodes = network.choose(tmp_path, topology, ["alice", "bob"])
    told = []
    for node in nodes:
        place = network.addresses_of(node)
        name = node.agent.node_name if node.agent else ""
        told.append((node.domain, node.mode, place.address, place.api, place.agent, name))
    assert told == expected
    assert not any(node.agent.taint for node in nodes if node.agent)
    again = network.choose(tmp_path, "", [])
    assert again == nodes
    assert network.topology_of(network.members(tmp_path)) == topology


def test_a_domain_may_come_later_and_what_was_changed_by_hand_stays(tmp_path, anywhere):
    network.choose(tmp_path, "center", ["alice"])
    file = background.config_file(DomainPaths.of(tmp_path, "alice"))
    written = yaml.safe_load(file.read_text())
    written["agent"]["taint"] = True
    file.write_text(yaml.safe_dump(written))
    nodes = network.choose(tmp_path, "", ["alice", "carol"])
    assert [node.domain for node in nodes] == ["kuscia-system", "alice", "carol"]
    assert nodes[1].agent.taint is True
    assert network.addresses_of(nodes[2]).address == "127.0.1.3"
    assert [node.domain for node in network.members(tmp_path)] == ["kuscia-system", "alice", "carol"]


def test_one_root_has_one_topology(tmp_path, anywhere):
    network.choose(tmp_path, "p2p", ["alice"])
    with pytest.raises(CliError, match="is of topology p2p; remove it with `coterie down --purge`"):
        network.choose(tmp_path, "center", [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Alice", '"Alice" cannot be used'),
        ("alice,default", '"default" cannot be used'),
        ("alice,alice", "once"),
        ("kuscia-system", "needs not be named"),
    ],
)
def test_names_that_cannot_be_domains(cli, text, said):
    with pytest.raises(UsageError, match=said):
        network.check_domains(text)
    told = cli("up", "--domains", text)
    assert told.code == 2
    assert said in told.err
    assert list(cli.folder.iterdir()) == []


def test_a_master_has_the_name_it_was_given(tmp_path, anywhere):
    made = network.choose(tmp_path, "center", ["alice"], "east")
    assert [(node.domain, node.mode) for node in made] == [("east", "master"), ("alice", "lite")]
    again = network.choose(tmp_path, "", ["alice", "bob"])
    assert [(node.domain, node.mode) for node in again] == [("east", "master"), ("alice", "lite"), ("bob", "lite")]
    with pytest.raises(CliError, match="is called east"):
        network.choose(tmp_path, "center", ["alice"], "west")
    with pytest.raises(UsageError, match="needs not be named"):
        network.choose(tmp_path, "center", ["east"])
    with pytest.raises(UsageError, match="only for --topology center"):
        network.choose(tmp_path / "other", "p2p", ["alice"], "east")


def test_a_lite_gets_its_masters_address_and_later_a_token(tmp_path, anywhere, monkeypatch):
    monkeypatch.setattr(ports, "lowest_port", lambda: 0)
    master, alice = network.choose(tmp_path, "center", ["alice"])
    assert alice.gateway.master == MasterEndpoint("127.0.1.1", 1080, True)
    assert (alice.gateway.deploy_token, network.needs_token(alice), network.needs_token(master)) == (None, True, False)
    file = background.config_file(alice.paths)
    file.write_text(file.read_text() + "# mine\nlogLevel: DEBUG\n")
    for token in ("first", "second"):
        network.give_token(alice, token)
    found = config.load(file, root=tmp_path)
    assert (found.gateway.deploy_token.reveal(), found.log_level, found.notices) == ("second", "DEBUG", ())
    assert "# mine" in file.read_text()
    registration_file(alice.paths).write_text("{}")
    assert not network.needs_token(alice)
    assert node_health.plane_of(alice, [master, alice]) is master


def test_control_planes_of_one_machine_give_away_different_ports(tmp_path, anywhere):
    nodes = network.choose(tmp_path, "p2p", ["alice", "bob", "carol"])
    ranges = sorted(node.controllers.port_range for node in nodes)
    assert all(first < last for first, last in ranges)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(ranges))
    assert ranges[0][0] >= 20000 and ranges[-1][1] <= 32766


def test_who_has_routes_to_whom(tmp_path, anywhere):
    p2p = domain_invitation.network_routes(network.choose(tmp_path / "p2p", "p2p", ["alice", "bob"]))
    assert [(way.name, [plane.domain for plane in way.planes]) for way in p2p] == [
        ("alice -> bob", ["alice", "bob"]),
        ("bob -> alice", ["bob", "alice"]),
    ]
    made = domain_invitation.objects(p2p[0])
    port = {"name": "http", "protocol": "HTTP", "port": 1080, "isTLS": True}
    assert made["spec"]["endpoint"] == {"host": "127.0.1.2", "ports": [port]}
    center = domain_invitation.network_routes(network.choose(tmp_path / "center", "center", ["alice", "bob"]))
    assert [way.name for way in center] == [
        "alice -> kuscia-system", "bob -> kuscia-system", "alice -> bob", "bob -> alice",
    ]  # fmt: skip
    assert {plane.domain for way in center for plane in way.planes} == {"kuscia-system"}


def test_a_broken_file_is_named(cli):
    file = background.config_file(DomainPaths.of(cli.folder, "alice"))
    file.parent.mkdir(parents=True)
    file.write_text("mode: nonsense\n")
    for command in ("up", "down", "status"):
        told = cli(command, "--root", str(cli.folder))
        assert (told.code, str(file) in told.err, told.err.count("\n")) == (1, True, 1)


# Addresses.


def test_an_address_in_use_is_passed_over():
    first = next(network.free_addresses())
    with socket.create_server((first.address, network.AGENT_PORT)):
        second = next(network.free_addresses())
    assert second.address != first.address
    assert next(network.free_addresses({first.address})).address != first.address


def test_without_loopback_addresses_ports_are_free_ones(monkeypatch):
    monkeypatch.setattr(network, "_refusal", lambda address, port: 99)
    places = list(itertools.islice(network.free_addresses(), 2))
    assert {place.address for place in places} == {"127.0.0.1"}
    taken = [port for place in places for port in (place.api, place.agent, place.internal, place.external)]
    taken += [place.console for place in places]
    assert all(port > 1024 for port in taken)
    assert len(set(taken)) == len(taken)


def test_each_control_plane_has_a_console_of_its_own_where_all_share_an_address(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "_refusal", lambda address, port: 99)
    places = list(itertools.islice(network.free_addresses(), 2))
    consoles = []
    for name, place in zip(("alice", "bob"), places, strict=True):
        node = network.write(tmp_path, "p2p", name, place)
        consoles.append((node.console.address, node.console.port))
        assert node.console.required, "the port stays the same when the node starts again"
    assert consoles == [("127.0.0.1", place.console) for place in places]
    assert "console" not in network.document(tmp_path, "center", "carol", places[0]), "a lite has none"
    alone = network.NodeAddresses("127.0.1.7", network.API_PORT, network.AGENT_PORT)
    usual = network.write(tmp_path, "p2p", "dora", alone).console
    assert (usual.address, usual.port) == ("127.0.1.7", 8088)


def test_ports_that_are_not_ours_to_open_are_not_asked_for():
    assert network.usual_ports(0) == (6443, 10250, 8070, 8071, 8082, 8083, 8060, 8061, 9091, 8088, 80, 1080, 53)
    assert network.usual_ports(1024) == (
        6443,
        10250,
        8070,
        8071,
        8082,
        8083,
        8060,
        8061,
        9091,
        8088,
        10080,
        1080,
        10053,
    )


def test_two_at_once_wait_for_each_other(monkeypatch):
    monkeypatch.setattr(network, "_LOCK", f"\0coterie-test-{os.getpid()}")
    with network.address_lock(), socket.socket(socket.AF_UNIX) as other, pytest.raises(OSError):
        other.bind(network._LOCK)
    with network.address_lock(timeout=0), network.address_lock(timeout=0):
        pass  # somebody who never ends does not keep others away for ever


def test_an_address_on_its_way_is_not_offered_again(anywhere):
    with network.reserve_addresses(["127.0.1.1", "127.0.1.3", "127.0.1.1"]):
        found = [place.address for place in itertools.islice(network.free_addresses(), 2)]
    assert found == ["127.0.1.2", "127.0.1.4"]
    assert next(network.free_addresses()).address == "127.0.1.1"


# Processes.


@pytest.fixture
def sleeper(tmp_path):
    """A process that pretends to be the node of `alice`."""
    paths = DomainPaths.of(tmp_path, "alice").prepare()
    children = []

    def start(script: str = "import time; time.sleep(60)") -> DomainPaths:
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        children.append(child)
        background.pid_file(paths).write_text(f"{child.pid} {background._began(child.pid)}\n")
        return paths

    yield start
    for child in children:
        child.kill()
        child.communicate()


def test_a_process_is_known_by_its_number_and_its_beginning(sleeper):
    paths = sleeper()
    pid = background.running(paths)
    assert pid
    background.pid_file(paths).write_text(f"{pid} 12345\n")
    assert background.running(paths) == 0, "a stranger with the same number"
    for text in ("", "x", "1 2 3", "999999999 5"):
        background.pid_file(paths).write_text(text)
        assert background.running(paths) == 0


def test_stopping_ends_it_and_takes_the_file_away(sleeper):
    paths = sleeper()
    assert background.stop([paths], 5) == [paths]
    assert background.running(paths) == 0
    assert not background.pid_file(paths).exists()
    assert background.stop([paths], 5) == []


def test_one_that_does_not_listen_is_killed(sleeper, tmp_path):
    ready = tmp_path / "ready"
    paths = sleeper(
        f"import signal, time, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    )
    while not ready.exists():
        assert background.running(paths)
    assert background._signal([paths], signal.SIGTERM, 0.1) == [paths]
    assert background.stop([paths], 0.2) == [paths]
    assert background.running(paths) == 0


def test_last_words(tmp_path):
    paths = DomainPaths.of(tmp_path, "alice").prepare()
    assert background.log_tail(paths) == []
    background.log_file(paths).write_bytes(b"".join(b"line %d \xff\n" % i for i in range(30)))
    assert background.log_tail(paths, 2) == ["line 28 \ufffd", "line 29 \ufffd"]


async def test_where_no_pod_ever_ran_nothing_is_started_to_stop_them(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(halt, "SupervisorClient", None)
    assert await halt.halt(tmp_path / "nowhere", "node", 1.0) == 0
    (tmp_path / "state").mkdir()
    assert await halt.halt(tmp_path, "node", 1.0, forget=True) == 0


@pytest.mark.parametrize("losses", [1, 2, 3])
async def test_a_keeper_that_goes_by_itself_meanwhile_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    (tmp_path / "state" / "pod").mkdir(parents=True)
    tries = []

    async def once(directory: Path, group: str, grace: float, *, forget: bool) -> int:
        tries.append(directory)
        if len(tries) <= losses:
            raise halt.ConnectionLost("gone")
        return 2

    monkeypatch.setattr(halt, "_halt_once", once)
    if losses < 3:
        assert await halt.halt(tmp_path, "node", 1.0) == 2
    else:
        with pytest.raises(halt.RuntimeFailure, match="went away"):
            await halt.halt(tmp_path, "node", 1.0)


# The commands, where nothing has to start.


def test_down_of_nothing(cli):
    told = cli("down")
    assert (told.code, told.err) == (0, "")
    assert told.out == f"There is no network under {cli.folder / '.coterie'}.\n"
    assert cli("down", "--purge", "--keep-pods").code == 2


def test_a_network_that_is_down(cli, anywhere):
    root = cli.folder / "net"
    network.choose(root, "p2p", ["alice", "bob"])
    told = cli("status", "--root", "net")
    assert told.code == 1
    assert [line.split() for line in told.lines] == [
        ["DOMAIN", "MODE", "API", "KUSCIAAPI", "NODE", "STATUS"],
        ["alice", "autonomy", "https://127.0.1.1:6443", "https://127.0.1.1:8082", "alice-node", "Stopped"],
        ["bob", "autonomy", "https://127.0.1.2:6443", "https://127.0.1.2:8082", "bob-node", "Stopped"],
    ]
    assert "not ready: alice, bob" in told.err
    as_yaml = yaml.safe_load(cli("status", "--root", "net", "-o", "yaml").out)
    assert [(each["domain"], each["running"]) for each in as_yaml["domains"]] == [("alice", False), ("bob", False)]


def test_purge_leaves_what_it_does_not_know(cli, monkeypatch):
    root = cli.folder / "net"
    monkeypatch.setattr(network, "_refusal", lambda address, port: 99)
    network.choose(root, "p2p", ["alice"])
    (root / "mine").mkdir()
    told = cli("down", "--root", "net", "--purge")
    assert (told.code, told.out) == (0, "alice was not running, files removed.\n")
    assert [path.name for path in root.iterdir()] == ["mine"]


def test_files_of_a_node_that_somebody_else_runs_stay(cli, monkeypatch):
    monkeypatch.setattr(network, "_refusal", lambda address, port: 99)
    (node,) = network.choose(cli.folder / "net", "p2p", ["alice"])
    place = network.addresses_of(node)
    with socket.create_server((place.address, place.api)):
        told = cli("down", "--root", "net", "--purge")
    assert told.code == 1
    assert "something that `coterie up` did not start serves alice" in told.err
    assert background.config_file(node.paths).exists()


def test_a_node_that_does_not_start_shows_its_last_words(cli, monkeypatch):
    monkeypatch.setattr(network, "_refusal", lambda address, port: 99)
    (node,) = network.choose(cli.folder / "net", "p2p", ["alice"])
    with socket.create_server(("127.0.0.1", node.api.port)):
        told = cli("up", "--root", "net")
    assert told.code == 1
    assert told.err.startswith("Error: alice did not start, so all was stopped again.\n")
    assert f"The end of {background.log_file(node.paths)}:" in told.err
    assert "ddress already in use" in told.err
    assert background.running(node.paths) == 0


def test_waiting_has_an_end(cli, monkeypatch):
    monkeypatch.setattr(network, "_refusal", lambda address, port: 99)
    told = cli("up", "--root", "net", "--topology", "p2p", "--domains", "alice", "--wait", "0.1")
    assert told.code == 1
    assert "Error: alice not ready within 0.1 s, so all was stopped again." in told.err
    assert background.running(DomainPaths.of(cli.folder / "net", "alice")) == 0


def test_a_node_is_gone_with_its_last_thread(sleeper):
    """Its first one may end before: what another holds open until then would be taken for a stranger's."""
    script = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[60]).start(); "
    paths = sleeper(script + "ctypes.CDLL(None).pthread_exit(None)")
    stat = Path(f"/proc/{background.running(paths)}/stat")
    deadline = time.monotonic() + 30
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert background.running(paths)
    assert background.stop([paths], 0.1) == [paths]
    assert background.running(paths) == 0


def test_domains_have_ranges_of_their_own(tmp_path: Path) -> None:
    nodes = network.choose(tmp_path, "p2p", ["alice", "bob"])
    found = [(node.network.pod_cidr, node.network.service_cidr, node.agent.pod_cidr) for node in nodes if node.agent]
    pods, services, own = zip(*found, strict=True)
    assert len({*pods, *services}) == 4
    assert all(first.startswith(pods[at].removesuffix("0/16")) for at, first in enumerate(own))
    (carol,) = (node for node in network.choose(tmp_path, "", ["carol"]) if node.domain == "carol")
    assert carol.network.pod_cidr not in pods


def test_lites_have_ranges_of_their_own(tmp_path: Path) -> None:
    nodes = network.choose(tmp_path, "center", ["alice", "bob"])
    own = [node.agent.pod_cidr for node in nodes if node.agent is not None]
    assert len(set(own)) == 2


def test_free_ranges_avoid_those_that_are_known_and_prefer_those_without_a_route() -> None:
    numbers = network.free_ranges(["100.96.0.0/20"], ["0.0.0.0/0", "100.97.16.0/20", "100.114.0.0/16", "10.0.0.0/8"])
    assert [next(numbers) for _ in range(3)] == [3, 4, 5]
    assert len({next(numbers) for _ in range(network.RANGES)}) > 10  # never ends
