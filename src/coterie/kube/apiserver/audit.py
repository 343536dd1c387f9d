"""Who changed what: every request that may change something is told to sinks, once it has been answered.

A sink gets facts about the request, never its body or its answer, so secrets cannot leak through it. A sink that fails
must not break requests: its failure is reported once, and again only after it has worked in between.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import orjson

from coterie.base.clock import rfc3339_micro
from coterie.base.ids import uid4
from coterie.base.log import Logger, logger
from coterie.base.log_rotation import STANDARD, Rotation, move_aside, open_log
from coterie.http.messages import UserInfo

_log = logger("apiserver.audit")
_ROUTINE = frozenset({("", "events"), ("events.k8s.io", "events"), ("coordination.k8s.io", "leases")})
RecordT = TypeVar("RecordT")
READ_VERBS = frozenset({"get", "list", "watch", "head", "options"})
CONNECTIONS = frozenset({"attach", "exec", "portforward", "proxy"})
"""Sub-resources whose requests may change anything, although WebSockets begin with GET."""


@dataclass(frozen=True, slots=True)
class AuditObjectReference:
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    time: datetime
    """When the request arrived."""
    user: UserInfo
    """On whose behalf it was done."""
    verb: str
    path: str
    """Without the query: it may carry what must not be written down."""
    code: int
    source: str = ""
    """Address of the peer."""
    duration: float = 0.0
    """Seconds from arrival to answer."""
    object: AuditObjectReference | None = None
    impersonator: UserInfo | None = None
    """Who really asked, when it was somebody else."""
    user_agent: str = ""
    dry_run: bool = False
    annotations: Mapping[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """In the words of Kubernetes' audit.k8s.io/v1 Event, where it has them."""
        out: dict[str, Any] = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": uid4(),
            "stage": "ResponseComplete",
            "requestURI": self.path,
            "verb": self.verb,
            "user": user_json(self.impersonator or self.user),
        }
        if self.impersonator is not None:
            out["impersonatedUser"] = user_json(self.user)
        out["sourceIPs"] = [self.source] if self.source else []
        if self.user_agent:
            out["userAgent"] = self.user_agent
        if self.object is not None:
            out["objectRef"] = reference_json(self.object)
        out["responseStatus"] = {"code": self.code}
        out["requestReceivedTimestamp"] = rfc3339_micro(self.time)
        out["durationSeconds"] = round(self.duration, 6)
        if self.dry_run:
            out["dryRun"] = True
        if self.annotations:
            out["annotations"] = dict(self.annotations)
        return out


def user_json(user: UserInfo) -> dict[str, Any]:
    out: dict[str, Any] = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        out["uid"] = user.uid
    if user.extra:
        out["extra"] = {key: list(values) for key, values in user.extra}
    return out


def reference_json(ref: AuditObjectReference) -> dict[str, str]:
    parts = {
        "resource": ref.resource,
        "namespace": ref.namespace,
        "name": ref.name,
        "apiGroup": ref.group,
        "apiVersion": ref.version,
        "subresource": ref.subresource,
    }
    return {key: value for key, value in parts.items() if value}


class AuditRecord(Protocol):
    def as_json(self) -> dict[str, Any]:
        """As it is written."""


class AuditSink(Protocol):
    def record(self, event: AuditEvent) -> None:
        """Take note; called on the event loop, so it must not block for long. Any exception means: not noted."""


class MemorySink:
    """Keeps the newest events; for tests and for a console to look at."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self.events: list[AuditEvent] = []

    def record(self, event: AuditEvent) -> None:
        self.events.append(event)
        if len(self.events) > self._limit:
            del self.events[: len(self.events) - self._limit]


class SelectedSink:
    """Passes on what people, partners and nodes change.

    Not: what the programs named in `without` change, which only carry out what stands in objects; Events, and renewed
    leases, which say nothing that the objects do not.
    """

    def __init__(self, inner: AuditSink, without: frozenset[str]) -> None:
        """`without`: user names."""
        self._inner = inner
        self._without = without

    def record(self, event: AuditEvent) -> None:
        if (event.impersonator or event.user).name in self._without:
            return
        if event.object is not None and (event.object.group, event.object.resource) in _ROUTINE:
            return
        self._inner.record(event)


class FileSink:
    """One JSON object for each change, appended to a private file that is moved aside when it is full."""

    def __init__(self, path: Path, rotation: Rotation = STANDARD) -> None:
        self._path = path
        self._rotation = rotation
        self._handle = -1
        self._size = 0

    def record(self, event: AuditRecord) -> None:
        line = _line(event.as_json())
        if self._handle < 0:
            self._open()
        elif self._size + len(line) > self._rotation.max_bytes:
            self.close()
            with contextlib.suppress(FileNotFoundError):  # somebody has moved it already
                move_aside(self._path, self._rotation)
            self._open()
        # One write of a whole line to a file opened for appending: lines of two processes do not mix.
        written = os.write(self._handle, line)
        self._size += written
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written")

    def _open(self) -> None:
        self._handle = open_log(self._path)
        self._size = os.fstat(self._handle).st_size

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> FileSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _line(event: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a number of more than 64 bits in the body of a request
        return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


class SinkGuard(Generic[RecordT]):
    """Calls a sink; its failure is logged once, and again only after it has worked in between."""

    def __init__(self, record: Callable[[RecordT], None], name: str, log: Logger = _log) -> None:
        self._record = record
        self._name = name
        self._log = log
        self._failing = False
        self.lost = 0
        """Events that the sink failed to note."""

    def record(self, event: RecordT) -> None:
        """Never raises."""
        try:
            self._record(event)
        except Exception as error:  # noqa: BLE001 - a sink is somebody else's code and must not break a request
            self.lost += 1
            if not self._failing:
                self._failing = True
                self._log.error("Audit sink fails", error=error, trace=True, sink=self._name)
        else:
            if self._failing:
                self._failing = False
                self._log.info("Audit sink works again", sink=self._name)


class Audit:
    """All sinks of a server behind one call."""

    def __init__(self, sinks: Sequence[AuditSink] = (), *, log: Logger = _log) -> None:
        self._sinks = [SinkGuard(sink.record, type(sink).__name__, log) for sink in sinks]

    @property
    def lost(self) -> int:
        """Events that a sink failed to note."""
        return sum(sink.lost for sink in self._sinks)

    @property
    def enabled(self) -> bool:
        """False: nobody listens, and no event needs to be made."""
        return bool(self._sinks)

    def wants(self, verb: str, subresource: str = "") -> bool:
        """Whether such a request is to be recorded."""
        return bool(self._sinks) and (verb not in READ_VERBS or subresource in CONNECTIONS)

    def record(self, event: AuditEvent) -> None:
        """Tell all sinks; never raises."""
        for sink in self._sinks:
            sink.record(event)
