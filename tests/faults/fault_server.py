"""A real server process that tests may kill, stop and start again on the same root and the same port."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport

DOMAIN = "alice"
START_SECONDS = 30.0


class FaultServer:
    """One node directory and whatever process serves it now."""

    def __init__(self, root: Path, *, files: Path | None = None) -> None:
        """`files` is where the settings and the log go when `root` may be full."""
        self.root = root
        self.home = root / DOMAIN
        self.database = self.home / "var" / "storage" / "coterie.db"
        self.pki = self.home / "var" / "certs" / "pki"
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None
        beside = files or root
        beside.mkdir(parents=True, exist_ok=True)
        # Half of a start would be compiling: an installed package brings its bytecode, a checkout may be read-only.
        self._environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(beside / "bytecode")}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._log = beside / "server.log"
        self._settings = beside / "coterie.yaml"
        self._settings.write_text(
            f"mode: master\ndomainID: {DOMAIN}\ndns: {{enabled: false}}\ngateway: {{enabled: false}}\napiServer: {{host: 127.0.0.1, port: {self.port}}}\n"
        )

    # -- the process --------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start a process; `ready` tells when it serves."""
        command = [sys.executable, "-m", "coterie", "start", "-c", str(self._settings), "--root", str(self.root)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )

    async def ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not await self._answers():
            assert self.process is not None
            assert self.process.poll() is None, f"the server ended by itself\n{self.log()[-4000:]}"
            assert time.monotonic() < deadline, f"the server did not become ready\n{self.log()[-4000:]}"
            await asyncio.sleep(0.01)

    async def start(self) -> None:
        self.spawn()
        await self.ready()

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is written any more."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self, wait: float = 15.0) -> tuple[int, float]:
        """SIGTERM; returns the exit status and the seconds it took."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(wait), time.monotonic() - began

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    # -- the ways in --------------------------------------------------------------------------------------------

    def client(self) -> Client:
        """A client with connections of its own and the operator's certificate."""
        return Client(HttpTransport(kubeconfig.read(self.home / "kubeconfig").resolve(), timeout=10.0))

    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        return context

    async def _answers(self) -> bool:
        authority = self.pki / "ca.crt"
        if not authority.exists() or not (self.home / "kubeconfig").exists():
            return False
        context = ssl.create_default_context(cafile=str(authority))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        except OSError:
            return False
        try:
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b" 200 " in await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()


_CLAIMS: list[socket.socket] = []


def _free_port() -> int:
    """A port that a restarted server can take again: below the range that outgoing connections use."""
    for port in range(20000, 32000, 7):
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                # Test processes run side by side: what one of them found free is its own until it ends.
                claim.bind(f"\0coterie-test-port-{port}")
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
            _CLAIMS.append(claim)
            return port
    raise AssertionError("no free port")
