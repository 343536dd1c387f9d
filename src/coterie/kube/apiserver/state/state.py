"""All collections, and the one way in and out of the store.

Data moves in a circle: a verb decides on the current entry, `modify` submits the bytes, the store makes them durable,
its listener calls `_durable`, which changes the collections and tells the watchers; only then does `modify` return.
So whoever got an answer also finds its effect in every later read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson

from coterie.kube.api import errors
from coterie.kube.api.resources import Resource
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry, VersionView, head_of, respliced, splice
from coterie.kube.apiserver.state.watching import StoredChange
from coterie.kube.store import protocol as store_protocol

ROOT = "/registry/"
GUARDS = "/guards/"
"""Keys beside the objects: whoever writes something that must fit with other objects changes the guard of all such writes in
the same transaction, so two servers cannot both give away the same room or address."""
_LOAD_PAGE = 2000
_WRITE_ATTEMPTS = 50
_CATCH_UP_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """What `modify` is to do: store `value`, or delete the object when it is None."""

    value: bytes | None


Decide = Callable[[ObjectEntry | None], ObjectWrite | None]
"""Looks at the current entry and says what to write; None leaves it as it is. Raises ApiError to refuse."""

Observer = Callable[[Sequence[StoredChange]], None]


class GuardChanged(Exception):
    """Another server gave away room or addresses meanwhile: what was admitted must be admitted again."""


class Guards(Protocol):
    @property
    def seen(self) -> tuple[tuple[str, int], ...]:
        """The guards that the decision depends on, as they were when it was made."""


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
        self._guards: dict[str, int] = {}

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
        """Follow the store from here on, without a gap after what `load` has brought in."""
        if not self.store.shared:
            self._unsubscribe = self.store.subscribe(self._durable)
            return
        # Others write while we load: what came meanwhile is read from the log, the last of it in the turn of the loop in
        # which we subscribe.
        await self._load_guards()
        while self.revision < self.store.revision:
            upto = self.store.revision
            async for events in self.store.replay("", self.revision, upto):
                self._durable(events)
            self.revision = upto
        self._unsubscribe = self.store.subscribe(self._durable, self._reset)

    async def _load_guards(self) -> None:
        page = await self.store.scan(GUARDS, revision=self.revision)
        self._guards = {record.key: record.revision for record in page.records}

    def _reset(self, records: Sequence[store_protocol.StoreRecord], revision: int) -> None:
        """Nobody can tell what happened: it is made up as changes that lead from what we have to what there is."""
        exists = {record.key: record for record in records}
        events: list[store_protocol.StoreEvent] = []
        for collection in self._collections.values():
            for entry in list(collection):
                key = _key_of(collection, entry.namespace, entry.name)
                record = exists.pop(key, None)
                if record is None:
                    events.append(store_protocol.StoreEvent(key, revision, None, entry.created, entry.revision))
                elif entry.raw != splice(
                    self._under_head(collection, record.value), len(collection.head), record.revision
                ):
                    events.append(_put(record, entry.revision))
        events += [_put(record, 0) for record in exists.values() if record.key.startswith(ROOT)]
        self._guards = {key: record.revision for key, record in exists.items() if key.startswith(GUARDS)}
        self._durable(events)
        self.revision = revision
        for collection in self._collections.values():
            collection.floor = collection.changed = revision
            for watcher in collection.watchers:
                watcher.send_error(too_old(revision, revision))

    # -- other servers ------------------------------------------------------------------------------------------

    async def catch_up(self, revision: int = 0) -> None:
        """Wait until everything that was acknowledged before, by whichever server, is here; or all up to `revision`."""
        try:
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                await self.store.reached(revision or await self.store.current())
        except TimeoutError as late:
            if revision:
                return  # refused by whoever looks at the revision, in the words of Kubernetes
            raise errors.Timeout("the store did not tell its newest revision in time", retry_after=1) from late
        except store_protocol.StoreError as failed:
            raise unreadable(failed) from failed

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

    def guard(self, name: str) -> tuple[str, int]:
        """A guard as it is in what we have seen."""
        key = GUARDS + name
        return key, self._guards.get(key, 0)

    async def modify(
        self, collection: Collection, namespace: str, name: str, decide: Decide, guards: Guards | None = None
    ) -> ObjectEntry | None:
        """Decide on the current entry and make the decision durable. `decide` is called again where another server has
        changed the object meanwhile, and must then decide as if for the first time. `guards`: what the decision counts on
        besides the entry; raises GuardChanged.

        Returns the entry as written, the last state of a deleted object, or the current entry when nothing was to do.
        Writes to one object follow each other, so `decide` never works on an entry that is being replaced.
        """
        key = _key_of(collection, namespace, name)
        guarded: tuple[tuple[str, int], ...] = ()
        for _ in range(_WRITE_ATTEMPTS):
            while (pending := self._busy.get(key)) is not None:
                await asyncio.wait((pending,))
            entry = collection.get(namespace, name)
            write = decide(entry)
            if write is None:
                return entry
            guarded = guards.seen if guards is not None else ()
            try:
                revision = await self._write(key, collection, entry, write, guarded)
                break
            except store_protocol.CompareFailed as failed:
                if not self.store.shared:
                    raise errors.Conflict(f"the object has been modified ({failed})", name=name) from failed
                # Another server was faster. Decide again on what is there, once our collections have it.
                await self.catch_up()
                if failed.key != key:
                    raise GuardChanged from failed
        else:
            raise errors.Conflict("the object is being modified by others all the time", name=name)
        if write.value is None:
            assert entry is not None
            raw = respliced(entry.raw, len(collection.head), entry.revision, revision)
            return ObjectEntry(namespace, name, raw, revision, entry.created)
        written = collection.get(namespace, name)
        if written is not None and written.revision == revision:
            return written
        created = entry.created if entry is not None else revision
        return ObjectEntry(namespace, name, splice(write.value, len(collection.head), revision), revision, created)

    async def _write(
        self,
        key: str,
        collection: Collection,
        entry: ObjectEntry | None,
        write: ObjectWrite,
        guards: Sequence[tuple[str, int]],
    ) -> int:
        """Returns the revision. Raises CompareFailed."""
        expect = entry.revision if entry is not None else 0
        op: store_protocol.Op
        if write.value is None:
            op = store_protocol.DeleteOp(key, expect)
        else:
            op = store_protocol.PutOp(key, write.value, expect, collection.lease)
        busy = self._busy
        try:
            done = self.store.submit((op, *(store_protocol.PutOp(guard, b"", seen) for guard, seen in guards)))
            busy[key] = done
            try:
                # The write goes on when the client does not wait for it any more, hence the shield.
                return (await asyncio.shield(done))[0]
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
        except store_protocol.CompareFailed:
            raise
        except store_protocol.Unsettled as unknown:
            raise errors.Timeout(f"it is not known whether the write took place: {unknown}", retry_after=1) from unknown
        except store_protocol.ValueTooLarge as failed:
            raise errors.RequestEntityTooLarge(str(failed)) from failed
        except store_protocol.StoreError as failed:
            raise errors.ServiceUnavailable(f"the store did not take the write: {failed}", retry_after=1) from failed

    def _durable(self, events: Sequence[store_protocol.StoreEvent]) -> None:
        touched: dict[str, list[StoredChange]] = {}
        for event in events:
            if not event.key.startswith(ROOT):
                if event.key.startswith(GUARDS):
                    self._guards[event.key] = event.revision
                continue
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
        try:
            async for batch in self.store.replay(collection.key + "/", after, floor):
                yield [await self._past_change(collection, event) for event in batch]
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


def _key_of(collection: Collection, namespace: str, name: str) -> str:
    return f"{collection.key}/{namespace}/{name}" if namespace else f"{collection.key}/{name}"


def _put(record: store_protocol.StoreRecord, previous: int) -> store_protocol.StoreEvent:
    return store_protocol.StoreEvent(record.key, record.revision, record.value, record.created, previous)


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
