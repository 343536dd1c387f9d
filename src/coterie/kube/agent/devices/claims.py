"""Which agent of this machine has which device: several domains may share a machine, each with an agent of its own.

Each claim is a file named after the device. It says where its agent keeps its record of allocations, and for which pod it was
made; a claim that its agent's record does not confirm is void, so nothing has to be cleaned up after a crash. Changes are made under
one lock. Agents of different users, or in containers of their own, do not see each other's claims.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from coterie.base.files import private_directory, read_bytes_or_none, write_atomic
from coterie.kube.agent.devices import records


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    records: str
    """The directory with the record of allocations."""
    pod: str
    """uid"""


def machine_directory() -> Path:
    """Shared by all agents of one user."""
    if os.geteuid() == 0:
        return Path("/run/coterie/devices")
    # Not below /tmp: there another user could have made the directory first.
    return Path(os.environ.get("XDG_RUNTIME_DIR") or Path.home() / ".cache") / "coterie-devices"


class MachineClaims:
    """All methods block."""

    def __init__(self, directory: Path, own: Path) -> None:
        """`own`: the directory with the record of this agent."""
        self._directory = directory
        self._own = str(own)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        private_directory(self._directory)
        handle = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def others(self, ids: Collection[str]) -> set[str]:
        """Which of these devices another agent has given to a pod."""
        return {each for each in ids if self._is_foreign(each)}

    def take(self, ids: Collection[str], pod: str) -> None:
        """With the lock; before the own record is written."""
        for each in ids:
            write_atomic(self._file(each), msgspec.json.encode(DeviceClaim(self._own, pod)), durable=False)

    def drop(self, ids: Collection[str], pod: str) -> None:
        """With the lock; after the own record was written."""
        own = DeviceClaim(self._own, pod)
        for each in ids:
            if self._claim(each) == own:
                self._file(each).unlink(missing_ok=True)

    def _is_foreign(self, device: str) -> bool:
        claim = self._claim(device)
        if claim is None or claim.records == self._own:
            return False
        known = records.load(Path(claim.records))
        return known is None or claim.pod in known.pods

    def _claim(self, device: str) -> DeviceClaim | None:
        data = read_bytes_or_none(self._file(device))
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=DeviceClaim)
        except msgspec.DecodeError:
            return None

    def _file(self, device: str) -> Path:
        return self._directory / quote(device, safe="")
