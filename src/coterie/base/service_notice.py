"""Tells the service manager that started this process how it is, as sd_notify(3) does. Nothing happens where there is none."""

from __future__ import annotations

import contextlib
import os
import socket

READY, STOPPING = "READY=1", "STOPPING=1"
_VARIABLE = "NOTIFY_SOCKET"


class ServiceNotice:
    def __init__(self, address: str) -> None:
        """`address`: a path, or `@name` in the abstract namespace; empty: nobody is told."""
        self._address = "\0" + address[1:] if address.startswith("@") else address

    @classmethod
    def taken(cls) -> ServiceNotice:
        """The service manager's. Children must not speak for us: they do not inherit it."""
        return cls(os.environ.pop(_VARIABLE, ""))

    def send(self, *lines: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.connect(self._address)
            out.send("\n".join(lines).encode())
