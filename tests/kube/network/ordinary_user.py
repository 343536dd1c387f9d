"""Children of a test that are an ordinary user, some of them in namespaces of their own."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

from coterie.base.linux_namespaces import unshare
from coterie.kube.network.rootless.enter import CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWUSER
from coterie.kube.network.rootless.probe import loopback_up, map_root, private_mounts

USER = os.getuid() or 65534
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


def become_ordinary() -> None:
    """As after a login: another user, whose /proc entries are its own."""
    libc = ctypes.CDLL(None)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
    libc.prctl(_PR_SET_DUMPABLE, 1)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def own_namespaces() -> None:
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET)
    map_root(uid, gid)
    private_mounts()
    loopback_up()


class Child:
    """Runs `work(socket)` as an ordinary user; the test has the other end of the socket."""

    def __init__(self, work: Callable[[socket.socket], None]) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(20)
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                self.socket.close()
                become_ordinary()
                work(theirs)
                code = 0
            except BaseException:  # noqa: BLE001 - a fork must not go on as the test
                traceback.print_exc()
            finally:
                os._exit(code)
        theirs.close()

    def exit_code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.socket.close()


def holder() -> Child:
    """A process in user, mount and network namespaces of its own, until it is killed."""

    def work(to_test: socket.socket) -> None:
        own_namespaces()
        to_test.send(b"ready")
        signal.pause()

    child = Child(work)
    assert child.socket.recv(5) == b"ready"
    return child
