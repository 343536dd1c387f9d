"""watch: from a revision, from now, or with the current state first; bookmarks, time-outs and 410 included."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.http.messages import Response
from coterie.http.server import Tasks
from coterie.kube.api import errors, wire
from coterie.kube.apiserver import content_negotiation, list_body, options, presentation
from coterie.kube.apiserver.call import ResourceRequest
from coterie.kube.apiserver.state.collection import Collection
from coterie.kube.apiserver.state.entry import ObjectEntry, respliced
from coterie.kube.apiserver.state.state import ResourceStorage
from coterie.kube.apiserver.state.watching import Watcher
from coterie.kube.apiserver.verbs import read

if TYPE_CHECKING:
    from coterie.kube.apiserver.webhooks import conversion
else:
    conversion = lazy_import("coterie.kube.apiserver.webhooks.conversion")

MIN_TIMEOUT = 1800
"""Without timeoutSeconds a watch ends after this long, times one to two, so that watchers do not return in step."""
BOOKMARK_PERIOD = 30.0


class WatchVerb:
    def __init__(
        self, state: ResourceStorage, presenter: presentation.Presenter, reader: read.ReadVerbs, tasks: Tasks
    ) -> None:
        self._state = state
        self._present = presenter
        self._reader = reader
        self._tasks = tasks
        self._timers: dict[Watcher, list[asyncio.TimerHandle]] = {}

    def watch(self, call: ResourceRequest) -> Response:
        asked = options.list_options(call.request)
        want = content_negotiation.negotiate(call.request.headers.get("accept", ""), call.resource)
        wanted = read.filter_of(call, asked)
        if asked.resource_version not in ("", "0"):
            self._reader.check_revision(asked.revision)
        collection = call.collection
        # Metadata in protobuf needs no conversion: it is the same in all versions.
        converts = call.converts and not want.protobuf
        encode, encoding = (_stored, "stored") if converts else self._present.watch_encoder(call, want)

        def opened(watcher: Watcher) -> None:
            self._opened(watcher, collection, asked)

        watcher = Watcher(
            wanted=wanted,
            version=call.resource.version,
            encode=encode,
            encoding=encoding,
            gone=lambda old, revision: _gone(collection, old, revision),
            bookmark=self._present.bookmark_encoder(call, want)
            if asked.bookmarks or asked.send_initial_events
            else None,
            error=lambda error: presentation.error_event(error.status(), want),
            first_differs=want.shape == "table" and not converts,
            on_open=opened,
            on_close=lambda closing: self._closed(closing, collection),
        )
        kind = f"{wire.MEDIA_TYPE};stream=watch" if want.protobuf else "application/json"
        if converts:
            encoder = self._present.watch_encoder
            stream = conversion.ConvertedStream(call, watcher, lambda c: encoder(c, want)[0], self._tasks)
            return Response(stream=stream, content_type=kind)
        return Response(stream=watcher, content_type=kind)

    def _opened(self, watcher: Watcher, collection: Collection, asked: options.ListOptions) -> None:
        loop = asyncio.get_running_loop()
        timeout = asked.timeout or MIN_TIMEOUT * (1 + random.random())
        self._timers[watcher] = [loop.call_later(timeout, self._ended, watcher)]
        if watcher.bookmark is not None:
            self._schedule_bookmark(watcher)
        revision = asked.revision
        from_state = asked.send_initial_events or asked.resource_version in ("", "0")
        if from_state:
            entries, _ = collection.page(watcher.wanted, "", 0)
            if list_body.is_long(entries):
                now = self._state.revision
                work = self._from_long_state(watcher, collection, entries, now, bool(asked.send_initial_events))
                self._tasks.create_task(work, name="watch state")
                return
            if entries:
                watcher.write(watcher.lines([("ADDED", entry) for entry in entries]))
            if asked.send_initial_events:
                watcher.send_bookmark(self._state.revision, initial_end=True)
            collection.join(watcher)
        elif revision >= collection.floor:
            watcher.offer(collection.changes_after(revision))
            collection.join(watcher)
        else:
            self._tasks.create_task(self._from_history(watcher, collection, revision), name="watch history")

    async def _from_long_state(
        self,
        watcher: Watcher,
        collection: Collection,
        entries: Sequence[ObjectEntry],
        revision: int,
        send_end: bool,
    ) -> None:
        """Send the state at `revision` at the speed of its reader, then what has changed meanwhile.

        Entries never change, so the references that are held here are a snapshot."""
        start = 0
        while start < len(entries):
            stop, size = start, 0
            while stop < len(entries) and size < list_body.PIECE:
                size += len(entries[stop].raw)
                stop += 1
            watcher.write(watcher.lines([("ADDED", entry) for entry in entries[start:stop]]))
            start = stop
            await asyncio.sleep(0)
            if not await watcher.drained():
                return
        if send_end:
            watcher.send_bookmark(revision, initial_end=True)
        await self._from_history(watcher, collection, revision)

    async def _from_history(self, watcher: Watcher, collection: Collection, revision: int) -> None:
        """Start behind what the ring still holds: read the store's log until it meets the ring."""
        try:
            while revision < collection.floor:
                floor = collection.floor
                async for changes in self._state.history(collection, revision):
                    watcher.offer(changes)
                    if not await watcher.drained():
                        return
                revision = floor
        except errors.ApiError as error:
            watcher.send_error(error)
            return
        if self._state.find_collection(collection.key) is not collection:
            # The resource was withdrawn or stored anew meanwhile; the client asks again.
            watcher.end()
        elif watcher in self._timers:
            watcher.offer(collection.changes_after(revision))
            collection.join(watcher)

    def _schedule_bookmark(self, watcher: Watcher) -> None:
        timer = asyncio.get_running_loop().call_later(
            BOOKMARK_PERIOD * (0.75 + random.random() / 2), self._bookmark, watcher
        )
        self._timers[watcher][1:] = [timer]

    def _bookmark(self, watcher: Watcher) -> None:
        if watcher in self._timers:
            watcher.send_bookmark(self._state.revision)
            if watcher in self._timers:
                self._schedule_bookmark(watcher)

    def _ended(self, watcher: Watcher) -> None:
        """The time is up: a last bookmark lets the client resume without missing or repeating anything."""
        watcher.send_bookmark(self._state.revision)
        watcher.end()

    def _closed(self, watcher: Watcher, collection: Collection) -> None:
        collection.leave(watcher)
        for timer in self._timers.pop(watcher, ()):
            timer.cancel()

    def end_all(self) -> None:
        for watcher in list(self._timers):
            watcher.end()

    @property
    def count(self) -> int:
        return len(self._timers)


def _stored(kind: str, entry: ObjectEntry, first: bool) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), entry.raw)


def _gone(collection: Collection, old: ObjectEntry, revision: int) -> ObjectEntry:
    """An object that left a watcher's selection, as its deletion event shows it."""
    raw = respliced(old.raw, len(collection.head), old.revision, revision)
    return ObjectEntry(old.namespace, old.name, raw, revision, old.created)
