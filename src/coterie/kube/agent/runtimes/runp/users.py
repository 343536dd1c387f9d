"""User ids of pods on a machine where the supervisor is root: each pod has a range of its own.

    container uid 0..65535  <──uid_map──>  FIRST + slot * 65536 + uid on the machine

A slot belongs to one pod from its preparation to its removal. It is stored with the pod, and because several supervisors
may run on one machine, it is also registered for all of them, as a file that names the pod's record:

    /run/coterie/users/<slot>        removed with the pod; one whose record is gone is free
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

SIZE = 1 << 16
FIRST = 0x40000000
COUNT = (0xF0000000 - FIRST) // SIZE
TRIAL_SLOT = COUNT
"""Of no pod: what the supervisor tries at its start."""
DIRECTORY = "/run/coterie/users"
_FIRST_LARGE, _MOST_LARGE = 0x30000000, 64
"""Ids of 65536 and more, which a pod may ask for as well, are mapped one by one to a small range of their own."""
_LOCK = "lock"
_LOCK_ATTEMPTS = 1000


def is_root() -> bool:
    """Whether we may give containers users of the machine; root of a user namespace that has one user may not."""
    with open("/proc/self/uid_map") as file:
        return os.getuid() == 0 and sum(int(line.split()[2]) for line in file) > 1


def ids_of(spec: dict[str, Any]) -> tuple[int, int]:
    """User and group that a container with a slot runs as, as it sees them itself."""
    if spec["group"] is not None:
        return spec["user"] or 0, spec["group"]
    return spec["user"] or 0, 0 if spec["user"] is None else spec["user_group"]


def large_ids(spec: dict[str, Any]) -> list[int]:
    return sorted({number for number in (*ids_of(spec), *spec["groups"]) if number >= SIZE})[:_MOST_LARGE]


def id_map(slot: int, large: list[int]) -> str:
    """The content of uid_map and gid_map."""
    lines = [f"0 {FIRST + slot * SIZE} {SIZE}"]
    lines += [f"{number} {_FIRST_LARGE + slot * _MOST_LARGE + i} 1" for i, number in enumerate(large)]
    return "\n".join(lines) + "\n"


def on_machine(slot: int, large: list[int], number: int) -> int:
    """What the machine calls a user or group of a container."""
    if number < SIZE:
        return FIRST + slot * SIZE + number
    return _FIRST_LARGE + slot * _MOST_LARGE + large.index(number)


def owner(spec: dict[str, Any], powers: dict[str, Any]) -> tuple[int, int] | None:
    """To whom terminals and pipes of the container belong; None: to us, as they are."""
    slot = spec.get("slot")
    if slot is not None:
        user, group = ids_of(spec)
        large = large_ids(spec)
        return on_machine(slot, large, user), on_machine(slot, large, group)
    if spec["user"] is not None and os.getuid() == 0 and powers["namespaces"] != "user":
        return spec["user"], -1
    return None


def write_maps(pid: int, slot: int, large: list[int]) -> None:
    text = id_map(slot, large).encode()
    for name in ("uid_map", "gid_map"):
        handle = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(handle, text)
        finally:
            os.close(handle)


def give_away(path: str, slot: int, at: int | None = None) -> None:
    """Move the owners of a tree into the range of a slot, where mounts cannot do so (`linux.map_owners`). By handles:
    another container of the pod may be changing the tree. `at`: the directory that `path`, also a directory, begins in."""
    if at is None and not os.path.isdir(path):
        _give_one(path, slot, None)
        return
    for _, directories, files, handle in os.fwalk(path, dir_fd=at):
        _give_one(".", slot, handle)
        for name in (*directories, *files):
            _give_one(name, slot, handle)


def give_file(handle: int, slot: int) -> None:
    """As `give_away`, of a file that is open."""
    about = os.fstat(handle)
    user, group = (FIRST + slot * SIZE + number % SIZE for number in (about.st_uid, about.st_gid))
    if (user, group) != (about.st_uid, about.st_gid):
        os.chown(f"/proc/self/fd/{handle}", user, group)


def _give_one(name: str, slot: int, directory: int | None) -> None:
    about = os.stat(name, dir_fd=directory, follow_symlinks=False)
    user, group = (FIRST + slot * SIZE + number % SIZE for number in (about.st_uid, about.st_gid))
    if (user, group) != (about.st_uid, about.st_gid):
        os.chown(name, user, group, dir_fd=directory, follow_symlinks=False)


class UserRanges:
    """The slots of all supervisors of this machine. `record` is the path of a pod's record."""

    def __init__(self, directory: str = DIRECTORY) -> None:
        self._directory = directory
        with self._locked() as taken:
            free = [slot for slot in taken if not os.path.exists(self._record(slot))]
            for slot in free:
                os.unlink(f"{directory}/{slot}")
            if len(free) == len(taken):
                self._remove_directory()

    def claim(self, record: str, wanted: int | None) -> int:
        """A slot for a pod: the wanted one if nobody else has it. Raises OSError when there is none."""
        with self._locked() as taken:
            slot = wanted
            if slot is None or (slot in taken and self._record(slot) != record):
                slot = next((number for number in range(COUNT) if number not in taken), None)
            if slot is None:
                raise OSError(errno.ENOSPC, "all ranges of user ids are taken", self._directory)
            if slot not in taken:
                handle = os.open(
                    f"{self._directory}/{slot}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
                )
                os.write(handle, os.fsencode(record))
                os.close(handle)
            return slot

    def release(self, record: str, slot: int) -> None:
        with self._locked() as taken:
            if slot in taken and self._record(slot) == record:
                os.unlink(f"{self._directory}/{slot}")
                if len(taken) == 1:
                    self._remove_directory()

    def _record(self, slot: int) -> str:
        with open(f"{self._directory}/{slot}") as file:
            return file.read()

    def _remove_directory(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(f"{self._directory}/{_LOCK}")
            os.rmdir(self._directory)
            os.rmdir(os.path.dirname(self._directory))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[set[int]]:
        lock = self._lock()
        try:
            yield {int(name) for name in os.listdir(self._directory) if name.isdigit()}
        finally:
            os.close(lock)

    def _lock(self) -> int:
        path = f"{self._directory}/{_LOCK}"
        for _ in range(_LOCK_ATTEMPTS):
            # Another supervisor may remove file and directories with the last pod of the machine, at any of these steps.
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX)
                    if os.stat(path).st_ino == os.fstat(handle).st_ino:
                        held, handle = handle, -1
                        return held
                finally:
                    if handle >= 0:
                        os.close(handle)
        raise OSError(errno.ENOTDIR, "no directory can be made for the ranges of user ids", self._directory)
