"""The program of a zygote: imports modules, waits, forks. Runs in the interpreter of the image, see `zygote.py`.

The supervisor's modules that a child needs are loaded from where the supervisor has them, and are taken out of `sys.modules` before
anything of the image is imported: the image may have a package of the same name.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import time
import types

from coterie.kube.agent.runtimes.runp import child, handover, linux, wire
from coterie.kube.agent.runtimes.runp.zygote import CONTROL, ORDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CLONE_PARENT = 0x8000
_ARGUMENTS_AT = 45
"""Where in /proc/self/stat, behind the name, the addresses of the command line stand."""


def main() -> None:
    """Returns only in containers, when their module has ended."""
    safe_path = bool(getattr(sys.flags, "safe_path", sys.flags.isolated))
    del sys.path[: 1 if safe_path else 2]  # the supervisor's, and the directory that we were started in
    for name in [name for name in sys.modules if name.partition(".")[0] == "coterie"]:
        del sys.modules[name]
    connection = socket.socket(fileno=CONTROL)
    os.set_inheritable(CONTROL, False)
    about = json.loads(connection.recv(1 << 20))
    problem = _load(about["preload"], about["module"])
    network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    problem = problem or _refusal({0, 1, 2, CONTROL, network})
    connection.send(json.dumps({"problem": problem}).encode())
    if problem:
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.collect()
    gc.freeze()  # children need not copy it
    channel = _serve(connection, network)
    setup = _become_container(channel)
    if not safe_path:
        sys.path.insert(0, os.getcwd())
    _run(about["module"], setup.spec["argv"], setup.spec["zygote"]["arguments"])


def _load(modules: list[str], program: str) -> str:
    """Import what containers will need; what went wrong, empty: nothing."""
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as problem:  # noqa: BLE001 - whatever a module does, it is told
            return f"import {name}: {type(problem).__name__}: {problem}"[:500]
    try:
        found = importlib.util.find_spec(program)
        if found is not None and found.submodule_search_locations is not None:
            importlib.import_module(program)
    except BaseException as problem:  # noqa: BLE001 - as above
        return f"import {program}: {type(problem).__name__}: {problem}"[:500]
    return "" if found is not None else f"there is no module {program}"


def _refusal(own: set[int]) -> str:
    """Why a process with these modules must not be forked; empty: it may."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"the modules started threads: there are {threads}"
    opened = {int(name) for name in os.listdir("/proc/self/fd")} - own
    kept = [handle for handle in opened if os.path.exists(f"/proc/self/fd/{handle}")]
    if kept:
        return f"the modules keep files open: {os.readlink(f'/proc/self/fd/{kept[0]}')}"
    with open("/proc/self/maps") as file:
        for line in file:
            words = line.split()
            if words[1][1] == "w" and words[1][3] == "s":
                return "the modules share memory with whoever is forked"
    return ""


def _serve(connection: socket.socket, network: int) -> socket.socket:
    """Fork whenever the supervisor says so. Returns in the child, with the socket that it hears the rest from."""
    own_network = os.fstat(network).st_ino
    while True:
        data, handles = wire.receive(connection)
        if not data:
            os._exit(0)  # the supervisor is gone
        channel, wanted_network = handles
        (flags,) = ORDER.unpack(data)
        problem = _refusal({0, 1, 2, CONTROL, network, channel, wanted_network})
        pid = -1
        if not problem:
            moves = os.fstat(wanted_network).st_ino != own_network
            try:
                if moves:
                    linux.setns(wanted_network, linux.CLONE_NEWNET)
                pid = linux.clone(flags | _CLONE_PARENT)
                if not pid:
                    connection.close()
                    os.close(network)
                    os.close(wanted_network)
                    return socket.socket(fileno=channel)
                if moves:
                    linux.setns(network, linux.CLONE_NEWNET)
            except OSError as error:
                problem = f"{error.filename}: {error.strerror}"
        os.close(channel)
        os.close(wanted_network)
        connection.send(json.dumps({"problem": problem} if problem else {"pid": pid}).encode())
        if problem:
            os._exit(1)


def _become_container(channel: socket.socket) -> child.ChildSetup:
    """Returns in the container's process, which is confined as if its program had been executed."""
    gc.disable()
    try:
        setup = handover.receive(channel)
        channel.close()
    except (OSError, handover.HandoverFailed):
        os._exit(child.NOT_SET_UP)
    child.start_forked(setup, _become_program)
    return setup


def _become_program(setup: child.ChildSetup) -> None:
    """As a new interpreter would find itself. The last step closes the pipe on which failures are told."""
    spec = setup.spec
    own_locale = os.environ.get("LC_CTYPE")
    os.environ.clear()
    os.environ.update({name: value for name, value in spec["env"]})
    if own_locale is not None:
        os.environ.setdefault("LC_CTYPE", own_locale)  # set by the interpreter itself, if it is the C locale
    time.tzset()
    _write_command_line(spec["argv"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    if setup.tty:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for name in ("random", "numpy.random"):
        module = sys.modules.get(name)
        if module is not None:
            module.seed()
    gc.enable()
    os.closerange(CONTROL, os.sysconf("SC_OPEN_MAX"))


def _write_command_line(words: list[str]) -> None:
    """Over that of the zygote, as far as there is room: what `ps` shows."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[_ARGUMENTS_AT]), int(fields[_ARGUMENTS_AT + 1])
    if not 0 < start < end:
        return
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def _run(module: str, words: list[str], arguments: list[str]) -> None:
    sys.argv = ["-m", *arguments]
    sys.orig_argv = list(words)
    sys.modules["__main__"] = types.ModuleType("__main__")
    runner: Any = runpy
    runner._run_module_as_main(module)
