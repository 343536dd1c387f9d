"""A seccomp filter that refuses system calls no container should need, as a small program for the kernel's BPF machine.

Refused calls fail with EPERM, so programs see an ordinary error. `clone3` says ENOSYS, because its flags lie in memory
that a filter cannot read and the C library then falls back to `clone`, whose flags it can. Sockets exist only in the
families that network namespaces keep apart: AF_VSOCK, for one, reaches the machine and its hypervisor from everywhere.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from coterie.kube.agent.runtimes.runp import linux

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_X32 = 0x40000000
NAMESPACE_FLAGS = 0x7E020080
"""CLONE_NEWUSER, PID, NET, IPC, UTS, CGROUP, NS and TIME."""
_CLONE3 = 435
SOCKET_FAMILIES = (1, 2, 10, 16, 17)
"""AF_UNIX, INET, INET6, NETLINK and PACKET, which needs a capability."""

_COMMON = {
    "pidfd_getfd": 438, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "fspick": 433, "mount_setattr": 442, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
}  # fmt: skip
_X86_64 = {
    "acct": 163, "add_key": 248, "adjtimex": 159, "bpf": 321, "clock_adjtime": 305, "clock_settime": 227,
    "create_module": 174, "delete_module": 176, "fanotify_init": 300, "finit_module": 313, "init_module": 175,
    "ioperm": 173, "iopl": 172, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250,
    "lookup_dcookie": 212, "mount": 165, "move_pages": 279, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "perf_event_open": 298, "pivot_root": 155, "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101,
    "quotactl": 179, "reboot": 169, "request_key": 249, "setns": 308, "settimeofday": 164, "swapoff": 168,
    "swapon": 167, "syslog": 103, "umount2": 166, "unshare": 272, "userfaultfd": 323, "vhangup": 153,
}  # fmt: skip
_AARCH64 = {
    "acct": 89, "add_key": 217, "adjtimex": 171, "bpf": 280, "clock_adjtime": 266, "clock_settime": 112,
    "delete_module": 106, "fanotify_init": 262, "finit_module": 273, "init_module": 105, "kcmp": 272,
    "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "lookup_dcookie": 18, "mount": 40, "move_pages": 239,
    "name_to_handle_at": 264, "open_by_handle_at": 265, "perf_event_open": 241, "pivot_root": 41,
    "process_vm_readv": 270, "process_vm_writev": 271, "ptrace": 117, "quotactl": 60, "reboot": 142,
    "request_key": 218, "setns": 268, "settimeofday": 170, "swapoff": 225, "swapon": 224, "syslog": 116,
    "umount2": 39, "unshare": 97, "userfaultfd": 282, "vhangup": 58,
}  # fmt: skip
# audit architecture, the numbers of `clone` and `socket`, refused calls
_TABLES = {
    "x86_64": (0xC000003E, 56, 41, {**_COMMON, **_X86_64}),
    "aarch64": (0xC00000B7, 220, 198, {**_COMMON, **_AARCH64}),
}


def supported() -> bool:
    return linux.machine() in _TABLES


_TRACING = ("kcmp", "process_vm_readv", "process_vm_writev", "ptrace")


def refused(machine: str, *, trace: bool = False) -> dict[str, int]:
    """The system calls that fail with EPERM, by name. `trace`: for debuggers."""
    calls = _TABLES[machine][3]
    return {name: number for name, number in calls.items() if not (trace and name in _TRACING)}


def program(machine: str, *, trace: bool = False) -> bytes:
    """The filter: eight bytes an instruction (code, jump if true, jump if false, value). `trace`: for debuggers."""
    architecture, clone, new_socket, _ = _TABLES[machine]
    calls = refused(machine, trace=trace)
    refuse = _ERRNO | errno.EPERM
    steps: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, refuse),  # another ABI has other numbers: 32-bit programs are refused as a whole
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GREATER_EQUAL, 0, 1, _X32),
        (_RETURN, 0, 0, refuse),
        (_JUMP_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_JUMP_EQUAL, 0, 4, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_ANY_BIT, 0, 1, NAMESPACE_FLAGS),
        (_RETURN, 0, 0, refuse),
        (_RETURN, 0, 0, _ALLOW),
        (_JUMP_EQUAL, 0, len(SOCKET_FAMILIES) + 3, new_socket),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
    ]
    for i, family in enumerate(SOCKET_FAMILIES):
        steps.append((_JUMP_EQUAL, len(SOCKET_FAMILIES) - i, 0, family))
    steps += [(_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    numbers = sorted(set(calls.values()))
    for i, number in enumerate(numbers):
        steps.append((_JUMP_EQUAL, len(numbers) - i, 0, number))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, refuse)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def enforce(code: bytes) -> None:
    """Needs no_new_privs or CAP_SYS_ADMIN. There is no way back."""
    text = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(text))
    linux.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), header)
