"""Connections carried from a held listener to a Unix socket of this process."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coterie.base import connection_pump, listener_handover
from coterie.base.connection_pump import ConnectionPump, private_address

_TIMEOUT = 30.0
Handler = Callable[[socket.socket], None]


class Server:
    """Threads that serve a Unix socket."""

    def __init__(self, path: Path, handle: Handler) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        with private_address(path) as address:
            self.listener.bind(address.removeprefix("unix:"))
        self.listener.listen(512)
        self.handle = handle
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            self.handle(connection)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def echo(connection: socket.socket) -> None:
    while data := connection.recv(1 << 16):
        connection.sendall(data)


@contextmanager
def pumped(
    directory: Path, handle: Handler = echo, **options: Any
) -> Iterator[tuple[ConnectionPump, Callable[[], socket.socket]]]:
    path = directory / "s"
    server = Server(path, handle)
    listener = listener_handover.listen("127.0.0.1", 0)
    where = listener.getsockname()
    pump = ConnectionPump(listener, path, **options)
    pump.start()
    try:
        yield pump, lambda: socket.create_connection(where, timeout=_TIMEOUT)
    finally:
        pump.close()
        server.close()


def until(question: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not question():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def received(connection: socket.socket) -> bytes:
    parts = []
    while data := connection.recv(1 << 20):
        parts.append(data)
    return b"".join(parts)


def test_the_socket_of_the_server_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with pumped(tmp_path):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
            assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_the_end_of_one_direction_leaves_the_other_open(tmp_path: Path) -> None:
    def reverse(connection: socket.socket) -> None:
        connection.sendall(received(connection)[::-1])

    with pumped(tmp_path, reverse) as (pump, connect), connect() as client:
        sent = os.urandom(5_000_000)
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert received(client) == sent[::-1]
        until(lambda: pump.connections == 0)


def test_much_that_waits_for_a_slow_reader_arrives_after_the_server_has_closed(tmp_path: Path) -> None:
    sent = os.urandom(3_000_000)
    with pumped(tmp_path, lambda connection: connection.sendall(sent)) as (pump, connect), connect() as client:
        until(lambda: pump.connections == 1)
        time.sleep(0.1)
        assert received(client) == sent
        client.close()
        until(lambda: pump.connections == 0)


def test_slow_and_silent_clients_do_not_hold_up_others_and_nothing_spins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, real = 0, select.epoll

    class Counted:
        def __init__(self) -> None:
            self._epoll = real()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._epoll, name)

        def poll(self, timeout: float | None) -> list[tuple[int, int]]:
            nonlocal rounds
            rounds += 1
            return self._epoll.poll(timeout)

    monkeypatch.setattr(connection_pump.select, "epoll", Counted)
    gone = threading.Event()

    def flood(connection: socket.socket) -> None:
        """Writes what the client never reads, and closes."""
        if connection.recv(1) == b"f":
            connection.settimeout(0.3)
            try:
                connection.sendall(bytes(50_000_000))
            except TimeoutError:
                gone.set()
        else:
            echo(connection)

    with pumped(tmp_path, flood) as (pump, connect), connect() as silent, connect() as slow:
        slow.sendall(b"f")
        assert gone.wait(_TIMEOUT)
        for _ in range(20):
            with connect() as client:
                client.sendall(b"eping")
                assert client.recv(4) == b"ping"
        until(lambda: pump.connections == 2)
        before = rounds
        time.sleep(0.3)  # the server of the slow one has hung up, which epoll would report again and again
        assert rounds - before < 5
        silent.sendall(b"ehello")
        assert silent.recv(5) == b"hello"


def test_who_is_gone_ends_the_other_side(tmp_path: Path) -> None:
    ended = threading.Semaphore(0)

    def watch(connection: socket.socket) -> None:
        connection.sendall(b"x")
        try:
            while connection.recv(100):
                pass
        except ConnectionError:
            pass
        ended.release()

    with pumped(tmp_path, watch) as (pump, connect):
        client = connect()
        assert client.recv(1) == b"x"
        client.close()
        assert ended.acquire(timeout=_TIMEOUT)
        client = connect()
        assert client.recv(1) == b"x"
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()  # with a reset
        assert ended.acquire(timeout=_TIMEOUT)
        until(lambda: pump.connections == 0)


def test_thousands_of_connections_leave_no_descriptor(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    with pumped(tmp_path) as (pump, connect):
        idle = descriptors()
        for index in range(3000):
            with connect() as client:
                if index % 3 == 0:
                    continue
                client.sendall(b"ping")
                if index % 3 == 1:
                    assert client.recv(4) == b"ping"
        until(lambda: pump.connections == 0)
        until(lambda: descriptors() <= idle)  # fewer: what tests before this one left is collected
        left = [connect() for _ in range(50)]
        until(lambda: pump.connections == 50)
    for each in left:
        assert each.recv(1) == b""
        each.close()
    until(lambda: descriptors() == before)


def test_more_than_the_limit_wait_their_turn(tmp_path: Path) -> None:
    with pumped(tmp_path, limit=2) as (pump, connect):
        first, second, third = connect(), connect(), connect()
        with second, third:
            with first:
                until(lambda: pump.connections == 2)
                third.sendall(b"ping")
                first.sendall(b"ping")
                assert first.recv(4) == b"ping"
                assert pump.connections == 2
            assert third.recv(4) == b"ping"


def test_after_stop_accepting_connections_wait_in_the_backlog_and_those_that_are_open_go_on(tmp_path: Path) -> None:
    with pumped(tmp_path) as (pump, connect), connect() as client:
        until(lambda: pump.connections == 1)
        pump.stop_accepting()
        with connect() as late:
            client.sendall(b"ping")
            assert client.recv(4) == b"ping"
            assert pump.connections == 1
            held = pump._listener.dup()
            pump.close()
            held.setblocking(True)
            with held, held.accept()[0] as accepted:
                assert accepted.getpeername() == late.getsockname()


def test_a_moment_without_descriptors_is_survived_and_nobody_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pump, "_RETRY_SECONDS", 0.05)
    failures = [errno.EMFILE, errno.ENFILE]

    class Scarce(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            if failures:
                raise OSError(failures.pop(), "too many open files")
            return super().accept()

    listener = listener_handover.listen("127.0.0.1", 0)
    scarce = Scarce(fileno=listener.detach())
    server = Server(tmp_path / "s", echo)
    pump = ConnectionPump(scarce, tmp_path / "s")
    with socket.create_connection(scarce.getsockname(), timeout=_TIMEOUT) as client:
        pump.start()
        client.sendall(b"ping")
        assert client.recv(4) == b"ping"
        assert not failures
    pump.close()
    server.close()


_IMPOSTOR = """
import os, socket, sys
os.unlink(sys.argv[1])
other = socket.socket(socket.AF_UNIX)
other.bind(sys.argv[1])
other.listen()
print("listening", flush=True)
print(other.accept()[0].recv(100).decode(), flush=True)
"""


def test_another_process_on_the_path_gets_nothing_and_a_server_that_comes_back_gets_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pump, "_RETRY_SECONDS", 0.05)
    with pumped(tmp_path) as (pump, connect):
        path = tmp_path / "s"
        impostor = subprocess.Popen([sys.executable, "-c", _IMPOSTOR, str(path)], stdout=subprocess.PIPE)
        assert impostor.stdout is not None
        with impostor:
            assert impostor.stdout.readline() == b"listening\n"
            with connect() as client:
                client.sendall(b"secret")
                assert impostor.stdout.readline() == b"\n"
                assert pump.connections == 0
                server = Server(path, echo)
                assert client.recv(6) == b"secret"
                server.close()
