"""The system calls that Python has no words for: namespaces, mounts, capabilities, pidfd.

Every function raises OSError with the name of what it worked on. Only what x86_64 and aarch64 share is used by number
(all calls from 424 on have the same number everywhere); the rest goes through the C library.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from coterie.base.linux_namespaces import CLONE_NEWCGROUP as CLONE_NEWCGROUP
from coterie.base.linux_namespaces import CLONE_NEWIPC as CLONE_NEWIPC
from coterie.base.linux_namespaces import CLONE_NEWNET as CLONE_NEWNET
from coterie.base.linux_namespaces import CLONE_NEWNS as CLONE_NEWNS
from coterie.base.linux_namespaces import CLONE_NEWPID as CLONE_NEWPID
from coterie.base.linux_namespaces import CLONE_NEWUSER as CLONE_NEWUSER
from coterie.base.linux_namespaces import CLONE_NEWUTS as CLONE_NEWUTS
from coterie.base.linux_namespaces import setns as setns
from coterie.base.linux_namespaces import unshare as unshare

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
# The interpreter's lock is kept over this call: the new process must find it held by itself.
_holding = ctypes.PyDLL(None, use_errno=True)
_holding.syscall.restype = ctypes.c_long

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2

ATTR_RDONLY = 1
ATTR_NOSUID = 2
ATTR_NODEV = 4
_ATTR_IDMAP = 0x100000

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CLONE = {"x86_64": 56, "aarch64": 220}
_SIGCHLD = 17
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4

_PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 24, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAP_VERSION_3 = 0x20080522

CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
}  # fmt: skip
"""What an unprivileged container's root keeps. Not MKNOD: without a device cgroup it would open the host's disks."""


def machine() -> str:
    return os.uname().machine


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def clone(namespaces: int) -> int:
    """fork() into new namespaces: 0 in the child. For processes with one thread; the child should soon fork or exec."""
    return _checked(_holding.syscall(_CLONE[machine()], ctypes.c_ulong(namespaces | _SIGCHLD), 0, 0, 0, 0), "clone")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), os.fsencode(data) or None
    )
    _checked(result, target)


def unmount(target: str, flags: int = MNT_DETACH) -> None:
    _checked(_libc.umount2(os.fsencode(target), ctypes.c_int(flags)), target)


def clone_tree(path: str, *, recursive: bool = True, at: int | None = None) -> int:
    """A detached copy of what is mounted at `path`, as a handle that `attach` puts somewhere. `at`: a handle that an empty
    path stands for."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    if at is not None:
        flags |= _AT_EMPTY_PATH
    start = _AT_FDCWD if at is None else at
    return _checked(_libc.syscall(_OPEN_TREE, start, os.fsencode(path), ctypes.c_uint(flags)), path)


def set_attributes(handle: int, attributes: int, *, recursive: bool = True) -> None:
    """Make a detached tree read-only, without devices, and so on; flags that it has already stay. It becomes private:
    what is mounted in it is never seen where it came from."""
    _mount_setattr(handle, struct.pack("QQQQ", attributes, 0, MS_PRIVATE, 0), recursive)


def map_owners(handle: int, user_namespace: int, *, recursive: bool = True) -> None:
    """Make a detached tree show and store owners as the user namespace counts them: user 0 there is user 0 on disk.
    EINVAL for file systems that cannot (overlay, network), and for kernels before 5.12."""
    _mount_setattr(handle, struct.pack("QQQQ", _ATTR_IDMAP, 0, 0, user_namespace), recursive)


def _mount_setattr(handle: int, attr: bytes, recursive: bool) -> None:
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    result = _libc.syscall(_MOUNT_SETATTR, handle, b"", ctypes.c_uint(flags), attr, ctypes.c_size_t(len(attr)))
    _checked(result, "mount_setattr")


def attach(handle: int, target: str) -> None:
    result = _libc.syscall(_MOVE_MOUNT, handle, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    _checked(result, target)


def change_root(new: str) -> None:
    """Make `new`, a mount point, the root of this mount namespace and forget the old one."""
    os.chdir(new)
    # Old and new root are the same place for a moment; the old one ends up on top and is taken away.
    _checked(_libc.syscall(_PIVOT_ROOT[machine()], b".", b"."), new)
    unmount(".")
    os.chdir("/")


def become_subreaper() -> None:
    """Orphans below this process become its children, not those of process 1."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")


def no_new_privileges() -> None:
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def drop_bounding(keep: int) -> None:
    """Nothing executed from here on can gain a capability outside of `keep`."""
    for number in range(64):
        if not keep >> number & 1 and _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            if ctypes.get_errno() == errno.EINVAL:
                return  # this kernel has no more of them
            _checked(-1, "capability bounding set")


def effective_capabilities() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0


def set_capabilities(wanted: int) -> None:
    """Have exactly `wanted`, as far as we have it, now and after exec; nothing is inherited beyond that."""
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    low, high = wanted & 0xFFFFFFFF, wanted >> 32
    header = struct.pack("Ii", _CAP_VERSION_3, 0)
    data = struct.pack("IIIIII", low, low, 0, high, high, 0)
    _checked(_libc.capset(header, data), "capset")


def prctl(option: int, a: object, b: object = 0) -> None:
    _checked(_libc.prctl(option, a, b, 0, 0), f"prctl {option}")


def syscall(number: int, *arguments: object) -> int:
    return _checked(_libc.syscall(number, *arguments), f"system call {number}")


def exit_status_of(pidfd: int) -> int | None:
    """How a process that is not our child ended, as `waitpid` would tell it; None where the kernel (< 6.15) cannot."""
    info = bytearray(64)
    struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        # fcntl is a module of its own; this is the only ioctl we need outside of terminals.
        _checked(_libc.ioctl(pidfd, ctypes.c_ulong(_PIDFD_GET_INFO), (ctypes.c_char * 64).from_buffer(info)), "pidfd")
    except OSError:
        return None
    mask = struct.unpack_from("=Q", info, 0)[0]
    return struct.unpack_from("=i", info, _PIDFD_EXIT_OFFSET)[0] if mask & _PIDFD_INFO_EXIT else None


# struct pidfd_info: mask u64, cgroupid u64, then pid, tgid, ppid and eight user and group ids (u32), exit code i32.
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_EXIT_OFFSET = 16 + 11 * 4
_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
