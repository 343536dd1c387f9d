"""Logs of a job, asked of the API server, which asks the nodes of each domain (`kube/apiserver/pod_log_search.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode

import msgspec

from coterie.base.clock import rfc3339_micro
from coterie.base.log_pages import RawLogPage, merged
from coterie.kube.api.errors import Forbidden, NotFound
from coterie.kube.api.types.kind import builtin
from coterie.kube.client.client import Client
from coterie.kube.client.requests import path
from coterie.kube.client.transport import TransportRequest
from coterie.kuscia.api.log_query import CONTROLLER, SCHEDULER, LogLine, LogPage, LogQuery
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS

EVERY_POD: Final = "*"
_PODS: Final = builtin("pods")
_MAX_TASKS: Final = 256


class ApiTaskLogs:
    """A `TaskLogs`."""

    def __init__(
        self, client: Client, domains: Sequence[str], *, skip_nodes: Sequence[str] = (), tasks: Sequence[str] = ()
    ) -> None:
        """`domains`: whose logs are asked for; who asks needs `get pods/log` in their namespaces. Lines of the control plane that
        are about no single domain come with `get pods/log` in `cross-domain`, and are left out without it. `skip_nodes`: searched
        otherwise. `tasks`: of the job, where the job itself may not be read."""
        self._client = client
        self._domains = tuple(domains)
        self._skip_nodes = tuple(skip_nodes)
        self._known_tasks = tuple(tasks)
        self._tasks: dict[str, tuple[str, ...]] = {}

    async def query(self, query: LogQuery) -> LogPage:
        page = await self.raw(query)
        return page_of(page)

    async def raw(self, query: LogQuery) -> RawLogPage:
        tasks = await self._tasks_of(query.job) if query.job and not query.task else ()
        asked = [each for each in self._domains if query.party in ("", each)]
        pages = [self._page(domain, query, tasks) for domain in asked]
        if not query.party and {SCHEDULER, CONTROLLER}.intersection(query.sources):
            pages.append(self._shared_page(query, tasks))
        return merged(await asyncio.gather(*pages), query.limit)

    async def _shared_page(self, query: LogQuery, tasks: Sequence[str]) -> RawLogPage:
        try:
            return await self._page(CROSS_DOMAIN, query, tasks)
        except Forbidden:
            return RawLogPage()

    async def _page(self, namespace: str, query: LogQuery, tasks: Sequence[str]) -> RawLogPage:
        params = {**params_of(query), "tasks": ",".join(tasks), "skipNodes": ",".join(self._skip_nodes)}
        text = urlencode({name: value for name, value in params.items() if value})
        target = path(_PODS, namespace, EVERY_POD, "log")
        body = await self._client.send(TransportRequest("GET", target, text, {"Accept": "application/json"}))
        found = msgspec.json.decode(body)
        return RawLogPage(found["lines"], found["cursor"], found["notes"])

    async def _tasks_of(self, job: str) -> tuple[str, ...]:
        """As the job says; the nodes know those that have run there."""
        if job not in self._tasks:
            try:
                found = await self._client.get(KUSCIA_JOBS, job, CROSS_DOMAIN)
            except (NotFound, Forbidden):
                return self._known_tasks[:_MAX_TASKS]
            self._tasks[job] = tuple(each.task_id for each in found.spec.tasks if each.task_id)[:_MAX_TASKS]
        return self._tasks[job]


def params_of(query: LogQuery) -> dict[str, str]:
    """As the API takes them (`kuscia/control/log_search.py`)."""
    return {
        "job": query.job,
        "task": query.task,
        "party": query.party,
        "since": rfc3339_micro(query.since) if query.since is not None else "",
        "until": rfc3339_micro(query.until) if query.until is not None else "",
        "grep": query.grep,
        "source": ",".join(query.sources),
        "limit": str(query.limit),
        "cursor": query.cursor,
    }


def page_of(page: RawLogPage) -> LogPage:
    names = ("at", "source", "party", "task", "pod", "text", "job", "container", "node", "level")
    lines = tuple(LogLine(*(str(line.get(name, "")) for name in names)) for line in page.lines)
    return LogPage(lines, page.frontier, tuple(page.notes))
