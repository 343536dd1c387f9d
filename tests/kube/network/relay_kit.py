"""A relay in a thread of the test, or the things around one."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coterie.kube.network.rootless import client, messages
from coterie.kube.network.rootless.server import RelayServer

SECONDS = 10.0


def parse_proxy_v2(data: bytes) -> tuple[tuple[str, int], tuple[str, int], bytes]:
    """Written from the specification, not from our sender: source, destination, what follows the header."""
    assert data[:12] == bytes.fromhex("0D0A0D0A000D0A515549540A")
    version_command, family_protocol, length = struct.unpack("!BBH", data[12:16])
    assert version_command >> 4 == 2 and version_command & 15 == 1
    assert family_protocol & 15 == 1, "STREAM"
    body, rest = data[16 : 16 + length], data[16 + length :]
    assert len(body) == length
    if family_protocol >> 4 == 1:
        source, target, *ports = struct.unpack("!4s4sHH", body)
        family = socket.AF_INET
    else:
        assert family_protocol >> 4 == 2
        source, target, *ports = struct.unpack("!16s16sHH", body)
        family = socket.AF_INET6
    return (socket.inet_ntop(family, source), ports[0]), (socket.inet_ntop(family, target), ports[1]), rest


def free_address(host: str = "127.0.0.1") -> str:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def connect(address: str) -> socket.socket:
    return socket.create_connection(endpoint(address), SECONDS)


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := sock.recv(count - len(data))):
        data += more
    return data


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


def eventually(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


class Target:
    """The Unix socket behind a relay. `accept()` gives a connection and the addresses of its header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(64)
        self._socket.settimeout(SECONDS)

    def accept(self) -> tuple[socket.socket, tuple[str, int], tuple[str, int]]:
        connection, _ = self._socket.accept()
        connection.settimeout(SECONDS)
        head = read_exactly(connection, 16)
        head += read_exactly(connection, int.from_bytes(head[14:16], "big"))
        source, destination, rest = parse_proxy_v2(head)
        assert not rest
        return connection, source, destination

    def close(self) -> None:
        self._socket.close()


class RelayThread:
    """The relay's own server, in a thread."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.log: list[str] = []
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        control.bind(str(directory / messages.SOCKET_NAME))
        control.listen(8)
        self._server = RelayServer(control, log=self.log.append, **options)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()

    def configure(self, *pairs: tuple[str, object], given: tuple[int, ...] = ()) -> None:
        client.exchange(self.directory, "configure", pairs, given)

    def status(self) -> client.RelayStatus:
        return client.read_status(self.directory)

    def quit(self, drain: float = 0) -> None:
        client.exchange(self.directory, "quit", (("drain", drain),))

    def join(self) -> None:
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def relay_thread(directory: Path, **options: Any) -> Iterator[RelayThread]:
    relay = RelayThread(directory, **options)
    try:
        yield relay
    finally:
        if relay._thread.is_alive():
            with contextlib.suppress(OSError):
                relay.quit()
            relay.join()


@contextlib.contextmanager
def relay_process(directory: Path) -> Iterator[int]:
    """The real program."""
    program = client.Relay(directory, client.RelaySettings())
    program._start()
    pid = client.read_status(directory).pid
    try:
        yield pid
    finally:
        client.exchange(directory, "quit")
        program._reap()


def open_descriptors(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
