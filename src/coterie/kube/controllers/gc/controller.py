"""The garbage collector: watches the metadata of everything and deletes what belongs to nothing any more.

    discovery ──> one metadata informer per resource ──> graph ──uids──> queue ──> look at one object ──> plan ──> do

Nothing is decided before every informer has seen everything once; positive knowledge is taken from the graph, but an
owner counts as absent only after the server has said so, and every delete names the uid it means.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.api.errors import ApiError, NotFound
from coterie.kube.api.labels import FINALIZER_FOREGROUND, FINALIZER_ORPHAN
from coterie.kube.api.meta import ObjectMeta, OwnerReference, PartialObjectMetadata
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.discovery import RestMapper, UnknownResource, discover
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.control.controller import DONE, Controller, Result
from coterie.kube.control.events import EventRecorder, reference_to
from coterie.kube.control.finalizers import remove_finalizer
from coterie.kube.controllers.gc.graph import Graph, GraphNode
from coterie.kube.controllers.gc.plan import (
    AwaitDependents,
    DeleteObject,
    KeepOwners,
    Nothing,
    Orphan,
    OwnerState,
    RemoveFinalizer,
    plan,
)

_DISCOVERY_PERIOD = 30.0
_DISCOVERY_PAUSE = 0.5
_ABSENT_REMEMBERED = 2000
_CRDS = ("apiextensions.k8s.io", "customresourcedefinitions")
_IGNORED = frozenset({("", "events"), ("events.k8s.io", "events")})
"""Events come in masses, belong to nobody and expire by themselves."""


@dataclass(slots=True)
class _Followed:
    kind: Kind[PartialObjectMetadata]
    informer: Informer[PartialObjectMetadata]
    task: asyncio.Task[None]


class GarbageCollector:
    """A Runnable."""

    name = "gc"

    def __init__(
        self, client: Client, *, events: EventRecorder | None = None, workers: int = 8, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.ready = asyncio.Event()
        self.graph = Graph()
        self._client = client
        self._events = events
        self._clock = clock
        self._controller: Controller[str] = Controller(self.name, self.reconcile, [], workers=workers, clock=clock)
        self._followed: dict[tuple[str, str], _Followed] = {}
        self._catalogue = RestMapper(())
        self._definitions_changed = asyncio.Event()
        self._absent: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._log = logger("controllers.gc")

    async def run(self) -> None:
        async with TaskOwner(self.name) as owner:
            owner.start("discovery", self._follow_discovery(owner), endless=True)
            owner.start("ready", self._announce())
            try:
                await self._controller.run()
            finally:
                self._followed.clear()

    def stop(self) -> None:
        self._controller.stop()

    # Which resources there are.

    async def _follow_discovery(self, owner: TaskOwner) -> None:
        while True:
            try:
                await self._refresh(owner)
            except (ApiError, TransportError) as error:
                self._log.warning("Discovery failed; trying again", error=error)
            if self.ready.is_set() and not self.synced:
                late = sorted(str(f.kind) for f in self._followed.values() if not f.informer.ready.is_set())
                self._log.info("Collection waits until all objects of these resources are known", resources=late)
            await self._until_definitions_change(_DISCOVERY_PERIOD)

    async def _until_definitions_change(self, seconds: float) -> None:
        waits = {
            asyncio.ensure_future(self._definitions_changed.wait()),
            asyncio.ensure_future(self._clock.sleep(seconds)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._definitions_changed.is_set():
            # Definitions often come in a row, and the server needs a moment to serve a new one.
            await self._clock.sleep(_DISCOVERY_PAUSE)
            self._definitions_changed.clear()

    async def _refresh(self, owner: TaskOwner) -> None:
        self._catalogue = catalogue = await discover(self._client)
        wanted: dict[tuple[str, str], Resource] = {}
        for resource in catalogue.preferred("delete", "list", "watch"):
            identity = (resource.group, resource.plural)
            if identity not in _IGNORED:
                wanted[identity] = resource
        for identity, resource in wanted.items():
            if identity not in self._followed:
                self._follow(owner, identity, resource)
        unreadable = {version.rpartition("/")[0] for version in catalogue.failed}
        for identity in [i for i in self._followed if i not in wanted and i[0] not in unreadable]:
            await self._drop(identity)

    def _follow(self, owner: TaskOwner, identity: tuple[str, str], resource: Resource) -> None:
        kind = Kind.metadata(resource)
        informer = Informer(self._client, kind, transform=_bare)
        informer.add_handler(self._handler(resource, is_definition=identity == _CRDS))
        task = owner.start(informer.name, informer.run(), endless=True)
        self._followed[identity] = _Followed(kind, informer, task)

    async def _drop(self, identity: tuple[str, str]) -> None:
        followed = self._followed.pop(identity)
        followed.task.cancel()
        await asyncio.wait([followed.task])
        self._log.info("Resource is gone; its objects are forgotten", resource=str(followed.kind))
        for obj in followed.informer.cache.list():
            self._enqueue(self.graph.remove(obj.metadata.uid))

    def _handler(
        self, resource: Resource, *, is_definition: bool
    ) -> Callable[[ObjectChange[PartialObjectMetadata]], None]:
        def handle(change: ObjectChange[PartialObjectMetadata]) -> None:
            meta = change.object.metadata
            if change.type == "deleted":
                self._enqueue(self.graph.remove(meta.uid))
            else:
                self._enqueue(self.graph.put(GraphNode(resource, meta)))
            if is_definition:
                self._definitions_changed.set()

        return handle

    def _enqueue(self, uids: set[str]) -> None:
        for uid in uids:
            self._controller.enqueue(uid)

    @property
    def synced(self) -> bool:
        return bool(self._followed) and all(f.informer.ready.is_set() for f in self._followed.values())

    async def _announce(self) -> None:
        while not self.synced:
            await self._clock.sleep(0.05)
        self.ready.set()

    # One object.

    async def reconcile(self, uid: str) -> Result:
        if not self.synced:
            return Result(after=0.2)
        node = self.graph.get(uid)
        if node is None or isinstance(self._plan(node, node.meta, self._known_owners(node)), Nothing):
            return DONE
        kind = self._kind(node)
        try:
            live = (await self._client.get(kind, node.meta.name, node.meta.namespace)).metadata
        except NotFound:
            return DONE
        if live.uid != uid:
            return DONE
        owners = await self._owners(node, live)
        action = self._plan(node, live, owners)
        if isinstance(action, AwaitDependents):
            # Those that are deleted in the foreground too are looked at for their own sake.
            waited_for = self.graph.blocking(uid)
            self._enqueue({dependent.meta.uid for dependent in waited_for if not dependent.deleting_dependents})
        elif isinstance(action, Orphan):
            await self._orphan(node)
        elif isinstance(action, RemoveFinalizer):
            await remove_finalizer(self._client, kind, live.name, live.namespace, FINALIZER_FOREGROUND, uid=uid)
        elif isinstance(action, KeepOwners):
            await self._set_owners(kind, live, action.owners)
        elif isinstance(action, DeleteObject):
            await self._delete(node, live, action)
        return DONE

    def _plan(self, node: GraphNode, meta: ObjectMeta, owners: dict[str, OwnerState]) -> object:
        dependents = list(self.graph.dependents(meta.uid))
        return plan(
            meta,
            owners,
            dependents=len(dependents),
            blocking=len(self.graph.blocking(meta.uid)),
            dependents_waiting=any(dependent.deleting_dependents for dependent in dependents),
        )

    def _known_owners(self, node: GraphNode) -> dict[str, OwnerState]:
        """The states as the graph sees them; what it does not know is absent until the server was asked."""
        return {owner.uid: self._in_graph(node, owner) or "absent" for owner in node.meta.owners}

    def _in_graph(self, node: GraphNode, owner: OwnerReference) -> OwnerState | None:
        known = self.graph.owner(node, owner)
        if known is None:
            return None
        return "waiting" if known.deleting_dependents else "present"

    async def _owners(self, node: GraphNode, live: ObjectMeta) -> dict[str, OwnerState]:
        return {
            owner.uid: self._in_graph(node, owner) or await self._ask_for_owner(node, owner) for owner in live.owners
        }

    async def _ask_for_owner(self, node: GraphNode, owner: OwnerReference) -> OwnerState:
        try:
            resource = self._catalogue.of_kind(owner.api_version, owner.kind)
        except UnknownResource:
            # The kind may come back, or may never have been; nothing is deleted on a guess.
            self._definitions_changed.set()
            return "present"
        namespace = node.meta.namespace if resource.namespaced else ""
        if resource.namespaced and not namespace:
            self._warn(node, owner, "a cluster-scoped object cannot belong to a namespaced one")
            return "present"
        identity = (owner.uid, namespace, owner.name)
        if identity not in self._absent:
            try:
                found = (await self._client.get(Kind.metadata(resource), owner.name, namespace)).metadata
            except NotFound:
                found = ObjectMeta()
            if found.uid == owner.uid:
                waiting = found.deleting and found.has_finalizer(FINALIZER_FOREGROUND)
                return "waiting" if waiting else "present"
            # A uid never comes back, so this answer stays true.
            self._absent[identity] = None
            if len(self._absent) > _ABSENT_REMEMBERED:
                self._absent.popitem(last=False)
        known = self.graph.get(owner.uid)
        if known is not None and known.meta.namespace != namespace:
            self._warn(node, owner, f"its owner lives in namespace {known.meta.namespace!r}")
        return "absent"

    def _warn(self, node: GraphNode, owner: OwnerReference, why: str) -> None:
        if self._events is not None:
            reference = reference_to(
                PartialObjectMetadata(metadata=node.meta),
                api_version=node.resource.api_version,
                kind=node.resource.kind,
            )
            message = f"ownerRef [{owner.api_version}/{owner.kind}, name: {owner.name}, uid: {owner.uid}]: {why}"
            self._events.warning(reference, "OwnerRefInvalidNamespace", message)

    def _kind(self, node: GraphNode) -> Kind[PartialObjectMetadata]:
        followed = self._followed.get((node.resource.group, node.resource.plural))
        return followed.kind if followed is not None else Kind.metadata(node.resource)

    # Doing it.

    async def _delete(self, node: GraphNode, live: ObjectMeta, action: DeleteObject) -> None:
        kind = self._kind(node)
        version = live.resource_version
        if action.unblock:
            owners = tuple(msgspec.structs.replace(o, block_owner_deletion=False) for o in live.owners)
            version = (await self._set_owners(kind, live, owners)).resource_version
        try:
            await self._client.delete(
                kind,
                live.name,
                live.namespace,
                propagation=action.propagation,
                uid=live.uid,
                resource_version=version,
            )
        except NotFound:
            return
        self._log.info("Deleted", object=str(node), propagation=action.propagation)

    async def _orphan(self, node: GraphNode) -> None:
        uid = node.meta.uid
        for dependent in self.graph.dependents(uid):
            await self._disown(dependent, uid)
        meta = node.meta
        await remove_finalizer(self._client, self._kind(node), meta.name, meta.namespace, FINALIZER_ORPHAN, uid=uid)

    async def _disown(self, dependent: GraphNode, owner_uid: str) -> None:
        kind = self._kind(dependent)
        try:
            live = (await self._client.get(kind, dependent.meta.name, dependent.meta.namespace)).metadata
            keep = tuple(owner for owner in live.owners if owner.uid != owner_uid)
            if live.uid == dependent.meta.uid and len(keep) != len(live.owners):
                await self._set_owners(kind, live, keep)
        except NotFound:
            return

    async def _set_owners(
        self, kind: Kind[PartialObjectMetadata], live: ObjectMeta, owners: tuple[OwnerReference, ...]
    ) -> ObjectMeta:
        patch = {
            "metadata": {
                "uid": live.uid,
                "resourceVersion": live.resource_version,
                "ownerReferences": msgspec.to_builtins(owners) or None,
            }
        }
        return (await self._client.patch(kind, live.name, live.namespace, patch)).metadata


def _bare(obj: PartialObjectMetadata) -> PartialObjectMetadata:
    """Labels and annotations say nothing about ownership and are most of the bytes."""
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, labels=None, annotations=None))


def make(client: Client, informers: Informers, *, clock: Clock = SYSTEM_CLOCK) -> GarbageCollector:
    """It watches the metadata of everything by informers of its own."""
    return GarbageCollector(client, clock=clock)
