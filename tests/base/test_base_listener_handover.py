"""Listening sockets that one process holds and another serves."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
import time

import pytest

from coterie.base import listener_handover

_HERE = "127.0.0.1"


def port_of(held: socket.socket) -> int:
    return int(held.getsockname()[1])


def attempts(port: int) -> list[int]:
    """How each way to get the port ends, as an errno; 0 for success."""
    ends = []
    for address in (_HERE, "0.0.0.0", "127.0.0.2", "::ffff:127.0.0.1"):
        for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as other:
                for each in options:
                    other.setsockopt(socket.SOL_SOCKET, each, 1)
                try:
                    other.bind((address, port))
                    other.listen()
                    ends.append(0)
                except OSError as problem:
                    ends.append(problem.errno or -1)
    return ends


def test_no_other_socket_can_have_a_held_port() -> None:
    with listener_handover.listen("0.0.0.0", 0) as held:
        assert set(attempts(port_of(held))) == {errno.EADDRINUSE}
    with listener_handover.listen(_HERE, 0) as held:
        # 127.0.0.2 is another address, and free.
        assert set(attempts(port_of(held))) == {errno.EADDRINUSE, 0}


def test_every_address_is_that_of_both_versions() -> None:
    with listener_handover.listen("0.0.0.0", 0) as held:
        for address in (_HERE, "::1"):
            socket.create_connection((address, port_of(held))).close()


@pytest.mark.parametrize("reuse_port", [False, True])
def test_a_port_that_another_program_has_is_not_shared(reuse_port: bool) -> None:
    with (
        socket.create_server((_HERE, 0), reuse_port=reuse_port) as other,
        pytest.raises(OSError, check=lambda problem: problem.errno == errno.EADDRINUSE),
    ):
        listener_handover.listen(_HERE, port_of(other), wait=0)


def test_an_ending_predecessor_is_waited_for() -> None:
    predecessor = listener_handover.listen(_HERE, 0)
    port = port_of(predecessor)

    def end() -> None:
        time.sleep(0.1)
        predecessor.close()

    ending = threading.Thread(target=end)
    ending.start()
    with listener_handover.listen(_HERE, port, wait=20) as held:
        assert port_of(held) == port
    ending.join()


_CHILD = """
import os, subprocess, sys
from coterie.base import listener_handover
held = listener_handover.inherited(sys.argv[1])
number = held["http"].fileno()
held["http"].setblocking(True)
held["http"].accept()[0].sendall(b"served")
sys.exit(subprocess.call([sys.executable, "-c", f"import os; os.fstat({number})"], close_fds=False, stderr=-3) == 0)
"""


def test_a_child_serves_what_waits_in_the_backlog_and_its_own_children_do_not_get_the_listener() -> None:
    with listener_handover.listen(_HERE, 0) as held, socket.create_connection((_HERE, port_of(held))) as client:
        argv = [sys.executable, "-c", _CHILD, listener_handover.encode({"http": held})]
        ended = subprocess.run(argv, pass_fds=[held.fileno()], timeout=60, check=False)
        assert client.recv(100) == b"served"
        assert ended.returncode == 0


def test_the_successor_of_a_shared_port_gets_new_connections_until_it_ends() -> None:
    with listener_handover.listen_shared(_HERE, 0) as first:
        listener_handover.prefer_successor(first)
        with (
            listener_handover.listen_shared(_HERE, port_of(first)) as second,
            socket.create_connection((_HERE, port_of(first))),
        ):
            with pytest.raises(BlockingIOError):
                first.accept()
            second.setblocking(True)
            second.accept()[0].close()
        with socket.create_connection((_HERE, port_of(first))):
            first.setblocking(True)
            first.accept()[0].close()
