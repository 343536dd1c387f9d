"""Opening files that lie below a folder, and nothing else, whatever links and renames say at the same time.

The kernel resolves the whole path below the root's descriptor (`openat2`, RESOLVE_BENEATH): `..`, absolute paths and
links are followed as long as they stay below, checked in the same step as they are followed. Where the kernel does not
have it, each part is opened for itself and links are refused altogether.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress

from coterie.kuscia.sources.protocol import SourceForbidden

_OPENAT2 = 437
_RESOLVE_BENEATH = 0x08
_RESOLVE_NO_MAGICLINKS = 0x02
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(root: int, parts: tuple[str, ...], flags: int) -> int:
    """OSError as of open(2); NotAllowed when the path leads out."""
    path = "/".join(parts) or "."
    try:
        return _openat2(root, path, flags | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.ELOOP):
            raise SourceForbidden(f"{path} leads out of the source") from None
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise
    return _step_by_step(root, parts, flags)


def _openat2(root: int, path: str, flags: int) -> int:
    how = _How(flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    # EAGAIN: something was renamed while the kernel looked; it wants to be asked again.
    for _ in range(100):
        found = _libc.syscall(
            ctypes.c_long(_OPENAT2), ctypes.c_int(root), path.encode(), ctypes.byref(how), ctypes.sizeof(how)
        )
        if found >= 0:
            return int(found)
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            break
    raise OSError(number, os.strerror(number), path)


def _step_by_step(root: int, parts: tuple[str, ...], flags: int) -> int:
    here = os.dup(root)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        return os.open(parts[-1] if parts else ".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SourceForbidden(
                f"{'/'.join(parts)} is a link; this machine's kernel cannot tell whether it leads out"
            ) from None
        raise
    finally:
        os.close(here)


def make_folders(root: int, parts: tuple[str, ...]) -> int:
    """The folder's descriptor; those that are missing are made."""
    here = os.dup(root)
    for depth, part in enumerate(parts):
        try:
            below = open_beneath(root, parts[: depth + 1], os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            with suppress(FileExistsError):  # another writer was faster
                os.mkdir(part, 0o755, dir_fd=here)
            below = open_beneath(root, parts[: depth + 1], os.O_RDONLY | os.O_DIRECTORY)
        finally:
            os.close(here)
        here = below
    return here


def check_regular(descriptor: int, name: str) -> os.stat_result:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise SourceForbidden(f"{name} is not a plain file")
    return found
