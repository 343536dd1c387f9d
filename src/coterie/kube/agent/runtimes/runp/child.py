"""From fork to exec: the child's own steps, in plain Python in a process with a single thread.

    supervisor ──clone into new namespaces──> process 1: init ──fork──> process 2 ──exec──> the program
                                                                        │ waits for the word to go

    supervisor ──fork──> middle: joins the namespaces ──fork──> a further process ──exec──> the program of an exec, or of
                         │ tells the pid, ends                                              a container with a target

The middle is needed because a pid namespace that is joined begins with the next fork; the supervisor is the reaper of its
orphans. All news goes through the status pipe: `P<pid>` of the program, then `E<json>` or the end of the pipe, which exec
closes. Without namespaces there is neither middle nor init.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import signal
import socket
import termios

from coterie.kube.agent.runtimes.runp import bubblewrap, confine, filesystem, init, linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
_JOINED = (
    ("user", linux.CLONE_NEWUSER),
    ("ipc", linux.CLONE_NEWIPC),
    ("uts", linux.CLONE_NEWUTS),
    ("pid", linux.CLONE_NEWPID),
    ("mnt", linux.CLONE_NEWNS),
)
NOT_FOUND, NOT_EXECUTABLE, NOT_SET_UP = 127, 126, 128


def namespaces_of(mode: str, slot: int | None = None) -> int:
    """The flags to clone with; 0: a plain fork. With a slot, root's containers have users of their own as well."""
    own_users = linux.CLONE_NEWUSER if mode == "user" or slot is not None else 0
    return NAMESPACES | own_users if mode else 0


class ChildSetup:
    """What a child needs from the supervisor: its streams and the pipes to the supervisor."""

    def __init__(
        self, spec: dict[str, Any], powers: dict[str, Any], streams: tuple[int, int, int], *, tty: bool
    ) -> None:
        self.spec = spec
        self.powers = powers
        self.stdin, self.stdout, self.stderr = streams
        self.tty = tty
        self.cgroup: list[int] = []
        self.status = self.go = self.mapped = -1
        self.sources: filesystem.Sources | None = None
        """Opened by the supervisor; `mapped` tells when their owners and our users are mapped."""
        self.filter_program = b""
        self.init = self.note = self.nothing = -1
        self.console: socket.socket | None = None
        """Where an OCI runtime's terminal goes."""
        self.owner = (os.getuid(), os.getgid())
        """Who we are before a user namespace makes us nobody."""
        self.forked = False
        """Whether the child is already the program, and goes on instead of executing one."""


def start(setup: ChildSetup) -> NoReturn:
    """The forked child; never returns."""
    guarded(setup, _start)


def start_forked(setup: ChildSetup, finish: Callable[[ChildSetup], None]) -> None:
    """As `start`, in a process that has the container's program in its memory: returns in the container, after `finish`."""
    setup.forked = True

    def steps(each: ChildSetup) -> None:
        _start(each)
        finish(each)

    _attempt(setup, steps)


def start_beside(setup: ChildSetup, pid: int) -> NoReturn:
    """As `start`, for a container that shares the processes of the one to which `pid` belongs."""
    guarded(setup, lambda b: _start_beside(b, pid))


def join(setup: ChildSetup, pid: int) -> NoReturn:
    """As `start`, for a further process in the container whose first process is `pid`."""
    guarded(setup, lambda b: _join(b, pid))


def guarded(setup: ChildSetup, steps: Callable[[ChildSetup], None]) -> NoReturn:
    _attempt(setup, steps)
    _fail(setup, NOT_SET_UP, "")  # the steps end with another program


def _attempt(setup: ChildSetup, steps: Callable[[ChildSetup], None]) -> None:
    """Take the steps. A failure is told, and is the end of this process."""
    gc.disable()
    code, message = NOT_SET_UP, ""
    try:
        steps(setup)
        return
    except ExecError as problem:
        code, message = problem.code, str(problem)
    except filesystem.SetupError as problem:
        message = str(problem)
    except OSError as problem:
        where = f": {problem.filename}" if problem.filename else ""
        message = f"cannot set up the container{where}: {problem.strerror}"
    except BaseException as problem:  # noqa: BLE001 - nothing may climb back into the supervisor's loop
        message = f"cannot set up the container: {type(problem).__name__}: {problem}"
    _fail(setup, code, message)


def _fail(setup: ChildSetup, code: int, message: str) -> NoReturn:
    try:
        os.write(setup.status, b"E" + json.dumps([code, message]).encode() + b"\n")
    finally:
        os._exit(code)


def _start(setup: ChildSetup) -> None:
    mode = setup.powers["namespaces"]
    if mode:
        if setup.mapped >= 0:
            if os.read(setup.mapped, 1) != b"m":
                os._exit(NOT_SET_UP)
            become_root()
        elif mode == "user":
            map_user(setup.spec, setup.owner)
        if os.fork():
            init.become(setup.init, setup.note)
        # This /proc is still the machine's, so it tells the number that the machine knows us by.
        os.write(setup.status, b"P%s\n" % os.fsencode(os.readlink("/proc/self")))
    else:
        os.write(setup.status, b"P%d\n" % os.getpid())
    fresh_process(setup)
    if mode:
        socket.sethostname(setup.spec["hostname"])
        if setup.spec.get("bwrap"):
            _start_in_bubblewrap(setup)
        filesystem.enter(setup.spec, setup.sources or filesystem.open_sources(setup.spec))
        os.chdir(setup.spec["cwd"]) if os.path.isdir(setup.spec["cwd"]) else _no_directory(setup.spec["cwd"])
    else:
        os.chdir(setup.spec["cwd"] if filesystem.covered(setup.spec, setup.spec["cwd"]) else setup.spec["work"])
    _finish(setup, setup.spec["argv"])


def _start_in_bubblewrap(setup: ChildSetup) -> NoReturn:
    spec = setup.spec
    root, machine = filesystem.enter_beside(spec, setup.sources or filesystem.open_sources(spec))
    if not os.path.isdir(spec["cwd"]):
        _no_directory(spec["cwd"])
    os.chdir(spec["cwd"])
    # bwrap would only say that it could not start the program; what is wrong with it is found out before.
    argv = [find_program(spec["argv"][0], environment_of(spec)), *spec["argv"][1:]]
    filesystem.return_to(machine)
    join_group(setup)
    bubblewrap.execute(spec, setup.powers, root, setup.filter_program, argv)


def _start_beside(setup: ChildSetup, pid: int) -> None:
    """With a root of its own, among the processes of the container of `pid`: in its user, IPC and pid namespaces."""
    spec = setup.spec
    for handle, kind in handles_of(pid, ("user", "ipc", "pid")):
        linux.setns(handle, kind)
        os.close(handle)
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS)
    if spec.get("slot") is not None:
        become_root()
    elif setup.powers["namespaces"] == "user":
        spec["user"] = spec["group"] = None  # there is one user only, that of the target
    fork_and_report(setup)
    fresh_process(setup)
    socket.sethostname(spec["hostname"])
    filesystem.enter(spec, setup.sources or filesystem.open_sources(spec))
    os.chdir(spec["cwd"]) if os.path.isdir(spec["cwd"]) else _no_directory(spec["cwd"])
    _finish(setup, spec["argv"])


def handles_of(pid: int, names: tuple[str, ...]) -> list[tuple[int, int]]:
    """(handle, kind) of namespaces of a process, in the order in which they can be joined."""
    found = []
    for name, kind in _JOINED:
        # Into one's own user namespace nobody can go; privileged containers and those of an earlier version share ours.
        own = name == "user" and os.stat(f"/proc/{pid}/ns/user").st_ino == os.stat("/proc/self/ns/user").st_ino
        if name in names and not own:
            found.append((os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind))
    return found


def _join_bubblewrap(setup: ChildSetup, pid: int) -> None:
    """First into the user namespace of the container, to become its user, then into bwrap's namespaces."""
    spec, program = setup.spec, setup.spec["joined_program"]
    outer = handles_of(pid, ("user",))
    if setup.powers["network"]:
        outer.insert(0, (os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC), linux.CLONE_NEWNET))
    inner = handles_of(program, tuple(name for name, _ in _JOINED))
    for handle, kind in outer:
        linux.setns(handle, kind)
    if spec.get("slot") is not None:
        become_root()
    confine.become_user(spec, setup.powers, linux.effective_capabilities())
    for handle, kind in inner:
        linux.setns(handle, kind)
    fork_and_report(setup)
    fresh_process(setup)
    os.chdir(spec["cwd"])
    spec |= {"user": None, "group": None, "groups": [], "capabilities": [], "escalation": False}
    _finish(setup, spec["exec"])


def _join(setup: ChildSetup, pid: int) -> None:
    if setup.spec.get("bwrap"):
        _join_bubblewrap(setup, pid)
    if setup.powers["namespaces"]:
        handles = []
        if setup.powers["network"]:
            # Before the user namespace: what it belongs to is not the container's.
            handles.append((os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC), linux.CLONE_NEWNET))
        handles += handles_of(pid, tuple(name for name, _ in _JOINED))
        for handle, kind in handles:
            linux.setns(handle, kind)
        if setup.spec.get("slot") is not None:
            become_root()
        fork_and_report(setup)
        fresh_process(setup)
        os.chdir(setup.spec["cwd"])
    else:
        os.write(setup.status, b"P%d\n" % os.getpid())
        fresh_process(setup)
        os.chdir(f"/proc/{pid}/cwd")
    _finish(setup, setup.spec["exec"])


def become_root() -> None:
    """The supervisor's user does not exist in a container's user namespace; its root does."""
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def map_user(spec: dict[str, Any], owner: tuple[int, int]) -> None:
    """Without root we are whoever the container asks for, inside a namespace where only we exist."""
    user, group = owner
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/gid_map", f"{_group_of(spec, group)} {group} 1")
    _write("/proc/self/uid_map", f"{user if spec['user'] is None else spec['user']} {user} 1")


def _group_of(spec: dict[str, Any], default: int) -> int:
    if spec["group"] is not None:
        return int(spec["group"])
    return default if spec["user"] is None else int(spec["user_group"])


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.write(handle, text.encode())
    os.close(handle)


def fork_and_report(setup: ChildSetup) -> None:
    pid = os.fork()
    if pid:
        os.write(setup.status, b"P%d\n" % pid)
        os._exit(0)


def fresh_process(setup: ChildSetup) -> None:
    """Nothing of the supervisor's ways with signals and terminals is left."""
    forget_signals()
    os.setsid()
    os.umask(0o022)
    if setup.tty:
        fcntl.ioctl(setup.stdin, termios.TIOCSCTTY, 0)


def forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _finish(setup: ChildSetup, argv: list[str]) -> None:
    join_group(setup)
    confine.confine(setup.spec, setup.powers, setup.filter_program)
    if setup.forked:
        confine.as_after_exec()
        return
    execute(argv, environment_of(setup.spec))


def environment_of(spec: dict[str, Any]) -> dict[bytes, bytes]:
    return {
        name.encode(errors="surrogateescape"): value.encode(errors="surrogateescape") for name, value in spec["env"]
    }


def join_group(setup: ChildSetup) -> None:
    """Streams and control group are the container's; then wait for the word to go."""
    for handle, number in ((setup.stdin, 0), (setup.stdout, 1), (setup.stderr, 2)):
        os.dup2(handle, number)
    for cgroup_handle in setup.cgroup:
        os.write(cgroup_handle, b"0")
    if os.read(setup.go, 1) != b"g":
        os._exit(NOT_SET_UP)  # the supervisor died before it could write us down


def _no_directory(path: str) -> None:
    raise ExecError(NOT_SET_UP, f"working directory {path} does not exist")


class ExecError(Exception):
    """The program cannot be started; `code` is what a shell would answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def execute(argv: list[str], environment: dict[bytes, bytes]) -> NoReturn:
    name = argv[0]
    refused: OSError | None = None
    for candidate in _candidates(name, environment):
        try:
            os.execve(candidate, argv, environment)
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.ENOTDIR):
                refused = refused or problem
    _cannot_execute(name, refused)


def find_program(name: str, environment: dict[bytes, bytes]) -> str:
    """Where a program is that another one will execute. Raises ExecError."""
    refused: OSError | None = None
    for candidate in _candidates(name, environment):
        problem = 0 if os.path.isfile(candidate) and os.access(candidate, os.X_OK) else errno.EACCES
        if not problem and not _has_format(candidate):
            problem = errno.ENOEXEC
        if not problem:
            return candidate
        if os.path.exists(candidate):
            refused = refused or OSError(problem, os.strerror(problem))
    _cannot_execute(name, refused)


def _has_format(path: str) -> bool:
    """Whether the kernel will know what to do with it: a program or a script that names its interpreter."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True  # one may execute what one may not read
    try:
        return os.read(handle, 4).startswith((b"#!", b"\x7fELF"))
    finally:
        os.close(handle)


def _candidates(name: str, environment: dict[bytes, bytes]) -> list[str]:
    if "/" in name:
        return [name]
    folders = environment.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").decode(errors="surrogateescape")
    return [f"{folder or '.'}/{name}" for folder in folders.split(":")]


def _cannot_execute(name: str, refused: OSError | None) -> NoReturn:
    if refused is not None:
        raise ExecError(NOT_EXECUTABLE, f'exec: "{name}": {(refused.strerror or "").lower()}')
    if "/" in name:
        raise ExecError(NOT_FOUND, f'exec: "{name}": stat {name}: no such file or directory')
    raise ExecError(NOT_FOUND, f'exec: "{name}": executable file not found in $PATH')
