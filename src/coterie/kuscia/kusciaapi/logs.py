"""The service of logs: what a task of the own domain printed, and on which node its pods are.

    pod there    the API's log of it, which reaches every node of the domain
    pod gone     the files that this node keeps for some days, where it ran here
    `local`      only those files

A pod is found by its labels, so that roles do not hide it. When it is gone its task still tells what it was called;
where the task cannot be read (a lite may not), the name is that of a pod with the role that was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.base.clock import Clock
from coterie.base.container_logs import Lines, LogOptions, last_runs, read
from coterie.base.tasks import TaskOwner
from coterie.kube.api.errors import ApiError, Forbidden, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.streams import log_stream
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_TASKS, KusciaTask
from coterie.kuscia.kusciaapi import log_search
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.job_messages import named
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode, OnLite, OperationContext

LINES = 100
"""In one answer."""
FLUSH_SECONDS = 5.0
"""Seconds after which lines are told although they are fewer."""
_ASK_AGAIN = 2.0
"""Seconds between two looks at whether a pod that is followed in its file still runs."""
_TASK_PODS = f"{labels.KUSCIA_CONTROLLER}={labels.KUSCIA_CONTROLLER_TASK}"
_SUCCESS = {"message": "success"}


@dataclass(frozen=True, slots=True)
class LogTarget:
    """Which pod of a task."""

    domain: str
    task: str
    role: str
    index: int


async def query_log(here: OperationContext, caller: ApiCaller, request: Any) -> AsyncGenerator[Object, None]:
    caller.must_be_one_of(here.domain, to="read logs here: they are of another domain")
    wanted = _target_of_request(here.domain, request)
    if request.container:
        named("container", request.container)
    if log_search.is_search(request):
        async for page in log_search.searched_text(here, request):
            yield {"status": _SUCCESS, "log": page}
        return
    pieces = await _open_log(here, wanted, request)
    async with aclosing(in_pages(pieces, here.clock)) as pages:
        async for page in pages:
            yield {"status": _SUCCESS, "log": page}


async def query_node(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    domain = request.domain or caller.domain or ("" if here.mode is Mode.MASTER else here.domain)
    named("domain", domain)
    caller.must_be_one_of(domain, to=f"ask for nodes of {domain}")
    wanted = _target_of_request(domain, request)
    pod = await _pod(here.client, wanted)
    if pod is not None:
        node, address = pod.spec.node_name, pod.status.host_ip
    else:
        task = await _task(here.client, wanted.task)
        found = _remembered(task, wanted) if task is not None else {}
        if not found:
            raise CallRefused(ApiErrorCode.QUERY_POD_NODE, f"domain {domain} has no such pod of task {wanted.task}")
        node, address = next(iter(found.values())), ""
    if not node:
        raise CallRefused(
            ApiErrorCode.QUERY_POD_NODE, f"the pod of task {wanted.task} has no node yet; see QueryJob for why"
        )
    return {"node_name": node, "node_ip": address or await _address(here.client, node)}


def _target_of_request(domain: str, request: Any) -> LogTarget:
    named("task_id", request.task_id)
    if request.role:
        named("role", request.role)
    if request.replica_idx < 0:
        raise invalid("replica_idx", "must not be negative")
    return LogTarget(domain, request.task_id, request.role, request.replica_idx)


# Finding.


async def _pod(client: Client, wanted: LogTarget) -> Pod | None:
    pods = await client.list(PODS, wanted.domain, labels=_TASK_PODS)
    return choose_pod(pods.items, wanted)


def choose_pod(pods: Iterable[Pod], wanted: LogTarget) -> Pod | None:
    """Refused when a role must be named."""
    mine = {}
    for pod in pods:
        pod_marks, marks = pod.metadata.labels or {}, pod.metadata.annotations or {}
        index = pod_marks.get(labels.KUSCIA_POD_IDENTITY, "").rpartition("-")[2]
        if marks.get(labels.KUSCIA_TASK_ID) == wanted.task and index == str(wanted.index):
            mine[pod_marks.get(labels.KUSCIA_POD_ROLE, "")] = pod
    return mine.get(_role(mine, wanted))


def _role(roles: Collection[str], wanted: LogTarget) -> str:
    """The one that is meant: that which was named, or the only one."""
    if wanted.role or len(roles) <= 1:
        return wanted.role or next(iter(roles), "")
    role_names = ", ".join(sorted(role or '""' for role in roles))
    raise invalid("role", f"domain {wanted.domain} has several in task {wanted.task} ({role_names}); name one")


def _remembered(task: KusciaTask, wanted: LogTarget) -> dict[str, str]:
    """Pod -> node, of a pod that is gone, as its task tells."""
    ended_pods: dict[str, tuple[str, str]] = {}
    for pod in (task.status.pod_statuses or {}).values():
        role, _, index = f"-{pod.pod_name.removeprefix(f'{task.metadata.name}-')}".rpartition("-")
        if pod.namespace == wanted.domain and index == str(wanted.index):
            ended_pods[role.removeprefix("-")] = (pod.pod_name, pod.node_name)
    found = ended_pods.get(_role(ended_pods, wanted))
    return {found[0]: found[1]} if found is not None else {}


async def _task(client: Client, name: str) -> KusciaTask | None:
    try:
        return await client.get(KUSCIA_TASKS, name, CROSS_DOMAIN)
    except (NotFound, Forbidden):
        return None


async def _address(client: Client, node: str) -> str:
    try:
        found = await client.get(NODES, node)
    except (NotFound, Forbidden):
        return ""
    addresses = {each.type: each.address for each in found.status.addresses or ()}
    return addresses.get("InternalIP", "")


# Opening.


async def _open_log(here: OperationContext, wanted: LogTarget, request: Any) -> AsyncGenerator[bytes, None]:
    if request.local:
        file = _file(_kept_directory(here, wanted, _usual_name(wanted)), request.container)
        if file is None:
            raise CallRefused(
                ApiErrorCode.QUERY_LOG, f"this node keeps no log of task {wanted.task}; leave out `local`"
            )
        return read(file, LogOptions(follow=request.follow), lambda: True, here.clock)
    pod = await _pod(here.client, wanted)
    if pod is None:
        return await _of_gone(here, wanted, request.container)
    name, container = pod.metadata.name, _container([each.name for each in pod.spec.containers], request.container)
    source = log_stream(here.client, name, wanted.domain, container=container, follow=request.follow)
    try:
        first = await anext(source, b"")
    except (ApiError, TransportError) as problem:
        # The node cannot be reached through the API; it may be this one.
        file = _file(here.paths.pod_stdout(wanted.domain, name, pod.metadata.uid), container)
        if file is None:
            raise CallRefused(ApiErrorCode.QUERY_LOG, f"the log of pod {name} cannot be had: {problem}") from problem
        return _followed(here, pod, file) if request.follow else read(file, LogOptions(), lambda: False, here.clock)
    return _again(first, source)


async def _of_gone(here: OperationContext, wanted: LogTarget, container: str) -> AsyncGenerator[bytes, None]:
    task = await _task(here.client, wanted.task)
    if task is None:
        name, node = _usual_name(wanted), ""
    else:
        if all(party.domain_id != wanted.domain for party in task.spec.parties):
            raise CallRefused(ApiErrorCode.QUERY_LOG, f"domain {wanted.domain} takes no part in task {wanted.task}")
        found = _remembered(task, wanted)
        if not found:
            raise CallRefused(
                ApiErrorCode.QUERY_LOG, f"task {wanted.task} has no such pod here, or not yet; see QueryJob"
            )
        name, node = next(iter(found.items()))
    file = _file(_kept_directory(here, wanted, name), container)
    if file is not None:
        return read(file, LogOptions(), lambda: False, here.clock)
    if task is None:
        hint = "" if wanted.role else "; if the party has a role, name it"
        raise CallRefused(
            ApiErrorCode.QUERY_LOG, f"there is no pod of task {wanted.task}, and this node keeps no log of it{hint}"
        )
    where = f"node {node}" if node else "the node it ran on"
    raise CallRefused(
        ApiErrorCode.QUERY_LOG, f"pod {name} is gone, and its log is not on this node; {where} keeps it for some days"
    )


def _usual_name(wanted: LogTarget) -> str:
    return "-".join(part for part in (wanted.task, wanted.role, str(wanted.index)) if part)


def _kept_directory(here: OperationContext, wanted: LogTarget, pod: str) -> Path | None:
    """The newest directory with the output of a pod of this name: a task that was done again has the same names."""
    found = here.paths.pod_stdout(wanted.domain, pod, "*")
    return max(found.parent.glob(found.name), key=lambda each: each.stat().st_mtime_ns, default=None)


def _file(directory: Path | None, container: str) -> Path | None:
    runs = last_runs(directory) if directory is not None and directory.is_dir() else {}
    return runs.get(_container(runs, container)) if runs else None


def _container(there: Collection[str], asked: str) -> str:
    if asked and asked not in there:
        raise invalid("container", f'the pod has no "{asked}", it has {", ".join(there)}')
    if not asked and len(there) > 1:
        raise invalid("container", f"the pod has several ({', '.join(there)}); name one")
    return asked or next(iter(there), "")


async def _again(first: bytes, source: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """A stream of which the first piece was read to see whether it can be had."""
    try:
        if first:
            yield first
        async for data in source:
            yield data
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


async def _followed(here: OperationContext, pod: Pod, file: Path) -> AsyncGenerator[bytes, None]:
    """From the file, to the end of the pod."""
    runs = not pod.ended

    async def ask() -> None:
        nonlocal runs
        while runs:
            await here.clock.sleep(_ASK_AGAIN)
            try:
                found = await here.client.get(PODS, pod.metadata.name, pod.metadata.namespace)
            except NotFound:
                runs = False
            except (ApiError, TransportError):
                continue  # the pod goes on without its control plane, and so does its log
            else:
                runs = found.metadata.uid == pod.metadata.uid and not found.ended

    async with (
        TaskOwner("log") as owner,
        aclosing(read(file, LogOptions(follow=True), lambda: runs, here.clock)) as log,
    ):
        owner.start("ask", ask())
        async for data in log:
            yield data


# Telling.


async def in_pages(pieces: AsyncGenerator[bytes, None], clock: Clock) -> AsyncGenerator[str, None]:
    """Lines, so many at a time, or those that have come when nothing more comes for a while."""
    lines, waiting = Lines(), list[str]()
    async with aclosing(pieces), TaskOwner("log") as owner:
        reading = alarm = None
        while True:
            reading = reading or owner.start("read", _next(pieces))
            if waiting:
                alarm = alarm or owner.start("alarm", clock.sleep(FLUSH_SECONDS))
            await asyncio.wait([task for task in (reading, alarm) if task], return_when=asyncio.FIRST_COMPLETED)
            got: bytes | ApiError | TransportError | None = b""
            least = 1
            if reading.done():
                got, reading = reading.result(), None
                waiting += lines.take(got) if isinstance(got, bytes) else lines.end()
                least = LINES if isinstance(got, bytes) else 1
            while len(waiting) >= least:
                yield "\n".join(waiting[:LINES])
                del waiting[:LINES]
            if isinstance(got, Exception):
                raise got
            if got is None:
                return
            if alarm is not None and (alarm.done() or not waiting):
                alarm.cancel()
                alarm = None


async def _next(pieces: AsyncGenerator[bytes, None]) -> bytes | ApiError | TransportError | None:
    """The next piece; None at the end; what went wrong, as a value: it is no failure of the task that reads."""
    try:
        return await anext(pieces, None)
    except (ApiError, TransportError) as problem:
        return problem


OPERATIONS = (
    ApiOperation(
        "LogService",
        "QueryLog",
        "/api/v1/log/task/query",
        ApiErrorCode.QUERY_LOG,
        stream=query_log,
        for_domains=True,
        on_master=False,
    ),
    ApiOperation(
        "LogService",
        "QueryPodNode",
        "/api/v1/log/node/query",
        ApiErrorCode.QUERY_POD_NODE,
        query_node,
        for_domains=True,
        on_lite=OnLite.FORWARD,
    ),
)
