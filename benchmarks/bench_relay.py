"""Throughput of the relay, inward and outward, beside a direct loopback connection in the same run; and its memory.

    unshare -n sh -c 'ip link set lo up; python -m benchmarks.bench_relay [--mib 2048]'

The relay is a process of its own, sender and receiver too. Outward, the destination comes from a table instead of from
nftables, whose cost is paid once per connection.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from coterie.kube.network.rootless import client, messages
from coterie.kube.network.rootless.server import RelayServer

_CHUNK = bytes(1 << 20)


def fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def receive(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    buffer = bytearray(1 << 20)
    while connection.recv_into(buffer):
        pass
    connection.send(b".")


def measure(listener: socket.socket, address: tuple[str, int], mib: int) -> float:
    """Gbit/s from connect to the receiver's acknowledgement of the last byte."""
    receiver = fork(lambda: receive(listener))
    began = time.perf_counter()
    with socket.create_connection(address) as connection:
        for _ in range(mib):
            connection.sendall(_CHUNK)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    took = time.perf_counter() - began
    os.waitpid(receiver, 0)
    return mib * (8 << 20) / took / 1e9


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        direct = socket.create_server(("127.0.0.1", 0))
        inner = socket.create_server(("127.0.0.1", 0))
        pipe = socket.socket(socket.AF_UNIX)
        pipe.bind(str(directory / "target.sock"))
        pipe.listen()
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        control.bind(str(directory / messages.SOCKET_NAME))
        control.listen()
        relay = fork(lambda: RelayServer(control, destination_of=lambda _: direct.getsockname()).run())
        public = ("127.0.0.1", free_port())
        client.exchange(
            directory,
            "configure",
            (("listen", f"{public[0]}:{public[1]}"), ("target", directory / "target.sock"), ("inner", "given")),
            (inner.fileno(),),
        )
        best = {"direct": 0.0, "inward": 0.0, "outward": 0.0}
        for _ in range(chosen.rounds):
            best["direct"] = max(best["direct"], measure(direct, direct.getsockname(), chosen.mib))
            best["inward"] = max(best["inward"], measure(pipe, public, chosen.mib))
            best["outward"] = max(best["outward"], measure(direct, inner.getsockname(), chosen.mib))
        for way, figure in best.items():
            print(f"{way:8} {figure:6.1f} Gbit/s  {figure / best['direct']:.2f} of direct")
        client.exchange(directory, "quit")
        _, _, used = os.wait4(relay, 0)
        moved = 2 * chosen.rounds * chosen.mib / 1024
        print(f"CPU of the relay: {(used.ru_utime + used.ru_stime) / moved:.2f} s per GiB")
        (directory / messages.SOCKET_NAME).unlink(missing_ok=True)
        program = client.Relay(directory, client.RelaySettings())
        program._start()
        try:
            status = Path(f"/proc/{client.read_status(directory).pid}/status").read_text()
        finally:
            client.exchange(directory, "quit")
            program._reap()
        for field in ("VmRSS", "RssAnon"):
            print(f"{field} of the program: {int(status.partition(field + ':')[2].split()[0]) / 1024:.1f} MiB")
    print(f"of the benchmark itself: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
