"""The process that is measured: started on one core, with its CPU time and memory read from /proc."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DOMAIN = "bench"
_TICKS = os.sysconf("SC_CLK_TCK")
_START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Cores:
    """Where things run: the server alone on one core, whoever loads it on another if there is one."""

    server: int
    load: int

    @staticmethod
    def pick() -> Cores:
        available = sorted(os.sched_getaffinity(0))
        return Cores(available[0], available[-1])


@dataclass(frozen=True, slots=True)
class Identity:
    """Certificates to reach a server with; paths, because they travel to other processes as text."""

    ca: str
    certificate: str
    key: str

    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.certificate, self.key)
        return context


class Pinned:
    """A Python process on one core."""

    def __init__(self, arguments: Sequence[str], core: int, log: Path, bytecode: Path | None = None) -> None:
        """`bytecode`: where compiled modules are kept, as an installed package has them; a checkout may have none."""
        environment = dict(os.environ)
        if bytecode is not None:
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
            )
        os.sched_setaffinity(self._process.pid, {core})
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, port: int) -> None:
        """Return when the port takes connections: the server opens it when it is ready."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
            except OSError:
                time.sleep(0.002)
            else:
                return
        raise RuntimeError(f"the server did not come up:\n{self._log.read_text(errors='replace')[-3000:]}")

    def cpu(self) -> float:
        return cpu_of(self.pid)

    def memory(self) -> tuple[float, float]:
        """RSS and PSS in MiB."""
        found = {}
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) / 1024
        return found["Rss"], found["Pss"]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Node:
    """A directory with a node in it, and its process while it runs."""

    def __init__(self, root: Path, cores: Cores, bytecode: Path) -> None:
        self.root = root
        self._bytecode = bytecode
        self.cores = cores
        self.port = free_port()
        self.process: Pinned
        pki = root / DOMAIN / "var" / "certs" / "pki"
        self.identity = Identity(str(pki / "ca.crt"), str(pki / "admin.crt"), str(pki / "admin.key"))
        self.server_certificate = (str(pki / "apiserver.crt"), str(pki / "apiserver.key"))
        root.mkdir(parents=True, exist_ok=True)
        (root / "coterie.yaml").write_text(
            f"mode: master\ndomainID: {DOMAIN}\nlogLevel: WARN\napiServer: {{host: 127.0.0.1, port: {self.port}}}\n"
        )

    def start(self) -> float:
        """Returns the seconds until the API answered."""
        command = ["-m", "coterie", "start", "-c", str(self.root / "coterie.yaml"), "--root", str(self.root)]
        began = time.monotonic()
        self.process = Pinned(command, self.cores.server, self.root / "server.log", self._bytecode)
        try:
            self.process.wait_for(self.port)
        except BaseException:
            self.process.stop()
            raise
        return time.monotonic() - began

    def stop(self) -> None:
        self.process.stop()

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def cpu_of(pid: int) -> float:
    """Seconds of CPU time so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
