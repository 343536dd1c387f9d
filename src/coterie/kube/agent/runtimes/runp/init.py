"""Process 1 of a container's pid namespace: buries orphans, and writes down how the container's program ended.

It exists because process 1 is deaf to signals it does not handle, which no ordinary program expects, and because its note
survives the supervisor. A Python process for each container would cost a megabyte; this is a program of some 300 bytes, put
together here, that costs a few pages. On machines it is not written for, the same loop runs in Python.

    while wait4(-1, &status) is not N: go on      N is the container's program: process 2, unless another program made it
    write(3, &status, 4); fdatasync(3)            3 is the note
    exit as it did, or with 128 + its signal
"""

from __future__ import annotations

import contextlib
import os
import struct

from coterie.kube.agent.runtimes.runp import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

NOTE = 3
FIRST_PROGRAM = 2
_X86_64 = bytes.fromhex(
    "48 83 ec 10"  # sub rsp, 16
    "b8 3d 00 00 00"  # again: mov eax, 61        wait4
    "48 83 cf ff"  # or rdi, -1
    "48 89 e6"  # mov rsi, rsp
    "31 d2"  # xor edx, edx
    "45 31 d2"  # xor r10d, r10d
    "0f 05"  # syscall
    "3d 00 00 00 00"  # cmp eax, N
    "74 09"  # je done
    "85 c0"  # test eax, eax
    "7f e2"  # jg again                           an orphan
    "83 f8 fc"  # cmp eax, -4
    "74 dd"  # je again                           interrupted
    "b8 01 00 00 00"  # done: mov eax, 1          write
    "bf 03 00 00 00"  # mov edi, 3
    "48 89 e6"  # mov rsi, rsp
    "ba 04 00 00 00"  # mov edx, 4
    "0f 05"  # syscall
    "b8 4b 00 00 00"  # mov eax, 75               fdatasync
    "0f 05"  # syscall
    "8b 3c 24"  # mov edi, [rsp]
    "89 f8"  # mov eax, edi
    "c1 ef 08"  # shr edi, 8
    "83 e0 7f"  # and eax, 127
    "74 06"  # jz out
    "8d b8 80 00 00 00"  # lea edi, [rax + 128]
    "b8 e7 00 00 00"  # out: mov eax, 231         exit_group
    "0f 05"  # syscall
)
_NUMBER_AT = 24
"""Where in it the number of the container's program stands."""
_AT = 0x400000


def program(number: int = FIRST_PROGRAM) -> int:
    """A handle of the program, to be executed; -1 where there is none. `number`: of the process whose end it notes."""
    if linux.machine() != "x86_64":
        return -1
    head = 64 + 56
    size = head + len(_X86_64)
    elf = struct.pack(
        "<4sBBBBxxxxxxxxHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, 62, 1, _AT + head, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _AT, _AT, size, size, 0x1000)
    try:
        handle = os.memfd_create("coterie-init", os.MFD_CLOEXEC)
    except OSError:
        return -1
    code = _X86_64[:_NUMBER_AT] + struct.pack("<i", number) + _X86_64[_NUMBER_AT + 4 :]
    os.write(handle, elf + segment + code)
    return handle


def become(handle: int, note: int, number: int = FIRST_PROGRAM) -> NoReturn:
    """The rest of this process's life. It keeps its capabilities: with fewer than a container's it could be tampered with."""
    os.dup2(note, NOTE, inheritable=True)
    if handle >= 0:
        # A kernel that executes nothing from memory lets us go on in Python.
        with contextlib.suppress(OSError):
            os.execve(handle, ["coterie-init"], {})
    os.closerange(0, NOTE)
    os.closerange(NOTE + 1, 65536)
    while True:
        pid, status = os.wait()
        if pid == number:
            os.write(NOTE, struct.pack("<i", status))
            os.fdatasync(NOTE)
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)


def read_note(path: str) -> int | None:
    """How the program ended, as `waitpid` tells it; None when nothing was written."""
    try:
        with open(path, "rb") as file:
            data = file.read(4)
    except OSError:
        return None
    return int(struct.unpack("<i", data)[0]) if len(data) == 4 else None
