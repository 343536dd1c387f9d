"""A controller: changes of objects become keys, keys are reconciled one by one, failures come back later.

The reconciler gets only a key. It reads what is true now, decides, writes, and says what next:

    returns None or Result()     done; the key's failures are forgotten
    returns Result(after=5)      done for now; come back in 5 s
    raises anything else         try again, with pauses that grow

Events may be lost, merged or repeated without harm: the key is all they carry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from coterie.base.backoff import Policy
from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import log_context, logger
from coterie.base.tasks import TaskOwner
from coterie.kube.api.errors import Conflict
from coterie.kube.api.meta import ApiObject, ObjectKey, key_of
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.control.controller_metrics import RUNNING
from coterie.kube.control.queue import RETRY, QueueClosed, WorkQueue
from coterie.kube.control.request_priority import REQUEST_PRIORITY

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result:
    after: float | None = None
    """Seconds after which to look again."""


DONE = Result()


@dataclass(frozen=True, slots=True)
class Watches(Generic[T, K]):
    """Which keys a change of an object concerns. An update is asked for the old and the new state."""

    informer: Informer[T]
    keys: Callable[[T], Iterable[K]]


@dataclass(slots=True)
class ControllerCounters:
    succeeded: int = 0
    failed: int = 0
    """Conflicts included."""
    conflicts: int = 0


def own_key(obj: Any) -> tuple[ObjectKey]:
    """For watching the objects that are reconciled themselves."""
    if isinstance(obj, dict):
        return (key_of(obj),)
    return (cast("ApiObject", obj).key,)


def owner_key(api_version: str, kind: str) -> Callable[[Any], tuple[ObjectKey, ...]]:
    """For watching dependents: the key of the controlling owner when it is of this kind."""
    group = api_version.rpartition("/")[0]

    def keys(obj: Any) -> tuple[ObjectKey, ...]:
        if isinstance(obj, dict):
            meta = obj.get("metadata") or {}
            for owner in meta.get("ownerReferences") or ():
                same = owner.get("kind") == kind and str(owner.get("apiVersion", "")).rpartition("/")[0] == group
                if same and owner.get("controller"):
                    return (ObjectKey(meta.get("namespace") or "", owner["name"]),)
            return ()
        typed = cast("ApiObject", obj).metadata
        for reference in typed.owners:
            if reference.controller and reference.kind == kind and reference.api_version.rpartition("/")[0] == group:
                return (ObjectKey(typed.namespace, reference.name),)
        return ()

    return keys


def _with_facts(
    reconcile: Callable[[K], Awaitable[Result | None]], facts: Callable[[K], Mapping[str, Any]]
) -> Callable[[K], Awaitable[Result | None]]:
    async def reconcile_with_facts(key: K) -> Result | None:
        with log_context(partial(facts, key)):
            return await reconcile(key)

    return reconcile_with_facts


class Controller(Generic[K]):
    """A Runnable. `stop()` lets the keys that are being worked on finish; cancelling does not."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[Result | None]],
        watches: Sequence[Watches[Any, K]],
        *,
        workers: int = 4,
        clock: Clock = SYSTEM_CLOCK,
        retry: Policy = RETRY,
        group: Callable[[K], Hashable] | None = None,
        log_facts: Callable[[K], Mapping[str, Any]] | None = None,
    ) -> None:
        """`log_facts`: what every log line about a key says besides."""
        self.name = name
        self.ready = asyncio.Event()
        self.queue: WorkQueue[K] = WorkQueue(clock=clock, retry=retry, group=group)
        self.counters = ControllerCounters()
        self._reconcile = reconcile if log_facts is None else _with_facts(reconcile, log_facts)
        self._watches = tuple(watches)
        self._workers = workers
        self._log = logger(f"controllers.{name}")

    def enqueue(self, key: K, after: float = 0.0) -> None:
        self.queue.add_after(key, after)

    async def run(self) -> None:
        removers = [watch.informer.add_handler(self._handler(watch)) for watch in self._watches]
        RUNNING.append(self)
        try:
            # Deciding on half a picture would undo what only seems to be missing.
            for watch in self._watches:
                await watch.informer.ready.wait()
            async with TaskOwner(self.name) as owner:
                owner.start("delays", self.queue.run())
                for i in range(self._workers):
                    owner.start(f"worker-{i}", self._work())
                self.ready.set()
                await owner.wait()
        finally:
            RUNNING.remove(self)
            for remove in removers:
                remove()

    def stop(self) -> None:
        self.queue.close()
        self.queue.discard_waiting()

    def _handler(self, watch: Watches[T, K]) -> Callable[[ObjectChange[T]], None]:
        def handle(change: ObjectChange[T]) -> None:
            try:
                keys = list(watch.keys(change.object))
                if change.old is not None and change.old is not change.object:
                    keys += watch.keys(change.old)
            except Exception as error:  # noqa: BLE001 - one odd object must not stop the informer others share
                self._log.error(
                    "Cannot map a change to reconcile keys", error=error, trace=True, of=watch.informer.name
                )
                return
            gone = own_key(change.object) if change.type == "deleted" else ()
            for key in keys:
                if key in gone:
                    self.queue.cancel_later(key)
                    self.queue.requeues.pop(key, None)
                self.queue.add(key)

        return handle

    async def _work(self) -> None:
        while True:
            if pause := REQUEST_PRIORITY.pause():
                await asyncio.sleep(pause)
            try:
                key = await self.queue.get()
            except QueueClosed:
                return
            try:
                await self._process(key)
            finally:
                self.queue.done(key)
            await asyncio.sleep(0)  # a reconcile that only reads caches has not let anybody else run

    async def _process(self, key: K) -> None:
        queue = self.queue
        try:
            result = await self._reconcile(key)
        except Conflict as error:
            # Somebody else was faster: an everyday event, and the new state is on its way to us.
            self.counters.failed += 1
            self.counters.conflicts += 1
            self._log.debug("Conflict; trying again", why=str(error), key=str(key), seconds=round(queue.retry(key), 3))
        except Exception as error:  # noqa: BLE001 - whatever went wrong with one key, the others go on
            self.counters.failed += 1
            wait = queue.retry(key)
            self._log.warning(
                "Reconcile failed; trying again",
                error=error,
                key=str(key),
                failures=queue.failures(key),
                seconds=round(wait, 3),
            )
        else:
            self.counters.succeeded += 1
            queue.forget(key)
            if result is not None and result.after is not None and not queue.comes_again(key):
                queue.add_after(key, result.after)


class ControllerOwner:
    """A Runnable around a controller that it has in `controller`; `run` is its own."""

    controller: Controller[Any]

    @property
    def name(self) -> str:
        return self.controller.name

    @property
    def ready(self) -> asyncio.Event:
        return self.controller.ready

    def stop(self) -> None:
        self.controller.stop()
