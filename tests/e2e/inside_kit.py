"""Calls from inside a domain, as its pods call: a port of the machine that leads to the gateway's listener for pods."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from coterie.kube.network.rootless import enter

_PUMP = """
import socket, sys, threading
caller = socket.socket(fileno=int(sys.argv[1]))
gateway = socket.create_connection((sys.argv[2], 80), 20)
gateway.settimeout(None)
def pump(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass
back = threading.Thread(target=pump, args=(gateway, caller))
back.start()
pump(caller, gateway)
back.join()
"""


class InsidePort:
    """Listens where a node without a pod network would; each connection is carried by a process in the pod network that
    there is at that time."""

    def __init__(self, run: Path, host: str, port: int) -> None:
        """`run`: the node's run directory."""
        self._facts = run / "runp" / "network.json"
        self._listener = socket.create_server((host, port), backlog=64)
        self._children: list[subprocess.Popen[bytes]] = []
        self._thread = threading.Thread(target=self._accept, name="inside", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, run: Path, host: str, port: int) -> InsidePort | None:
        """None: the node has no pod network, and listens there itself."""
        facts = run / "runp" / "network.json"
        if not facts.exists() or "holder" not in json.loads(facts.read_text()):
            return None
        return cls(run, host, port)

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller:
                self._carry(caller)

    def _carry(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            address = json.loads(self._facts.read_text())["gateway"]
            command = (*enter.command(str(self._facts)), sys.executable, "-I", "-S", "-c", _PUMP)
            self._children = [each for each in self._children if each.poll() is None]
            self._children.append(
                subprocess.Popen(
                    [*command, str(caller.fileno()), address],
                    pass_fds=[caller.fileno()],
                    stderr=subprocess.DEVNULL,
                    env={"PATH": os.defpath},
                )
            )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for each in self._children:
            each.kill()
            each.wait()
