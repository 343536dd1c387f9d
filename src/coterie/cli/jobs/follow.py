"""Following a job: the objects of it as the server has them, at each change, until it has ended.

    async with Following(client, "psi") as following:
        while not (now := await following.next()).over: ...

A server that goes away is asked again and again, and the user is told once: the job goes on without us.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType

from coterie.base.tasks import TaskFailed, TaskOwner
from coterie.cli.app import CliError
from coterie.kube.api.errors import ApiError, Gone, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.pods import Pod
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kube.client.watch import Bookmark, Changed
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KusciaTask, TaskResourceGroup
from coterie.kuscia.control import job_snapshots
from coterie.kuscia.control.job_snapshots import (
    GROUPS,
    JOBS,
    PODS,
    TASK_PODS,
    TASKS,
    JobSnapshot,
    all_typed,
    of_job,
    tasks_of,
)

_PAUSE = 1.0


class JobGone(CliError):
    """The job was deleted while it was followed."""


async def find(client: Client, name: str) -> Object:
    with _explained_absence(name):
        return await client.get(JOBS, name, CROSS_DOMAIN)


@contextlib.contextmanager
def _explained_absence(name: str) -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise CliError(f'Error: there is no job "{name}"; `coterie job ls` lists those there are') from error


async def fetch_snapshot(client: Client, name: str) -> JobSnapshot:
    """A job and its tasks now."""
    with _explained_absence(name):
        return await job_snapshots.fetch_snapshot(client, name)


async def fetch_timeline(client: Client, name: str) -> JobSnapshot:
    """With everything that says when something happened, as far as it is still there and may be read."""
    with _explained_absence(name):
        return await job_snapshots.fetch_timeline(client, name)


class JobFollower:
    def __init__(
        self, client: Client, name: str, *, closely: bool = False, trouble: Callable[[str], None] = lambda _: None
    ) -> None:
        """`closely`: pods and resource groups too. `trouble` hears of a server that does not answer."""
        self._client = client
        self._name = name
        self._closely = closely
        self._trouble = trouble
        self._owner = TaskOwner("following", on_failure=self._failed)
        self._failure: BaseException | None = None
        self._stores: list[dict[str, Object]] = []
        self._listed = 0
        self._changed = asyncio.Event()
        self._uid = ""

    async def __aenter__(self) -> JobFollower:
        first = await find(self._client, self._name)
        self._uid = first["metadata"]["uid"]
        await self._owner.__aenter__()
        self._mirror(JOBS, CROSS_DOMAIN, fields=f"metadata.name={self._name}")
        self._mirror(TASKS, CROSS_DOMAIN, labels=of_job(first))
        if self._closely:
            self._mirror(PODS, labels=TASK_PODS)
            self._mirror(GROUPS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._owner.__aexit__(kind, error, trace)

    def wake(self) -> None:
        """The next `next` answers at once."""
        self._changed.set()

    async def next(self, within: float | None = None) -> JobSnapshot:
        """The objects after a change, or after `within` seconds without one; at the end of the job, read once more:
        watches of several kinds are not equally quick."""
        while True:
            try:
                async with asyncio.timeout(within if self._listed == len(self._stores) else None):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            if self._failure is not None:
                raise self._failure
            if self._listed == len(self._stores):
                break
        job = self._stores[0].get(self._uid)
        if job is None:
            raise JobGone(f"Error: job {self._name} was deleted; `coterie job ls` lists those there are")
        now = self._snapshot(job, all_typed(self._stores[1].values(), KusciaTask))
        if not now.state.over:
            return now
        return self._snapshot(job, await tasks_of(self._client, job))

    def _snapshot(self, job: Object, tasks: tuple[KusciaTask, ...]) -> JobSnapshot:
        if not self._closely:
            return JobSnapshot(job, tasks)
        pods, groups = self._stores[2], self._stores[3]
        return JobSnapshot(job, tasks, all_typed(pods.values(), Pod), all_typed(groups.values(), TaskResourceGroup))

    def _failed(self, failure: TaskFailed) -> None:
        self._failure = failure.__cause__
        self._changed.set()

    def _mirror(self, kind: Kind[Object], namespace: str = "", *, labels: str = "", fields: str = "") -> None:
        store: dict[str, Object] = {}
        self._stores.append(store)
        work = self._keep(store, kind, namespace, labels, fields)
        self._owner.start(kind.resource.plural, work)

    async def _keep(
        self, store: dict[str, Object], kind: Kind[Object], namespace: str, labels: str, fields: str
    ) -> None:
        first = True
        while True:
            try:
                page = await self._client.list(kind, namespace, labels=labels, fields=fields)
                store.clear()
                store.update((obj["metadata"]["uid"], obj) for obj in page.items)
                self._listed += first
                first = False
                self._changed.set()
                await self._watch(store, kind, namespace, labels, fields, page.resource_version)
            except Gone:
                continue
            except ApiError as refusal:
                self._failure = refusal
                self._changed.set()
                return
            except TransportError as problem:
                self._trouble(str(problem))
                await self._client.clock.sleep(_PAUSE)

    async def _watch(
        self, store: dict[str, Object], kind: Kind[Object], namespace: str, labels: str, fields: str, version: str
    ) -> None:
        """Until the server ends the watch for good reasons; then it is opened where it was."""
        while True:
            reported = False
            watch = await self._client.watch(kind, namespace, resource_version=version, labels=labels, fields=fields)
            async with watch:
                async for event in watch:
                    reported = True
                    if isinstance(event, Bookmark):
                        version = event.resource_version
                    elif isinstance(event, Changed):
                        meta = event.object["metadata"]
                        version = meta["resourceVersion"]
                        if event.type == "DELETED":
                            store.pop(meta["uid"], None)
                        else:
                            store[meta["uid"]] = event.object
                        self._changed.set()
            if not reported:
                # A server that ends every watch at once must not be asked without pause.
                await self._client.clock.sleep(_PAUSE)
