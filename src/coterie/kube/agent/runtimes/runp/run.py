"""One run of one container, from its start to the record of its end.

    starting ──exec──> running ──stop──> stopping ──> finished
        └──cannot be started──> finished (ContainerCannotRun), or never was (CreateContainerError)

The *leader* is the process whose end is the container's end: the init of its pid namespace where it has one, which then
also left a note of how the program ended; else the program itself.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import time

from coterie.kube.agent.runtimes.oci import sandbox_signals
from coterie.kube.agent.runtimes.runp import bubblewrap, cgroups, child, filesystem, init, linux, processes, users
from coterie.kube.agent.runtimes.runp.launch import Launch, LaunchContext
from coterie.kube.agent.runtimes.runp.logs import LogFile, LogStream
from coterie.kube.agent.runtimes.runp.streams import OutputListener, OutputStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from coterie.kube.agent.runtimes.runp.cgroups import Cgroups
    from coterie.kube.agent.runtimes.runp.zygote import Zygote

UNKNOWN = "ContainerStatusUnknown"
_PIPE_BYTES = 256 << 10
_MEMORY_SECONDS = 1.0
"""How often the memory of a container is counted where the kernel does not."""
_SIGNALLED = 128
_SPEC_ONLY = ("spec", "start_ticks", "boot")


class ContainerRun:
    def __init__(self, home: LaunchContext, spec: dict[str, Any], on_change: Callable[[ContainerRun], None]) -> None:
        self._home = home
        self.spec = spec
        self.on_change = on_change
        self.uid: str = spec["uid"]
        self.key = f"{spec['name']}.{spec['attempt']}"
        self.group = f"{self.uid}/{self.key}"
        self.record: dict[str, Any] = {
            "name": spec["name"], "attempt": spec["attempt"], "image": spec["image"], "image_id": spec["image_id"],
            "log_path": spec["log_path"], "pid": 0, "init": 0, "started_at": 0.0, "finished_at": 0.0, "exit_code": 0, "signal": 0,
            "reason": "", "message": "", "warnings": [], "group": self.group, "spec": spec,
        }  # fmt: skip
        self._outputs: list[OutputStream] = []
        self._log: LogFile | None = None
        self._locks: list[int] = []
        self._stdin = -1
        self._terminal = -1
        self._pidfd = -1
        self._forks: list[int] = []
        self._starters: list[Callable[[tuple[int, str] | None], None]] = []
        self._launched = False
        self._ended: int | None = None
        self._exceeded_memory = False
        self._killed = False
        """By an order, which is why it ended, even if one of its processes ran out of memory before."""
        self._deadline = 0.0
        self._waiters: list[Callable[[], None]] = []
        self._tool: dict[str, Any] | None = spec.get("tool")
        self._console: socket.socket | None = None
        """From where the terminal comes that an OCI runtime made."""
        self._own_pids = bool(home.powers["namespaces"]) and not spec.get("target_pid")
        """Whether it is a pid namespace, which ends with its first process and takes all others along."""

    # ----- what others see

    @property
    def pid(self) -> int:
        return int(self.record["pid"])

    @property
    def leader(self) -> int:
        return int(self.record["init"] or self.record["pid"])

    @property
    def inside(self) -> int:
        """A process in the container's namespaces, or, of a sandbox, beside it."""
        return self.pid if self._tool and not self._sandboxed else self.leader

    @property
    def _sandboxed(self) -> bool:
        return sandbox_signals.needed(self.spec)

    @property
    def program(self) -> int:
        """The container's program where another one waits for it; 0: it is `pid`, or has not been started yet."""
        return bubblewrap.program_of(self._processes(), self.pid) if self.spec.get("bwrap") and self.pid else 0

    @property
    def finished(self) -> bool:
        return bool(self.record["finished_at"])

    def _path(self, ending: str) -> str:
        return self._home.records.path(self.uid, f"{self.key}.{ending}")

    def record_for_agent(self) -> dict[str, Any]:
        """The record as the agent gets it."""
        return {key: value for key, value in self.record.items() if key not in _SPEC_ONLY}

    # ----- beginning

    def start(self, done: Callable[[tuple[int, str] | None], None]) -> None:
        """`done` hears None, or why it could not be made. A program that cannot be executed is a run that ended."""
        self._starters.append(done)
        limits = self.spec["limits"]
        groups = self._home.groups
        self._lock_layers()
        self._log = self._log_file()
        ends: list[int] = []
        console: socket.socket | None = None
        if self._tool and self.spec["tty"]:
            self._console, console = socket.socketpair()
        try:
            if groups is not None:
                if self._tool:
                    groups.create(self.group, 0, limits["shares"], 0, 0)  # the runtime's program is not to be limited
                else:
                    self._limit(groups)
                self._watch_forks(groups)
            streams = self._terminal_streams(ends) if self.spec["tty"] else self._pipe_streams(ends)
            note = os.open(self._path("exit"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            ends.append(note)
            launch = Launch(
                self._home,
                self.spec,
                streams,
                tty=self.spec["tty"],
                group=self.group,
                note=note,
                console=console,
                zygote=self._zygote(),
                on_pid=self._process_started,
                on_done=self._launch_over,
            )
            self.record["forked"] = launch.forked
        except BaseException:
            self._release()
            raise
        finally:
            if console is not None:
                console.close()
            for end in ends:
                os.close(end)

    def _zygote(self) -> Zygote | None:
        wanted, zygotes = self.spec.get("zygote"), self._home.zygotes
        return zygotes.wanted(wanted) if wanted and zygotes is not None else None

    def _limit(self, groups: Cgroups) -> None:
        limits = self.spec["limits"]
        groups.create(self.group, limits["cpu"], limits["shares"], limits["memory"], self._most_processes())

    def _most_processes(self) -> int:
        """The limit of the container, and what the handler's own processes need besides."""
        limit = int(self.spec["limits"]["pids"])
        if not limit:
            return 0
        if self._sandboxed:
            return limit + sandbox_signals.OWN_THREADS
        return limit + bubblewrap.OWN_PROCESSES if self.spec.get("bwrap") else limit

    @property
    def starting(self) -> bool:
        return not self._launched

    def when_started(self, done: Callable[[tuple[int, str] | None], None]) -> None:
        """As `start`, for another agent that asks while the launch is under way."""
        self._starters.append(done)

    def _lock_layers(self) -> None:
        """A shared lock on each layer keeps `coterie image rm` from taking away the files of a running container."""
        for path in self.spec["locks"]:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_SH)
            self._locks.append(handle)

    def _log_file(self) -> LogFile:
        rotation = self.spec["log"]
        return LogFile(self.spec["log_path"], rotation["bytes"], rotation["files"], rotation["age"])

    def _pipe_streams(self, ends: list[int]) -> tuple[int, int, int]:
        stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        ends.append(stdin)
        if self.spec["stdin"]:
            stdin, self._stdin = os.pipe2(os.O_CLOEXEC)
            ends.append(stdin)
        handles = []
        for name, ending in (("stdout", "out"), ("stderr", "err")):
            path = self._path(ending)
            if not os.path.exists(path):
                os.mkfifo(path, 0o600)
            self._listen(name, path)
            # The container's own end reads as well as writes: should the supervisor die, there is still a reader, so
            # nobody gets SIGPIPE, and the next supervisor goes on where this one stopped.
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.fcntl(handle, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            self._give_to_user(handle)
            ends.append(handle)
            handles.append(handle)
        return stdin, handles[0], handles[1]

    def _listen(self, name: str, path: str) -> None:
        assert self._log is not None
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._outputs.append(OutputStream(self._home.loop, handle, LogStream(name, self._log)))

    def _terminal_streams(self, ends: list[int]) -> tuple[int, int, int]:
        if self._tool:
            nothing = self._home.nothing
            return nothing, nothing, nothing  # the runtime makes a terminal in the container
        master, slave = os.openpty()
        ends.append(slave)
        self._give_to_user(slave)
        self._use_terminal(master)
        return slave, slave, slave

    def _use_terminal(self, master: int) -> None:
        assert self._log is not None
        self._terminal = os.dup(master)
        os.set_blocking(master, False)
        self._outputs.append(OutputStream(self._home.loop, master, LogStream("stdout", self._log)))

    def _give_to_user(self, handle: int) -> None:
        owner = users.owner(self.spec, self._home.powers)
        if owner is not None:
            os.fchown(handle, *owner)

    def _process_started(self, pid: int, leader: int) -> None:
        if self._tool and self._home.groups is not None:
            try:
                self._limit(self._home.groups)
            except OSError as problem:
                handler, memory = self._tool["handler"], size_text(self.spec["limits"]["memory"])
                why = f"cannot set the limits of the container, which {handler} has made: {problem.strerror}"
                raise filesystem.SetupError(f"{why}; the memory limit of {memory} may be too small") from problem
        if self._console is not None:
            _, handles, _, _ = socket.recv_fds(self._console, 16, 1)
            self._use_terminal(handles[0])
        self.record |= {
            "pid": pid,
            "init": leader,
            "started_at": time.time(),
            "start_ticks": processes.start_ticks(leader or pid),
            "boot": processes.boot_id(),
        }
        self._home.records.save(self.uid, self.key, self.record, flush=False)
        self._home.claim(self.leader, self._exited)

    def _launch_over(self, problem: tuple[int, str] | None) -> None:
        self._launched = True
        starters, self._starters = self._starters, []

        def started(outcome: tuple[int, str] | None) -> None:
            for starter in starters:
                starter(outcome)

        if problem is None:
            started(None)
            self._watch_memory()
            self._settle()
        elif problem[0] == child.NOT_SET_UP:
            self._forget_child()
            self._home.records.forget(self.uid, self.key)
            self._release()
            self.record["finished_at"] = time.time()
            started(problem)
            self._tell_waiters()
        else:
            self._forget_child()
            self.record |= {"started_at": self.record["started_at"] or time.time()}
            self._end(problem[0], 0, "ContainerCannotRun", problem[1])
            started(None)

    def _forget_child(self) -> None:
        """A child that failed on its way is reaped, but its end is no news."""
        self._home.children.pop(self.leader, None)

    # ----- limits

    def _watch_forks(self, groups: Cgroups) -> None:
        """Learn when a fork is refused in the container's group or in that of its pod. The kernel tells with version 2;
        with version 1 the supervisor calls `check_forks` now and then."""
        if not self.spec["limits"]["pids"]:
            return
        for group in (self.group, self.uid):
            handle = groups.watch_pids(group)
            if handle >= 0:
                self._forks.append(handle)
                cgroups.refused_forks(handle)
                if groups.version == 2:
                    self._home.loop.watch(handle, select.EPOLLPRI, self.check_forks)

    def check_forks(self, _: int = 0) -> None:
        """Once is enough: a program that forks for ever would keep us busy."""
        if not self._note_refused_forks():
            return
        self._home.records.save_soon(self.uid, self.key, self.record)
        self.on_change(self)

    def _note_refused_forks(self) -> bool:
        refused = [cgroups.refused_forks(handle) for handle in self._forks]
        if not any(refused):
            return False
        limits, own = self.spec["limits"], bool(refused[0])
        what = f"Container {self.spec['name']}" if own else "The pod"
        number = limits["pids"] if own else limits.get("pod_pids", 0)
        self._forget_forks()
        self.record["warnings"] = [["PidsLimitReached", f"{what} reached its limit of {number} processes"]]
        return True

    def _forget_forks(self) -> None:
        handles, self._forks = self._forks, []
        for handle in handles:
            self._home.loop.forget(handle)
            os.close(handle)

    def _watch_memory(self) -> None:
        """Without a control group for memory only this sees what processes share, which no limit of theirs counts."""
        limits = self.spec["limits"]
        limit = limits["memory"] or limits.get("pod_memory") or 0
        if self._home.powers["cgroup_memory"] or not limit or self.finished:
            return
        if processes.memory_above(self._processes(), limit):
            self._exceeded_memory = True
            self._kill_all()
            return
        self._home.loop.call_later(_MEMORY_SECONDS, self._watch_memory)

    def limits_changed(self, limits: dict[str, int]) -> None:
        """Its group was given other limits while it runs."""
        self.spec["limits"].update(limits)
        self._home.records.save_soon(self.uid, self.key, self.record)

    def _memory_message(self) -> str:
        limits, groups = self.spec["limits"], self._home.groups
        if limits["memory"] and (groups is None or groups.memory_limit_reached(self.group)):
            return f"Container {self.spec['name']} exceeded its memory limit of {size_text(limits['memory'])}"
        if limits.get("pod_memory"):
            return f"The pod exceeded its memory limit of {size_text(limits['pod_memory'])}"
        return "The node ran out of memory"

    # ----- coming back to it

    def adopt(self, record: dict[str, Any]) -> None:
        """Take over a run that an earlier supervisor started; it is alive, or it ended while nobody looked."""
        self.record = record
        self._launched = True
        if record["finished_at"]:
            return
        if not self._find_process():
            self._exited_unseen()
            return
        self._lock_layers()
        self._log = self._log_file()
        if not self.spec["tty"]:
            for name, ending in (("stdout", "out"), ("stderr", "err")):
                path = self._path(ending)
                if os.path.exists(path):
                    self._listen(name, path)
        self._home.loop.watch(self._pidfd, select.EPOLLIN, self._adopted_ended)
        self._watch_memory()
        if self._home.groups is not None:
            self._watch_forks(self._home.groups)

    def _find_process(self) -> bool:
        if self.record["boot"] != processes.boot_id():
            return False
        try:
            self._pidfd = os.pidfd_open(self.leader)
        except OSError:
            return False
        # Looked up after the handle was got: the number cannot be given away between the two.
        if processes.start_ticks(self.leader) == self.record["start_ticks"]:
            return True
        os.close(self._pidfd)
        self._pidfd = -1
        return False

    def _adopted_ended(self, _: int) -> None:
        status = linux.exit_status_of(self._pidfd)
        self._home.loop.forget(self._pidfd)
        if status is None:
            self._exited_unseen()
        else:
            self._exited(status)

    def _exited_unseen(self) -> None:
        if init.read_note(self._path("exit")) is not None:
            self._exited(0)  # the note knows better
        else:
            self._finish_group(lambda: self._end(137, 9, UNKNOWN, "The container ended; its exit status is unknown."))

    # ----- ending

    def _exited(self, status: int) -> None:
        self._ended = status
        self._settle()

    def _settle(self) -> None:
        """An end that comes before the launch is over waits for what the launch has to say."""
        if self._ended is None or not self._launched or self.finished:
            return
        status = init.read_note(self._path("exit"))
        code = os.waitstatus_to_exitcode(self._ended if status is None else status)
        number = -code if code < 0 else 0
        if (self.spec.get("bwrap") or self._sandboxed) and code > _SIGNALLED:
            number = code - _SIGNALLED  # as a shell, bwrap and runsc have no other way to say so
        self._finish_group(lambda: self._end(128 + number if number else code, number, "", ""))

    def _finish_group(self, then: Callable[[], None]) -> None:
        """Kill what the container's first process left behind, then go on. A pid namespace has done it already."""
        if not self._own_pids:
            left = [pid for pid in self._processes() if pid != self.pid]
            if left:
                self._kill_all()
                self._home.loop.call_later(0.01, lambda: self._finish_group(then))
                return
        then()

    def _end(self, code: int, number: int, reason: str, message: str) -> None:
        groups = self._home.groups
        for output in self._outputs:
            output.finish()
        self._outputs.clear()
        self._note_refused_forks()
        if not reason:
            reason = "Completed" if code == 0 else "Error"
            killed = self._killed and number == signal.SIGKILL
            out_of_memory = groups is not None and not killed and bool(groups.out_of_memory(self.group))
            if code and (self._exceeded_memory or out_of_memory):
                reason, message = "OOMKilled", self._memory_message()
            elif code and self.record.get("warnings"):
                message = self.record["warnings"][0][1]
        self.record |= {
            "finished_at": time.time(),
            "exit_code": code,
            "signal": number,
            "reason": reason,
            "message": message,
            "pid": 0,
            "init": 0,
        }
        if not self._home.records.save_soon(self.uid, self.key, self.record):
            self._home.loop.call_later(1.0, self._save_again)
        self._release()
        self.on_change(self)
        self._tell_waiters()

    def _tell_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def _save_again(self) -> None:
        if not self._home.records.retry():
            self._home.loop.call_later(1.0, self._save_again)

    def _release(self) -> None:
        for output in self._outputs:
            output.finish()
        self._outputs.clear()
        if self._log is not None:
            self._log.close()
            self._log = None
        for handle in (self._stdin, self._terminal, self._pidfd, *self._locks):
            if handle >= 0:
                os.close(handle)
        self._stdin = self._terminal = self._pidfd = -1
        self._locks.clear()
        self._forget_forks()
        if self._console is not None:
            self._console.close()
            self._console = None
        for ending in ("out", "err", "exit"):
            try:
                os.unlink(self._path(ending))
            except FileNotFoundError:
                continue
        self._remove_group(20)

    def _remove_group(self, tries: int) -> None:
        """A group is busy for a moment after its last process is gone."""
        groups = self._home.groups
        if groups is not None and not groups.remove(self.group) and tries:
            self._home.loop.call_later(0.05, lambda: self._remove_group(tries - 1))

    # ----- orders

    def signal(self, number: int) -> None:
        if self.finished or not self.pid:
            return
        if number == signal.SIGKILL:
            self._killed = True
            self._kill_all()
        elif self._sandboxed:
            sandbox_signals.send(self._home.nothing, self.spec, self._home.powers, self.leader, number, everyone=False)
        else:
            processes.send(self.program or self.pid, number)

    def stop(self, grace: float, waiter: Callable[[], None]) -> None:
        if self.finished:
            waiter()
            return
        self._waiters.append(waiter)
        deadline = time.monotonic() + grace
        if self._deadline:
            self._deadline = min(self._deadline, deadline)
            return
        self._deadline = deadline
        if grace > 0 and self._sandboxed:
            sandbox_signals.send(
                self._home.nothing, self.spec, self._home.powers, self.leader, signal.SIGTERM, everyone=True
            )
        elif grace > 0:
            # Who only waits for the program is not asked to end before it.
            waiting = self.pid if self.program else 0
            for pid in self._processes() or [self.pid]:
                if pid != waiting:
                    processes.send(pid, signal.SIGTERM)
        self._check_stopped(0.005)

    def _check_stopped(self, wait: float) -> None:
        if self.finished:
            return
        if time.monotonic() >= self._deadline:
            self._killed = True
            self._kill_all()
        wait = min(wait * 2, 0.1, max(0.005, self._deadline - time.monotonic()))
        self._home.loop.call_later(wait, lambda: self._check_stopped(wait))

    def _processes(self) -> list[int]:
        if self._home.groups is not None:
            return self._home.groups.processes(self.group)
        if self.spec.get("bwrap"):
            return processes.below(self.leader)
        if self._own_pids:
            return [pid for pid in processes.in_namespace(self.leader) if pid != self.leader]
        return processes.marked(f"{self.uid}/{self.key}")

    def _kill_all(self) -> None:
        if self._own_pids:
            # The first process of a pid namespace takes all others with it, also those being born.
            processes.send(self.leader, signal.SIGKILL)
        elif self._home.groups is not None:
            self._home.groups.kill(self.group)
        else:
            for pid in self._processes():
                processes.send(pid, signal.SIGKILL)

    # ----- attaching

    def listen(self, stdin: bool) -> list[int]:
        """Handles for the agent: stdout, stderr unless there is a terminal, then the container's input if it has one."""
        given = []
        for output in self._outputs:
            reading, writing = os.pipe2(os.O_CLOEXEC)
            output.listeners = [listener for listener in output.listeners if listener.open]
            output.listeners.append(OutputListener(self._home.loop, writing))
            given.append(reading)
        source = self._terminal if self.spec["tty"] else self._stdin
        if source >= 0 and (stdin or self.spec["tty"]):
            given.append(os.dup(source))
        return given

    def close_stdin(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1


def size_text(amount: int) -> str:
    """Bytes as a quantity, in the largest unit that leaves no fraction worth reading."""
    for shift, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if amount >= 1 << shift:
            return f"{round(amount / (1 << shift), 1):g}{unit}"
    return str(amount)
