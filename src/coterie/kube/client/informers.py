"""One informer for each (kind, namespace, selector), shared by all who ask for it.

Those who need objects ask `get` while the program is put together; `run` keeps all of them going, also those asked for
later. A shared informer never has a transform: what one user drops, another may need.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

from coterie.base.backoff import Policy
from coterie.base.tasks import TaskOwner
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer
from coterie.kube.client.limits import KeptObjects
from coterie.kube.client.reflector import RETRY, FollowObserver

T = TypeVar("T")

_Identity = tuple[str, str, str, type, str, str, str]


class Informers:
    name = "informers"

    def __init__(
        self,
        client: Client,
        *,
        resync: float = 0.0,
        watch_list: bool = True,
        retry: Policy = RETRY,
        observer: FollowObserver | None = None,
    ) -> None:
        """`retry`: the pauses before a server that cannot be reached is tried again. Where the client has limits, all
        informers share the memory that these admit."""
        self._client = client
        self._kept = KeptObjects(client.limits) if client.limits is not None else None
        self._observer = observer
        self._resync = resync
        self._watch_list = watch_list
        self._retry = retry
        self._informers: dict[_Identity, Informer[Any]] = {}
        self._running: dict[_Identity, asyncio.Task[None]] = {}
        self._owner: TaskOwner | None = None
        self.ready = asyncio.Event()

    def get(self, kind: Kind[T], namespace: str = "", *, labels: str = "", fields: str = "") -> Informer[T]:
        identity = _identity(kind, namespace, labels, fields)
        informer = self._informers.get(identity)
        if informer is None:
            informer = Informer(
                self._client,
                kind,
                namespace=namespace,
                labels=labels,
                fields=fields,
                resync=self._resync,
                watch_list=self._watch_list,
                retry=self._retry,
                kept=self._kept,
                observer=self._observer,
            )
            self._informers[identity] = informer
            if self._owner is not None:
                self._start(identity)
        return cast("Informer[T]", informer)

    async def drop(self, kind: Kind[Any], namespace: str = "", *, labels: str = "", fields: str = "") -> None:
        """Stop and forget an informer: its resource is gone. Whoever still holds it keeps the last state."""
        identity = _identity(kind, namespace, labels, fields)
        self._informers.pop(identity, None)
        task = self._running.pop(identity, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def __len__(self) -> int:
        return len(self._informers)

    async def run(self) -> None:
        async with TaskOwner(self.name) as owner:
            self._owner = owner
            try:
                for identity in self._informers:
                    self._start(identity)
                owner.start("ready", self._announce())
                owner.start("forever", asyncio.Event().wait(), endless=True)
                await owner.wait()
            finally:
                self._owner = None
                self._running.clear()

    def _start(self, identity: _Identity) -> None:
        assert self._owner is not None
        informer = self._informers[identity]
        self._running[identity] = self._owner.start(informer.name, informer.run(), endless=True)

    async def _announce(self) -> None:
        for informer in list(self._informers.values()):
            await informer.ready.wait()
        self.ready.set()


def _identity(kind: Kind[Any], namespace: str, labels: str, fields: str) -> _Identity:
    resource = kind.resource
    return (resource.group, resource.version, resource.plural, kind.type, namespace, labels, fields)
