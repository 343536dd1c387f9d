"""SearchLog: one query for what happened to a job or task, in all logs of a domain; and QueryLog with the same fields.

    autonomy, master    the API server asks the domain's nodes, and its own logs
    lite                this machine's files, and through the master the domain's other nodes and the lines of the control plane

The logs of a partner are the partner's: a LogRequest asks for them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from coterie.base.log_pages import RawLogPage, merged
from coterie.base.log_scan_process import LogScanner, ScanBusy, ScanFailed
from coterie.kube.api.errors import ApiError, BadRequest
from coterie.kube.api.meta import Object
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.log_query import MAX_LINES, LogLine, LogPage, LogQuery, LogQueryRefused, log_query
from coterie.kuscia.control.log_index import PodLogIndex
from coterie.kuscia.control.log_search import NodeLogSearch
from coterie.kuscia.control.task_logs import ApiTaskLogs, page_of
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.job_messages import named
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode, OnLite, OperationContext

_SCANNER: Final = LogScanner()
_FIELDS: Final = {"job": "job_id", "task": "task_id", "party": "domain_id", "source": "sources"}
_LINES: Final = 100
"""In one answer of QueryLog."""


async def search_log(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    caller.must_be_one_of(here.domain, to="search logs here: they are of another domain")
    named("job_id", request.job_id)
    query = _checked(here, request, job=request.job_id, task=request.task_id, cursor=request.cursor)
    page = await _page(here, request.domain_id, query)
    return {"lines": [_line(each) for each in page.lines], "cursor": page.cursor, "notes": list(page.notes)}


def is_search(request: Any) -> bool:
    """Whether a QueryLog has one of the fields that Kuscia's does not have."""
    return bool(request.since or request.until or request.grep or request.sources or request.limit)


async def searched_text(here: OperationContext, request: Any) -> AsyncGenerator[str, None]:
    """For QueryLog."""
    if request.follow:
        raise invalid("follow", "cannot be combined with since, until, grep, sources or limit")
    most = request.limit or MAX_LINES
    query = _checked(here, request, task=request.task_id)
    lines: list[LogLine] = []
    while True:
        page = await _page(here, "", query)
        lines = [*page.lines, *lines]
        if not page.cursor or len(lines) >= most:
            break
        query = replace(query, cursor=page.cursor)
    text = [each.text for each in lines[-most:]]
    for begin in range(0, len(text), _LINES):
        yield "\n".join(text[begin : begin + _LINES])


def _checked(here: OperationContext, request: Any, *, job: str = "", task: str = "", cursor: str = "") -> LogQuery:
    try:
        return log_query(
            now=here.clock.now(),
            job=job,
            task=task,
            since=request.since,
            until=request.until,
            grep=request.grep,
            sources=list(request.sources),
            limit=request.limit,
            cursor=cursor,
        )
    except LogQueryRefused as refused:
        raise invalid(_FIELDS.get(refused.field, refused.field), refused.reason) from refused


async def _page(here: OperationContext, domain: str, query: LogQuery) -> LogPage:
    if domain and domain != here.domain and here.mode is not Mode.MASTER:
        raise CallRefused(ApiErrorCode.PERMISSION, f"the logs of {domain} are its own; ask for them with a LogRequest")
    if here.mode is Mode.MASTER and not domain:
        raise invalid("domain_id", "name the domain whose logs are meant")
    try:
        if here.mode is Mode.LITE:
            return page_of(await _lite_page(here, query))
        return await ApiTaskLogs(here.client, [domain or here.domain]).query(query)
    except BadRequest as refused:
        raise invalid("query", str(refused)) from refused


async def _lite_page(here: OperationContext, query: LogQuery) -> RawLogPage:
    index = _index_of(here.paths.stdout)
    local = NodeLogSearch(here.paths, here.domain, here.clock, node=here.node, index=index, scanner=_SCANNER)
    try:
        own = await local.page(here.domain, query)
    except ScanBusy as busy:
        raise CallRefused(ApiErrorCode.QUERY_LOG, str(busy)) from busy
    except ScanFailed as failed:
        raise invalid("grep", str(failed)) from failed
    skipped = [here.node] if here.node else []
    tasks = sorted({pod.task for pod in index.find(here.domain, job=query.job)})
    try:
        others = await ApiTaskLogs(here.client, [here.domain], skip_nodes=skipped, tasks=tasks).raw(query)
    except (ApiError, TransportError) as problem:
        others = RawLogPage(notes=(f"the master was not asked: {problem}",))
    return merged((own, others), query.limit)


@cache
def _index_of(stdout: Path) -> PodLogIndex:
    """Read again only when the agent has changed it."""
    return PodLogIndex.of(stdout, shared=True)


def _line(line: LogLine) -> Object:
    return {
        "at": line.at,
        "source": line.source,
        "domain_id": line.party,
        "job_id": line.job,
        "task_id": line.task,
        "pod": line.pod,
        "container": line.container,
        "node": line.node,
        "level": line.level,
        "text": line.text,
    }


OPERATIONS = (
    ApiOperation(
        "LogService",
        "SearchLog",
        "/api/v1/log/search",
        ApiErrorCode.QUERY_LOG,
        search_log,
        on_lite=OnLite.HERE,
    ),
)
