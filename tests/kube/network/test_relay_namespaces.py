"""The relay as an ordinary user, for a domain in namespaces of that user, with real nftables redirection."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ordinary_user import USER, Child, own_namespaces
from relay_kit import Target, connect, endpoint, free_address, read_exactly

from coterie.kube.network.rootless import messages
from coterie.kube.network.rootless.server import RelayServer

OUTSIDE = "127.0.1.9"
"""An address of the machine; inside, nftables redirects it as it would any other."""
ELSEWHERE = "203.0.113.9"
GATEWAY, POD, PODS = "100.96.0.1", "100.96.0.7", "100.96.0.0/16"
INNER_PORT = 15001
_NETWORK = (
    f"ip addr add {GATEWAY}/32 dev lo",
    f"ip addr add {POD}/32 dev lo",
    f"ip route add default dev lo src {GATEWAY}",
)
_RULES = f"""
table inet coterie {{
  chain out {{
    type nat hook output priority -100;
    ip daddr {{ {OUTSIDE}, {ELSEWHERE}, 169.254.169.254 }} meta l4proto tcp redirect to :{INNER_PORT}
  }}
}}
"""


def _network_inside() -> None:
    own_namespaces()
    for line in _NETWORK:
        subprocess.run(line.split(), check=True)
    subprocess.run(("nft", "-f", "-"), input=_RULES.encode(), check=True)


def _allowed() -> bool:
    if not shutil.which("nft") or not shutil.which("ip"):
        return False
    child = Child(lambda to_test: _network_inside())
    child.socket.close()
    return child.exit_code() == 0


pytestmark = pytest.mark.skipif(not _allowed(), reason="needs user namespaces, ip and nft")


def _inside(to_test: socket.socket) -> None:
    """Hands out the listening socket, then dials what it is told to: `source destination:port`, and says how it went."""
    _network_inside()
    with socket.create_server(("0.0.0.0", INNER_PORT)) as listener:
        socket.send_fds(to_test, [b"listener"], [listener.fileno()])
    while order := to_test.recv(200):
        source, address = order.decode().split()
        try:
            with socket.create_connection(endpoint(address), 10, (source, 0)) as connection:
                connection.sendall(b"from inside")
                to_test.send(b"ok " + read_exactly(connection, 7))
        except OSError as error:
            to_test.send(f"failed {type(error).__name__}".encode())


class Domain:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.inside = Child(_inside)
        data, handles, _, _ = socket.recv_fds(self.inside.socket, 100, 1)
        assert data == b"listener", "the child failed"
        self.relay = Child(self._relay)
        assert self.relay.socket.recv(5) == b"ready"
        self.address = free_address()
        self.target = Target(directory / "envoy.sock")
        os.chown(directory / "envoy.sock", USER, USER)
        self.configure(handles)

    def _relay(self, to_test: socket.socket) -> None:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        control.bind(str(self.directory / messages.SOCKET_NAME))
        control.listen(4)
        log = (self.directory / "log").open("a", buffering=1)
        server = RelayServer(control, log=lambda text: print(text, file=log))
        to_test.send(b"ready")
        server.run()

    def configure(self, handles: list[int], *, egress: bool = False) -> None:
        fields = (
            ("listen", self.address),
            ("target", self.target.path),
            ("inner", "given" if handles else "keep"),
            ("gateway", GATEWAY),
            ("pod-cidr", PODS),
            ("egress", "yes" if egress else "no"),
        )
        assert self.ask("configure", fields, handles)[0] == "ok"
        for each in handles:
            os.close(each)

    def ask(
        self, verb: str, fields: tuple[tuple[str, object], ...] = (), handles: list[int] | None = None
    ) -> tuple[str, list[tuple[str, str]]]:
        """Our own client would not speak with a relay of another user, and the test may be root."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(str(self.directory / messages.SOCKET_NAME))
            socket.send_fds(connection, [messages.encode(verb, fields)], handles or [])
            return messages.decode(connection.recv(65536))

    def dial(self, source: str, address: str) -> None:
        self.inside.socket.send(f"{source} {address}".encode())

    def outcome(self) -> str:
        return self.inside.socket.recv(100).decode()

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def close(self) -> None:
        self.relay.kill()
        self.inside.kill()
        self.target.close()


@pytest.fixture
def domain() -> Iterator[Domain]:
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, USER, USER)
        os.chmod(name, 0o700)
        made = Domain(Path(name))
        yield made
        made.close()


@pytest.fixture
def outside() -> Iterator[socket.socket]:
    with socket.create_server((OUTSIDE, 0)) as server:
        server.settimeout(10)
        yield server


def test_inward(domain: Domain) -> None:
    with connect(domain.address) as caller:
        server, source, destination = domain.target.accept()
        assert source == caller.getsockname() and destination == endpoint(domain.address)
        caller.sendall(b"hello")
        assert read_exactly(server, 5) == b"hello"
        server.close()


@pytest.mark.parametrize("source", ["127.0.0.1", GATEWAY])
def test_the_domain_reaches_the_outside_at_the_address_it_dialled(
    domain: Domain, outside: socket.socket, source: str
) -> None:
    domain.dial(source, f"{OUTSIDE}:{outside.getsockname()[1]}")
    connection, _ = outside.accept()
    with connection:
        connection.settimeout(10)
        assert read_exactly(connection, 11) == b"from inside"
        connection.sendall(b"outside")
        assert domain.outcome() == "ok outside"


def test_a_pod_reaches_nothing_while_egress_is_disabled(domain: Domain) -> None:
    domain.dial(POD, f"{ELSEWHERE}:443")
    assert domain.outcome() == "failed ConnectionResetError"
    assert f"refused a connection of {POD} to {ELSEWHERE}:443: egress of pods is disabled" in domain.log()


@pytest.mark.parametrize("host", [OUTSIDE, "169.254.169.254"])
def test_a_pod_with_egress_reaches_neither_loopback_nor_metadata(
    domain: Domain, outside: socket.socket, host: str
) -> None:
    domain.configure([], egress=True)
    domain.dial(POD, f"{host}:{outside.getsockname()[1]}")
    assert domain.outcome() == "failed ConnectionResetError"
    assert "the address is reserved" in domain.log()


def test_the_listener_inside_is_reached_by_redirection_only(domain: Domain) -> None:
    domain.dial(GATEWAY, f"{GATEWAY}:{INNER_PORT}")
    assert domain.outcome() == "failed ConnectionResetError"
    assert "connection of" in domain.log()


def test_the_domains_processes_may_go_and_the_relay_stays(domain: Domain) -> None:
    os.kill(domain.inside.pid, signal.SIGKILL)
    assert messages.one(domain.ask("status")[1], "pid") == str(domain.relay.pid)
    with connect(domain.address):
        domain.target.accept()[0].close()
