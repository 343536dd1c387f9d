"""Engines that do what a test says: each connects to the test, says which task of whom it is, and ends as it is told.

So a test knows how often each engine was started, and holds a job in any phase for as long as it likes. An engine has a
network of its own and reaches nothing of the machine's, so they meet at a Unix socket in a directory that the engines' image
makes visible.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs_kit import PATIENCE, PUPPET, Net, Object, app_image, until

from coterie.kube.agent.images.store import ImageStore

_IMAGE = "coterie-test/puppet"
_SCRIPT = """
import socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({path!r})
with open("task.conf", "rb") as file:
    line.sendall(file.read())
answer = line.makefile().readline()
sys.exit(int(answer) if answer else 99)
"""


@dataclass(frozen=True, slots=True)
class Started:
    """One start of one engine."""

    task: str
    domain: str
    word: str
    """Its task's input: the alias, unless the test said otherwise."""


@dataclass(slots=True)
class _Puppet:
    which: Started
    line: socket.socket
    ended: bool = False


class Puppets:
    """The test's end of the engines. They end well at once, unless they are held."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="puppets-"))
        self._directory.chmod(0o755)
        self.path = str(self._directory / "test.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        os.chmod(self.path, 0o666)
        self._listener.listen(512)
        self._lock = threading.Lock()
        self._known: list[_Puppet] = []
        self._held: set[str] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="puppets", daemon=True)

    def __enter__(self) -> Puppets:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        with self._lock:
            for puppet in self._known:
                puppet.line.close()
        shutil.rmtree(self._directory)

    def register(self, net: Net, *images: Object) -> None:
        """The AppImages (one of the usual name where none is given), and what they run, on all nodes of a network."""
        for domain in net.domains.values():
            store = ImageStore(domain.paths.images)
            store.add_host(_IMAGE, [sys.executable], visible=[str(self._directory)])
        net.register(*(images or (self.image(),)))

    def image(self, name: str = PUPPET, **more: Any) -> Object:
        """The AppImage. An engine whose test is gone ends badly."""
        made = app_image(name, _SCRIPT.format(path=self.path), sys.executable, **more)
        made["spec"]["image"] = {"name": _IMAGE, "tag": "latest"}
        return made

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(line,), name="puppet", daemon=True).start()

    def _greet(self, line: socket.socket) -> None:
        said = b""
        with contextlib.suppress(OSError):
            while not said.endswith(b"\n"):
                piece = line.recv(4096)
                if not piece:
                    break
                said += piece
        words = said.decode().split()
        if len(words) != 3:
            line.close()
            return
        puppet = _Puppet(Started(*words), line)
        with self._lock:
            self._known.append(puppet)
            held = self._is_held(puppet.which)
        if not held:
            self._tell(puppet, 0)

    def _is_held(self, which: Started) -> bool:
        return any(which.task.startswith(f"{name}-") for name in self._held)

    def hold(self, job: str) -> None:
        """Engines of this job wait from now on."""
        with self._lock:
            self._held.add(job)

    def release(self, job: str, code: int = 0, domain: str = "", word: str = "") -> None:
        """Those that wait end so; without domain and word also all that are still to come end well."""
        with self._lock:
            if not domain and not word:
                self._held.discard(job)
            chosen = [
                each
                for each in self._known
                if each.which.task.startswith(f"{job}-")
                and not each.ended
                and domain in ("", each.which.domain)
                and word in ("", each.which.word)
            ]
        for each in chosen:
            self._tell(each, code)

    def _tell(self, puppet: _Puppet, code: int) -> None:
        puppet.ended = True
        with contextlib.suppress(OSError):
            puppet.line.sendall(f"{code}\n".encode())

    def starts(self, job: str) -> list[Started]:
        with self._lock:
            return [each.which for each in self._known if each.which.task.startswith(f"{job}-")]

    def until_started(self, job: str, count: int, seconds: float = PATIENCE) -> list[Started]:
        return until(
            f"{count} engines of {job} run", lambda: (found := self.starts(job))[count - 1 :] and found, seconds
        )

    def line(self, job: str, domain: str) -> socket.socket:
        """To the newest engine of a job at a party."""
        with self._lock:
            return [
                each.line
                for each in self._known
                if each.which.task.startswith(f"{job}-") and each.which.domain == domain
            ][-1]

    def once_each(self, job: str) -> bool:
        found = self.starts(job)
        return len(set(found)) == len(found)
