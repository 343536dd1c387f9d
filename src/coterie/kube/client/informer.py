"""An informer: a cache that follows the server, and handlers that hear of each change after the cache has it.

Handlers are plain functions, called in the order of changes; they should be quick (usually: put a key in a queue). A
handler added late first hears an `added` for everything that is there. After a gap (410, restart of the server) the
difference between before and after is told, so a deletion is never missed; an object that was replaced by another of
the same name is told as deleted and added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

from coterie.base.backoff import Policy
from coterie.base.lean_event import LeanEvent
from coterie.base.tasks import TaskEndedEarly, TaskOwner
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.cache import Cache, IndexFunction
from coterie.kube.client.client import Client
from coterie.kube.client.limits import KeptObjects
from coterie.kube.client.reflector import RETRY, FollowObserver, Reflector

T = TypeVar("T")


class ObjectChange(NamedTuple, Generic[T]):
    """`object` is the new state, or the last known one of a deletion; `old` is there for updates only.

    A resync is an update whose old and new are the same.
    """

    type: Literal["added", "updated", "deleted"]
    object: T
    old: T | None = None


Handler = Callable[[ObjectChange[T]], None]


class Informer(Generic[T]):
    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        transform: Callable[[T], T] | None = None,
        resync: float = 0.0,
        watch_list: bool = True,
        retry: Policy = RETRY,
        kept: KeptObjects | None = None,
        observer: FollowObserver | None = None,
    ) -> None:
        """`transform` may drop what nobody needs before it is kept. `resync` seconds; 0: never."""
        self.kind = kind
        self.cache: Cache[T] = Cache(kind, indexes)
        self.ready: asyncio.Event = LeanEvent()
        """Set when the cache has held everything once."""
        self.name = f"informer/{kind}" + (f"/{namespace}" if namespace else "")
        self._handlers: list[Handler[T]] = []
        self._transform = transform
        self._resync = resync
        self._clock = client.clock
        self._reflector = Reflector(
            client,
            kind,
            self,
            namespace=namespace,
            labels=labels,
            fields=fields,
            watch_list=watch_list,
            retry=retry,
            kept=kept,
            observer=observer,
        )

    @property
    def synced(self) -> asyncio.Event:
        return self.ready

    @property
    def resource_version(self) -> str:
        return self._reflector.resource_version

    @property
    def restarts(self) -> int:
        return self._reflector.restarts

    def add_handler(self, handler: Handler[T]) -> Callable[[], None]:
        """Returns what removes it again."""
        self._handlers.append(handler)
        for obj in self.cache.list():
            handler(ObjectChange("added", obj))
        return lambda: self._handlers.remove(handler)

    async def run(self) -> None:
        if not self._resync:
            await self._reflector.run()
            raise TaskEndedEarly(f"{self.name} was to run until cancelled")
        async with TaskOwner(self.name) as owner:
            owner.start("follow", self._reflector.run(), endless=True)
            owner.start("resync", self._resync_for_ever(), endless=True)
            await owner.wait()

    async def _resync_for_ever(self) -> None:
        while True:
            await self._clock.sleep(self._resync)
            for obj in self.cache.list():
                self._notify(ObjectChange("updated", obj, obj))

    # What the reflector delivers.

    def replace(self, objects: Sequence[T]) -> None:
        present: set[ObjectKey] = set()
        key_of = self.kind.key
        for obj in objects:
            present.add(key_of(obj))
            self._put(obj)
        # A cache iterates over objects, so its keys are asked for.
        for key in [key for key in self.cache.keys() if key not in present]:  # noqa: SIM118
            self._remove(key)
        self.ready.set()

    def changed(self, type: str, obj: T) -> None:
        if type == "DELETED":
            self._remove(self.kind.key(obj), obj)
        else:
            self._put(obj)

    def lost(self, key: ObjectKey) -> None:
        self._remove(key)

    def _put(self, obj: T) -> None:
        kind = self.kind
        key = kind.key(obj)
        old = self.cache.by_key(key)
        if old is not None:
            if kind.uid(old) != kind.uid(obj):
                self._remove(key)
                old = None
            elif kind.version(old) == kind.version(obj):
                return  # delivered before: a watch that resumed, or a list after a gap
        if self._transform is not None:
            obj = self._transform(obj)
        self.cache.put(key, obj)
        self._notify(ObjectChange("added", obj) if old is None else ObjectChange("updated", obj, old))

    def _remove(self, key: ObjectKey, last: T | None = None) -> None:
        old = self.cache.remove(key)
        if old is not None:
            self._notify(ObjectChange("deleted", last if last is not None else old))

    def _notify(self, change: ObjectChange[T]) -> None:
        for handler in self._handlers:
            handler(change)
