"""The relay: one small process outside of an ordinary user's domain that carries its connections in and out.

    python -S -m coterie.kube.network.rootless.relay --directory DIR [--ready FD]

Inward, it listens on the domain's public addresses and passes each connection on to a Unix socket (a listener of Envoy),
with a PROXY protocol header that names the true source. Outward, it accepts on a listening socket that was made *inside* the
domain's network namespace and given to it, reads where the connection was meant to go (nftables redirected it), and dials
that outside. It has one thread, and no limit that is not in `limits`. What it does is set by the node over the Unix socket
`relay.sock` in its directory (`messages`); it outlives the node.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_SEQPACKET, socket
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

from coterie.kube.network.rootless import limits, messages
from coterie.kube.network.rootless.server import RelayServer

_USAGE = 2


class _Log:
    """Lines on standard error; few enough, and the file is emptied when it is full."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0

    def __call__(self, text: str) -> None:
        now = int(time.time())
        if now != self._second:
            self._second, self._lines = now, 0
        self._lines += 1
        if self._lines > limits.LOG_LINES_PER_SECOND:
            return
        try:
            if os.fstat(2).st_size > limits.LOG_BYTES:
                os.ftruncate(2, 0)
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
            os.write(2, f"{stamp} relay: {text}\n".encode("utf-8", "replace"))
        except OSError:
            pass  # A full disk does not end connections.


class _Place:
    """The directory of a relay: a lock for its lifetime and the control socket."""

    def __init__(self, directory: str) -> None:
        self._socket = os.path.join(directory, messages.SOCKET_NAME)
        self._inode = 0
        self._lock = os.open(os.path.join(directory, messages.LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def bind(self) -> socket:
        try:  # noqa: SIM105 - contextlib is too heavy here
            os.unlink(self._socket)
        except FileNotFoundError:
            pass
        control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC)
        before = os.umask(0o177)
        try:
            with messages.ShortPath(self._socket) as name:
                control.bind(name)
        finally:
            os.umask(before)
        control.listen(limits.CONTROL_CONNECTIONS)
        self._inode = os.stat(self._socket).st_ino
        return control

    def is_reachable(self) -> bool:
        """Somebody may have removed the directory: a node that was killed and whose files were deleted."""
        try:
            return os.stat(self._socket).st_ino == self._inode
        except OSError:
            return False

    def leave(self) -> None:
        """Another relay may begin, while this one ends its last connections."""
        if self.is_reachable():
            os.unlink(self._socket)
        os.close(self._lock)


def connections_possible(descriptors: int) -> int:
    """In one direction, with so many descriptors for both."""
    free = (descriptors - limits.RESERVED_DESCRIPTORS) // (2 * limits.DESCRIPTORS_PER_CONNECTION)
    return max(1, min(limits.MAX_CONNECTIONS, free))


def main(arguments: list[str]) -> int:
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    directory, ready = options.pop("--directory", ""), int(options.pop("--ready", "-1"))
    if not directory or options or len(arguments) % 2:
        os.write(2, b"usage: relay --directory DIR [--ready FD]\n")
        return _USAGE
    try:
        place = _Place(os.path.abspath(directory))
    except BlockingIOError:
        os.write(2, b"another relay runs in this directory\n")
        return 0
    hard = getrlimit(RLIMIT_NOFILE)[1]
    setrlimit(RLIMIT_NOFILE, (hard, hard))
    log = _Log()
    server = RelayServer(
        place.bind(),
        on_quit=place.leave,
        is_reachable=place.is_reachable,
        log=log,
        max_connections=connections_possible(hard),
    )
    os.chdir("/")
    log(f"started, process {os.getpid()}")
    if ready >= 0:
        os.write(ready, b"ready\n")
        os.close(ready)
    server.run()
    log("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
