"""Engines that do what a test says: each tells the test which task of whom it is, and ends as it is told.

They reach nobody but their own gateway, so test and engine meet in the engine's private /tmp, which the test sees on disk:
the engine puts its task into `hello` and waits for its exit code at the named pipe `code`. So a test knows how often each engine was started, and holds a job in any phase for as long as it likes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs_kit import PATIENCE, PUPPET, Object, app_image, until

_LOOK_SECONDS = 0.01


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
    code: Path
    ended: bool = False


class Puppets:
    """The test's end of the engines. They end well at once, unless they are held."""

    def __init__(self) -> None:
        self._roots: list[Path] = []
        self._lock = threading.Lock()
        self._known: list[_Puppet] = []
        self._seen: set[Path] = set()
        self._held: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="puppets", daemon=True)

    def __enter__(self) -> Puppets:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join(5)

    def watch(self, root: Path) -> None:
        """Engines of the network under this root are ours."""
        self._roots.append(root)

    def image(self, name: str = PUPPET, **more: Any) -> Object:
        """The AppImage. An engine whose test is gone ends badly."""
        script = (
            "mkfifo -m 600 /tmp/code && exec 3<>/tmp/code && cp task.conf /tmp/hello.tmp && mv /tmp/hello.tmp /tmp/hello"
            " && read -t 600 -r code <&3 && exit $code; exit 99"
        )
        return app_image(name, script, "bash", **more)

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            for root in list(self._roots):
                for hello in _found(root):
                    if hello not in self._seen:
                        self._seen.add(hello)
                        self._greet(hello)

    def _greet(self, hello: Path) -> None:
        try:
            words = hello.read_text().split()
        except OSError:
            return  # its pod was removed this moment
        if len(words) != 3:
            return
        puppet = _Puppet(Started(*words), hello.with_name("code"))
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
            handle = os.open(puppet.code, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(handle, f"{code}\n".encode())
            finally:
                os.close(handle)

    def starts(self, job: str) -> list[Started]:
        with self._lock:
            return [each.which for each in self._known if each.which.task.startswith(f"{job}-")]

    def until_started(self, job: str, count: int, seconds: float = PATIENCE) -> list[Started]:
        return until(
            f"{count} engines of {job} run", lambda: (found := self.starts(job))[count - 1 :] and found, seconds
        )

    def once_each(self, job: str) -> bool:
        found = self.starts(job)
        return len(set(found)) == len(found)


def _found(root: Path) -> list[Path]:
    try:
        return list(root.glob("*/var/pods/*/runp/main.*/tmp/hello"))
    except OSError:
        return []  # a pod was removed meanwhile: the next look finds the others
