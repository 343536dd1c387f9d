"""From fork to a running container by way of an OCI runtime program: the steps of the shim, and what comes after it.

    supervisor ──clone into new namespaces──> shim ──fork, exec──> PROGRAM create ──> the container's process
                                              │                    PROGRAM start
                                              └──exec──> init: notes how the container's process ended (`runp/init.py`)

The shim makes the container's root with the code of RunP, in a mount namespace of its own in which there is nothing else
but /usr and the program. So the program has the rights of the pod's users on the machine's /usr, whatever is wrong with it;
all that it leaves behind (state, mounts, processes) goes with the shim's namespaces. Control groups, users and networks are
the supervisor's work, and the program is told nothing of them.

The container is in the pid namespace of the shim (gVisor: in a kernel of its own), as in RunP: process 1 is our init, so
that the program gets signals as it would anywhere else.

News go through the status pipe as in `runp/child.py`: `P<pid> <pid of the shim>`, then `E<json>` or the end of the pipe.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time

from coterie.kube.agent.runtimes.oci import bundle
from coterie.kube.agent.runtimes.runp import child, filesystem, init, landlock, linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from coterie.kube.agent.runtimes.runp.child import ChildSetup

FLAGS = linux.CLONE_NEWCGROUP
"""Beyond those of RunP: a program wants to see control groups, and may see those from the shim's own on."""
_STATE, _BUNDLE, _LOG, _PID, _CONSOLE, _IMAGE = "/state", "/bundle", "/log", "/pid", "/console", "/image"
_PROGRAM = "/program"
_DIRECTORIES = ("bundle", "dev", "etc", "image", "proc", "run", "state", "sys", "tmp", "var")
_SHARED = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_RESOURCES = {
    "RLIMIT_CORE": resource.RLIMIT_CORE,
    "RLIMIT_NOFILE": resource.RLIMIT_NOFILE,
    "RLIMIT_FSIZE": resource.RLIMIT_FSIZE,
    "RLIMIT_DATA": resource.RLIMIT_DATA,
    "RLIMIT_NPROC": resource.RLIMIT_NPROC,
}
_MOST_LOG = 1 << 16
_EXEC_SECONDS = 10.0
"""For an exec to begin before it is ended without its number being known."""
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def start(setup: ChildSetup) -> NoReturn:
    """The cloned child; never returns."""
    child.guarded(setup, _start)


def start_beside(setup: ChildSetup, pid: int) -> NoReturn:
    """As `start`, for a container that shares the processes of the one whose init is `pid`."""
    child.guarded(setup, lambda each: _start_beside(each, pid))


def run_program(setup: ChildSetup, pid: int, words: list[str]) -> NoReturn:
    """Run the program once more, where the shim is `pid` now. Nobody waits for it."""
    child.guarded(setup, lambda each: _run_program(each, pid, words))


def execute(setup: ChildSetup, pid: int, argv: list[str]) -> NoReturn:
    """A further process in the sandbox of which the shim is `pid` now."""
    child.guarded(setup, lambda each: _execute(each, pid, argv))


def kill_exec(setup: ChildSetup, pid: int, waiting: int) -> NoReturn:
    """End the process that `execute` began, for which the program runs as `waiting`."""
    child.guarded(setup, lambda each: _kill_exec(each, pid, waiting))


def name_of(leader: int) -> str:
    """What the program calls the container whose shim is known to the machine as `leader`. It knows that one only, but
    gVisor listens on a socket of this name in the pod's network."""
    return f"container-{leader}"


def command(spec: dict[str, Any]) -> list[str]:
    """The program with the options that all of its commands take."""
    tool = spec["tool"]
    words = [_PROGRAM, "--root", _STATE, "--log", _LOG, "--log-format", "json"]
    if tool["handler"] == bundle.GVISOR:
        # Outside of the sandbox nothing is to be limited or connected any more: the supervisor has done so.
        return [*words, f"--platform={tool['platform']}", "--network=host", "--ignore-cgroups"]
    if tool["handler"] == "crun":
        return [*words, "--cgroup-manager=disabled"]
    return [*words, "--rootless=true"]


# ----- a container


def _start(setup: ChildSetup) -> None:
    if setup.mapped >= 0:
        if os.read(setup.mapped, 1) != b"m":
            os._exit(child.NOT_SET_UP)
        child.become_root()
    elif setup.powers["namespaces"] == "user":
        child.map_user({**setup.spec, "user": 0, "group": 0}, setup.owner)
    _make(setup)


def _start_beside(setup: ChildSetup, pid: int) -> None:
    for handle, kind in child.handles_of(pid, ("user", "ipc", "pid")):
        linux.setns(handle, kind)
        os.close(handle)
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP)
    if setup.spec.get("slot") is not None:
        child.become_root()
    if os.fork():
        os._exit(0)
    linux.become_subreaper()
    _make(setup)


def _make(setup: ChildSetup) -> None:
    spec = setup.spec
    # The machine's /proc tells the numbers that the machine knows processes by.
    machine = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    own = int(os.readlink("self", dir_fd=machine))
    name = name_of(own)
    socket.sethostname(spec["hostname"])
    setup.sources = setup.sources or filesystem.open_sources(spec)
    root = _make_files(spec, setup.sources)
    placed = _inside(root, lambda: _fill(setup))
    linux.mount(f"{root}/dev", "/dev", "", linux.MS_BIND | linux.MS_REC)
    config = bundle.config(
        spec,
        root=root,
        machine=linux.machine(),
        capabilities=linux.effective_capabilities(),
        hard_limits=_hard_limits(),
        placed=placed,
        powers=setup.powers,
    )
    _write(f"{_BUNDLE}/config.json", json.dumps(config))
    number = _create(setup, name)
    known = _machines_number(machine, number)
    os.close(machine)
    os.write(setup.status, f"P{known} {own}\n".encode())
    if os.read(setup.go, 1) != b"g":
        _abandon(number)  # the supervisor died before it could write us down
    status = _call(setup, [*command(spec), "start", name])
    # Killed: by the container's program, as all that it can (`kill -9 -1`), so it has been started.
    if status and not os.WIFSIGNALED(status):
        _kill(number)
        raise filesystem.SetupError(_problem("start"))
    for handle in (0, 1, 2):
        os.dup2(setup.nothing, handle)
    init.become(init.program(number), setup.note, number)


def _make_files(spec: dict[str, Any], sources: filesystem.Sources) -> str:
    """The root of the shim, and in it that of the container; answers where."""
    stage = filesystem.STAGE
    own = filesystem.Sources()
    read_only = linux.ATTR_NOSUID | linux.ATTR_NODEV | linux.ATTR_RDONLY
    program = own.tree(os.path.realpath(spec["tool"]["path"]), read_only, mapped=False)
    trees = [(path, own.tree(path, read_only, mapped=False)) for path in ("/usr", *_SHARED) if os.path.exists(path)]
    links = [(name, os.readlink(f"/{name}")) for name in _LINKS if os.path.islink(f"/{name}")]
    trees += [
        (f"/{name}", own.tree(f"/{name}", read_only, mapped=False))
        for name in _LINKS
        if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")
    ]
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("none", stage, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=4m")
    for name in _DIRECTORIES:
        os.mkdir(f"{stage}/{name}")
    for name, target in links:
        os.symlink(target, f"{stage}/{name}")
    for path, tree in (*trees, (_PROGRAM, program)):
        filesystem.mount_point(stage + path, tree[1])
        linux.attach(tree[0], stage + path)
    own.close()
    root = filesystem.make_root(spec, sources, stage + _IMAGE)
    if spec["root"]["kind"] == "layers":
        for name in ("run", "layers"):
            linux.unmount(f"{stage}{_IMAGE}/{name}")
    # Before the old root goes: a user namespace may mount these only while it sees others.
    linux.mount("proc", f"{stage}/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    os.makedirs(f"{stage}/sys/fs/cgroup")
    flags = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("none", f"{stage}/sys/fs/cgroup", "cgroup2", flags)
    linux.change_root(stage)
    return root[len(stage) :]


def _fill(setup: ChildSetup) -> list[str]:
    """With the container's root as this process's: devices and volumes. A program that is not there is told here."""
    spec = setup.spec
    sources = setup.sources
    assert sources is not None
    filesystem.make_devices(spec, sources)
    if spec["tty"]:
        filesystem.mount_point("/dev/console", directory=False)  # where the program puts the terminal
    placed = filesystem.put_volumes(sources)
    sources.close()
    _check_directory(spec["cwd"])
    _find_program(spec, spec["argv"][0])
    return placed


def _find_program(spec: dict[str, Any], name: str) -> None:
    """In the root of this process. What the runtime would say of a missing program is no answer for users."""
    os.chdir(spec["cwd"])
    child.find_program(name, child.environment_of(spec))


def _check_directory(path: str) -> None:
    # /proc/self/fd/N names what a program happened to have open when it was started: never a working directory.
    if path == "/proc" or path.startswith("/proc/") or not os.path.isdir(path):
        raise child.ExecError(child.NOT_SET_UP, f"working directory {path} does not exist")
    if os.path.realpath(path).startswith("/proc/"):
        raise child.ExecError(child.NOT_SET_UP, f"working directory {path} leads into /proc")


def _inside(root: str, steps: Any) -> Any:
    """Do something with another root, and come back."""
    before = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chroot(root)
        os.chdir("/")
        return steps()
    finally:
        os.fchdir(before)
        os.chroot(".")
        os.close(before)


def _create(setup: ChildSetup, name: str) -> int:
    """Answers the container's process, which waits for `start`."""
    spec = setup.spec
    words = [*command(spec), "create", "--bundle", _BUNDLE, "--pid-file", _PID]
    listener = None
    if spec["tty"]:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(_CONSOLE)
        listener.listen(1)
        words += ["--console-socket", _CONSOLE]
    if _call(setup, [*words, name], contained=True):
        raise filesystem.SetupError(_problem("create"))
    if listener is not None:
        assert setup.console is not None
        sender, _ = listener.accept()
        _, handles, _, _ = socket.recv_fds(sender, 4096, 1)
        socket.send_fds(setup.console, [b"t"], handles)
        for handle in handles:
            os.close(handle)
        sender.close()
        listener.close()
    with open(_PID) as file:
        return int(file.read())


def _call(setup: ChildSetup, words: list[str], *, contained: bool = False) -> int:
    """Run the program to its end. `contained`: with the container's streams and groups, which its process inherits."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        child.forget_signals()
        os.setsid()
        os.umask(0o022)
        streams = (setup.stdin, setup.stdout, setup.stderr) if contained and not setup.tty else (setup.nothing,) * 3
        for number, handle in enumerate(streams):
            os.dup2(handle, number)
        if contained:
            for handle in setup.cgroup:
                os.write(handle, b"0")
            _keep_from_sockets(setup)
        os.execve(_PROGRAM, words, _ENVIRONMENT)
    finally:
        os._exit(child.NOT_SET_UP)


def _keep_from_sockets(setup: ChildSetup) -> None:
    """Landlock keeps what comes after from abstract sockets of others, and has no say about files: the program mounts."""
    spec = setup.spec
    version = setup.powers["landlock"]
    traces_target = bool(spec.get("target")) and "SYS_PTRACE" in (spec["capabilities"] or ())
    if version and not spec["privileged"] and not traces_target and landlock.Ruleset.has_scopes(version):
        landlock.Ruleset(version, files=False).enforce()


def _problem(step: str) -> str:
    """What the program complained of last."""
    try:
        with open(_LOG, "rb") as file:
            lines = file.read(_MOST_LOG).decode(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and found.get("level") in ("error", "fatal", "warning"):
            return f"cannot set up the container: {found.get('msg')}"
    return f"cannot set up the container: the command {step} of the runtime failed"


def _machines_number(proc: int, number: int) -> int:
    """What the machine calls a process of this pid namespace."""
    handle = os.pidfd_open(number)
    about = os.open(f"self/fdinfo/{handle}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        for line in os.read(about, 4096).decode().splitlines():
            if line.startswith("Pid:"):
                return int(line.split()[1])
    finally:
        os.close(about)
        os.close(handle)
    raise filesystem.SetupError("cannot set up the container: its process is gone")


def _kill(number: int) -> None:
    try:
        os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        return


def _abandon(number: int) -> NoReturn:
    _kill(number)
    os._exit(child.NOT_SET_UP)


def _hard_limits() -> dict[str, int]:
    return {name: resource.getrlimit(number)[1] for name, number in _RESOURCES.items()}


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


# ----- further commands, for sandboxes


def _join(setup: ChildSetup, pid: int) -> None:
    handles = child.handles_of(pid, ("user", "pid", "mnt"))
    if setup.powers["network"]:
        # In which the sandbox listens; before the user namespace, to which it does not belong.
        handles.insert(0, (os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC), linux.CLONE_NEWNET))
    for handle, kind in handles:
        linux.setns(handle, kind)
        os.close(handle)
    if setup.spec.get("slot") is not None:
        child.become_root()
    child.fork_and_report(setup)
    child.fresh_process(setup)
    os.chdir("/")


def _run_program(setup: ChildSetup, pid: int, words: list[str]) -> None:
    _join(setup, pid)
    os.execve(_PROGRAM, [*command(setup.spec), *words], _ENVIRONMENT)


def _execute(setup: ChildSetup, pid: int, argv: list[str]) -> None:
    _join(setup, pid)
    spec = setup.spec
    root = f"{_IMAGE}/root" if spec["root"]["kind"] == "layers" else _IMAGE
    _inside(root, lambda: _find_program(spec, argv[0]))
    about = bundle.process(
        spec,
        argv,
        capabilities=linux.effective_capabilities(),
        hard_limits=_hard_limits(),
        tty=setup.tty,
        powers=setup.powers,
    )
    file = f"{_exec_file(spec)}.json"
    _write(file, json.dumps(about))
    child.join_group(setup)
    words = ["exec", "--process", file, "--internal-pid-file", f"{_exec_file(spec)}.pid", name_of(pid)]
    os.execve(_PROGRAM, [*command(spec), *words], _ENVIRONMENT)


def _exec_file(spec: dict[str, Any]) -> str:
    return f"/run/exec-{spec['exec_number']}"


def _kill_exec(setup: ChildSetup, pid: int, waiting: int) -> None:
    # It may just be about to begin: only who waits for it learns its number, so that one goes last.
    number = ""
    deadline = time.monotonic() + _EXEC_SECONDS
    while not number and os.path.exists(f"/proc/{waiting}/fd") and time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/root{_exec_file(setup.spec)}.pid") as file:
                number = file.read().strip()
        except OSError:
            time.sleep(0.01)
    if not number:
        _kill(waiting)
        os._exit(0)
    _join(setup, pid)
    words = ["kill", "--pid", number, name_of(pid), str(int(signal.SIGKILL))]
    os.execve(_PROGRAM, [*command(setup.spec), *words], _ENVIRONMENT)
