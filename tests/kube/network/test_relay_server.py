"""The relay's loop with real sockets: both directions, ends, resets, limits, slow readers, configuration."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from relay_kit import (
    SECONDS,
    RelayThread,
    Target,
    connect,
    endpoint,
    eventually,
    free_address,
    open_descriptors,
    read_all,
    read_exactly,
    relay_process,
    relay_thread,
)

from coterie.kube.network.rootless import client
from coterie.kube.network.rootless.client import RelayError
from coterie.kube.network.rootless.egress import EgressPolicy
from root_kit import needs_root

GATEWAY, PODS = "127.0.0.1", "100.96.0.0/16"


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    made = Target(tmp_path / "envoy.sock")
    yield made
    made.close()


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayThread]:
    with relay_thread(tmp_path) as made:
        yield made


def inward(relay: RelayThread, target: Target, host: str = "127.0.0.1") -> str:
    address = free_address(host)
    relay.configure(("listen", address), ("target", target.path))
    return address


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Outside:
    """A server outside, a listener "inside", and a relay that believes every connection was meant for the server."""

    def __init__(self, directory: Path) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(SECONDS)
        self.inner = socket.create_server(("127.0.0.1", 0))
        self.destination: tuple[str, int] = self.server.getsockname()
        self.relay = RelayThread(directory, destination_of=lambda _: self.destination, connect_seconds=0.5)
        self.relay.configure(("inner", "given"), ("inner-key", "netns-1"), given=(self.inner.fileno(),))

    def dial(self) -> socket.socket:
        return socket.create_connection(self.inner.getsockname(), SECONDS)

    def accept(self) -> socket.socket:
        connection, _ = self.server.accept()
        connection.settimeout(SECONDS)
        return connection

    def close(self) -> None:
        self.relay.quit()
        self.relay.join()
        self.server.close()
        self.inner.close()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    made = Outside(tmp_path)
    yield made
    made.close()


def test_a_connection_comes_in_with_its_true_addresses(relay: RelayThread, target: Target) -> None:
    address = inward(relay, target)
    with connect(address) as caller:
        inner, source, destination = target.accept()
        assert source == caller.getsockname() and destination == endpoint(address)
        with inner:
            caller.sendall(b"question")
            assert read_exactly(inner, 8) == b"question"
            inner.sendall(b"answer")
            assert read_exactly(caller, 6) == b"answer"
    status = relay.status()
    assert (status.number("inward-bytes-sent"), status.number("inward-bytes-received")) == (8, 6)


def test_an_address_may_have_a_target_of_its_own(relay: RelayThread, target: Target, tmp_path: Path) -> None:
    other = Target(tmp_path / "other.sock")
    first, second = free_address(), free_address()
    relay.configure(
        ("listen", first), ("target", target.path), ("listen", second), ("target-of", f"{second} {other.path}")
    )
    for address, expected in ((first, target), (second, other), (first, target)):
        with connect(address) as caller:
            inner, source, destination = expected.accept()
            assert source == caller.getsockname() and destination == endpoint(address)
            inner.close()
    other.close()


def test_ipv6(relay: RelayThread, target: Target) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        address = f"[::1]:{probe.getsockname()[1]}"
    relay.configure(("listen", address), ("target", target.path))
    with connect(address) as caller:
        inner, source, _ = target.accept()
        assert source == caller.getsockname()[:2]
        inner.close()


def test_one_direction_ends_before_the_other(relay: RelayThread, target: Target) -> None:
    with connect(inward(relay, target)) as caller:
        inner, _, _ = target.accept()
        with inner:
            caller.sendall(b"all of it")
            caller.shutdown(socket.SHUT_WR)
            assert read_all(inner) == b"all of it"
            inner.sendall(b"late answer")
            inner.shutdown(socket.SHUT_WR)
            assert read_all(caller) == b"late answer"
    eventually(lambda: relay.status().number("inward-connections") == 0)


def test_large_bodies_arrive_whole_in_both_directions(relay: RelayThread, target: Target) -> None:
    data = os.urandom(1 << 20) * 8
    with connect(inward(relay, target)) as caller:
        inner, _, _ = target.accept()
        with inner:
            for sender, receiver in ((caller, inner), (inner, caller)):
                sender.setblocking(False)
                at, got = 0, bytearray()
                while len(got) < len(data):
                    try:
                        at += sender.send(data[at : at + 262144]) if at < len(data) else 0
                    except BlockingIOError:
                        pass
                    else:
                        if at < len(data):
                            continue
                    got += receiver.recv(1 << 20)
                assert got == data
                sender.settimeout(SECONDS)


@pytest.mark.parametrize("who", ["caller", "server"])
def test_a_reset_is_passed_on_as_a_reset(outside: Outside, who: str) -> None:
    caller = outside.dial()
    server = outside.accept()
    caller.sendall(b"x")
    assert server.recv(1) == b"x"
    ends, other = (caller, server) if who == "caller" else (server, caller)
    reset(ends)
    with pytest.raises(ConnectionResetError):
        other.recv(1)
    other.close()
    eventually(lambda: outside.relay.status().number("outward-connections") == 0)


def test_a_caller_that_resets_ends_the_target_too(relay: RelayThread, target: Target) -> None:
    caller = connect(inward(relay, target))
    inner, _, _ = target.accept()
    reset(caller)
    with contextlib.suppress(ConnectionResetError):
        assert inner.recv(1) == b""
    inner.close()


def test_a_target_that_dies_ends_the_caller(relay: RelayThread, target: Target) -> None:
    with connect(inward(relay, target)) as caller:
        inner, _, _ = target.accept()
        inner.close()
        assert read_all(caller) == b""
        eventually(lambda: relay.status().number("inward-connections") == 0)


def test_an_answer_before_the_end_of_the_question_arrives(relay: RelayThread, target: Target) -> None:
    """As a server that refuses an upload: it answers and closes while the caller still sends."""
    with connect(inward(relay, target)) as caller:
        inner, _, _ = target.accept()
        inner.sendall(b"413 too large")
        inner.close()
        assert read_exactly(caller, 13) == b"413 too large"


def test_a_slow_reader_holds_little_and_nobody_else(relay: RelayThread, target: Target) -> None:
    address = inward(relay, target)
    with connect(address) as greedy:
        stuck, _, _ = target.accept()
        greedy.setblocking(False)
        sent, chunk, quiet = 0, bytes(1 << 16), 0
        while quiet < 20:
            try:
                sent += greedy.send(chunk)
                quiet = 0
            except BlockingIOError:
                quiet += 1
                relay.status()
        assert sent < 64 << 20, "the relay takes what nobody reads"
        assert relay.status().number("pipes") <= 2
        with connect(address) as other:
            inner, _, _ = target.accept()
            with inner:
                other.sendall(b"quick")
                assert read_exactly(inner, 5) == b"quick"
        received = 0
        while received < sent:
            received += len(stuck.recv(1 << 20))
        stuck.close()


def test_a_target_that_is_not_there_yet_is_waited_for(relay: RelayThread, tmp_path: Path) -> None:
    address = free_address()
    relay.configure(("listen", address), ("target", tmp_path / "later.sock"))
    with connect(address) as caller:
        caller.sendall(b"early")
        target = Target(tmp_path / "later.sock")
        inner, _, _ = target.accept()
        assert read_exactly(inner, 5) == b"early"
        inner.close()
        target.close()


def test_a_target_that_never_comes_resets_the_caller(tmp_path: Path) -> None:
    address = free_address()
    with relay_thread(tmp_path, connect_seconds=0.1) as relay:
        relay.configure(("listen", address), ("target", tmp_path / "never.sock"))
        with pytest.raises(ConnectionResetError), connect(address) as caller:
            caller.recv(1)
        assert relay.status().number("failed") == 1
        assert relay.status().number("inward-connections") == 0


def test_a_target_deep_in_directories(relay: RelayThread, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["directory-with-a-long-name"] * 6)
    deep.mkdir(parents=True)
    near = Target(tmp_path / "n.sock")
    os.rename(tmp_path / "n.sock", deep / "envoy.sock")
    address = free_address()
    relay.configure(("listen", address), ("target", deep / "envoy.sock"))
    with connect(address):
        near.accept()[0].close()
    near.close()


def test_the_limit_of_connections_makes_others_wait(tmp_path: Path, target: Target) -> None:
    with relay_thread(tmp_path, max_connections=2) as relay:
        address = inward(relay, target)
        callers = [connect(address) for _ in range(4)]
        served = [target.accept()[0] for _ in range(2)]
        assert relay.status().number("inward-connections") == 2
        for each in callers[:2]:
            each.close()
        for each in served:
            each.close()
        for _ in range(2):
            target.accept()[0].close()
        for each in callers[2:]:
            assert read_all(each) == b""
            each.close()


def test_the_limit_of_one_source_resets_what_is_more(tmp_path: Path, target: Target) -> None:
    with relay_thread(tmp_path, max_per_source=1) as relay:
        address = inward(relay, target)
        with connect(address):
            with pytest.raises(ConnectionResetError), connect(address) as second:
                second.recv(1)
            with socket.socket() as other:
                other.bind(("127.0.0.2", 0))
                other.connect(endpoint(address))
                for _ in range(2):
                    target.accept()[0].close()
        assert relay.status().number("refused") == 1


def test_two_thousand_connections_leave_no_descriptor(relay: RelayThread, target: Target) -> None:
    address = inward(relay, target)
    relay.status()
    before = open_descriptors()
    for round_ in range(40):
        callers = [connect(address) for _ in range(50)]
        inner = [target.accept()[0] for _ in callers]
        for number, (caller, server) in enumerate(zip(callers, inner, strict=True)):
            caller.sendall(b"some bytes")
            if number % 3 == 0:
                reset(caller)
            elif round_ % 2:
                server.close()
        for each in (*callers, *inner):
            each.close()
        eventually(lambda: relay.status().number("inward-connections") == 0)
    eventually(lambda: open_descriptors() <= before + 2 * 16, 2)  # with the pipes that are kept
    assert relay.status().number("inward-accepted") == 2000
    assert relay.status().number("pipes") <= 16


def test_it_goes_on_when_there_are_no_descriptors_left(tmp_path: Path, target: Target) -> None:
    """The limit of the real process is lowered while it runs."""
    address = free_address()
    with relay_process(tmp_path) as pid:
        client.exchange(tmp_path, "configure", (("listen", address), ("target", target.path)))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (24, 4096))
        callers = [connect(address) for _ in range(40)]
        for each in callers:
            each.sendall(b"x")
        eventually(lambda: "cannot accept" in (tmp_path / "relay.log").read_text())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (4096, 4096))
        answered = 0
        for each in callers:
            each.settimeout(SECONDS)
        for _ in callers:
            target._socket.settimeout(1)
            try:
                inner, _, _ = target.accept()
            except TimeoutError:
                break
            assert read_exactly(inner, 1) == b"x"
            answered += 1
            inner.close()
        assert answered >= 35, "those that were not accepted at first wait, and only what had begun may fail"
        for each in callers:
            each.close()
        eventually(lambda: client.read_status(tmp_path).number("inward-connections") == 0)


def test_outward(outside: Outside) -> None:
    outside.relay.configure(("inner", "keep"), ("inner-key", "netns-1"), ("gateway", GATEWAY), ("pod-cidr", PODS))
    with outside.dial() as caller, outside.accept() as server:
        caller.sendall(b"question")
        assert read_exactly(server, 8) == b"question"
        server.sendall(b"answer")
        server.shutdown(socket.SHUT_WR)
        assert read_all(caller) == b"answer"
    assert outside.relay.status().inner_key == "netns-1"


def test_outward_to_nobody_is_reset(outside: Outside) -> None:
    outside.destination = endpoint(free_address())
    with pytest.raises(ConnectionResetError), outside.dial() as caller:
        caller.recv(1)
    assert outside.relay.status().number("failed") == 1


def test_a_connection_that_was_not_redirected_is_refused(outside: Outside) -> None:
    outside.destination = outside.inner.getsockname()
    with pytest.raises(ConnectionResetError), outside.dial() as caller:
        caller.recv(1)
    assert outside.relay.status().number("refused") == 1


def test_outward_of_a_pod_follows_the_policy(tmp_path: Path) -> None:
    """127.0.0.1 counts as a pod here: the policy's answers are tested elsewhere, here that they are followed."""

    class Pods(EgressPolicy):
        def is_own(self, peer: str) -> bool:
            return False

        def refusal(self, peer: str, destination: tuple[str, int], is_machine_address: Callable[[str], bool]) -> str:
            return "the address is reserved"

    made = Outside(tmp_path)
    made.relay._server._policy = Pods()
    with pytest.raises(ConnectionResetError), made.dial() as caller:
        caller.recv(1)
    assert any("the address is reserved" in line for line in made.relay.log)
    made.close()


def test_the_real_destination_is_asked_of_the_kernel(tmp_path: Path) -> None:
    """Without nftables in between the kernel knows none (or, with connection tracking, our own address): refused either way."""
    with relay_thread(tmp_path) as relay, socket.create_server(("127.0.0.1", 0)) as inner:
        relay.configure(("inner", "given"), given=(inner.fileno(),))
        with pytest.raises(ConnectionResetError), socket.create_connection(inner.getsockname(), SECONDS) as caller:
            caller.recv(1)


def test_a_new_configuration_cuts_nothing(relay: RelayThread, target: Target, tmp_path: Path) -> None:
    first = inward(relay, target)
    with connect(first) as caller:
        inner, _, _ = target.accept()
        second, other = free_address(), Target(tmp_path / "other.sock")
        relay.configure(("listen", second), ("target", other.path))
        assert relay.status().listeners == (second,)
        with pytest.raises(ConnectionRefusedError):
            connect(first)
        with connect(second):
            other.accept()[0].close()
        caller.sendall(b"still here")
        assert read_exactly(inner, 10) == b"still here"
        inner.close()
        other.close()


def test_a_port_that_is_taken_changes_nothing(relay: RelayThread, target: Target) -> None:
    first = inward(relay, target)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        free = free_address()
        with pytest.raises(OSError, match=f"cannot listen on {address}: Address already in use") as caught:
            relay.configure(("listen", free), ("listen", address), ("target", "/nowhere"))
    assert caught.value.errno == errno.EADDRINUSE
    assert relay.status().listeners == (first,)
    with pytest.raises(ConnectionRefusedError):
        connect(free)
    with connect(first):
        target.accept()[0].close()


@pytest.mark.parametrize(
    "pairs",
    [
        (("listen", "localhost:80"),),
        (("inner", "given"),),
        (("inner", "perhaps"),),
        (("pod-cidr", "100.96.0.0/99"),),
        (("gateway", "gw"),),
        (("listen", "127.0.0.1:1"), ("listen", "127.0.0.1:1")),
    ],
)
def test_a_wrong_configuration_is_refused(relay: RelayThread, pairs: tuple[tuple[str, object], ...]) -> None:
    with pytest.raises(RelayError):
        relay.configure(*pairs)
    with pytest.raises(RelayError, match="no such request"):
        client.exchange(relay.directory, "sing")


def test_descriptors_of_refused_requests_are_closed(relay: RelayThread) -> None:
    relay.status()
    before = open_descriptors()
    with socket.create_server(("127.0.0.1", 0)) as extra:
        for _ in range(5):
            with pytest.raises(RelayError):
                relay.configure(("listen", "x"), ("inner", "given"), given=(extra.fileno(),))
    eventually(lambda: open_descriptors() <= before)


def test_quit_lets_connections_end(relay: RelayThread, target: Target) -> None:
    address = inward(relay, target)
    with connect(address) as caller:
        inner, _, _ = target.accept()
        relay.quit(drain=30)
        with pytest.raises(ConnectionRefusedError):
            connect(address)
        caller.sendall(b"last words")
        assert read_exactly(inner, 10) == b"last words"
        inner.close()
    relay.join()


def test_a_relay_that_nobody_can_reach_ends(tmp_path: Path) -> None:
    """Its directory was removed: no node could find it again, or end it."""
    there = True
    with relay_thread(tmp_path, is_reachable=lambda: there, reachable_seconds=0.02) as relay:
        address = free_address()
        relay.configure(("listen", address))
        there = False
        relay.join()
        with pytest.raises(ConnectionRefusedError):
            connect(address)


def test_quit_at_once_resets(relay: RelayThread, target: Target) -> None:
    with connect(inward(relay, target)) as caller:
        inner, _, _ = target.accept()
        relay.quit()
        relay.join()
        with pytest.raises(ConnectionResetError):
            caller.recv(1)
        inner.close()


@needs_root("becomes another user")
def test_another_user_cannot_control_it(tmp_path: Path) -> None:
    """Even where the permissions of the files would let it."""
    with relay_thread(tmp_path) as relay:
        os.chmod(tmp_path / "relay.sock", 0o666)
        os.chmod(tmp_path, 0o755)
        child = os.fork()
        if not child:
            code = 1
            try:
                os.chdir(tmp_path)
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                os.setuid(65534)
                connection.settimeout(5)
                connection.connect("relay.sock")
                try:
                    connection.send(b"quit")
                    code = 0 if connection.recv(100) == b"" else 2
                except (BrokenPipeError, ConnectionResetError):
                    code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert relay.status().pid
