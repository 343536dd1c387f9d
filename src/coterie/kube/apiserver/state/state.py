"""All collections, and the one way in and out of the store.

Data moves in a circle: a verb decides on the current entry, `modify` submits the bytes, the store makes them durable,
its listener calls `_durable`, which changes the collections and tells the watchers; only then does `modify` return.
So whoever got an answer also finds its effect in every later read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import orjson

from coterie.kube.api import errors
from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry, VersionView, head_of, respliced, splice
from coterie.kube.apiserver.state.watching import StoredChange
from coterie.kube.store import protocol as store_protocol

ROOT = "/registry/"
_LOAD_PAGE = 2000


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """What `modify` is to do: store `value`, or delete the object when it is None."""

    value: bytes | None


Decide = Callable[[ObjectEntry | None], ObjectWrite | None]
"""Looks at the current entry and says what to write; None leaves it as it is. Raises ApiError to refuse."""

Observer = Callable[[Sequence[StoredChange]], None]


class ResourceStorage:
    def __init__(self, store: store_protocol.Store) -> None:
        self.store = store
        self.revision = 0
        """Newest revision that every collection has seen."""
        self._collections: dict[str, Collection] = {}
        self._views: dict[tuple[str, str, str], VersionView] = {}
        self._observers: dict[str, list[Observer]] = {}
        self._busy: dict[str, asyncio.Future[list[int]]] = {}
        self._unsubscribe: Callable[[], None] | None = None

    # -- collections and views ----------------------------------------------------------------------------------

    def serve(self, view: VersionView) -> None:
        """Serve a resource version; its collection is made when it is the first of its kind."""
        resource = view.resource
        if resource.key not in self._collections:
            self._collections[resource.key] = Collection(
                resource.key,
                api_version=resource.storage_api_version,
                kind=resource.kind,
                namespaced=resource.namespaced,
                revision=self.revision,
            )
        self._views[(resource.group, resource.version, resource.plural)] = view

    def withdraw(self, resource: Resource) -> None:
        """Stop serving a resource version, and end its watches. Objects that are left are kept track of, because the
        store has them still, and they are there again when the resource is."""
        self._views.pop((resource.group, resource.version, resource.plural), None)
        collection = self._collections.get(resource.key)
        if collection is None:
            return
        for watcher in collection.watchers:
            if watcher.version == resource.version:
                watcher.end()
        if not len(collection) and all(view.resource.key != resource.key for view in self._views.values()):
            del self._collections[resource.key]

    def set_storage(self, key: str, api_version: str, kind: str, *, converted: bool = False) -> None:
        """A custom resource changed its storage version: entries keep their bytes under the new head. `converted`: by a webhook,
        so that it must be known which version they are."""
        old = self._collections[key]
        old.converted = converted
        head = head_of(api_version, kind)
        if old.head == head:
            return
        fresh = Collection(key, api_version=api_version, kind=kind, namespaced=old.namespaced, revision=self.revision)
        fresh.converted = converted
        if converted:
            before = old.other_versions
            known = {(each.namespace, each.name): old.api_version for each in old} | before
            fresh.other_versions = {place: version for place, version in known.items() if version != api_version}
        for entry in old:
            tail = entry.raw[len(old.head) + len(b'"resourceVersion":"%d",' % entry.revision) :]
            fresh.load(entry.namespace, entry.name, head + tail, entry.revision, entry.created)
        self._collections[key] = fresh
        for watcher in old.watchers:
            watcher.end()

    def view(self, group: str, version: str, plural: str) -> VersionView | None:
        return self._views.get((group, version, plural))

    def views(self) -> list[VersionView]:
        return list(self._views.values())

    def collection(self, key: str) -> Collection:
        return self._collections[key]

    def find_collection(self, key: str) -> Collection | None:
        return self._collections.get(key)

    def collections(self) -> list[Collection]:
        return list(self._collections.values())

    def observe(self, key: str, observer: Observer) -> None:
        """Call `observer` with each batch of durable changes of one collection, before watchers see them."""
        self._observers.setdefault(key, []).append(observer)

    # -- loading ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Follow the store from here on; `load` must have brought in what exists."""
        self._unsubscribe = self.store.subscribe(self._durable)

    async def load(self, prefix: str) -> int:
        """Read what the store holds below a prefix into the collections; returns how many objects."""
        count, after, revision = 0, "", self.store.revision
        while True:
            page = await self.store.scan(prefix, revision=revision, after=after, limit=_LOAD_PAGE)
            for record in page.records:
                key, namespace, name = split_key(record.key)
                collection = self._collections.get(key)
                if collection is None:
                    collection = self._unserved(key, namespace, record.value)
                known = collection.get(namespace, name)
                if known is not None and known.revision == record.revision:
                    count += 1  # loaded ahead of the rest
                    continue
                self._note_version(collection, namespace, name, record.value)
                collection.load(namespace, name, self._under_head(collection, record.value), record.revision, record.created)  # fmt: skip
                count += 1
            if not page.more:
                break
            after = page.records[-1].key
        self.revision = max(self.revision, revision)
        for collection in self._collections.values():
            collection.floor = max(collection.floor, revision)
            collection.changed = max(collection.changed, revision)
        return count

    def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    # -- writing ------------------------------------------------------------------------------------------------

    async def modify(self, collection: Collection, namespace: str, name: str, decide: Decide) -> ObjectEntry | None:
        """Decide on the current entry and make the decision durable.

        Returns the entry as written, the last state of a deleted object, or the current entry when nothing was to do.
        Writes to one object follow each other, so `decide` never works on an entry that is being replaced.
        """
        key = f"{collection.key}/{namespace}/{name}" if namespace else f"{collection.key}/{name}"
        busy = self._busy
        while (pending := busy.get(key)) is not None:
            await asyncio.wait((pending,))
        entry = collection.get(namespace, name)
        write = decide(entry)
        if write is None:
            return entry
        expect = entry.revision if entry is not None else 0
        op: store_protocol.Op
        if write.value is None:
            op = store_protocol.DeleteOp(key, expect)
        else:
            op = store_protocol.PutOp(key, write.value, expect, collection.lease)
        try:
            done = self.store.submit((op,))
            busy[key] = done
            try:
                # The write goes on when the client does not wait for it any more, hence the shield.
                revision = (await asyncio.shield(done))[0]
            except asyncio.CancelledError:
                # What the caller holds for this write (room in a quota) must not be given away before it is settled.
                await asyncio.wait((done,))
                raise
            finally:
                if busy.get(key) is done:
                    if done.done():
                        del busy[key]
                    else:
                        done.add_done_callback(lambda _: busy.pop(key, None))
        except store_protocol.CompareFailed as failed:
            raise errors.Conflict(f"the object has been modified ({failed})", name=name) from failed
        except store_protocol.StoreError as failed:
            raise errors.ServiceUnavailable(f"the store did not take the write: {failed}", retry_after=1) from failed
        if write.value is None:
            assert entry is not None
            raw = respliced(entry.raw, len(collection.head), entry.revision, revision)
            return ObjectEntry(namespace, name, raw, revision, entry.created)
        written = collection.get(namespace, name)
        if written is not None and written.revision == revision:
            return written
        created = entry.created if entry is not None else revision
        return ObjectEntry(namespace, name, splice(write.value, len(collection.head), revision), revision, created)

    def _durable(self, events: Sequence[store_protocol.StoreEvent]) -> None:
        touched: dict[str, list[StoredChange]] = {}
        for event in events:
            key, namespace, name = split_key(event.key)
            collection = self._collections.get(key)
            if collection is None:
                if event.value is None:
                    continue
                collection = self._unserved(key, namespace, event.value)
            if collection.converted:
                self._note_version(collection, namespace, name, event.value)
            value = event.value if event.value is None else self._under_head(collection, event.value)
            change = collection.apply(namespace, name, value, event.revision, event.created)
            touched.setdefault(key, []).append(change)
        if events:
            self.revision = events[-1].revision
        for key, changes in touched.items():
            for observer in self._observers.get(key, ()):
                observer(changes)
        for key, changes in touched.items():
            collection = self._collections.get(key)
            if collection is not None:
                collection.publish(changes)

    def _unserved(self, key: str, namespace: str, value: bytes) -> Collection:
        """The collection of objects that nobody can ask for now: their definition is gone or serves no version."""
        head = orjson.loads(value)
        collection = self._collections[key] = Collection(
            key, api_version=head["apiVersion"], kind=head["kind"], namespaced=bool(namespace), revision=self.revision
        )
        return collection

    @staticmethod
    def _note_version(collection: Collection, namespace: str, name: str, value: bytes | None) -> None:
        # Of a deleted object the last state is still to be shown.
        if not collection.converted or value is None:
            return
        if value.startswith(collection.head):
            collection.other_versions.pop((namespace, name), None)
        else:
            collection.other_versions[namespace, name] = orjson.loads(value)["apiVersion"]

    @staticmethod
    def _under_head(collection: Collection, value: bytes) -> bytes:
        """Stored bytes under the collection's head; they differ when the storage version changed since the write."""
        if value.startswith(collection.head):
            return value
        return collection.head + value[value.index(b'"metadata":{') + len(b'"metadata":{') :]

    # -- history ------------------------------------------------------------------------------------------------

    async def history(self, collection: Collection, after: int) -> AsyncGenerator[list[StoredChange]]:
        """Changes of a collection behind `after` that have left its ring, from the store's log, up to its floor.

        In the batches of the store: a watch that is far behind must not hold all it missed in memory."""
        floor = collection.floor
        prefix = collection.key + "/"
        try:
            # Over the whole key space, because only there is it certain that an event at `floor` ends the loop.
            async for batch in self.store.watch("", after):
                changes: list[StoredChange] = []
                for event in batch:
                    if event.revision <= floor and event.key.startswith(prefix):
                        changes.append(await self._past_change(collection, event))
                if changes:
                    yield changes
                if batch and batch[-1].revision >= floor:
                    return
        except store_protocol.Compacted as gone:
            raise too_old(after, gone.compacted) from gone
        except store_protocol.SlowWatcher as slow:
            raise too_old(after, floor) from slow
        except store_protocol.StoreError as failed:
            raise unreadable(failed) from failed

    async def _past_change(self, collection: Collection, event: store_protocol.StoreEvent) -> StoredChange:
        _, namespace, name = split_key(event.key)
        head = len(collection.head)
        old: ObjectEntry | None = None
        if event.previous:
            # Asked for by the revision just before: the object's own may lie below what compaction left readable.
            record = await self.store.get(event.key, event.revision - 1)
            if record is not None:
                raw = splice(self._under_head(collection, record.value), head, record.revision)
                old = ObjectEntry(namespace, name, raw, record.revision, record.created)
        if event.value is None:
            if old is None:
                raise too_old(event.revision, self.store.compacted)
            raw = respliced(old.raw, head, old.revision, event.revision)
            return StoredChange(
                "DELETED", event.revision, ObjectEntry(namespace, name, raw, event.revision, old.created), old
            )
        raw = splice(self._under_head(collection, event.value), head, event.revision)
        new = ObjectEntry(namespace, name, raw, event.revision, event.created)
        return StoredChange("ADDED" if old is None else "MODIFIED", event.revision, new, old)

    async def snapshot(
        self, collection: Collection, revision: int, after: str, limit: int
    ) -> tuple[list[ObjectEntry], bool]:
        """Entries as they were at an older revision, from the store."""
        prefix = collection.key + "/"
        try:
            page = await self.store.scan(prefix, revision=revision, after=prefix + after if after else "", limit=limit)
        except store_protocol.Compacted as gone:
            raise too_old(revision, gone.compacted) from gone
        except store_protocol.StoreError as failed:
            raise unreadable(failed) from failed
        entries = []
        for record in page.records:
            _, namespace, name = split_key(record.key)
            raw = splice(self._under_head(collection, record.value), len(collection.head), record.revision)
            entries.append(ObjectEntry(namespace, name, raw, record.revision, record.created))
        return entries, page.more


def split_key(key: str) -> tuple[str, str, str]:
    """`/registry/<group>/<plural>/[<namespace>/]<name>` -> collection key, namespace, name."""
    parts = key.split("/")
    collection = "/".join(parts[:4])
    if len(parts) == 6:
        return collection, parts[4], parts[5]
    return collection, "", parts[4]


def too_old(asked: int, oldest: int) -> errors.Expired:
    return errors.Expired(f"too old resource version: {asked} ({oldest})")


def unreadable(failed: store_protocol.StoreError) -> errors.ServiceUnavailable:
    return errors.ServiceUnavailable(f"the store did not answer: {failed}", retry_after=1)
