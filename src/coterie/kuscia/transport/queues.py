"""Sessions and their queues: bounded, in memory as long as they fit and in files when they do not.

    push ──> session ──> queue (node, topic) ──> pop, peek
               │ more than `memory` bytes in all sessions: bodies go into the session's file
               └ ends with `release`, or when nobody used it for a while; for some time it is remembered that it was released

A session has at most `session` bytes that nobody took; who pushes more waits for room. All is done on one event loop; only large
files are written and read in threads.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from coterie.base.clock import Clock
from coterie.kuscia.transport.outbound import TransportCode, TransportRefused
from coterie.kuscia.transport.settings import QueueLimits

_IN_THREAD = 256 << 10
"""Bytes from which on a file is not worth blocking the loop."""


class QueueKey(NamedTuple):
    session: str
    node: str
    """Who sent what is in the queue."""
    topic: str


class _StoredBody(NamedTuple):
    offset: int
    size: int


class _Queue:
    __slots__ = ("bodies", "takers")

    def __init__(self) -> None:
        self.bodies: deque[bytes | _StoredBody] = deque()
        self.takers: deque[asyncio.Future[bytes]] = deque()


class _SessionFile:
    """Bodies that did not fit into memory. It has no name: it goes with the process, whatever happens."""

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - closed with the session
        self._end = 0
        self._kept = 0
        self._working = 0
        self._closed = False

    async def put(self, body: bytes) -> _StoredBody:
        place = _StoredBody(self._end, len(body))
        self._end += len(body)
        self._kept += 1
        with self._open() as handle:
            try:
                if len(body) < _IN_THREAD:
                    _write(handle, body, place.offset)
                else:
                    await asyncio.to_thread(_write, handle, body, place.offset)
            except OSError:
                self._kept -= 1
                raise
        return place

    async def take(self, place: _StoredBody) -> bytes:
        with self._open() as handle:
            if place.size < _IN_THREAD:
                body = _read(handle, place)
            else:
                body = await asyncio.to_thread(_read, handle, place)
            self.drop()
        return body

    def drop(self) -> None:
        self._kept -= 1
        if not self._kept and not self._closed:
            os.ftruncate(self._file.fileno(), 0)
            self._end = 0

    def close(self) -> None:
        self._closed = True
        if not self._working:
            self._file.close()

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Its descriptor, which stays open as long as a thread may use it."""
        self._working += 1
        try:
            yield self._file.fileno()
        finally:
            self._working -= 1
            if self._closed and not self._working:
                self._file.close()


def _write(handle: int, body: bytes, offset: int) -> None:
    view = memoryview(body)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written


def _read(handle: int, place: _StoredBody) -> bytes:
    parts, offset, left = [], place.offset, place.size
    while left:
        part = os.pread(handle, left, offset)
        if not part:
            raise OSError("the file of the session is shorter than what was written to it")
        parts.append(part)
        offset, left = offset + len(part), left - len(part)
    return b"".join(parts)


class _Session:
    def __init__(self, now: float) -> None:
        self.queues: dict[tuple[str, str], _Queue] = {}
        self.size = 0
        self.used = now
        self.callers = 0
        """Calls that wait in it: as long as there are any, it does not expire."""
        self.released = False
        self.file: _SessionFile | None = None

    def in_use(self, clock: Clock) -> _SessionUse:
        return _SessionUse(self, clock)


class _SessionUse:
    """`with`; made for each call, and a generator would cost three times as much."""

    __slots__ = ("_clock", "_session")

    def __init__(self, session: _Session, clock: Clock) -> None:
        self._session = session
        self._clock = clock

    def __enter__(self) -> None:
        self._session.callers += 1

    def __exit__(self, *_: object) -> None:
        self._session.callers -= 1
        self._session.used = self._clock.monotonic()


class MessageQueues:
    def __init__(self, limits: QueueLimits, clock: Clock, directory: Path) -> None:
        """`directory`: private, on a disk with room for what does not fit into memory."""
        self._limits = limits
        self._clock = clock
        self._directory = directory
        self._sessions: dict[str, _Session] = {}
        self._released: dict[str, float] = {}
        self._room = asyncio.Event()
        self.size = 0
        self.in_memory = 0

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def unused(self) -> bool:
        """Nothing would be lost with it: no session, and none that was released a while ago."""
        return not self._sessions and not self._released

    async def push(self, key: QueueKey, body: bytes, seconds: float) -> None:
        """Returns when the message is in its queue. TransportRefused when there is no room for so long."""
        if len(body) > self._limits.body:
            raise TransportRefused(
                TransportCode.TOO_LARGE, f"a message has at most {self._limits.body} bytes, this has {len(body)}"
            )
        session = self._session(key.session)
        with session.in_use(self._clock):
            await self._wait_for_room(session, len(body), seconds)
            queue = self._queue(session, key)
            if (taker := _next_taker(queue)) is not None:
                taker.set_result(body)
                return
            self._count(session, len(body))
            if self.in_memory + len(body) <= self._limits.memory:
                self.in_memory += len(body)
                queue.bodies.append(body)
                return
            await self._store(session, key, body)

    async def _store(self, session: _Session, key: QueueKey, body: bytes) -> None:
        try:
            if session.file is None:
                session.file = _SessionFile(self._directory)
            place = await session.file.put(body)
        except OSError as problem:
            self._count(session, -len(body))
            raise TransportRefused(
                TransportCode.BUFFER_FULL, f"the message could not be stored: {problem.strerror}; try again later"
            ) from problem
        if session.released:
            raise _was_released(key.session)
        queue = self._queue(session, key)
        queue.bodies.append(place)
        if (taker := _next_taker(queue)) is not None:  # it came while the file was written
            taken = await self._take(session, queue)
            if taken is not None:
                taker.set_result(taken)

    async def pop(self, key: QueueKey, seconds: float) -> bytes | None:
        """The oldest message; None when none comes for so long."""
        session = self._session(key.session)
        with session.in_use(self._clock):
            queue = self._queue(session, key)
            if (body := await self._take(session, queue)) is not None:
                return body
            taker: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            queue.takers.append(taker)
            alarm = asyncio.ensure_future(self._clock.sleep(seconds))
            try:
                await asyncio.wait((taker, alarm), return_when=asyncio.FIRST_COMPLETED)
                return taker.result() if taker.done() else None
            except asyncio.CancelledError:
                # Whoever waited is gone: what it was given at the same moment is for the next one.
                if taker.done() and not taker.cancelled() and taker.exception() is None:
                    self._put_back(session, queue, taker.result())
                raise
            finally:
                alarm.cancel()
                taker.cancel()
                if taker in queue.takers:
                    queue.takers.remove(taker)

    async def peek(self, key: QueueKey) -> bytes | None:
        """The oldest message, which is taken; None at once when there is none. That it is taken is what engines know."""
        session = self._session(key.session)
        with session.in_use(self._clock):
            return await self._take(session, self._queue(session, key))

    def release(self, session: str, node: str = "", topic: str = "") -> None:
        """Drops a topic, of one node or of all, or the whole session. Whoever waits in it is refused."""
        found = self._sessions.get(session)
        if topic:
            for known in list(found.queues) if found is not None else ():
                if known[1] == topic and node in ("", known[0]):
                    assert found is not None
                    self._drop_queue(session, found, known)
            return
        self._released[session] = self._clock.monotonic() + self._limits.remembered_seconds
        if found is not None:
            self._end(session, found)

    async def clean(self) -> None:
        """Ends sessions that nobody uses; runs until cancelled."""
        while True:
            await self._clock.sleep(self._limits.clean_seconds)
            self.expire()

    def expire(self) -> None:
        now = self._clock.monotonic()
        for name, session in list(self._sessions.items()):
            if not session.callers and now - session.used >= self._limits.idle_seconds:
                self._end(name, session)
        for name in [name for name, until in self._released.items() if until <= now]:
            del self._released[name]

    def close(self) -> None:
        for name, session in list(self._sessions.items()):
            self._end(name, session)

    # Sessions.

    def _session(self, name: str) -> _Session:
        now = self._clock.monotonic()
        if self._released.get(name, 0.0) > now:
            raise _was_released(name)
        session = self._sessions.get(name)
        if session is None:
            if len(self._sessions) >= self._limits.sessions:
                raise TransportRefused(TransportCode.BUFFER_FULL, f"there are {len(self._sessions)} sessions already")
            session = self._sessions[name] = _Session(now)
        session.used = now
        return session

    def _queue(self, session: _Session, key: QueueKey) -> _Queue:
        queue = session.queues.get((key.node, key.topic))
        if queue is None:
            if len(session.queues) >= self._limits.queues_of_session:
                raise TransportRefused(
                    TransportCode.BUFFER_FULL, f"session {key.session} has {len(session.queues)} topics already"
                )
            queue = session.queues[(key.node, key.topic)] = _Queue()
        return queue

    def _end(self, name: str, session: _Session) -> None:
        session.released = True
        for known in list(session.queues):
            self._drop_queue(name, session, known)
        if session.file is not None:
            session.file.close()
        del self._sessions[name]
        self._room.set()

    def _drop_queue(self, name: str, session: _Session, known: tuple[str, str]) -> None:
        queue = session.queues.pop(known)
        for body in queue.bodies:
            self._forget(session, body)
            if isinstance(body, _StoredBody) and session.file is not None:
                session.file.drop()
        for taker in queue.takers:
            if not taker.done():
                taker.set_exception(_was_released(name))
        self._room.set()

    # Bytes.

    async def _wait_for_room(self, session: _Session, size: int, seconds: float) -> None:
        end = self._clock.monotonic() + seconds
        while not session.released and not self._fits(session, size):
            if (left := end - self._clock.monotonic()) <= 0:
                raise TransportRefused(
                    TransportCode.BUFFER_FULL,
                    f"nobody took the {session.size} bytes of the session for {seconds:g} s; take them, or release it",
                )
            self._room.clear()
            waits = asyncio.ensure_future(self._room.wait()), asyncio.ensure_future(self._clock.sleep(left))
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()
        if session.released:
            raise TransportRefused(TransportCode.SESSION_RELEASED, "the session was released")

    def _fits(self, session: _Session, size: int) -> bool:
        # One message alone is always taken: a session may be smaller than what a message may have.
        alone = not session.size
        return (alone or session.size + size <= self._limits.session) and self.size + size <= self._limits.total

    def _count(self, session: _Session, size: int) -> None:
        session.size += size
        self.size += size

    def _forget(self, session: _Session, body: bytes | _StoredBody) -> None:
        size = body.size if isinstance(body, _StoredBody) else len(body)
        if not isinstance(body, _StoredBody):
            self.in_memory -= size
        self._count(session, -size)

    async def _take(self, session: _Session, queue: _Queue) -> bytes | None:
        if not queue.bodies:
            return None
        body = queue.bodies.popleft()
        self._forget(session, body)
        self._room.set()
        if isinstance(body, bytes):
            return body
        assert session.file is not None
        return await session.file.take(body)

    def _put_back(self, session: _Session, queue: _Queue, body: bytes) -> None:
        if session.released:
            return
        if (taker := _next_taker(queue)) is not None:
            taker.set_result(body)
            return
        self._count(session, len(body))
        self.in_memory += len(body)
        queue.bodies.appendleft(body)


def _next_taker(queue: _Queue) -> asyncio.Future[bytes] | None:
    while queue.takers:
        taker = queue.takers.popleft()
        if not taker.done():
            return taker
    return None


def _was_released(session: str) -> TransportRefused:
    return TransportRefused(TransportCode.SESSION_RELEASED, f"session {session} was released")
