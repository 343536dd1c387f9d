"""Which output of pods belongs to which task, also when the pods are gone.

    <domain>/var/stdout/index
    1767323045 alice job-1 job-1-psi job-1-psi-0 5f0c... svc-x,svc-y

One line for each engine's pod, about 100 bytes, appended before its first container starts. A line that a crash cut off is skipped.
Lines whose output was removed go when the file is read the next time; more than `MAX_PODS` are never kept. Only the agent writes
it; what a pod prints has no influence on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coterie.base import files
from coterie.kube.api.names import dns_subdomain_faults

MAX_PODS: Final = 20_000
_SLACK: Final = 1000
"""Lines that may be in the file beyond those that count."""
_UID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class LoggedPod:
    at: int
    namespace: str
    job: str
    task: str
    pod: str
    uid: str
    services: tuple[str, ...] = ()
    """Of the task, where their names do not begin with the task's name."""

    @property
    def directory(self) -> str:
        return f"{self.namespace}_{self.pod}_{self.uid}"

    def line(self) -> str:
        fields = (str(self.at), self.namespace, self.job or "-", self.task, self.pod, self.uid)
        return " ".join((*fields, *((",".join(self.services),) if self.services else ()))) + "\n"


def parse(line: str) -> LoggedPod | None:
    """None for a line that is damaged."""
    at, *names = line.split(" ")
    if len(names) not in (5, 6) or not at.isdecimal() or len(at) > 12:
        return None
    namespace, job, task, pod, uid = names[:5]
    job = "" if job == "-" else job
    if any(dns_subdomain_faults(each) for each in (namespace, task, pod, *((job,) if job else ()))):
        return None
    if not _UID.fullmatch(uid):
        return None
    services = tuple(names[5].split(",")) if len(names) == 6 else ()
    return LoggedPod(int(at), namespace, job, task, pod, uid, services)


class PodLogIndex:
    def __init__(self, file: Path, exists: Callable[[LoggedPod], bool], *, shared: bool = False) -> None:
        """`exists`: whether there is output of the pod. `shared`: another process writes it; it is only read here."""
        self._file = file
        self._shared = shared
        self._exists = exists
        self._pods: dict[str, LoggedPod] | None = None
        self._lines = 0
        self._read: tuple[int, int, int] | None = None
        """What the file was when it was read."""

    @classmethod
    def of(cls, stdout: Path, *, shared: bool = False) -> PodLogIndex:
        pods = stdout / "pods"
        return cls(stdout / "index", lambda pod: (pods / pod.directory).is_dir(), shared=shared)

    def add(self, pod: LoggedPod) -> None:
        """Nothing happens when it is known. Raises OSError."""
        known = self._load()
        if pod.uid in known:
            return
        known[pod.uid] = pod
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, files.PRIVATE_FILE)
        try:
            os.write(descriptor, pod.line().encode())
        finally:
            os.close(descriptor)
        self._lines += 1
        if self._lines > MAX_PODS + _SLACK:
            self.compact()

    def find(self, namespace: str, *, job: str = "", tasks: frozenset[str] = frozenset()) -> list[LoggedPod]:
        """Of the job or of one of the tasks, newest first. Empty names find nothing."""
        found = [
            pod
            for pod in self._load().values()
            if pod.namespace == namespace and ((job and pod.job == job) or pod.task in tasks)
        ]
        return sorted((pod for pod in found if self._exists(pod)), key=lambda pod: pod.at, reverse=True)

    def tasks(self, namespace: str) -> set[str]:
        return {pod.task for pod in self._load().values() if pod.namespace == namespace}

    def compact(self) -> None:
        """Write the file anew with the newest pods whose output is there. A pod of the last minute may have none yet."""
        known = self._load()
        newest = sorted(known.values(), key=lambda pod: pod.at)[-MAX_PODS:]
        recent = newest[-1].at - 60 if newest else 0
        kept = [pod for pod in newest if pod.at >= recent or self._exists(pod)]
        files.write_atomic(self._file, "".join(pod.line() for pod in kept))
        self._pods = {pod.uid: pod for pod in kept}
        self._lines = len(kept)

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            facts = self._file.stat()
        except OSError:
            return None
        return facts.st_ino, facts.st_size, facts.st_mtime_ns

    def _load(self) -> dict[str, LoggedPod]:
        if self._pods is not None and (not self._shared or self._read == self._signature()):
            return self._pods
        self._read = self._signature()
        data = files.read_bytes_or_none(self._file) or b""
        lines = data.decode("utf-8", "replace").split("\n")
        torn = bool(lines.pop())
        self._pods = {pod.uid: pod for line in lines if (pod := parse(line)) is not None}
        self._lines = len(lines)
        live = sum(1 for pod in self._pods.values() if self._exists(pod)) if self._lines > _SLACK else self._lines
        if not self._shared and (torn or self._lines > MAX_PODS or self._lines > 2 * live + _SLACK):
            self.compact()
        return self._pods
