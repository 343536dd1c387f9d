"""Spans of jobs: recorded from objects, access logs and child processes; written to a file; sent to a collector.

    jobs, tasks, reservations, pods ──┐
    access logs of the gateway ───────┼──> ring of this process ──> var/logs/traces.jsonl
    data mesh (Unix socket) ──────────┤                         ──> collector (OTLP)
    image pulls (agent) ──────────────┘

The part exists only where `traces` are enabled: without it no informer, no file and no task is there for them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from coterie import __version__
from coterie.base.clock import Clock
from coterie.base.exposition import Family, labels
from coterie.base.files import private_directory
from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.base.trace import RING, TraceRing, Value
from coterie.base.trace_socket import SpanReceiver
from coterie.kube.api.types.pods import PODS
from coterie.kube.control.manager import Runnable
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES
from coterie.kuscia.control.job_spans import ActiveTask, JobSpans
from coterie.kuscia.gateway.access_log_spans import GatewayHops
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.config import ConfigError, NodeSettings
from coterie.node.config.settings import TraceExportConfig
from coterie.node.parts.context import NodeContext
from coterie.node.trace_file import TRACE_FILE, TraceFile

if TYPE_CHECKING:
    from coterie.node import trace_export
else:
    # With its HTTP client, which a node without a collector does not need.
    trace_export = lazy_import("coterie.node.trace_export")

PERIOD = 1.0
_LOGS_LATE = 15.0
"""Seconds for which a task that ended is still looked for in access logs: Envoy writes them with a delay."""
_MOST_BYTES = 4 << 20
"""Of one access log in one period; what is more is skipped."""

log = logger("node.traces")


def build(node: NodeContext) -> list[list[Runnable]]:
    settings = node.settings
    resource = _resource(settings)
    spans = JobSpans(RING, node.clock, settings.domain)
    if settings.mode != "lite":
        informers = node.informers
        spans.follow_control_plane(
            informers.get(KUSCIA_JOBS, CROSS_DOMAIN),
            informers.get(KUSCIA_TASKS, CROSS_DOMAIN),
            informers.get(TASK_RESOURCES),
        )
    if settings.agent is not None:
        # The same informer as the agent's own.
        fields = f"spec.nodeName={settings.agent.node_name}"
        spans.follow_pods(node.informers.get(PODS.as_dynamic, settings.only_namespace, fields=fields))
    places = GatewayPaths.of(settings.paths)
    private_directory(places.run)
    logs = AccessLogs(places.logs, GatewayHops(RING, settings.domain), spans.tasks, node.clock)
    file = TraceFile(settings.paths.logs / TRACE_FILE, RING, resource, __version__, settings.logrotate.of_node)
    exporter = _exporter(settings.traces.otlp, resource, node.clock) if settings.traces.otlp is not None else None
    part = Traces(
        RING,
        places.traces_socket,
        node.clock,
        file=file if settings.traces.file else None,
        exporter=exporter,
        access_logs=logs if settings.gateway.enabled and settings.join is None else None,
    )
    node.provide("traces", part)
    return [[part]]


def _resource(settings: NodeSettings) -> Mapping[str, Value]:
    """Who recorded the spans."""
    node = settings.agent.node_name if settings.agent is not None else settings.domain
    return {
        "service.name": "coterie",
        "service.namespace": settings.domain,
        "service.instance.id": f"{settings.domain}/{node}",
        "service.version": __version__,
        "coterie.mode": settings.mode,
        "coterie.domain": settings.domain,
    }


def _exporter(wanted: TraceExportConfig, resource: Mapping[str, Value], clock: Clock) -> trace_export.SpanExporter:
    try:
        headers = trace_export.read_headers(Path(wanted.headers_file).expanduser()) if wanted.headers_file else {}
    except (OSError, ValueError) as problem:
        raise ConfigError(f"traces.otlp.headersFile: {wanted.headers_file} cannot be used ({problem})") from problem
    tls = None
    if wanted.endpoint.startswith("https:"):
        try:
            tls = trace_export.tls_context(wanted.ca_file, wanted.certificate_file, wanted.key_file)
        except OSError as problem:
            raise ConfigError(f"traces.otlp: the certificates cannot be used ({problem})") from problem
    return trace_export.SpanExporter(
        RING, wanted.endpoint, resource, __version__, clock, headers=headers, tls=tls, timeout=wanted.timeout_seconds
    )


class Traces:
    """A Runnable, and a source of metrics."""

    name = "traces"

    def __init__(
        self,
        ring: TraceRing,
        socket: Path,
        clock: Clock,
        *,
        file: TraceFile | None = None,
        exporter: trace_export.SpanExporter | None = None,
        access_logs: AccessLogs | None = None,
    ) -> None:
        self.ready = asyncio.Event()
        self._ring = ring
        self._socket = socket
        self._clock = clock
        self._file = file
        self._exporter = exporter
        self._access_logs = access_logs
        self._failing = False
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        receiver = SpanReceiver(self._socket, self._ring)
        receiver.start()
        self._ring.on = True
        self.ready.set()
        try:
            async with TaskOwner(self.name) as owner:
                owner.start("collect", self._collect(), endless=True)
                if self._exporter is not None:
                    owner.start("export", self._exporter.run(), endless=True)
                waits = [asyncio.ensure_future(each) for each in (self._stop.wait(), owner.wait())]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for each in waits:
                    each.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
        finally:
            self._ring.on = False
            receiver.close()
            self._write()

    async def _collect(self) -> None:
        while True:
            await self._clock.sleep(PERIOD)
            if self._access_logs is not None and self._access_logs.wanted:
                await asyncio.to_thread(self._access_logs.read)
                self._access_logs.record()
            if self._file is not None and self._file.behind:
                await asyncio.to_thread(self._write)

    def _write(self) -> None:
        if self._file is None or not self._file.behind:
            return
        try:
            self._file.write()
            self._failing = False
        except OSError as problem:
            if not self._failing:
                self._failing = True
                log.warning("Spans cannot be written to their file", error=problem)

    async def families(self) -> Sequence[Family]:
        ring, exported = self._ring, self._exporter.exported if self._exporter is not None else 0
        dropped = [(labels(reason=why), count) for why, count in sorted(ring.dropped.items())]
        return [
            Family("coterie_trace_spans_total", "Spans that were recorded.", "counter", [("", ring.recorded)]),
            Family("coterie_trace_spans_exported_total", "Spans that the collector took.", "counter", [("", exported)]),
            Family("coterie_trace_spans_dropped_total", "Spans that were lost, by reason.", "counter", dropped),
        ]


class AccessLogs:
    """Follows the gateway's access logs while there are tasks: read in a thread, recorded in the event loop."""

    def __init__(self, directory: Path, hops: GatewayHops, tasks: Mapping[str, ActiveTask], clock: Clock) -> None:
        self._hops = hops
        self._tasks = tasks
        self._clock = clock
        self._known: dict[str, tuple[ActiveTask, float]] = {}
        """With the time until which they are looked for."""
        self._files = {
            True: _FollowedFile(directory / "internal.log"),
            False: _FollowedFile(directory / "external.log"),
        }
        self._lines: list[tuple[bool, str]] = []

    @property
    def wanted(self) -> bool:
        """Whether there is a task whose calls may still be written."""
        now = self._clock.monotonic()
        for name, task in self._tasks.items():
            self._known[name] = (task, now + _LOGS_LATE)
        if self._known:
            return True
        for each in self._files.values():
            each.close()
        return False

    def read(self) -> None:
        self._lines = [(outbound, line) for outbound, file in self._files.items() for line in file.lines()]

    def record(self) -> None:
        now = self._clock.monotonic()
        tasks = {name: task for name, (task, _) in self._known.items()}
        for outbound, line in self._lines:
            self._hops.read(line, tasks, now, outbound=outbound)
        self._lines = []
        self._known = {name: entry for name, entry in self._known.items() if entry[1] > now}
        self._hops.flush({name: task for name, (task, _) in self._known.items()}, now)


class _FollowedFile:
    """From its end when it is opened first, over rotations."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._rest = b""

    def lines(self) -> list[str]:
        """Whole lines that are new."""
        try:
            if self._file is None:
                self._file = self._path.open("rb")
                self._file.seek(0, os.SEEK_END)
            found = self._read(self._file)
            if not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                self._file.close()
                self._file = self._path.open("rb")
                found += self._read(self._file)
        except OSError:  # there is none yet, or no more
            self.close()
            return []
        *whole, self._rest = (self._rest + found).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def _read(self, file: BinaryIO) -> bytes:
        waiting = os.fstat(file.fileno()).st_size - file.tell()
        if waiting > _MOST_BYTES:
            file.seek(-_MOST_BYTES, os.SEEK_END)
            self._rest = b""
        return file.read(_MOST_BYTES)
