"""The process that is measured: started on one core, with its CPU time and memory."""

from __future__ import annotations

import asyncio
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
from typing import Self

from coterie.kube.agent.runtimes.runp import wire
from coterie.kube.agent.runtimes.runp.halt import halt

DOMAIN = "bench"
NODE_NAME = "bench-node"
_WHOLE_PROCESS = 2
"""With the inverted process id above it, Linux's name for a process's CPU clock (clock_getcpuclockid(3))."""
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
    """A Python process on one core, or wherever the kernel puts it."""

    def __init__(
        self,
        arguments: Sequence[str],
        core: int | None,
        log: Path,
        bytecode: Path | None = None,
        *,
        prefix: Sequence[str] = (),
    ) -> None:
        """`bytecode`: where compiled modules are kept, as an installed package has them; a checkout may have none. `prefix`:
        comes before the interpreter."""
        environment = dict(os.environ)
        if bytecode is not None:
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
            )
        if core is not None:
            os.sched_setaffinity(self._process.pid, {core})
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, port: int, host: str = "127.0.0.1") -> None:
        """Return when the port takes connections: the server opens it when it is ready."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            if port_taken(host, port):
                return
            time.sleep(0.002)
        raise RuntimeError(f"the server did not come up:\n{self._log.read_text(errors='replace')[-3000:]}")

    def cpu(self) -> float:
        return cpu_of(self.pid)

    def memory(self) -> tuple[float, float]:
        return memory_of(self.pid)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Node:
    """A directory with a node in it, and its process while it runs."""

    def __init__(self, root: Path, core: int | None, bytecode: Path, settings: str = "mode: master\n") -> None:
        self.root = root
        self._bytecode = bytecode
        self._core = core
        self.port = free_port()
        self.process: Pinned
        pki = root / DOMAIN / "var" / "certs" / "pki"
        self.identity = Identity(str(pki / "ca.crt"), str(pki / "admin.crt"), str(pki / "admin.key"))
        self.server_certificate = (str(pki / "apiserver.crt"), str(pki / "apiserver.key"))
        root.mkdir(parents=True, exist_ok=True)
        (root / "coterie.yaml").write_text(
            f"domainID: {DOMAIN}\nlogLevel: WARN\napiServer: {{host: 127.0.0.1, port: {self.port}}}\n"
            f"dns: {{enabled: false}}\ngateway: {{enabled: false}}\n{settings}"
        )

    def start(self) -> float:
        """Returns the seconds until the API answered."""
        command = ["-m", "coterie", "start", "-c", str(self.root / "coterie.yaml"), "--root", str(self.root)]
        began = time.monotonic()
        self.process = Pinned(command, self._core, self.root / "server.log", self._bytecode)
        try:
            self.process.wait_for(self.port)
        except BaseException:
            self.process.stop()
            raise
        return time.monotonic() - began

    def stop(self) -> None:
        self.process.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class PodNode(Node):
    """A node that runs pods too. No core is its own: its containers would inherit that, and wait for each other."""

    def __init__(self, root: Path, bytecode: Path, more: str = "") -> None:
        """`more`: lines of its configuration."""
        agent = f"agent: {{nodeName: {NODE_NAME}, address: 127.0.0.1, port: 0, taint: false}}"
        super().__init__(root, None, bytecode, f"mode: autonomy\n{agent}\n{more}")
        self._runtime = root / DOMAIN / "var" / "run" / "runp"

    def pids(self) -> tuple[int, ...]:
        """The node's process, and the supervisor of its containers while there are pods."""
        name, handle = wire.address(str(self._runtime))
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(name)
                return self.process.pid, wire.peer(connection)[0]
        except OSError:
            return (self.process.pid,)
        finally:
            os.close(handle)

    def stop(self) -> None:
        """Containers outlive their node by design; these shall not."""
        super().stop()
        asyncio.run(halt(self._runtime, NODE_NAME, 0.0, forget=True))


def memory_of(pid: int) -> tuple[float, float]:
    """RSS and PSS in MiB."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) / 1024
    return found["Rss"], found["Pss"]


def cpu_of(pid: int) -> float:
    """Seconds of CPU time so far, all threads; to the nanosecond, where /proc counts in hundredths."""
    return time.clock_gettime(~pid << 3 | _WHOLE_PROCESS)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_taken(host: str, port: int) -> bool:
    """Whether somebody answers there."""
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def confine(pid: int, core: int) -> None:
    """Keep all threads of a running process on one core."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})
