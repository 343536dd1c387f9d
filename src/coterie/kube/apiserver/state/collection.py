"""All objects of one resource in memory: current entries, a ring of recent changes, and who watches them.

A collection changes only in `apply`, which is called with what the store has made durable, in order. So a reader on
the loop always sees a consistent state, a watcher sees every change once, and nobody sees what a crash could undo.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from coterie.base.log import logger
from coterie.kube.apiserver.state.entry import ObjectEntry, head_of, respliced, splice
from coterie.kube.apiserver.state.filters import ObjectFilter
from coterie.kube.apiserver.state.watching import StoredChange, Watcher, WatchGroup

log = logger("apiserver.state")

RING_EVENTS = 512
RING_BYTES = 1024 * 1024
"""What a collection keeps of its past for watches that resume. A busy node has a dozen collections, and what is older comes
from the store."""
_EMPTY: dict[str, ObjectEntry] = {}
_NO_CHANGES: deque[StoredChange] = deque()
"""Never changed."""


class Collection:
    def __init__(self, key: str, *, api_version: str, kind: str, namespaced: bool, revision: int) -> None:
        self.key = key
        self.api_version = api_version
        self.kind = kind
        self.namespaced = namespaced
        self.head = head_of(api_version, kind)
        self.changed = revision
        """Revision of the newest change in here (or of the load)."""
        self.floor = revision
        """Changes after this revision are in the ring; older ones only in the store."""
        self.lease = 0
        """Lease under which objects are written: with its end they go (Events)."""
        self.converted = False
        """A webhook converts between the versions of its objects."""
        self.other_versions: dict[tuple[str, str], str] = {}
        """API versions of objects that were stored in another one than is used now, by namespace and name. Only where that
        matters: versions that a webhook converts."""
        self._spaces: dict[str, dict[str, ObjectEntry]] = {}
        self._sorted: dict[str, list[ObjectEntry]] = {}
        self._count = 0
        self._ring: deque[StoredChange] = _NO_CHANGES
        """Its own from the first change on: most kinds have none for long."""
        self._ring_bytes = 0
        self._groups: dict[object, WatchGroup] = {}
        self._groups_by_place: dict[tuple[str, str], dict[object, WatchGroup]] = {}
        """By the namespace and the name that they watch, each empty for all: a change asks only those that may want it."""

    def __len__(self) -> int:
        return self._count

    # -- reading ------------------------------------------------------------------------------------------------

    def get(self, namespace: str, name: str) -> ObjectEntry | None:
        return self._spaces.get(namespace, _EMPTY).get(name)

    def names(self, namespace: str) -> dict[str, ObjectEntry]:
        return self._spaces.get(namespace, _EMPTY)

    def entries(self, namespace: str = "") -> list[ObjectEntry]:
        """All entries, or those of a namespace, sorted as the store sorts keys. Do not change the list."""
        if namespace or not self.namespaced:
            space = namespace if self.namespaced else ""
            ordered = self._sorted.get(space)
            if ordered is None:
                names = self._spaces.get(space, _EMPTY)
                ordered = [names[name] for name in sorted(names)]
                self._sorted[space] = ordered
            return ordered
        if len(self._spaces) == 1:
            return self.entries(next(iter(self._spaces)))
        out: list[ObjectEntry] = []
        # "a/x" sorts after "a-b/x" as a whole key, because "-" < "/": sort spaces with the slash on.
        for space in sorted(self._spaces, key=_with_slash):
            out.extend(self.entries(space))
        return out

    def __iter__(self) -> Iterator[ObjectEntry]:
        for names in self._spaces.values():
            yield from names.values()

    def page(self, wanted: ObjectFilter, after: str, limit: int) -> tuple[list[ObjectEntry], int]:
        """Up to `limit` matching entries behind key `after`, and how many unread entries remain (0: none)."""
        entries = self.entries(wanted.namespace)
        start = 0
        if after:
            start = bisect_right(entries, after, key=_entry_key)
        if wanted.everything:
            if not limit or len(entries) - start <= limit:
                return (entries[start:] if start else entries), 0
            return entries[start : start + limit], len(entries) - start - limit
        if wanted.name:
            found = self.get(wanted.namespace, wanted.name) if wanted.namespace or not self.namespaced else None
            if found is not None or wanted.namespace or not self.namespaced:
                return ([found] if found is not None and wanted.matches(found) and not after else []), 0
        matches = wanted.matches
        if not limit:
            return [entry for entry in (entries[start:] if start else entries) if matches(entry)], 0
        out: list[ObjectEntry] = []
        for index in range(start, len(entries)):
            if matches(entries[index]):
                if len(out) == limit:
                    return out, len(entries) - index
                out.append(entries[index])
        return out, 0

    # -- changing -----------------------------------------------------------------------------------------------

    def load(self, namespace: str, name: str, value: bytes, revision: int, created: int) -> None:
        """An object that existed when the server started: no change, no event."""
        self._put(ObjectEntry(namespace, name, splice(value, len(self.head), revision), revision, created))

    def apply(self, namespace: str, name: str, value: bytes | None, revision: int, created: int) -> StoredChange:
        """One durable change. The caller hands the returned changes to `publish` in the same turn of the loop."""
        old = self.get(namespace, name)
        if value is not None:
            new = ObjectEntry(namespace, name, splice(value, len(self.head), revision), revision, created)
            self._put(new)
            change = StoredChange("ADDED" if old is None else "MODIFIED", revision, new, old)
        else:
            assert old is not None, f"{self.key}: deletion of an unknown object {namespace}/{name}"
            gone = ObjectEntry(
                namespace, name, respliced(old.raw, len(self.head), old.revision, revision), revision, old.created
            )
            self.unload(old)
            change = StoredChange("DELETED", revision, gone, old)
        self.changed = revision
        self._remember(change)
        return change

    def unload(self, entry: ObjectEntry) -> None:
        """Take an entry out without a trace in the history."""
        names = self._spaces[entry.namespace]
        del names[entry.name]
        if not names:
            del self._spaces[entry.namespace]
        self._sorted.pop(entry.namespace, None)
        self._count -= 1

    def publish(self, changes: list[StoredChange]) -> None:
        places: dict[tuple[str, str], list[StoredChange]] = {}
        for change in changes:
            entry = change.entry
            for place in {(entry.namespace, entry.name), (entry.namespace, ""), ("", entry.name), ("", "")}:
                if place in self._groups_by_place:
                    places.setdefault(place, []).append(change)
        wanted = [(group, found) for place, found in places.items() for group in self._groups_by_place[place].values()]
        for group, found in wanted:
            try:
                group.publish(found)
            except Exception as problem:  # noqa: BLE001 - a fault in one way to show objects must not silence the others
                log.error("Watch aborted", error=problem, trace=True, collection=self.key)
                for watcher in list(group.members):
                    watcher.abort()

    def _put(self, entry: ObjectEntry) -> None:
        names = self._spaces.get(entry.namespace)
        if names is None:
            names = self._spaces[entry.namespace] = {}
        if entry.name not in names:
            self._count += 1
        names[entry.name] = entry
        self._sorted.pop(entry.namespace, None)

    def _remember(self, change: StoredChange) -> None:
        if self._ring is _NO_CHANGES:
            self._ring = deque()
        self._ring.append(change)
        self._ring_bytes += len(change.entry.raw)
        while len(self._ring) > RING_EVENTS or self._ring_bytes > RING_BYTES:
            dropped = self._ring.popleft()
            self._ring_bytes -= len(dropped.entry.raw)
            self.floor = dropped.revision

    # -- watching -----------------------------------------------------------------------------------------------

    def changes_after(self, revision: int) -> list[StoredChange]:
        """Changes in the ring behind `revision`, which must not be below `floor`."""
        if revision >= self.changed:
            return []
        return [change for change in self._ring if change.revision > revision]

    def join(self, watcher: Watcher) -> None:
        """From now on the watcher gets every published change that its filter admits."""
        group = self._groups.get(watcher.group_key)
        if group is None:
            group = self._groups[watcher.group_key] = WatchGroup(watcher)
            self._groups_by_place.setdefault(group.place, {})[watcher.group_key] = group
        group.members.add(watcher)
        watcher.live = True

    def leave(self, watcher: Watcher) -> None:
        group = self._groups.get(watcher.group_key)
        if group is not None:
            group.members.discard(watcher)
            if not group.members:
                del self._groups[watcher.group_key]
                del self._groups_by_place[group.place][watcher.group_key]
                if not self._groups_by_place[group.place]:
                    del self._groups_by_place[group.place]

    @property
    def watchers(self) -> list[Watcher]:
        return [watcher for group in self._groups.values() for watcher in group.members]


def _entry_key(entry: ObjectEntry) -> str:
    return entry.key


def _with_slash(space: str) -> str:
    return space + "/"
