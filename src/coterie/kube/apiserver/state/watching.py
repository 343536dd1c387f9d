"""Watches: changes are matched and encoded once for all watchers that asked the same, then written to each.

A watcher never holds the server up: what it has not read waits in its socket's buffer, and a watcher that lets more
than `MAX_PENDING` bytes pile up is cut off; it will come back with the last resourceVersion it saw.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from coterie.http.messages import Sink
from coterie.kube.api import errors
from coterie.kube.apiserver.state.entry import ObjectEntry
from coterie.kube.apiserver.state.filters import ObjectFilter

MAX_PENDING = 8 * 1024 * 1024

Encode = Callable[[str, ObjectEntry, bool], bytes]
"""(event type, entry, first) -> one JSON line or protobuf frame. `first` asks for what only the first event carries (Table columns)."""


class StoredChange:
    """One durable change of one object. For DELETED, `entry` is the last state under the deletion's revision."""

    __slots__ = ("entry", "kind", "old", "revision")

    def __init__(self, kind: str, revision: int, entry: ObjectEntry, old: ObjectEntry | None) -> None:
        self.kind = kind
        self.revision = revision
        self.entry = entry
        self.old = old

    def seen_through(
        self, wanted: ObjectFilter, gone: Callable[[ObjectEntry, int], ObjectEntry]
    ) -> tuple[str, ObjectEntry] | None:
        """The event a watcher with this filter gets: leaving the selection looks like a deletion."""
        now = self.kind != "DELETED" and wanted.matches(self.entry)
        before = self.old is not None and wanted.matches(self.old)
        if now:
            return ("MODIFIED" if before else "ADDED"), self.entry
        if before:
            if self.kind == "DELETED":
                return "DELETED", self.entry
            assert self.old is not None
            return "DELETED", gone(self.old, self.revision)
        return None


class Watcher:
    """One client's watch: a `Stream` whose lines come from its group."""

    def __init__(
        self,
        *,
        wanted: ObjectFilter,
        version: str,
        encode: Encode,
        encoding: Hashable,
        gone: Callable[[ObjectEntry, int], ObjectEntry],
        bookmark: Callable[[int, bool], bytes] | None,
        error: Callable[[errors.ApiError], bytes],
        first_differs: bool = False,
        on_open: Callable[[Watcher], None],
        on_close: Callable[[Watcher], None],
    ) -> None:
        self.wanted = wanted
        self.version = version
        """The served version it shows objects in."""
        self.encode = encode
        self.gone = gone
        self.bookmark = bookmark
        self._error = error
        self.group_key = (encoding, wanted.namespace, wanted.name, wanted.text)
        self.first_differs = first_differs
        """True until the first event is written, when that one is encoded differently."""
        self.live = False
        """It has seen everything up to now; before that a bookmark would make the client skip what it has not seen."""
        self._on_open = on_open
        self._on_close = on_close
        self._sink: Sink | None = None

    def opened(self, sink: Sink) -> None:
        self._sink = sink
        self._on_open(self)

    def closed(self) -> None:
        self._sink = None
        self._on_close(self)

    def write(self, lines: bytes) -> None:
        sink = self._sink
        if sink is None:
            return
        if sink.pending > MAX_PENDING:
            sink.abort()
        else:
            sink.write(lines)

    async def drained(self) -> bool:
        """Wait until the client has taken enough that more may be written; False when it is gone."""
        if self._sink is not None:
            try:
                await self._sink.drain()
            except ConnectionResetError:
                return False
        return self._sink is not None

    def lines(self, events: Sequence[tuple[str, ObjectEntry]]) -> bytes:
        """The events encoded for this watcher alone (initial lists, replays, first Table rows)."""
        out = []
        for kind, entry in events:
            out.append(self.encode(kind, entry, self.first_differs))
            self.first_differs = False
        return b"".join(out)

    def offer(self, changes: Sequence[StoredChange]) -> None:
        """Changes that only this watcher still has to see."""
        events = [event for change in changes if (event := change.seen_through(self.wanted, self.gone)) is not None]
        if events:
            self.write(self.lines(events))

    def send_bookmark(self, revision: int, *, initial_end: bool = False) -> None:
        if self.bookmark is not None and (self.live or initial_end):
            self.write(self.bookmark(revision, initial_end))

    def send_error(self, error: errors.ApiError) -> None:
        self.write(self._error(error))
        self.end()

    def end(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def abort(self) -> None:
        if self._sink is not None:
            self._sink.abort()


class WatchGroup:
    """Watchers that asked the same thing."""

    __slots__ = ("members", "model", "place")

    def __init__(self, model: Watcher) -> None:
        self.model = model
        self.place = (model.wanted.namespace, model.wanted.name)
        self.members: set[Watcher] = set()

    def publish(self, changes: Sequence[StoredChange]) -> None:
        model = self.model
        events = [event for change in changes if (event := change.seen_through(model.wanted, model.gone)) is not None]
        if not events:
            return
        shared = b""
        for watcher in list(self.members):
            if watcher.first_differs:
                watcher.write(watcher.lines(events))
                continue
            if not shared:
                shared = b"".join([model.encode(kind, entry, False) for kind, entry in events])
            watcher.write(shared)
