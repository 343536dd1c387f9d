"""A process that only exists: it keeps a network namespace alive while nobody else lives in it.

A program of a few bytes, put together here as `init.py` does it; on machines it is not written for, Python sleeps instead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct

from coterie.kube.agent.runtimes.runp import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

NAME = "coterie-netns"
_PROGRAMS = {
    # again: mov eax, 34 (pause); syscall; jmp again
    "x86_64": (62, bytes.fromhex("b8 22 00 00 00 0f 05 eb f7")),
    # again: mov x0..x4, #0; mov x8, #73 (ppoll); svc #0; b again
    "aarch64": (183, bytes.fromhex("000080d2 010080d2 020080d2 030080d2 040080d2 280980d2 010000d4 f9ffff17")),
}
_AT = 0x400000


def program() -> int:
    """A handle of the program, to be executed; -1 where there is none."""
    if linux.machine() not in _PROGRAMS:
        return -1
    architecture, code = _PROGRAMS[linux.machine()]
    head = 64 + 56
    size = head + len(code)
    elf = struct.pack(
        "<4sBBBBxxxxxxxxHHIQQQIHHHHHH",
        b"\x7fELF", 2, 1, 1, 0, 2, architecture, 1, _AT + head, 64, 0, 0, 64, 56, 1, 0, 0, 0,
    )  # fmt: skip
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _AT, _AT, size, size, 0x1000)
    try:
        handle = os.memfd_create(NAME, os.MFD_CLOEXEC)
    except OSError:
        return -1
    os.write(handle, elf + segment + code)
    return handle


def start(record: Callable[[int], None]) -> None:
    """A child in the namespaces of this process, in a session of its own, without any open file. It stays only if its pid
    could be recorded: nobody would find, and end, a process that an earlier one left behind without a word."""
    handle = program()
    go, going = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if not pid:
        os.close(going)
        become(handle, go)
    os.close(go)
    try:
        record(pid)
        with contextlib.suppress(BrokenPipeError):  # it was killed already, which its watcher sees too
            os.write(going, b"g")
    finally:
        os.close(going)
        if handle >= 0:
            os.close(handle)


def become(handle: int, go: int) -> NoReturn:
    try:
        if os.read(go, 1) != b"g":
            os._exit(1)
        os.setsid()
        os.chdir("/")
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            # SIGTERM of a service manager is for the node; who ends this process kills it.
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for handle_number in (0, 1, 2):
            os.dup2(nothing, handle_number)
        os.closerange(3, handle if handle >= 0 else 65536)
        if handle >= 0:
            os.closerange(handle + 1, 65536)
            with contextlib.suppress(OSError):
                os.execve(handle, [NAME], {})
        while True:
            signal.pause()
    finally:
        os._exit(1)
