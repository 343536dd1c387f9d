"""The ConfigMaps, Secrets, claims and volumes that pods of this node name, kept up to date by watching.

They are watched one by one, each for all pods that name it: a node may see nothing else, and the agent holds no secret
that none of its pods named. Watches end with the last pod that needs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from coterie.base.tasks import TaskOwner
from coterie.kube.agent.pods.environment import Lookup
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS, SECRETS
from coterie.kube.api.types.storage import CLAIMS, VOLUMES
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.transport import TransportError

_KINDS = {
    "ConfigMap": CONFIG_MAPS.as_dynamic,
    "Secret": SECRETS.as_dynamic,
    "PersistentVolumeClaim": CLAIMS.as_dynamic,
    "PersistentVolume": VOLUMES.as_dynamic,
}

Reference = tuple[str, str, str]
"""(kind, namespace, name)."""


def _reference(kind: str, namespace: str, name: str) -> Reference:
    return (kind, namespace if _KINDS[kind].resource.namespaced else "", name)


@dataclass(slots=True)
class _Watch:
    informer: Informer[Object]
    task: asyncio.Task[Any]
    users: set[str] = field(default_factory=set)


class ObjectSource:
    def __init__(self, client: Client, on_change: Callable[[Iterable[str]], None]) -> None:
        """`on_change` hears the uids of pods that use an object which changed."""
        self._client = client
        self._on_change = on_change
        self._owner = TaskOwner("pod-objects")
        self._watches: dict[Reference, _Watch] = {}
        self._users: dict[Reference, set[str]] = {}
        self._fetched: dict[Reference, Object] = {}

    async def close(self) -> None:
        await self._owner.close()

    @property
    def watches(self) -> int:
        return len(self._watches)

    async def ready(self, uid: str, namespace: str, names: Iterable[tuple[str, str]]) -> None:
        """Until the objects are at hand, or known not to exist."""
        wanted = [_reference(kind, namespace, name) for kind, name in names]
        for reference in wanted:
            self._users.setdefault(reference, set()).add(uid)
            self._watch(reference).users.add(uid)
        for reference in wanted:
            await self._watches[reference].informer.ready.wait()
        for reference in wanted:
            if self._find(reference) is None:
                await self._fetch(reference)

    def lookup(self, namespace: str) -> Lookup:
        return lambda kind, name: self._find(_reference(kind, namespace, name))

    def release(self, uid: str) -> None:
        """The pod needs nothing any more."""
        for reference in [reference for reference, users in self._users.items() if uid in users]:
            self._users[reference].discard(uid)
            if not self._users[reference]:
                del self._users[reference]
                self._fetched.pop(reference, None)
        for reference in [reference for reference, watch in self._watches.items() if uid in watch.users]:
            watch = self._watches[reference]
            watch.users.discard(uid)
            if not watch.users:
                watch.task.cancel()
                del self._watches[reference]

    def _find(self, reference: Reference) -> Object | None:
        _, namespace, name = reference
        watch = self._watches.get(reference)
        found = watch.informer.cache.get(name, namespace) if watch is not None else None
        return found if found is not None else self._fetched.get(reference)

    async def _fetch(self, reference: Reference) -> None:
        """A watch may lag behind the one that brought the pod: what seems to be missing is asked for once."""
        kind, namespace, name = reference
        try:
            self._fetched[reference] = await self._client.get(_KINDS[kind], name, namespace)
        except NotFound:
            return
        except (ApiError, TransportError):
            return  # the watch will tell when it is there

    def _watch(self, reference: Reference) -> _Watch:
        watch = self._watches.get(reference)
        if watch is None:
            kind, namespace, name = reference
            informer = Informer(self._client, _KINDS[kind], namespace=namespace, fields=f"metadata.name={name}")
            informer.add_handler(lambda change: self._changed(kind, change))
            task = self._owner.start(f"{kind}/{namespace}/{name}", informer.run(), vital=False)
            watch = self._watches[reference] = _Watch(informer, task)
        return watch

    def _changed(self, kind: str, change: ObjectChange[Object]) -> None:
        meta = change.object["metadata"]
        reference = (kind, meta.get("namespace") or "", meta["name"])
        self._fetched.pop(reference, None)
        users = self._users.get(reference)
        if users:
            self._on_change(tuple(users))
