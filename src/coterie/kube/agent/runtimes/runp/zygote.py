"""Zygotes: interpreters that have the modules of an image in memory and wait to be forked.

    supervisor ──exec──> zygote: imports the modules of the image, then waits
        │ ── "fork, into these namespaces" ──> │ ──clone──> init ── fork ──> a container, confined as every other
        │ <───────────── its pid ───────────── │               ▲
        └── descriptors and specification, to the child alone ─┘

A zygote runs the code of an image that the operator of the node added, or our own (`coterie-actor`), with the rights of the node, and nothing of a user's; it has
no network, no files and no keys. It learns of a container only its namespaces; the specification goes to the child. The child is the
supervisor's own (CLONE_PARENT). There is one zygote for each version of an image and each namespace of pods, because its children
have the hash seed and the layout of the address space in common.

It starts a moment after the first container that could use it, which does not wait for it, and ends when no such container ran for a while.
A zygote that cannot be loaded is tried again later; its containers start without one.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time

from coterie.kube.agent.runtimes.runp import child, handover, linux, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from coterie.kube.agent.runtimes.runp.launch import LaunchContext

CONTROL = 3
"""The zygote's descriptor of the socket to the supervisor."""
ORDER = struct.Struct("=Q")
_GROUP = "zygotes"
_SUPERVISORS_GROUP = "shepherd"
_SHARES = 1000
_ANSWER_SECONDS = 2.0
_RETRY_SECONDS = 300.0
"""After which one that could not be loaded is tried again."""
_MOST_DEATHS = 3
_START_SECONDS = 0.25
"""After the first container that could use it, which has the machine to itself until then."""
_PR_SET_PDEATHSIG = 1
_ONE_THREAD = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""What keeps libraries from starting threads while they are loaded. Not part of the environment of containers."""
_MAIN = "import sys; sys.path.insert(0, {!r}); from coterie.kube.agent.runtimes.runp import zygote_process; zygote_process.main()"
_SOURCE = __file__.rsplit("/", 6)[0]
"""Where this package is imported from."""
_FAMILY = 2
"""The first parts of a key: zygotes of one image in one namespace."""
_ROOM = 512
"""Bytes of the command line at least: children write their own over it."""


def key_of(wanted: dict[str, Any]) -> str:
    """Containers with the same key are forked from the same zygote."""
    names = ("namespace", "image", "image_id", "python", "module", "env", "preload")
    return json.dumps([wanted[name] for name in names])


class Zygote:
    """`on_change` is called when it is loaded, and when it ends."""

    def __init__(self, home: LaunchContext, wanted: dict[str, Any], on_change: Callable[[Zygote], None]) -> None:
        self._home = home
        self._on_change = on_change
        self.wanted = wanted
        self.started = time.monotonic()
        self.ready = False
        self.ended = False
        self.problem = ""
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        cgroup_handles = self._cgroup()
        try:
            self.pid = os.fork()
            if not self.pid:
                _execute(wanted, other, cgroup_handles, home.nothing)
        finally:
            other.close()
            for handle in cgroup_handles:
                os.close(handle)
        home.born(self.pid)
        home.claim(self.pid, lambda _: self._gone())
        self._control.settimeout(_ANSWER_SECONDS)
        self._control.send(json.dumps({"preload": wanted["preload"], "module": wanted["module"]}).encode())
        home.loop.watch(self._control.fileno(), select.EPOLLIN, self._read)
        home.loop.call_later(wanted["load"], self._too_long)

    def _cgroup(self) -> list[int]:
        """While it imports, it is a process like others; what is forked from it begins with the supervisor's part of the CPU."""
        groups = self._home.groups
        if groups is None:
            return []
        try:
            groups.create(_GROUP, 0, _SHARES, 0, 0)
            return groups.open_for_joining(_GROUP)
        except OSError:
            return []  # it is then counted with the supervisor

    def _join(self, group: str) -> None:
        with contextlib.suppress(OSError):  # there is no such group, or it has ended
            for handle in self._home.groups.open_for_joining(group) if self._home.groups is not None else ():
                try:
                    os.write(handle, b"%d" % self.pid)
                finally:
                    os.close(handle)

    def _read(self, _: int) -> None:
        try:
            data = self._control.recv(65536)
        except OSError:
            data = b""
        answer: dict[str, Any] = json.loads(data) if data else {}
        if not data:
            self.end("it ended while it was loaded" if not self.ready else "")
        elif answer.get("problem"):
            self.end(answer["problem"])
        elif not self.ready:
            self.ready = True
            self._join(_SUPERVISORS_GROUP)
            self._on_change(self)

    def _too_long(self) -> None:
        if not self.ready and not self.ended:
            self.end(f"importing the modules took more than {self.wanted['load']:g} seconds")

    def _gone(self) -> None:
        self.pid = 0
        self.end("it ended while it was loaded" if not self.ready else "")

    def clone(self, flags: int, setup: child.ChildSetup) -> int:
        """A process in new namespaces, forked from the zygote, in this process's network; 0: there is none."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        pid = 0
        try:
            socket.send_fds(self._control, [ORDER.pack(flags)], [far.fileno(), network])
            far.close()
            data = self._control.recv(65536)
            if not data:
                self.end()  # it was killed, and nobody has noticed so far
                return 0
            answer = json.loads(data)
            pid = int(answer.get("pid", 0))
            if not pid:
                self.end(answer.get("problem") or "it does not answer")
                return 0
            near.settimeout(_ANSWER_SECONDS)
            handover.send(near, setup)
        except (OSError, ValueError) as problem:
            if pid:
                processes.send(pid, signal.SIGKILL)
            self.end("" if isinstance(problem, ConnectionError) else f"it does not answer: {problem}")
            return 0
        finally:
            os.close(network)
            near.close()
            far.close()
        return pid

    def end(self, problem: str = "") -> None:
        if self.ended:
            return
        self.ended, self.problem = True, problem
        self._home.loop.forget(self._control.fileno())
        self._control.close()
        if self.pid:
            processes.send(self.pid, signal.SIGKILL)
        self._on_change(self)


def _execute(wanted: dict[str, Any], control: socket.socket, cgroup_handles: list[int], nothing: int) -> NoReturn:
    """Become the zygote; never returns."""
    try:
        linux.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        child.forget_signals()
        os.setsid()
        os.umask(0o022)
        os.chdir("/")
        for handle in cgroup_handles:
            os.write(handle, b"0")
        with contextlib.suppress(OSError):  # an ordinary user without a pod network
            linux.unshare(linux.CLONE_NEWNET)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.dup2(control.fileno(), CONTROL)
        os.set_inheritable(CONTROL, True)
        main = _MAIN.format(_SOURCE)
        environment = {
            "PATH": os.defpath,
            "HOME": "/nonexistent",
            **dict(wanted["env"]),
            **_ONE_THREAD,
        }
        encoded = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        child.execute([*wanted["python"], "-c", main.ljust(_ROOM)], encoded)
    except BaseException:  # noqa: BLE001 - nothing may climb back into the supervisor's loop
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(child.NOT_SET_UP)


class Zygotes:
    """All zygotes of a supervisor. `in_use`: the keys of containers that run; `on_change`: there is another record."""

    def __init__(self, home: LaunchContext, in_use: Callable[[], set[str]], on_change: Callable[[], None]) -> None:
        self._home = home
        self._in_use = in_use
        self._on_change = on_change
        self._known: dict[str, Zygote] = {}
        self._last_wanted: dict[str, float] = {}
        self._failed: dict[str, tuple[float, dict[str, Any], str]] = {}
        """When and why one could not be loaded."""
        self._deaths: dict[str, int] = {}
        self._soon: set[str] = set()
        """Keys of those that are started in a moment."""
        self._checks = False

    def wanted(self, wanted: dict[str, Any]) -> Zygote | None:
        """One that is ready now. If there is none, one is started for later."""
        key = key_of(wanted)
        self._last_wanted[key] = time.monotonic()
        zygote = self._known.get(key)
        if zygote is None:
            self._end_older(key, wanted)
            failed = self._failed.get(key)
            may = failed is None or time.monotonic() - failed[0] >= _RETRY_SECONDS
            if may and key not in self._soon:
                self._soon.add(key)
                self._home.loop.call_later(_START_SECONDS, lambda: self._start_wanted(key, wanted))
            return None
        return zygote if zygote.ready else None

    def _start_wanted(self, key: str, wanted: dict[str, Any]) -> None:
        if key in self._soon:
            self._soon.discard(key)
            self._start(key, wanted)

    def _start(self, key: str, wanted: dict[str, Any]) -> None:
        try:
            self._known[key] = Zygote(self._home, wanted, lambda zygote: self._changed(key, zygote))
        except OSError as problem:
            self._fail(key, wanted, f"it cannot be started: {problem.strerror}")
            return
        if not self._checks:
            self._checks = True
            self._check_later(wanted)

    def _end_older(self, key: str, wanted: dict[str, Any]) -> None:
        """The image was changed: nobody will want what it was."""
        for other, zygote in list(self._known.items()):
            if other != key and _family(zygote.wanted) == _family(wanted):
                self._forget(other)
        names = json.loads(key)[:_FAMILY]
        self._soon -= {other for other in self._soon if other != key and json.loads(other)[:_FAMILY] == names}
        for other, (_, failed, _) in list(self._failed.items()):
            if other != key and _family(failed) == _family(wanted):
                del self._failed[other]

    def _forget(self, key: str) -> None:
        zygote = self._known.pop(key, None)
        self._last_wanted.pop(key, None)
        self._deaths.pop(key, None)
        if zygote is not None:
            zygote.end()

    def _changed(self, key: str, zygote: Zygote) -> None:
        if self._known.get(key) is not zygote:
            return
        if not zygote.ended:
            if self._failed.pop(key, None) is not None:
                self._on_change()
            return
        del self._known[key]
        if zygote.problem:
            self._fail(key, zygote.wanted, zygote.problem)
            return
        self._deaths[key] = self._deaths.get(key, 0) + 1
        if self._deaths[key] > _MOST_DEATHS:
            self._fail(key, zygote.wanted, f"it ended {self._deaths.pop(key)} times")
        else:
            self._start(key, zygote.wanted)

    def _fail(self, key: str, wanted: dict[str, Any], problem: str) -> None:
        self._failed[key] = (time.monotonic(), wanted, problem)
        self._on_change()

    def _check_later(self, wanted: dict[str, Any]) -> None:
        self._home.loop.call_later(max(0.05, min(30.0, wanted["idle"] / 4)), lambda: self._end_idle(wanted))

    def _end_idle(self, wanted: dict[str, Any]) -> None:
        now, in_use = time.monotonic(), self._in_use()
        for key, zygote in list(self._known.items()):
            if key in in_use:
                self._last_wanted[key] = now
            elif now - self._last_wanted[key] >= zygote.wanted["idle"]:
                self._forget(key)
        self._checks = bool(self._known)
        if self._checks:
            self._check_later(wanted)
        elif self._home.groups is not None:
            self._home.groups.remove(_GROUP)

    def records_for_agent(self) -> list[dict[str, Any]]:
        """Those that could not be loaded."""
        return [{"image": wanted["image"], "problem": problem} for _, wanted, problem in self._failed.values()]


def _family(wanted: dict[str, Any]) -> tuple[str, str]:
    return wanted["namespace"], wanted["image"]
