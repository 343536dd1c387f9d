"""A further process in a running container: `kubectl exec`, probes and hooks.

It belongs to the connection that asked for it: an agent that is gone leaves nobody to hear the answer, so it is killed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time

from coterie.kube.agent.runtimes.oci import sandbox_signals
from coterie.kube.agent.runtimes.runp import users
from coterie.kube.agent.runtimes.runp.launch import Launch, LaunchContext
from coterie.kube.agent.runtimes.runp.run import ContainerRun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441


class Execution:
    """`handles` are the agent's ends: stdin, stdout, stderr as far as asked for, or the terminal alone."""

    def __init__(
        self,
        home: LaunchContext,
        run: ContainerRun,
        argv: list[str],
        *,
        stdin: bool,
        tty: bool,
        stderr: bool,
        started: Callable[[tuple[int, str] | None], None],
        ended: Callable[[int], None],
    ) -> None:
        self.handles: list[int] = []
        self.pid = 0
        self._home = home
        self._ended = ended
        self._started = started
        self._status: int | None = None
        self._launched = False
        ends: list[int] = []
        try:
            streams = self._terminal(run, ends) if tty else self._pipes(ends, stdin, stderr)
            spec = {**run.spec, "exec": argv, "exec_number": time.monotonic_ns(), "joined_program": run.program}
            self._sandboxed = (spec, run.leader) if sandbox_signals.needed(spec) else None
            if tty:
                spec["env"] = [["TERM", "xterm"], *run.spec["env"]]
            Launch(
                home,
                spec,
                streams,
                tty=tty,
                group=run.group,
                join=run.inside,
                on_pid=self._process_started,
                on_done=self._launch_over,
            )
        except BaseException:
            self.drop_handles()
            raise
        finally:
            for end in ends:
                os.close(end)

    def _pipes(self, ends: list[int], stdin: bool, stderr: bool) -> tuple[int, int, int]:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        ends.append(nothing)
        given = nothing
        if stdin:
            given, ours = os.pipe2(os.O_CLOEXEC)
            ends.append(given)
            self.handles.append(ours)
        outputs = []
        for wanted in (True, stderr):
            output = nothing
            if wanted:
                ours, output = os.pipe2(os.O_CLOEXEC)
                ends.append(output)
                self.handles.append(ours)
            outputs.append(output)
        return given, outputs[0], outputs[1]

    def _terminal(self, run: ContainerRun, ends: list[int]) -> tuple[int, int, int]:
        """A terminal of the container's own /dev/pts, so that `tty` in there names something that is there."""
        try:
            master = os.open(
                f"/proc/{run.program or run.inside}/root/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
            )
            fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
            slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            master, slave = os.openpty()
        self.handles.append(master)
        ends.append(slave)
        owner = users.owner(run.spec, self._home.powers)
        if owner is not None:
            os.fchown(slave, *owner)
        return slave, slave, slave

    def drop_handles(self) -> None:
        for handle in self.handles:
            os.close(handle)
        self.handles.clear()

    def _process_started(self, pid: int, _: int) -> None:
        self.pid = pid
        self._home.claim(pid, self._exited)

    def _launch_over(self, problem: tuple[int, str] | None) -> None:
        self._launched = True
        if problem is not None:
            self._home.children.pop(self.pid, None)
            self.pid = 0
        self._started(problem)
        if self._status is not None and problem is None:
            self._exited(self._status)

    def _exited(self, status: int) -> None:
        self._status = status
        if self._launched:
            self.pid = 0
            code = os.waitstatus_to_exitcode(status)
            self._ended(128 - code if code < 0 else code)

    def kill(self) -> None:
        if self.pid:
            if self._sandboxed is not None:
                spec, leader = self._sandboxed
                sandbox_signals.kill_exec(self._home.nothing, spec, self._home.powers, leader, self.pid)
                return
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
