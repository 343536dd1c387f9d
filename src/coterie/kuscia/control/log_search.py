"""Searches the logs that one machine of a domain has: the output of engines, the gateway's access logs, the node's own logs.

    files of one machine          source                  belongs to a task because
    var/stdout/pods/<pod>/        engine                  the index says so (log_index.py)
    var/logs/envoy/internal.log   gateway                 the host is one of the task's services
        and external.log
    var/logs/datamesh.log         datamesh                facts of the line: task, job, pod
    var/logs/coterie.log          scheduler, controller   facts of the line, and the component that wrote it
    var/logs/kusciaapi.log        controller              facts of the line
    var/logs/usage.log            usage                   facts of the line

The source follows from the file and, of our own logs, from the component: no text that an engine prints can claim another one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson

from coterie.base.clock import Clock, rfc3339_micro
from coterie.base.log_pages import RawLogPage
from coterie.base.log_scan import ScannedLine, ScanRequest, ScanStream, Wanted, normal
from coterie.base.log_scan_process import LogScanner, ScanBusy, ScanFailed
from coterie.base.paths import DomainPaths
from coterie.kube.api.errors import BadRequest, TooManyRequests
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kuscia.api.log_query import (
    CONTROLLER,
    DATAMESH,
    ENGINE,
    GATEWAY,
    SCHEDULER,
    SOURCES,
    USAGE,
    LogQuery,
    LogQueryRefused,
    log_query,
)
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.control.log_index import LoggedPod, PodLogIndex

MAX_TASKS: Final = 256
MAX_PODS: Final = 256
"""Whose output is searched for one page."""
PARAMETERS: Final = ("job", "task", "party", "since", "until", "grep", "limit", "cursor")
_GATEWAY_SLACK: Final = 2.0
"""Envoy's threads write their lines a second apart."""
_SCHEDULING: Final = ("scheduler", "gangs")
_RUN: Final = re.compile(r"(\d{1,9})\.log(?:\.(\d{1,9}))?(\.gz)?")


@dataclass(frozen=True, slots=True)
class _Origin:
    """What is known of a line by the file that it stands in."""

    source: str
    job: str = ""
    task: str = ""
    pod: str = ""
    container: str = ""


class NodeLogSearch:
    """A `LogSearch` of the agent's endpoint and of the API server."""

    def __init__(
        self,
        paths: DomainPaths,
        domain: str,
        clock: Clock,
        *,
        node: str = "",
        index: PodLogIndex | None = None,
        scanner: LogScanner | None = None,
        sources: Collection[str] = SOURCES,
        plane: bool = False,
    ) -> None:
        """`sources`: those that this machine answers for. `plane`: it has the log of a control plane, where lines of several
        domains stand; the others are of the own domain only."""
        self._paths = paths
        self._domain = domain
        self._clock = clock
        self._node = node
        self._index = index
        self._scanner = scanner or LogScanner()
        self._sources = frozenset(sources)
        self._plane = plane

    async def search(self, namespace: str, params: Mapping[str, str]) -> bytes:
        """Raises ApiError."""
        try:
            page = await self.page(namespace, query_of(params, self._clock.now()), tasks_of(params))
        except LogQueryRefused as refused:
            raise BadRequest(str(refused)) from refused
        except ScanBusy as busy:
            raise TooManyRequests(str(busy)) from busy
        except ScanFailed as failed:
            raise BadRequest(str(failed)) from failed
        return orjson.dumps({"lines": page.lines, "frontier": page.frontier, "notes": page.notes})

    async def page(self, namespace: str, query: LogQuery, more_tasks: Collection[str] = ()) -> RawLogPage:
        """`more_tasks`: of the job, as the asking side knows them. Raises ScanFailed."""
        if query.party and query.party != namespace and namespace != CROSS_DOMAIN:
            return RawLogPage()
        sources = self._sources.intersection(query.sources)
        own = namespace == self._domain
        tasks = frozenset({query.task} if query.task else more_tasks)
        job = "" if query.task else query.job
        pods = self._index.find(namespace, job=job, tasks=tasks) if self._index is not None else []
        if query.task and query.job:
            pods = [pod for pod in pods if pod.job in ("", query.job)]
        tasks |= {pod.task for pod in pods}
        streams: list[tuple[ScanStream, _Origin]] = []
        if ENGINE in sources:
            streams += self._output(pods[:MAX_PODS])
        if own and not self._plane:
            streams += self._components(sources)
        elif self._plane and sources & {SCHEDULER, CONTROLLER}:
            streams += [(self._own(each), _Origin(CONTROLLER)) for each in ("coterie", "kusciaapi")]
        answer = await self._scanner.scan(
            ScanRequest(
                tuple(stream for stream, _ in streams),
                self._wanted(namespace, job, tasks, pods),
                since=_normal(query.since),
                until=_normal(query.until),
                before=query.cursor,
                grep=query.grep,
                limit=query.limit,
            )
        )
        lines = [self._line(line, streams[line.stream][1], namespace, query) for line in answer.lines]
        notes = list(answer.notes)
        if sources & {SCHEDULER, CONTROLLER} and (own or self._plane) and not self._paths.log("coterie").exists():
            notes.append(f"{self._node or 'the node'} writes its own log to its terminal, not to a file")
        if len(pods) > MAX_PODS and ENGINE in sources:
            notes.append(f"{len(pods)} pods belong to it; only the newest {MAX_PODS} were searched: name a task")
        return RawLogPage([line for line in lines if line["source"] in sources], answer.frontier, notes)

    def _wanted(self, namespace: str, job: str, tasks: frozenset[str], pods: list[LoggedPod]) -> Wanted:
        known = self._index.tasks(namespace) if self._index is not None else set()
        return Wanted(
            job=job,
            tasks=tasks,
            pods=frozenset(pod.pod for pod in pods),
            other_tasks=tuple(sorted(each for each in known - tasks if _continues(each, tasks))),
            services=frozenset(service for pod in pods for service in pod.services),
            namespace=namespace if self._plane else "",
            unnamed=namespace == CROSS_DOMAIN,
        )

    def _line(self, line: ScannedLine, origin: _Origin, namespace: str, query: LogQuery) -> dict[str, Any]:
        source = origin.source
        if source == CONTROLLER and line.logger.partition(".")[0] in _SCHEDULING:
            source = SCHEDULER
        return {
            "at": line.at,
            "source": source,
            "party": "" if namespace == CROSS_DOMAIN else namespace,
            "task": origin.task or line.task,
            "pod": origin.pod or line.pod,
            "text": line.text,
            "job": origin.job or query.job,
            "container": origin.container,
            "node": self._node,
            "level": line.level,
        }

    # Files.

    def _components(self, sources: Collection[str]) -> list[tuple[ScanStream, _Origin]]:
        out = []
        if GATEWAY in sources:
            directory = self._paths.logs / "envoy"
            out += [
                (_rotated(directory, f"{side}.log", "access", _GATEWAY_SLACK), _Origin(GATEWAY))
                for side in ("internal", "external")
            ]
        if DATAMESH in sources:
            out.append((self._own("datamesh"), _Origin(DATAMESH)))
        if CONTROLLER in sources or SCHEDULER in sources:
            out.append((self._own("coterie"), _Origin(CONTROLLER)))
        if CONTROLLER in sources:
            out.append((self._own("kusciaapi"), _Origin(CONTROLLER)))
        if USAGE in sources:
            out.append((self._own("usage"), _Origin(USAGE)))
        return out

    def _own(self, process: str) -> ScanStream:
        return _rotated(self._paths.logs, f"{process}.log", "own")

    def _output(self, pods: list[LoggedPod]) -> list[tuple[ScanStream, _Origin]]:
        root = self._paths.stdout / "pods"
        out = []
        for pod in pods:
            for container, names in _containers(root / pod.directory).items():
                files = tuple((pod.directory, container, name) for name in names)
                origin = _Origin(ENGINE, pod.job, pod.task, pod.pod, container)
                out.append((ScanStream(str(root), files, "cri"), origin))
        return out


def query_of(params: Mapping[str, str], now: datetime) -> LogQuery:
    """Raises LogQueryRefused."""
    limit = params.get("limit", "")
    if limit and (not limit.isdecimal() or len(limit) > 9):
        raise LogQueryRefused("limit", f"{limit[:32]!r} is no number")
    known = {name: params.get(name, "") for name in PARAMETERS if name != "limit"}
    sources = [each for each in params.get("source", "").split(",") if each]
    return log_query(now=now, limit=int(limit or 0), sources=sources, **known)


def tasks_of(params: Mapping[str, str]) -> list[str]:
    """Raises LogQueryRefused."""
    tasks = [each for each in params.get("tasks", "").split(",") if each]
    if len(tasks) > MAX_TASKS:
        raise LogQueryRefused("tasks", f"has {len(tasks)} names; at most {MAX_TASKS} are allowed")
    for each in tasks:
        if faults := dns_subdomain_faults(each):
            raise LogQueryRefused("tasks", f"{each[:64]!r} is no name: {faults[0]}")
    return tasks


def _continues(name: str, tasks: Collection[str]) -> bool:
    """Whether the name is that of one of the tasks with `-` and more after it."""
    return any(char == "-" and name[:at] in tasks for at, char in enumerate(name))


def _normal(moment: datetime | None) -> str:
    return normal(rfc3339_micro(moment).encode()) if moment is not None else ""


def _rotated(directory: Path, name: str, form: str, slack: float = 0.0) -> ScanStream:
    """A log and what was moved aside of it, newest first."""
    numbered = re.compile(re.escape(name) + r"\.(\d{1,9})(\.gz)?")
    older = {(int(found[1]), each) for each in _entries(directory) if (found := numbered.fullmatch(each))}
    return ScanStream(str(directory), ((name,), *((each,) for _, each in sorted(older))), form, slack)


def _containers(directory: Path) -> dict[str, list[str]]:
    """Container -> files of all its runs, newest first."""
    out = {}
    for container in sorted(_entries(directory)):
        files = [
            (-int(found[1]), int(found[2] or 0), each)
            for each in _entries(directory / container)
            if (found := _RUN.fullmatch(each))
        ]
        if files:
            out[container] = [name for _, _, name in sorted(files)]
    return out


def _entries(directory: Path) -> list[str]:
    """Names; links are followed by nobody who reads the files."""
    if directory.is_symlink():
        return []
    try:
        return [each.name for each in directory.iterdir()]
    except OSError:
        return []
