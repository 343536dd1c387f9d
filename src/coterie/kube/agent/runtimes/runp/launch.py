"""A child on its way from fork to exec, watched without waiting for it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket

from coterie.kube.agent.runtimes.oci import bundle, shim
from coterie.kube.agent.runtimes.runp import child, filesystem, linux, processes, users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from coterie.kube.agent.runtimes.runp.cgroups import Cgroups
    from coterie.kube.agent.runtimes.runp.loop import Loop
    from coterie.kube.agent.runtimes.runp.pod_networks import PodNetworks
    from coterie.kube.agent.runtimes.runp.records import Records
    from coterie.kube.agent.runtimes.runp.zygote import Zygote, Zygotes


LONGEST_LAUNCH = 60.0


class LaunchContext:
    """What all containers of one supervisor share."""

    def __init__(
        self,
        loop: Loop,
        records: Records,
        groups: Cgroups | None,
        powers: dict[str, Any],
        filter_program: bytes,
        init: int,
        networks: PodNetworks | None = None,
    ) -> None:
        self.loop = loop
        self.networks = networks
        self.records = records
        self.groups = groups
        self.powers = powers
        self.filter_program = filter_program
        self.init = init
        self.nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.children: dict[int, Callable[[int], None]] = {}
        """By pid: who wants to know how it ended."""
        self._unclaimed: dict[int, int] = {}
        self.zygotes: Zygotes | None = None
        """Interpreters that containers are forked from."""

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            heir = self.children.pop(pid, None)
            if heir is not None:
                heir(status)
            else:
                # Middles and orphans, mostly; but also a child that ended before it could tell its number.
                self._unclaimed[pid] = status
                if len(self._unclaimed) > 1024:
                    del self._unclaimed[next(iter(self._unclaimed))]

    def born(self, pid: int) -> None:
        """A new process has the number: what is known of its end is of an earlier one."""
        self._unclaimed.pop(pid, None)

    def claim(self, pid: int, heir: Callable[[int], None]) -> None:
        status = self._unclaimed.pop(pid, None)
        if status is None:
            self.children[pid] = heir
        else:
            heir(status)


class Launch:
    """`on_pid` hears of the process and its init (0: none) before it may go; `on_done` of the error or, with None, of
    success. `note` is where the init is to write how the program ended. `zygote`: what the container is forked from; without
    one, or if that fails, it is started by an exec of its program."""

    def __init__(
        self,
        home: LaunchContext,
        spec: dict[str, Any],
        streams: tuple[int, int, int],
        *,
        tty: bool,
        group: str,
        join: int = 0,
        note: int = -1,
        console: socket.socket | None = None,
        zygote: Zygote | None = None,
        on_pid: Callable[[int, int], None],
        on_done: Callable[[tuple[int, str] | None], None],
    ) -> None:
        self._home = home
        self._on_pid = on_pid
        self._on_done = on_done
        self._status_pipe = b""
        self._problem: tuple[int, str] | None = None
        slot = spec.get("slot")
        target = 0 if join else spec.get("target_pid", 0)
        tool = spec.get("tool")
        flags = 0 if join or target else child.namespaces_of(home.powers["namespaces"], slot)
        if flags and tool:
            flags |= shim.FLAGS
        cgroup_handles = home.groups.open_for_joining(group) if home.groups is not None else []
        self._status, status = os.pipe2(os.O_CLOEXEC)
        go, self._go = os.pipe2(os.O_CLOEXEC)
        setup = child.ChildSetup(spec, home.powers, streams, tty=tty)
        setup.cgroup, setup.status, setup.go = cgroup_handles, status, go
        setup.filter_program, setup.init, setup.note = home.filter_program, home.init, note
        setup.console, setup.nothing = console, home.nothing
        sources, mapping = None, -1
        try:
            if flags and slot is not None:
                sources = setup.sources = filesystem.open_sources(spec)
                setup.mapped, mapping = os.pipe2(os.O_CLOEXEC)
            elif target and slot is not None:
                sources = setup.sources = filesystem.open_sources(spec)
                give_owners(target, spec, sources, home.powers)
            if home.networks is not None and not join:
                home.networks.enter(spec["network"])
            pid = zygote.clone(flags, setup) if zygote is not None and flags else 0
            self.forked = pid > 0
            if not pid:
                pid = linux.clone(flags) if flags else os.fork()
            if not pid:
                # Only the supervisor may hold the end that says "go": should it die, the child reads the end of the pipe.
                os.close(self._go)
                if mapping >= 0:
                    os.close(mapping)
                _become(setup, join, target)
            if sources is not None and not target:
                give_users(pid, spec, sources, home.powers, mapping)
        except BaseException:
            os.close(self._status)
            os.close(self._go)
            raise
        finally:
            if home.networks is not None and not join:
                home.networks.leave()
            for handle in (*cgroup_handles, status, go, setup.mapped, mapping):
                if handle >= 0:
                    os.close(handle)
            if sources is not None:
                sources.close()
        home.born(pid)
        self._init = pid if flags else 0
        self._child = pid
        home.loop.watch(self._status, select.EPOLLIN, self._read)
        home.loop.call_later(LONGEST_LAUNCH, self._too_long)

    def _too_long(self) -> None:
        """A volume on a server that is gone can hold a child for ever; nobody should wait that long for an answer."""
        if self._status >= 0:
            self._problem = (child.NOT_SET_UP, f"setting up the container took more than {LONGEST_LAUNCH:.0f} seconds")
            processes.send(self._child, signal.SIGKILL)
            self._finish()

    def _finish(self) -> None:
        self._home.loop.forget(self._status)
        os.close(self._status)
        self._status = -1
        if self._go >= 0:
            os.close(self._go)
            self._go = -1
            # Killed before it told its number: there is no process whose end anybody would wait for.
            self._problem = self._problem or (child.NOT_SET_UP, "the process ended while the container was set up")
        self._on_done(self._problem)

    def _read(self, _: int) -> None:
        data = os.read(self._status, 65536)
        if not data:
            self._finish()
            return
        *lines, self._status_pipe = (self._status_pipe + data).split(b"\n")
        for line in lines:
            if line.startswith(b"E"):
                code, message = json.loads(line[1:])
                self._problem = (code, message)
                continue
            numbers = [int(number) for number in line[1:].split()]
            self._init = numbers[1] if len(numbers) > 1 else self._init
            self._release(numbers[0])

    def _release(self, pid: int) -> None:
        try:
            self._on_pid(pid, self._init)
            os.write(self._go, b"g")
        except BrokenPipeError:
            pass  # it failed meanwhile; what it said comes next
        except OSError as problem:
            # It could not be written down, so it must not run: without the word it ends.
            self._problem = (child.NOT_SET_UP, f"cannot record the container: {problem.strerror}")
        except filesystem.SetupError as problem:
            self._problem = (child.NOT_SET_UP, str(problem))
        os.close(self._go)
        self._go = -1


def _become(setup: child.ChildSetup, join: int, target: int) -> NoReturn:
    tool = setup.spec.get("tool")
    if join and tool and tool["handler"] == bundle.GVISOR:
        shim.execute(setup, join, setup.spec["exec"])
    elif join:
        child.join(setup, join)
    elif tool and target:
        shim.start_beside(setup, target)
    elif tool:
        shim.start(setup)
    elif target:
        child.start_beside(setup, target)
    else:
        child.start(setup)


def give_users(
    pid: int, spec: dict[str, Any], sources: filesystem.Sources, powers: dict[str, Any], released: int
) -> None:
    """Map the users of a container that was just cloned, and the owners of its files; then let it go on."""
    users.write_maps(pid, spec["slot"], users.large_ids(spec))
    give_owners(pid, spec, sources, powers)
    os.write(released, b"m")


def give_owners(pid: int, spec: dict[str, Any], sources: filesystem.Sources, powers: dict[str, Any]) -> None:
    """Map the owners of a container's files to the users of the process."""
    slot = spec["slot"]
    if powers["idmap"]:
        handle = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            sources.map_owners(handle, slot, spec["directory"])
        finally:
            os.close(handle)
    else:
        sources.give_away(slot, spec["directory"])
